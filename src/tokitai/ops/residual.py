"""A residual connection followed by a norm, in one pass: h = x + residual is stored, and its norm.

The sum is rounded to the storage format before it is normalised, so the result has exactly the bits of an addition
followed by `layer_norm` or `rms_norm`, and the backward pass sees the h that was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..lang import Cols, Gradient, HardInput, Matrix, Outputs, Rows, f32, operator, outputs, round_to, storage
from . import layernorm, rmsnorm

LAYER, RMS = layernorm.CONTRACT, rmsnorm.CONTRACT
# What the norm's backward pass takes is what the norm saves for h.
LAYER_BACK = replace(LAYER, forward=(layernorm.layer_norm, {"x": "h"}))
RMS_BACK = replace(RMS, forward=(rmsnorm.rms_norm, {"x": "h"}))


@operator(contract=LAYER, gradient=Gradient(same={"residual": "x"}, autocast="f32"))
def add_layer_norm(
    x: Matrix[storage], residual: Matrix[storage], gamma: Cols[storage] | None, beta: Cols[storage] | None,
    *, eps: float = 1e-5,
) -> Outputs:  # fmt: skip
    """h = x + residual; y = layer_norm(h)."""
    h = round_to(x + residual, storage)
    return outputs(h=h, **layernorm.layer_norm.definition(h, gamma, beta, eps=eps))


@operator(contract=LAYER_BACK, backward_of=add_layer_norm)
def add_layer_norm_backward(
    dy: Matrix[storage], dh: Matrix[storage] | None, h: Matrix[storage], gamma: Cols[storage] | None,
    mean: Rows[f32], rstd: Rows[f32],
) -> Outputs:  # fmt: skip
    """dx = dh + the norm's gradient; the residual's gradient is the same tensor."""
    results = layernorm.layer_norm_backward.definition(dy, h, gamma, mean, rstd)
    dx = results.pop("dx")
    return outputs(dx=dx if dh is None else dx + dh, **results)


@operator(contract=RMS, gradient=Gradient(same={"residual": "x"}, autocast="f32"))
def add_rms_norm(
    x: Matrix[storage], residual: Matrix[storage], gamma: Cols[storage] | None, *, eps: float = 1e-6
) -> Outputs:
    """h = x + residual; y = rms_norm(h)."""
    h = round_to(x + residual, storage)
    return outputs(h=h, **rmsnorm.rms_norm.definition(h, gamma, eps=eps))


@operator(contract=RMS_BACK, backward_of=add_rms_norm)
def add_rms_norm_backward(
    dy: Matrix[storage], dh: Matrix[storage] | None, h: Matrix[storage], gamma: Cols[storage] | None, rstd: Rows[f32]
) -> Outputs:
    """dx = dh + the norm's gradient; the residual's gradient is the same tensor."""
    results = rmsnorm.rms_norm_backward.definition(dy, h, gamma, rstd)
    dx = results.pop("dx")
    return outputs(dx=dx if dh is None else dx + dh, **results)


@add_layer_norm.set_textbook
def textbook_layer(
    x: Any, residual: Any, gamma: Any = 1.0, beta: Any = 0.0, *, eps: float, rounded: Any
) -> dict[str, Any]:
    """The norm of the stored sum."""
    h = rounded(x + residual)
    return dict(h=x + residual, **layernorm.textbook(h, gamma, beta, eps=eps))


@add_layer_norm_backward.set_textbook
def textbook_layer_backward(dy: Any, h: Any, mean: Any, rstd: Any, dh: Any = 0.0, gamma: Any = 1.0) -> dict[str, Any]:
    """Gradients of both uses of h add up."""
    results = layernorm.textbook_backward(dy, h, mean, rstd, gamma)
    return {**results, "dx": results["dx"] + dh}


@add_rms_norm.set_textbook
def textbook_rms(x: Any, residual: Any, gamma: Any = 1.0, *, eps: float, rounded: Any) -> dict[str, Any]:
    """The norm of the stored sum."""
    h = rounded(x + residual)
    return dict(h=x + residual, **rmsnorm.textbook(h, gamma, eps=eps))


@add_rms_norm_backward.set_textbook
def textbook_rms_backward(dy: Any, h: Any, rstd: Any, dh: Any = 0.0, gamma: Any = 1.0) -> dict[str, Any]:
    """Gradients of both uses of h add up."""
    results = rmsnorm.textbook_backward(dy, h, rstd, gamma)
    return {**results, "dx": results["dx"] + dh}


def _hard() -> Iterator[HardInput]:
    steps = np.arange(16) * float.fromhex("0x1.0p-10")
    yield HardInput("they cancel", dict(x=[[1.0, 2.0, 3.0]], residual=[[-1.0, -2.0, -3.0]]))
    yield HardInput("a sum that is rounded", dict(x=[[2048.0, 256.0, 1.0]], residual=[[1.0, 1.0, 2.0**-12]]))
    yield HardInput("a large residual", dict(x=steps[None, :], residual=np.full((1, 16), 1000.0)))
    yield HardInput("infinity and NaN", dict(x=[[1.0, np.inf], [1.0, 2.0]], residual=[[1.0, -np.inf], [np.nan, 0.0]]))


def _hard_backward() -> Iterator[HardInput]:
    yield HardInput("dy = 0: dh passes", dict(dy=np.zeros((2, 5)), dh=np.arange(10.0).reshape(2, 5)))
    yield HardInput("a thousand ones", dict(dy=np.ones((1000, 4)), dh=np.ones((1000, 4)), h=np.ones((1000, 4))))
    yield HardInput("infinity and NaN", dict(dy=[[1.0, np.inf], [1.0, 2.0]], dh=[[1.0, 1.0], [np.nan, 0.0]]))


def _hard_layer_backward() -> Iterator[HardInput]:
    yield from _hard_backward()
    for name, h in layernorm.far_from_zero():
        dy = np.cos(np.arange(h.size)).reshape(h.shape)
        yield HardInput(f"{name}, {h.shape[1]} columns", dict(dy=dy, dh=np.zeros(h.shape), h=h))


def _hard_rms_backward() -> Iterator[HardInput]:
    yield from _hard_backward()
    for name, h in rmsnorm.whole_rows():
        dy = np.cos(np.arange(h.size)).reshape(h.shape)
        yield HardInput(f"{name}, rstd of the forward pass", dict(dy=dy, dh=np.zeros(h.shape), h=h), saved=("rstd",))


for _op in (add_layer_norm, add_rms_norm):
    _op.set_hard_inputs(_hard)
add_layer_norm_backward.set_hard_inputs(_hard_layer_backward)
add_rms_norm_backward.set_hard_inputs(_hard_rms_backward)
