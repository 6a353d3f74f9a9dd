"""How much arithmetic a step is, and what part of a device's peak a speed is."""

from __future__ import annotations

from .model import Shape

PEAKS = {  # operations a second of the tensor cores on dense operands of 16 bits, as NVIDIA gives them
    "NVIDIA H200": 989.4e12, "NVIDIA H100 80GB HBM3": 989.4e12, "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
}  # fmt: skip


def flops(shape: Shape, batch: int, length: int) -> float:
    """Operations of the products of a step, forward and backward: a multiplication and an addition count as two, each
    token meets its chosen experts, and the tokens up to its own."""
    heads, keys = shape.heads * shape.dim, shape.key_heads * shape.dim
    layer = (
        shape.features * (heads + 2 * keys)
        + heads * shape.features
        + 2 * heads * (length + 1) / 2
        + shape.features * shape.experts
        + shape.chosen * 3 * shape.hidden * shape.features
    )
    return 2 * 3 * batch * length * (shape.layers * layer + shape.features * shape.vocabulary)


def utilisation(rate: float, device: str) -> float | None:
    """The part of a device's peak in 16 bits, or None where its name is not among `PEAKS`."""
    return rate / PEAKS[device] if device in PEAKS else None
