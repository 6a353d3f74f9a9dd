"""Softmax along each row. The maximum is taken first, then one sum: no running rescaling, whose bits would depend on
how the row is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import exp, exp_down, log1p
from ..lang import (
    Contract,
    Gradient,
    HardInput,
    Index,
    Matrix,
    Outputs,
    Rows,
    Value,
    column_index,
    i32,
    operator,
    outputs,
    row_max,
    row_sum,
    storage,
    where,
)  # fmt: skip

CONTRACT = Contract(
    domain="all values; a row that is all -inf or holds +inf or NaN gives NaN", draw={"y": "probabilities"}
)


@operator(contract=CONTRACT, gradient=Gradient(autocast="f32"))
def softmax(x: Matrix[storage]) -> Outputs:
    """y = exp(x - max) / sum(exp(x - max)), each row on its own."""
    e = exp_down(x - row_max(x))
    return outputs(y=e * (1 / row_sum(e)))


@operator(contract=CONTRACT, backward_of=softmax)
def softmax_backward(dy: Matrix[storage], y: Matrix[storage]) -> Outputs:
    """dx = y (dy - sum(dy y)), from the result of the forward pass."""
    return outputs(dx=y * (dy - row_sum(dy * y)))


MASKED = Contract(
    domain="all values in the first `limit` columns of a row; a row of which nothing is seen gives zeros",
    draw={"y": "probabilities", "limit": "any lengths"},
    indices={"limit": Index(upto=True)},
)


@operator(contract=MASKED, gradient=Gradient(autocast="f32"))
def masked_softmax(x: Matrix[storage], limit: Rows[i32]) -> Outputs:
    """The softmax of the first limit[r] columns of row r, zero elsewhere: limit = length of a padded sequence, query's
    position + 1 for a causal mask, or the smaller of both. What is masked is not read: NaN there does no harm."""
    seen = column_index() < limit
    shown = where(seen, x, -np.inf)
    e = where(seen, exp_down(shown - row_max(shown)), 0)
    return outputs(y=where(seen, e * (1 / row_sum(e)), 0))


@operator(contract=MASKED, backward_of=masked_softmax)
def masked_softmax_backward(dy: Matrix[storage], y: Matrix[storage], limit: Rows[i32]) -> Outputs:
    """dx = y (dy - sum(dy y)) in the first limit[r] columns, zero elsewhere."""
    seen = column_index() < limit
    return outputs(dx=where(seen, y * (dy - row_sum(where(seen, dy * y, 0))), 0))


def log_sum_exp(z: Value) -> tuple[Value, Value, Value, Value]:
    """(exp(z), what their sum exceeds 1 by, the sum, its logarithm) for z = x - max(x).

    The largest elements contribute exactly 1 each. Counting them apart leaves the logarithm of 1 + rest with a small
    rest, which log1p keeps: a row that is almost certain has a loss of full relative accuracy.
    """
    e = exp_down(z)
    count = row_sum(where(z == 0, 1, 0))
    others = row_sum(where(z == 0, 0, e))
    rest = (count - 1) + others
    return e, rest, count + others, log1p(rest)


@operator(contract=CONTRACT, gradient=Gradient(autocast="f32"))
def log_softmax(x: Matrix[storage]) -> Outputs:
    """y = x - max - log(sum(exp(x - max))), each row on its own."""
    z = x - row_max(x)
    _, _, _, lse = log_sum_exp(z)
    return outputs(y=z - lse)


@operator(contract=CONTRACT, backward_of=log_softmax)
def log_softmax_backward(dy: Matrix[storage], y: Matrix[storage]) -> Outputs:
    """dx = dy - exp(y) sum(dy), from the result of the forward pass."""
    return outputs(dx=dy - exp(y) * row_sum(dy))


@softmax.set_textbook
def textbook(x: Any) -> dict[str, Any]:
    """Bridle (1990): exponentials normalised to sum to one; shifting a row changes nothing."""
    e = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf))
    return dict(y=e / e.sum(axis=1, keepdims=True))


@softmax_backward.set_textbook
def textbook_backward(dy: Any, y: Any) -> dict[str, Any]:
    """The Jacobian of softmax is diag(y) - y y^T."""
    return dict(dx=y * (dy - (dy * y).sum(axis=1, keepdims=True)))


@masked_softmax.set_textbook
def textbook_masked(x: Any, limit: Any) -> dict[str, Any]:
    """The softmax of what is seen."""
    seen = np.arange(x.shape[1])[None, :] < limit
    e = np.exp(np.where(seen, x, -np.inf) - np.where(seen, x, -np.inf).max(axis=1, keepdims=True, initial=-np.inf))
    total = np.where(seen, e, 0).sum(axis=1, keepdims=True)
    return dict(y=np.where(seen, e / total, 0))


@masked_softmax_backward.set_textbook
def textbook_masked_backward(dy: Any, y: Any, limit: Any) -> dict[str, Any]:
    """The Jacobian of softmax among what is seen."""
    seen = np.arange(y.shape[1])[None, :] < limit
    return dict(dx=np.where(seen, y * (dy - np.where(seen, dy * y, 0).sum(axis=1, keepdims=True)), 0))


@log_softmax.set_textbook
def textbook_log(x: Any) -> dict[str, Any]:
    """x - log(sum(exp(x))), with the largest element counted apart so that the logarithm keeps small sums."""
    z = x - x.max(axis=1, keepdims=True, initial=-np.inf)
    largest = z == 0
    rest = np.where(largest, 0, np.exp(z)).sum(axis=1, keepdims=True) + (largest.sum(axis=1, keepdims=True) - 1)
    return dict(y=z - np.log1p(rest))


@log_softmax_backward.set_textbook
def textbook_log_backward(dy: Any, y: Any) -> dict[str, Any]:
    """The Jacobian of log-softmax is 1 - 1 softmax^T."""
    return dict(dx=dy - np.exp(y) * dy.sum(axis=1, keepdims=True))


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


@masked_softmax.set_hard_inputs
def hard_inputs_masked() -> Iterator[HardInput]:
    """Rows seen in full, in part and not at all; NaN, infinities and large values behind the mask."""
    yield HardInput("nothing seen", dict(x=np.ones((3, 5)), limit=[0, 1, 5]))
    yield HardInput("a large value behind the mask", dict(x=[[1.0, 1.0, 60000.0]], limit=[2]))
    yield HardInput("NaN and infinity behind the mask", dict(x=[[1.0, 2.0, np.nan], [1.0, np.inf, 0.0]], limit=[2, 1]))
    yield HardInput("-inf in front of it", dict(x=[[-np.inf, -np.inf, 1.0], [-np.inf, 2.0, 1.0]], limit=[2, 2]))
    yield HardInput("causal", dict(x=np.sin(np.arange(19 * 19)).reshape(19, 19), limit=np.arange(1, 20)))


@masked_softmax_backward.set_hard_inputs
def hard_inputs_masked_backward() -> Iterator[HardInput]:
    """Gradients behind the mask must not matter, whatever they are."""
    yield HardInput("nothing seen", dict(dy=np.ones((2, 5)), limit=[0, 3]))
    yield HardInput("NaN behind the mask", dict(dy=[[1.0, 2.0, np.nan]], limit=[2]))


@log_softmax.set_hard_inputs
def hard_inputs_log() -> Iterator[HardInput]:
    """Values far below the maximum, where log(softmax) would be -inf; ties; rows that are almost certain."""
    yield HardInput("0 and -20", dict(x=[[0.0, -20.0], [0.0, -200.0]]))
    yield HardInput("ties", dict(x=[[1.0, 1.0, 1.0, 0.0]]))
    yield HardInput("-inf beside numbers", dict(x=[[-np.inf, 1.0, 2.0], [0.0, -np.inf, -np.inf]]))
    yield HardInput("a row all -inf", dict(x=[[0.0, 0.0], [-np.inf, -np.inf]]))
    yield HardInput("NaN and infinity", dict(x=[[1.0, np.nan, 3.0], [np.inf, 1.0, 2.0]]))


@log_softmax_backward.set_hard_inputs
def hard_inputs_log_backward() -> Iterator[HardInput]:
    """A sum of dy that overflows f16 though the gradient is tiny."""
    yield HardInput("dy = 1 over 65,536 columns", dict(dy=np.ones((1, 65536)), y=np.full((1, 65536), -16 * np.log(2))))
    yield HardInput("-inf", dict(dy=[[1.0, 2.0, 3.0]], y=[[0.0, -np.inf, -np.inf]]))
