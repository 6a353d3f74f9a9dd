"""The weights of attention where each query sees an interval of keys: softmax over a part of each row, with a sink.

Intervals are those of sliding windows, packed documents, and padding on either side. A sink is one more score of a row
that takes a part of the weight and gives nothing for it (Xiao et al., "Efficient Streaming Language Models with
Attention Sinks", 2023; a learned one in "gpt-oss", 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import exp_down
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
    f32,
    i32,
    maximum,
    operator,
    outputs,
    row_max,
    row_sum,
    storage,
    where,
)  # fmt: skip

CONTRACT = Contract(
    domain="all values in the columns that a row sees; where it sees nothing its weights are zeros",
    draw={"y": "probabilities", "limit": "lengths"},
    indices={"start": Index(upto=True), "limit": Index(upto=True)},
)
Bound = Value | None


def _shown(x: Value, start: Bound, limit: Bound, otherwise: float) -> Value:
    """x in columns from `start` up to before `limit`."""
    x = x if limit is None else where(column_index() < limit, x, otherwise)
    return x if start is None else where(column_index() < start, otherwise, x)


@operator(contract=CONTRACT, gradient=Gradient(autocast="f32"))
def interval_softmax(x: Matrix[storage], sink: Rows[f32], start: Rows[i32] | None, limit: Rows[i32] | None) -> Outputs:
    """y = exp(x - top) / (sum(exp(x - top)) + exp(sink - top)) over the columns of a row that are seen, zero elsewhere;
    top is the largest of x and sink. A sink of -inf is none. What is not seen is not read: NaN there does no harm.
    ``rest`` is the weight of the sink."""
    shown = _shown(x, start, limit, -np.inf)
    top = maximum(row_max(shown), sink)
    e = _shown(exp_down(shown - top), start, limit, 0)
    none = sink == -np.inf
    kept = where(none, 0, exp_down(sink - top))
    share = 1 / (row_sum(e) + kept)
    return outputs(y=_shown(e * share, start, limit, 0), rest=where(none, 0, kept * share))


@operator(contract=CONTRACT, backward_of=interval_softmax)
def interval_softmax_backward(
    dy: Matrix[storage], y: Matrix[storage], rest: Rows[f32], start: Rows[i32] | None, limit: Rows[i32] | None
) -> Outputs:
    """dx = y (dy - sum(dy y)) in the columns that are seen, zero elsewhere; dsink = -rest sum(dy y)."""
    mean = row_sum(_shown(dy * y, start, limit, 0))
    return outputs(dx=_shown(y * (dy - mean), start, limit, 0), dsink=-rest * mean)


def _seen(shape: tuple[int, ...], start: Any, limit: Any) -> Any:
    columns = np.arange(shape[1])[None, :]
    return np.broadcast_to((columns >= start) & (columns < (shape[1] if limit is None else limit)), shape)


@interval_softmax.set_textbook
def textbook(x: Any, sink: Any, start: Any = 0, limit: Any = None) -> dict[str, Any]:
    """The softmax of what is seen and of the sink, whose column is then left out."""
    seen = _seen(x.shape, start, limit)
    shown = np.concatenate([np.where(seen, x, -np.inf), sink], axis=1)
    e = np.exp(shown - shown.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return dict(y=np.where(seen, p[:, :-1], 0), rest=np.where(sink == -np.inf, 0, p[:, -1:]))


@interval_softmax_backward.set_textbook
def textbook_backward(dy: Any, y: Any, rest: Any, start: Any = 0, limit: Any = None) -> dict[str, Any]:
    """The Jacobian of softmax among what is seen and the sink, whose own weight gives nothing."""
    seen = _seen(y.shape, start, limit)
    mean = np.where(seen, dy * y, 0).sum(axis=1, keepdims=True)
    return dict(dx=np.where(seen, y * (dy - mean), 0), dsink=-rest * mean)


@interval_softmax.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Intervals that are empty, whole, at either end; sinks above and below all scores; what lies outside."""
    five = np.ones((4, 5))
    yield HardInput("empty and whole", dict(x=five, start=[0, 5, 3, 0], limit=[0, 5, 2, 5], sink=[0.0, 1.0, -1.0, 1.0]))
    yield HardInput("one column", dict(x=[[9.0, 1.0, 60000.0]] * 3, start=[0, 1, 2], limit=[1, 2, 3]))
    yield HardInput("NaN and infinity outside", dict(x=[[np.nan, 1.0, 2.0, np.inf]], start=[1], limit=[3]))
    yield HardInput("-inf inside", dict(x=[[1.0, -np.inf, -np.inf, 1.0]] * 2, start=[1, 1], limit=[3, 4]))
    window = dict(start=np.maximum(np.arange(19) - 6, 0), limit=np.arange(1, 20))
    yield HardInput("a sliding window", dict(x=np.sin(np.arange(19 * 19)).reshape(19, 19), **window))
    yield HardInput("sinks", dict(x=np.zeros((4, 3)), sink=[100.0, -100.0, 0.0, -np.inf]))
    yield HardInput("a sink of infinity and NaN", dict(x=np.zeros((3, 3)), sink=[np.inf, np.nan, 1.0]))


@interval_softmax_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """Gradients outside of the interval must not matter, whatever they are."""
    yield HardInput("nothing seen", dict(dy=np.ones((2, 5)), start=[0, 3], limit=[0, 3], rest=[1.0, 0.5]))
    yield HardInput("NaN and infinity outside", dict(dy=[[np.inf, 1.0, 2.0, np.nan]], start=[1], limit=[3]))
