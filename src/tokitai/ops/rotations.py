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


@operator(contract=CONTRACT)
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


def _hard(a: str, b: str) -> Iterator[HardInput]:
    yield HardInput("position 0", {a: [[1.0, -2.0]], b: [[3.0, -0.0]], "position": [0]})
    far = {a: np.ones((2, 3)), b: np.ones((2, 3)), "position": [2**20, 1048575], "frequency": [1.0, 0.5, 2.0**-20]}
    yield HardInput("far positions", far)
    yield HardInput("infinity and NaN", {a: [[np.inf, 1.0]], b: [[1.0, np.nan]], "position": [5]})


rotary.set_hard_inputs(lambda: _hard("x1", "x2"))
rotary_backward.set_hard_inputs(lambda: _hard("dy1", "dy2"))
