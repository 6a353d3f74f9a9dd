"""Scaling and clipping, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import Contract, HardInput, Matrix, Outputs, maximum, minimum, operator, outputs, storage, where

SCALE = Contract(defaults={"factor": 0.37})
CLIP = Contract(
    defaults={"low": -1.5, "high": 1.25},
    ranges={"low": (-math.inf, math.inf), "high": (-math.inf, math.inf)},  # any number, but not NaN
)


@operator(contract=SCALE)
def scale(x: Matrix[storage], *, factor: float) -> Outputs:
    """y = factor x, with the factor rounded once to f32."""
    return outputs(y=x * factor)


@operator(contract=SCALE, backward_of=scale)
def scale_backward(dy: Matrix[storage], *, factor: float) -> Outputs:
    """dx = factor dy."""
    return outputs(dx=dy * factor)


@operator(contract=CLIP)
def clip(x: Matrix[storage], *, low: float, high: float) -> Outputs:
    """y = min(max(x, low), high); NaN stays NaN."""
    return outputs(y=minimum(maximum(x, low), high))


@operator(contract=CLIP, backward_of=clip)
def clip_backward(dy: Matrix[storage], x: Matrix[storage], *, low: float, high: float) -> Outputs:
    """dx = dy where low <= x <= high, else 0."""
    inside = (x >= low) & (x <= high)
    return outputs(dx=where(inside, dy, 0))


@scale.set_textbook
def textbook(x: Any, *, factor: float) -> dict[str, Any]:
    """A product."""
    return dict(y=x * factor)


@scale_backward.set_textbook
def textbook_backward(dy: Any, *, factor: float) -> dict[str, Any]:
    """The derivative of a product."""
    return dict(dx=dy * factor)


@clip.set_textbook
def textbook_clip(x: Any, *, low: float, high: float) -> dict[str, Any]:
    """The nearest value between the limits."""
    return dict(y=np.clip(x, low, high))


@clip_backward.set_textbook
def textbook_clip_backward(dy: Any, x: Any, *, low: float, high: float) -> dict[str, Any]:
    """One inside the limits, zero outside."""
    return dict(dx=np.where((x >= low) & (x <= high), dy, 0))


def _hard(*names: str) -> Iterator[HardInput]:
    yield HardInput(
        "zeros, limits, infinity, NaN", {n: [[0.0, -0.0, -1.5, 1.25, np.inf, -np.inf, np.nan]] for n in names}
    )
    yield HardInput("subnormal", {n: [[2.0**-24, -(2.0**-24), 2.0**-133]] for n in names})


scale.set_hard_inputs(lambda: _hard("x"))
scale_backward.set_hard_inputs(lambda: _hard("dy"))
clip.set_hard_inputs(lambda: _hard("x"))
clip_backward.set_hard_inputs(lambda: _hard("dy", "x"))
