"""SiLU, and the gated units made of it and of GELU. Element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import gelu as gelu_of
from ..elementary import gelu_slope, silu_slope
from ..elementary import silu as silu_of
from ..lang import Contract, HardInput, Matrix, Outputs, operator, outputs, storage
from .gelu import textbook as textbook_gelu
from .gelu import textbook_backward as textbook_gelu_backward

CONTRACT = Contract(domain="all values; in the limit of -inf a gate is -0")


@operator(contract=CONTRACT)
def silu(x: Matrix[storage]) -> Outputs:
    """y = x sigmoid(x)."""
    return outputs(y=silu_of(x))


@operator(contract=CONTRACT, backward_of=silu)
def silu_backward(dy: Matrix[storage], x: Matrix[storage]) -> Outputs:
    """dx = dy (s + x s (1 - s)) with s = sigmoid(x)."""
    return outputs(dx=dy * silu_slope(x))


@operator(contract=CONTRACT)
def swiglu(gate: Matrix[storage], up: Matrix[storage]) -> Outputs:
    """y = silu(gate) up."""
    return outputs(y=silu_of(gate) * up)


@operator(contract=CONTRACT, backward_of=swiglu)
def swiglu_backward(dy: Matrix[storage], gate: Matrix[storage], up: Matrix[storage]) -> Outputs:
    """Both gradients in one pass over three tensors."""
    return outputs(dgate=dy * up * silu_slope(gate), dup=dy * silu_of(gate))


@operator(contract=CONTRACT)
def geglu(gate: Matrix[storage], up: Matrix[storage]) -> Outputs:
    """y = gelu(gate) up, with the exact GELU."""
    return outputs(y=gelu_of(gate) * up)


@operator(contract=CONTRACT, backward_of=geglu)
def geglu_backward(dy: Matrix[storage], gate: Matrix[storage], up: Matrix[storage]) -> Outputs:
    """Both gradients in one pass over three tensors."""
    return outputs(dgate=dy * up * gelu_slope(gate), dup=dy * gelu_of(gate))


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


@silu.set_textbook
def textbook_silu(x: Any) -> dict[str, Any]:
    """Elfwing, Uchibe and Doya (2017)."""
    return dict(y=np.where(np.isneginf(x), -0.0, x * _sigmoid(x)))


@silu_backward.set_textbook
def textbook_silu_backward(dy: Any, x: Any) -> dict[str, Any]:
    """The product rule, with 1 - sigmoid(x) = sigmoid(-x)."""
    return dict(dx=dy * (_sigmoid(x) + np.where(np.isinf(x), 0.0, x * _sigmoid(x) * _sigmoid(-x))))


@swiglu.set_textbook
def textbook_swiglu(gate: Any, up: Any) -> dict[str, Any]:
    """Shazeer, "GLU Variants Improve Transformer" (2020), equation 6."""
    return dict(y=textbook_silu(gate)["y"] * up)


@swiglu_backward.set_textbook
def textbook_swiglu_backward(dy: Any, gate: Any, up: Any) -> dict[str, Any]:
    """The product rule."""
    return dict(dgate=textbook_silu_backward(dy * up, gate)["dx"], dup=dy * textbook_silu(gate)["y"])


@geglu.set_textbook
def textbook_geglu(gate: Any, up: Any) -> dict[str, Any]:
    """Shazeer (2020), equation 6."""
    return dict(y=textbook_gelu(gate)["y"] * up)


@geglu_backward.set_textbook
def textbook_geglu_backward(dy: Any, gate: Any, up: Any) -> dict[str, Any]:
    """The product rule."""
    return dict(dgate=textbook_gelu_backward(dy * up, gate)["dx"], dup=dy * textbook_gelu(gate)["y"])


def _values() -> Iterator[tuple[str, list[list[float]]]]:
    yield "around zero", [[0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-126, -(2.0**-140)]]
    yield "tails", [[-3.0, -8.0, -17.0, -30.0, -88.0, -104.0, 5.0, 20.0, 100.0]]
    yield "infinity and NaN", [[np.inf, -np.inf, np.nan, 1.0, 3e4, -3e4]]


@silu.set_hard_inputs
def hard_silu() -> Iterator[HardInput]:
    """Tails where the gate underflows, zeros of both signs, infinities."""
    for name, x in _values():
        yield HardInput(name, dict(x=x))


@swiglu.set_hard_inputs
def hard_gated() -> Iterator[HardInput]:
    """The same at the gate, beside large and zero values."""
    for name, gate in _values():
        yield HardInput(name, dict(gate=gate))
        yield HardInput(f"{name}, up = 0", dict(gate=gate, up=np.zeros((1, len(gate[0])))))
    yield HardInput("a product that overflows f16", dict(gate=[[300.0, -300.0]], up=[[300.0, 300.0]]), in_domain=False)


silu_backward.set_hard_inputs(hard_silu)
for _op in (swiglu_backward, geglu, geglu_backward):
    _op.set_hard_inputs(hard_gated)
