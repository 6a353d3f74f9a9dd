"""``python -m bench.steps_cpu [--page]``: a training step of small models on the CPU, beside the same models in plain
PyTorch.

A GPT, a vision transformer and a mixer of modules of `torch.nn`: as they are, with PyTorch's attention and AdamW; and
after `tokitai.torch.replace`, with `functional.scaled_dot_product_attention` and `tokitai.torch.optim.AdamW`. Both
begin with the same weights, see the same batch, and take turns in one process, with as many threads as PyTorch has
(OMP_NUM_THREADS). A step is a forward pass, a backward pass and the optimizer's. Its time is the least of several, by
the clock, and as time of all threads together, which other programs on the machine change less. Figures are added to
bench/results/steps_cpu.jsonl, or to --out; --page writes the newest of each model as a table.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as torchs

from bench.clocks import least
from bench.judge_third_party import device_name
from tokitai.errors import ArgumentError
from tokitai.torch import functional, replace
from tokitai.torch.optim import AdamW

RESULTS = Path(__file__).parent / "results" / "steps_cpu.jsonl"
WIDTH, HEADS, LAYERS, BATCH, CLASSES = 128, 4, 4, 8, 10
TOKENS, VOCABULARY = 64, 512  # of the GPT
PATCHES, PIXELS = 16, 48  # of an image, and numbers in a patch
FORMATS = {"f32": torch.float32, "bf16": torch.bfloat16}
WARM = 8  # steps after which kernels are built and calls are recorded
SAME = 2**-5  # relative difference of first losses, four units of bf16: products are summed in other orders
Attend = Callable[..., Tensor]


class Attention(nn.Module):
    """Attention of several heads, by the function ``attend``."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.attend: Attend = torchs.scaled_dot_product_attention
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, features) -> the same."""
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y: Tensor = self.out(self.attend(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(x.shape))
        return y


class Block(nn.Module):
    """x + mixed(norm(x)), then x + MLP(norm(x)). ``mix`` works on (batch, tokens, features)."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix, self.first, self.second = mix, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, features) -> the same."""
        x = x + self.mix(self.first(x))
        y: Tensor = x + self.mlp(self.second(x))
        return y


class Tokens(nn.Module):
    """An MLP over the tokens of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(PATCHES, 4 * PATCHES), nn.GELU(), nn.Linear(4 * PATCHES, PATCHES))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, features) -> the same."""
        y: Tensor = self.mlp(x.transpose(1, 2)).transpose(1, 2)
        return y


class Model(nn.Module):
    """Blocks between a first layer and a classifier: of each token, or of the mean over tokens."""

    def __init__(self, first: nn.Module, mix: Callable[[], nn.Module], length: int, classes: int, pool: bool) -> None:
        super().__init__()
        self.first, self.pool, self.positions = first, pool, nn.Parameter(torch.randn(length, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(mix()) for _ in range(LAYERS)))
        self.norm, self.head, self.loss = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes), nn.CrossEntropyLoss()

    def forward(self, given: Tensor, target: Tensor) -> Tensor:
        """The mean cross-entropy."""
        x = self.norm(self.blocks(self.first(given) + self.positions))
        y: Tensor = self.loss(self.head(x.mean(1) if self.pool else x).flatten(0, -2), target.flatten())
        return y


def gpt(dtype: torch.dtype) -> tuple[Model, Tensor, Tensor]:
    """The model and a batch."""
    model = Model(nn.Embedding(VOCABULARY, WIDTH), lambda: Attention(True), TOKENS, VOCABULARY, False)
    ids = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1))
    return model.to(dtype), ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def vision(dtype: torch.dtype, mix: Callable[[], nn.Module] = lambda: Attention(False)) -> tuple[Model, Tensor, Tensor]:
    """The same of a vision transformer, or of a mixer."""
    model = Model(nn.Linear(PIXELS, WIDTH), mix, PATCHES, CLASSES, True)
    return model.to(dtype), torch.randn(BATCH, PATCHES, PIXELS).to(dtype), torch.randint(0, CLASSES, (BATCH,))


MODELS: dict[str, Callable[[torch.dtype], tuple[Model, Tensor, Tensor]]] = {
    "GPT": gpt, "vision transformer": vision, "mixer": lambda dtype: vision(dtype, Tokens)
}  # fmt: skip


def steps(name: str, dtype: torch.dtype) -> dict[str, Callable[[], float]]:
    """A step of each, which returns the loss."""
    torch.manual_seed(0)
    plain, given, target = MODELS[name](dtype)
    ours = copy.deepcopy(plain)
    replace(ours)
    for module in ours.modules():
        if isinstance(module, Attention):
            module.attend = functional.scaled_dot_product_attention

    def step(model: Model, optimizer: Any) -> Callable[[], float]:
        def run() -> float:
            loss = model(given, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return float(loss.item())

        return run

    return {
        "tokitai": step(ours, AdamW(ours.parameters())),
        "torch": step(plain, torch.optim.AdamW(plain.parameters())),
    }


def measured(name: str, dtype: str, repeats: int) -> dict[str, Any]:
    """A record. Raises ArgumentError where the first losses are not those of one model."""
    run = steps(name, FORMATS[dtype])
    first = {who: step() for who, step in run.items()}
    if not math.isclose(*first.values(), rel_tol=SAME):
        raise ArgumentError(f"{name}, {dtype}: first losses {first}; accepted: the same but for rounding")
    for _ in range(WARM):
        for step in run.values():
            step()
    best = least(run, repeats)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device_name("cpu"),
        "torch": torch.__version__, "threads": torch.get_num_threads(), "load": os.getloadavg()[0], "model": name,
        "dtype": dtype, "ms": {clock: {who: round(1e3 * s, 3) for who, s in t.items()} for clock, t in best.items()},
    }  # fmt: skip


def page(records: list[dict[str, Any]]) -> str:
    """The newest record of each model and format as a table."""
    newest = {(r["model"], r["dtype"]): r for r in records}
    low, high = (f(r["load"] for r in newest.values()) for f in (min, max))
    last = records[-1]
    head = (
        "# A training step of small models on the CPU\n\n"
        f"{last['device']}, {last['threads']} threads, PyTorch {last['torch']}; {last['date'][:10]}.\n\n"
        "Written by `python -m bench.steps_cpu --page`. Milliseconds of a step, the least of several in turns in one\n"
        "process, by the clock and as time of all threads together; a ratio is tokitai's time over PyTorch's. Other\n"
        f"programs shared the machine: its load was {low:.0f} to {high:.0f}.\n\n"
        "| model | format | tokitai | PyTorch | ratio | tokitai, all threads | PyTorch, all threads | ratio |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|\n"
    )
    rows = []
    for (model, dtype), r in newest.items():
        both = [(t["tokitai"], t["torch"]) for t in (r["ms"]["wall"], r["ms"]["cpu"])]
        rows.append(
            f"| {model} | {dtype} | " + " | ".join(f"{a:.2f} | {b:.2f} | {a / b:.2f}" for a, b in both) + " |\n"
        )
    return head + "".join(rows)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps_cpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--page", action="store_true", help="write the table of what was recorded, and run nothing")
    asked = parser.parse_args()
    if asked.page:
        RESULTS.with_suffix(".md").write_text(page([json.loads(line) for line in asked.out.open()]))
        return
    for name in MODELS:
        for dtype in FORMATS:
            record = measured(name, dtype, asked.repeats)
            print(json.dumps(record), flush=True)
            with asked.out.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
