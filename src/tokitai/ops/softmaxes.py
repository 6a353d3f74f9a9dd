"""Softmax along each row. The maximum is taken first, then one sum: no running rescaling, whose bits would depend on
how the row is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary.exponential import exp
from ..lang import Contract, HardInput, Matrix, Outputs, operator, outputs, row_max, row_sum, storage

CONTRACT = Contract(
    domain="all values; a row that is all -inf or holds +inf or NaN gives NaN", draw={"y": "probabilities"}
)


@operator(contract=CONTRACT)
def softmax(x: Matrix[storage]) -> Outputs:
    """y = exp(x - max) / sum(exp(x - max)), each row on its own."""
    e = exp(x - row_max(x))
    return outputs(y=e * (1 / row_sum(e)))


@operator(contract=CONTRACT, backward_of=softmax)
def softmax_backward(dy: Matrix[storage], y: Matrix[storage]) -> Outputs:
    """dx = y (dy - sum(dy y)), from the result of the forward pass."""
    return outputs(dx=y * (dy - row_sum(dy * y)))


@softmax.set_textbook
def textbook(x: Any) -> dict[str, Any]:
    """Bridle (1990): exponentials normalised to sum to one; shifting a row changes nothing."""
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return dict(y=e / e.sum(axis=1, keepdims=True))


@softmax_backward.set_textbook
def textbook_backward(dy: Any, y: Any) -> dict[str, Any]:
    """The Jacobian of softmax is diag(y) - y y^T."""
    return dict(dx=y * (dy - (dy * y).sum(axis=1, keepdims=True)))


@softmax.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Masked rows and halves of rows, NaN that a maximum could lose, sums that a tail of zeros would change."""
    yield HardInput("a row all -inf", dict(x=[[0.0, 0.0], [-np.inf, -np.inf]]))
    yield HardInput("first half -inf", dict(x=np.where(np.arange(2048) < 1024, -np.inf, 0.0)[None, :]))
    yield HardInput("every second 128 -inf", dict(x=np.where(np.arange(2048) // 128 % 2, -np.inf, 0.0)[None, :]))
    yield HardInput("NaN beside -inf", dict(x=[[-np.inf, np.nan, -np.inf], [1.0, np.nan, 2.0], [1.0, 2.0, np.inf]]))
    yield HardInput("129 times -10", dict(x=np.full((1, 129), -10.0)))
    yield HardInput("far below the maximum", dict(x=[[0.0, -20.0, -87.0, -88.5, -103.0, -104.5, -200.0]]))
    yield HardInput("uniform, many columns", dict(x=np.zeros((1, 39321))))
    yield HardInput("large and equal", dict(x=np.full((2, 5), 60000.0)))
    yield HardInput("signed zeros", dict(x=[[0.0, -0.0, 0.0]]))


@softmax_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """A sum of dy that overflows f16 though the gradient is tiny; rows of which little is left."""
    yield HardInput("dy = 1 over 65,536 columns", dict(dy=np.ones((1, 65536)), y=np.full((1, 65536), 2.0**-16)))
    yield HardInput("one-hot y", dict(dy=[[1.0, 2.0, 3.0]], y=[[0.0, 1.0, 0.0]]))
    yield HardInput("NaN and infinity", dict(dy=[[1.0, np.nan, 3.0], [np.inf, 1.0, 2.0]]))
