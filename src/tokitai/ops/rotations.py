"""Rotary positions: pairs of columns turned by an angle that grows with the position.

A head's first and second half are two tensors, usually views with a row stride: x[:, :half] and x[:, half:]. The angle
is position times frequency, rounded once to f32; its sine and cosine are right to 2 ulp for angles up to 2**20.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import cos, sin
from ..lang import (
    Cols,
    Contract,
    Gradient,
    HardInput,
    Matrix,
    Outputs,
    Rows,
    Value,
    convert,
    f32,
    fma,
    i32,
    operator,
    outputs,
    storage,
)

CONTRACT = Contract(
    domain="angles up to 2**20 in magnitude; beyond, NaN",
    draw={"position": "below 32768", "frequency": "unit"},
)


def _turn(a: Value, b: Value, c: Value, s: Value) -> tuple[Value, Value]:
    """(a c - b s, a s + b c), each with two roundings."""
    return fma(a, c, -(b * s)), fma(a, s, b * c)


def _angle(position: Value, frequency: Value) -> Value:
    return convert(position, f32) * frequency


@operator(contract=CONTRACT, gradient=Gradient(constant=("frequency",)))
def rotary(x1: Matrix[storage], x2: Matrix[storage], position: Rows[i32], frequency: Cols[f32]) -> Outputs:
    """(y1, y2) = (x1 cos - x2 sin, x1 sin + x2 cos) of the angle position * frequency."""
    angle = _angle(position, frequency)
    y1, y2 = _turn(x1, x2, cos(angle), sin(angle))
    return outputs(y1=y1, y2=y2)


@operator(contract=CONTRACT, backward_of=rotary)
def rotary_backward(dy1: Matrix[storage], dy2: Matrix[storage], position: Rows[i32], frequency: Cols[f32]) -> Outputs:
    """The gradient is turned back by the same angle."""
    angle = _angle(position, frequency)
    dx1, dx2 = _turn(dy1, dy2, cos(angle), -sin(angle))
    return outputs(dx1=dx1, dx2=dx2)


# ------------------------------------------------------------------ by cosines and sines that are given
@operator(gradient=Gradient(constant=("cos", "sin")))
def rotate_pairs(x1: Matrix[storage], x2: Matrix[storage], cos: Matrix[f32], sin: Matrix[f32]) -> Outputs:
    """(y1, y2) = (x1 cos - x2 sin, x1 sin + x2 cos), for cosines and sines from elsewhere."""
    y1, y2 = _turn(x1, x2, cos, sin)
    return outputs(y1=y1, y2=y2)


@operator(backward_of=rotate_pairs)
def rotate_pairs_backward(dy1: Matrix[storage], dy2: Matrix[storage], cos: Matrix[f32], sin: Matrix[f32]) -> Outputs:
    """(dx1, dx2) = (dy1 cos + dy2 sin, dy2 cos - dy1 sin)."""
    dx1, dx2 = _turn(dy1, dy2, cos, -sin)
    return outputs(dx1=dx1, dx2=dx2)


# ------------------------------------------------------------------ textbook
def _textbook(a: Any, b: Any, position: Any, frequency: Any, sign: int) -> tuple[Any, Any]:
    angle = (position.astype(np.float32) * frequency.astype(np.float32)).astype(a.dtype)
    c, s = np.cos(angle), sign * np.sin(angle)
    return a * c - b * s, a * s + b * c


@rotary.set_textbook
def textbook(x1: Any, x2: Any, position: Any, frequency: Any) -> dict[str, Any]:
    """Su et al., "RoFormer" (2021), equation 34, at the angle that f32 gives."""
    y1, y2 = _textbook(x1, x2, position, frequency, 1)
    return dict(y1=y1, y2=y2)


@rotary_backward.set_textbook
def textbook_backward(dy1: Any, dy2: Any, position: Any, frequency: Any) -> dict[str, Any]:
    """A rotation's transpose is its inverse."""
    dx1, dx2 = _textbook(dy1, dy2, position, frequency, -1)
    return dict(dx1=dx1, dx2=dx2)


@rotate_pairs.set_textbook
def textbook_pairs(x1: Any, x2: Any, cos: Any, sin: Any) -> dict[str, Any]:
    """Su et al. (2021), equation 34."""
    return dict(y1=x1 * cos - x2 * sin, y2=x1 * sin + x2 * cos)


@rotate_pairs_backward.set_textbook
def textbook_pairs_backward(dy1: Any, dy2: Any, cos: Any, sin: Any) -> dict[str, Any]:
    """The transpose of the rotation."""
    return dict(dx1=dy1 * cos + dy2 * sin, dx2=dy2 * cos - dy1 * sin)


# ------------------------------------------------------------------ hard inputs
def _hard(a: str, b: str) -> Iterator[HardInput]:
    yield HardInput("position 0", {a: [[1.0, -2.0]], b: [[3.0, -0.0]], "position": [0]})
    far = {a: np.ones((2, 3)), b: np.ones((2, 3)), "position": [2**20, 1048575], "frequency": [1.0, 0.5, 2.0**-20]}
    yield HardInput("far positions", far)
    yield HardInput("infinity and NaN", {a: [[np.inf, 1.0]], b: [[1.0, np.nan]], "position": [5]})


rotary.set_hard_inputs(lambda: _hard("x1", "x2"))
rotary_backward.set_hard_inputs(lambda: _hard("dy1", "dy2"))


def _hard_pairs(a: str, b: str) -> Iterator[HardInput]:
    yield HardInput("no turn", {a: [[1.0, -2.0]], b: [[3.0, -0.0]], "cos": [[1.0, 1.0]], "sin": [[0.0, -0.0]]})
    ones = np.ones((1, 2))
    yield HardInput("a quarter turn", {a: [[1.5, -2.0]], b: [[3.0, 0.0]], "cos": 0 * ones, "sin": ones})
    yield HardInput("sums that cancel", {a: 3 * ones, b: 3 * ones, "cos": ones / 3, "sin": ones / 3})
    yield HardInput("infinity and NaN", {a: [[np.inf, 1.0]], b: [[1.0, np.nan]], "cos": ones / 2, "sin": ones / 2})


rotate_pairs.set_hard_inputs(lambda: _hard_pairs("x1", "x2"))
rotate_pairs_backward.set_hard_inputs(lambda: _hard_pairs("dy1", "dy2"))
