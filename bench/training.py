"""``python -m bench.training``: a mixture of experts of 0.7 billion weights, trained on an NVIDIA card in bf16, beside
the same model in plain torch.

Ours has sums of products in f32 in the defined order, on the card's f32 units, and an f32 copy of the weights; torch's
has matrix units, its fused attention, norms, products of groups and optimizer, and no such copy. Both begin with the
same weights and see the same tokens: pairs of ASCII characters of a text. Ours is trained twice, and must end with the
same bits. Figures are added to bench/results/training.jsonl, or to --out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.plain_mixture import Plain
from examples.mixture.model import Mixture, Shape
from examples.mixture.training import digest_of
from tokitai.torch.optim import AdamW, clip_grad_norm_

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "training.jsonl"
ASCII = 128
LARGE = Shape(
    vocabulary=2 * ASCII**2, features=1024, layers=12, heads=16, key_heads=4, experts=16, hidden=1024
)  # fmt: skip
BATCH, LENGTH = 8, 1024
WORDS: dict[str, Any] = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
WARM = 3  # steps before those that are timed


def batches(steps: int, device: str, seed: int = 0) -> list[Tensor]:
    """Tokens of (BATCH, LENGTH + 1) for each step."""
    text = (ROOT / "LICENSE").read_bytes()
    plain = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(steps):
        begin = torch.randint(0, len(text) - 2 * LENGTH - 2, (BATCH, 1), generator=generator)
        pairs = plain[begin + torch.arange(2 * LENGTH + 2)].view(BATCH, LENGTH + 1, 2)
        made.append((pairs[..., 0] * ASCII + pairs[..., 1]).to(device))
    return made


# ------------------------------------------------------------------ runs
def trained(
    loss_of: Callable[[Tensor], tuple[Tensor, Tensor]], parameters: list[Any], optimizer: Any,
    clip: Callable[[list[Any], float], Any], tokens: list[Tensor],
) -> dict[str, Any]:  # fmt: skip
    """Milliseconds of a step, the losses, and the most memory at a time."""
    torch.cuda.reset_peak_memory_stats()
    seconds, losses = [], []
    for batch in tokens:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        total, loss = loss_of(batch)
        total.backward()  # type: ignore[no-untyped-call]
        clip(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    step = statistics.median(seconds[WARM:])
    return {
        "milliseconds": round(step * 1e3, 2), "tokens_per_second": round(BATCH * LENGTH / step),
        "losses": [round(x, 4) for x in losses], "gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 2),
    }  # fmt: skip


def ours(tokens: list[Tensor]) -> dict[str, Any]:
    model = Mixture(LARGE, torch.bfloat16, "cuda")
    parameters = list(model.parameters())
    found = trained(model.loss, parameters, AdamW(parameters, **WORDS), clip_grad_norm_, tokens)
    return {**found, "weights": sum(p.numel() for p in parameters), "digest": digest_of(model)}


def theirs(tokens: list[Tensor]) -> dict[str, Any]:
    model = Plain(dict(Mixture(LARGE, torch.bfloat16, "cuda").named_parameters()), LARGE, LENGTH)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True, **WORDS)
    return trained(model, parameters, optimizer, torch.nn.utils.clip_grad_norm_, tokens)


def main() -> None:
    """Train, print and add one JSON object."""
    parser = argparse.ArgumentParser(description="training beside torch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    tokens = batches(a.steps, "cuda")
    first = ours(tokens)
    again = ours(tokens)
    peer = theirs(tokens)
    if first["digest"] != again["digest"]:
        raise SystemExit(f"two runs ended with other weights: {first['digest']}, {again['digest']}")
    if not math.isclose(first["losses"][0], peer["losses"][0], rel_tol=2**-7):  # one unit of bf16
        raise SystemExit(f"not the same model: the first loss is {first['losses'][0]} here, {peer['losses'][0]} there")
    record = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"), "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "tokens_a_step": BATCH * LENGTH, "tokitai": first, "plain torch": peer,
        "ratio": round(peer["milliseconds"] / first["milliseconds"], 3),
    }  # fmt: skip
    print(json.dumps(record))
    with a.out.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
