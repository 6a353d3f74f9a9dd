"""The loop: batches of a text, losses, gradients clipped by their global norm, steps; and a digest of the weights."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokitai.errors import ArgumentError, DeviceMissingError, UnknownNameError
from tokitai.torch.optim import AdamW, clip_grad_norm_

from .model import Mixture, Shape

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BYTES = 256
SMALL = Shape(vocabulary=BYTES, features=64, layers=2, heads=4, key_heads=2, experts=4, hidden=64)
MOST_NORM = 1.0


@dataclass(frozen=True)
class Training:
    """What a run is. ``loss_scale`` keeps small gradients within f16."""

    steps: int = 50
    batch: int = 4
    length: int = 64
    lr: float = 3e-3
    dtype: str = "bf16"
    device: str = "cpu"
    seed: int = 0
    shape: Shape = SMALL

    @property
    def loss_scale(self) -> float:
        return 1024.0 if self.dtype == "f16" else 1.0


@dataclass(frozen=True)
class Report:
    """The loss of each step, in nats a token; the SHA-256 of all weights after the last."""

    losses: tuple[float, ...]
    digest: str


def device_of(name: str) -> torch.device:
    """Raises UnknownNameError for a name that is none, DeviceMissingError for a card that is not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UnknownNameError("device", name, ["cpu", "cuda", "cuda:N"]) from None
    if device.type not in ("cpu", "cuda"):
        raise UnknownNameError("device", name, ["cpu", "cuda", "cuda:N"])
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceMissingError(f"{name}: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def batches(text: bytes, run: Training) -> Callable[[], Tensor]:
    """A function that gives (batch, length + 1) tokens, at places that a generator of the host draws."""
    if len(text) <= run.length:
        raise ArgumentError(f"a text of {len(text)} bytes; accepted: more than {run.length}")
    all_tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)
    generator = torch.Generator().manual_seed(run.seed)

    def next_batch() -> Tensor:
        begin = torch.randint(0, len(text) - run.length, (run.batch, 1), generator=generator)
        return all_tokens[begin + torch.arange(run.length + 1)]

    return next_batch


def digest_of(model: torch.nn.Module) -> str:
    """The SHA-256 of all weights, in the order of their names."""
    total = hashlib.sha256()
    for name, p in sorted(model.named_parameters()):
        total.update(name.encode())
        total.update(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def record(text: bytes, run: Training, report: Report) -> dict[str, Any]:
    """A run and what came of it, by which it can be repeated elsewhere. Losses are exact, in hex."""
    where = torch.cuda.get_device_name(run.device) if run.device != "cpu" else "cpu"
    return {
        "text": hashlib.sha256(text).hexdigest(), "run": dataclasses.asdict(run), "device": where,
        "torch": torch.__version__, "losses": [x.hex() for x in report.losses], "weights": report.digest,
    }  # fmt: skip


def train(text: bytes, run: Training, say: Callable[[str], None] = lambda _: None) -> Report:
    """Train a model on a text. Raises ArgumentError for a text that is too short or a number of steps below 1."""
    if run.steps < 1:
        raise ArgumentError(f"steps={run.steps}; accepted: 1 or more")
    device = device_of(run.device)
    model = Mixture(run.shape, DTYPES[run.dtype], device, run.seed)
    optimizer = AdamW(model.parameters(), lr=run.lr, betas=(0.9, 0.95), weight_decay=0.1)
    next_batch, losses = batches(text, run), []
    for step in range(1, run.steps + 1):
        total, loss = model.loss(next_batch().to(device))
        (total * run.loss_scale).backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(model.parameters(), MOST_NORM * run.loss_scale)
        optimizer.step(loss_scale=run.loss_scale)
        optimizer.zero_grad()
        losses.append(loss)
        if step == 1 or step % 10 == 0 or step == run.steps:
            say(f"step {step}: loss {loss.item():.4f}, norm of the gradient {norm.item() / run.loss_scale:.3f}")
    return Report(tuple(x.item() for x in losses), digest_of(model))
