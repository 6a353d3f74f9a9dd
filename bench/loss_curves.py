"""``python -m bench.loss_curves``: losses of 300 steps of the small mixture of `examples.mixture` on the CPU, stored in
bf16: by accumulators of products, and in plain PyTorch.

PyTorch computes on bf16 copies of f32 weights, as ours does. For each seed all begin with the same weights and see the
same text; seeds differ in both. Losses are added to bench/results/loss_curves.jsonl, or to --out, run by run; --page
draws them to docs/how-to/loss-curves.svg and prints the table of that page.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call

from bench.plain_mixture import Plain
from examples.mixture.model import Mixture
from examples.mixture.picture import curves
from examples.mixture.training import DTYPES, MOST_NORM, Batches, Training, train
from tokitai.errors import ArgumentError, TokitaiError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "loss_curves.jsonl"
PICTURE = ROOT / "docs" / "how-to" / "loss-curves.svg"
PLAIN = "PyTorch"
LAST = 50  # steps whose mean is compared


def plain(text: bytes, run: Training) -> list[float]:
    """The losses of a run in plain PyTorch."""
    begin = dict(Mixture(run.shape, DTYPES[run.dtype], "cpu", run.seed).named_parameters())
    model = Plain({n: p.detach() for n, p in begin.items()}, run.shape, run.length)
    weights = {n: p.detach().float().requires_grad_() for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(weights.values(), lr=run.lr, betas=(0.9, 0.95), weight_decay=0.1)
    batch, losses = Batches(text, run), []
    for _ in range(run.steps):
        total, loss = functional_call(model, {n: w.to(DTYPES[run.dtype]) for n, w in weights.items()}, (batch(),))
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(weights.values(), MOST_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_of(name: str, text: bytes, run: Training) -> list[float]:
    """Of a run by its name: PyTorch, or an accumulator."""
    if name == PLAIN:
        return plain(text, run)
    return list(train(text, dataclasses.replace(run, accumulator=name)).losses)


def by_name(records: Sequence[dict[str, Any]]) -> dict[str, dict[int, list[float]]]:
    """The losses of each seed."""
    found: dict[str, dict[int, list[float]]] = {}
    for r in records:
        found.setdefault(r["name"], {})[r["seed"]] = r["losses"]
    return found


def table(records: Sequence[dict[str, Any]]) -> str:
    """Of each name the mean of the last losses over seeds, how far seeds lie apart, and how far the runs lie from
    PyTorch's of the same seeds."""
    runs = by_name(records)
    last = {name: {s: statistics.fmean(x[-LAST:]) for s, x in of.items()} for name, of in runs.items()}
    lines = ["| products | loss | between seeds | from PyTorch's of the same seed |", "|---|--:|--:|--:|"]
    for name, means in last.items():
        apart = [abs(m - last[PLAIN][s]) for s, m in means.items()]
        between = statistics.stdev(means.values()) if len(means) > 1 else 0.0
        far = "" if name == PLAIN else f"{statistics.fmean(apart):.3f}"
        lines.append(f"| {name} | {statistics.fmean(means.values()):.3f} | {between:.3f} | {far} |")
    return "\n".join(lines) + "\n"


def draw(records: Sequence[dict[str, Any]], path: Path) -> None:
    """The picture."""
    runs = by_name(records)
    curves(path, {n: [*of.values()] for n, of in runs.items()}, "a small mixture of experts in bf16, on the CPU")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.loss_curves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--names", default=f"{PLAIN},f32,fused16,fixed16", help="which runs, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="draw what was recorded, and run nothing")
    a = parser.parse_args(arguments)
    try:
        if not a.page:
            text = (ROOT / "LICENSE").read_bytes()
            for name in a.names.split(","):
                for seed in range(a.seeds):
                    losses = losses_of(name, text, Training(steps=a.steps, seed=seed))
                    rounded = [round(x, 4) for x in losses]
                    line = {"name": name, "seed": seed, "torch": torch.__version__, "losses": rounded}
                    with a.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            return 0
        if not a.out.is_file():
            raise ArgumentError(f"--out {a.out}: no such file; accepted: one that a run was recorded in")
        records = [json.loads(line) for line in a.out.read_text().splitlines()]
        draw(records, PICTURE if a.out == RESULTS else a.out.with_suffix(".svg"))
        print(table(records), end="")
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
