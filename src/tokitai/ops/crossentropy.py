"""Cross-entropy of logits against target columns, with ignored rows, label smoothing and z-loss.

Per row: loss = lse - z_t - smoothing (mean(z) - z_t) + z_loss (max + lse)**2, where z = x - max(x), lse is the
logarithm of the sum of exp(z), and z_t the target's. Ignored rows contribute nothing: not to the loss, the gradient,
the smoothing or the count. A mean over no rows is 0 with zero gradient. With no smoothing its term is left out, not
multiplied by 0.

With weights w of the classes, as in torch: loss = w_t (lse - z_t) + smoothing (mean(w (lse - z)) - w_t (lse - z_t))
+ w_t z_loss (max + lse)**2, and a mean is taken over the weights w_t of the kept rows. It is 0 where these add up to 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..lang import (
    LARGEST,
    Cols,
    Contract,
    Gradient,
    HardInput,
    Index,
    Matrix,
    Number,
    Outputs,
    Rows,
    Value,
    col_sum,
    column_index,
    columns,
    convert,
    f32,
    i32,
    i64,
    maximum,
    operator,
    outputs,
    row_max,
    row_sum,
    storage,
    take_column,
    where,
)  # fmt: skip
from .softmaxes import log_sum_exp

CONTRACT = Contract(
    domain="finite logits, or -inf in columns that are not the target's",
    defaults={"ignore_index": -100},
    switches={"smooth": "label_smoothing", "penalty": "z_loss"},
    indices={"target": Index(besides="ignore_index")},
    ranges={"label_smoothing": (0, 1), "z_loss": (0, LARGEST)},
    draw={"weight": "positive"},
    options_alone=True,
    min_cols=1,
)


def _row(logits: Value, target: Value, ignore_index: Number) -> tuple[Value, Value, Value, Value]:
    """(z, maximum, kept, column): what forward and backward share."""
    kept = target != convert(ignore_index, i64)
    top = row_max(logits)
    return logits - top, top, kept, where(kept, target, 0)


def _loss(
    z: Value, top: Value, lse: Value, t: Value, label_smoothing: Number, z_loss: Number, smooth: bool, penalty: bool
) -> Value:
    z_t = take_column(z, t)
    loss = lse - z_t
    if smooth:
        loss = loss - (row_sum(z) / columns(z) - z_t) * label_smoothing
    if penalty:
        full = top + lse
        loss = loss + full * full * z_loss
    return loss


def _slope(
    z: Value, t: Value, top: Value, label_smoothing: Number, z_loss: Number, smooth: bool, penalty: bool
) -> Value:
    """The derivative of a row's loss in its logits, p - q.

    At the target p - 1 is wanted. Where the target is the largest element, p may be almost 1, so the difference is
    taken from the sum instead: p - 1 = -(sum - 1)/sum.
    """
    e, rest, total, lse = log_sum_exp(z)
    inverse = 1 / total
    p = e * inverse
    hit = where(z == 0, -(rest * inverse), p - 1)
    if penalty:
        pull = p * ((top + lse) * (z_loss * 2))
        p, hit = p + pull, hit + pull
    if smooth:
        p, hit = p - label_smoothing / columns(p), hit + (label_smoothing - label_smoothing / columns(p))
    return where(column_index() == convert(t, i32), hit, p)


def _weighted_loss(
    z: Value, top: Value, lse: Value, t: Value, weight: Value, label_smoothing: Number, z_loss: Number, smooth: bool,
    penalty: bool,
) -> Value:  # fmt: skip
    of_target = take_column(weight, t)
    loss = of_target * (lse - take_column(z, t))
    if smooth:
        spread = row_sum(where(weight == 0, 0, weight * (lse - z))) / columns(z)
        loss = loss + (spread - loss) * label_smoothing
    if penalty:
        full = top + lse
        loss = loss + of_target * (full * full * z_loss)
    return loss


def _weighted_slope(
    z: Value, t: Value, top: Value, kept: Value, weight: Value, label_smoothing: Number, z_loss: Number, smooth: bool,
    penalty: bool,
) -> Value:  # fmt: skip
    """The derivative of a row's weighted loss in its logits."""
    of_target = take_column(weight, t)
    slope = of_target * _slope(z, t, top, label_smoothing, z_loss, False, False)
    if smooth or penalty:
        e, _, total, lse = log_sum_exp(z)
        p = e * (1 / total)
        if smooth:
            spread = (p * row_sum(where(kept, weight, 0)) - weight) / columns(z)
            slope = slope + (spread - slope) * label_smoothing
        if penalty:
            slope = slope + p * (of_target * ((top + lse) * (z_loss * 2)))
    return slope


def _loss_of(
    z: Value, top: Value, lse: Value, t: Value, weight: Value | None, label_smoothing: Number, z_loss: Number,
    smooth: bool, penalty: bool,
) -> Value:  # fmt: skip
    options = label_smoothing, z_loss, smooth, penalty
    return _loss(z, top, lse, t, *options) if weight is None else _weighted_loss(z, top, lse, t, weight, *options)


def _slope_of(
    z: Value, t: Value, top: Value, kept: Value, weight: Value | None, label_smoothing: Number, z_loss: Number,
    smooth: bool, penalty: bool,
) -> Value:  # fmt: skip
    options = label_smoothing, z_loss, smooth, penalty
    return _slope(z, t, top, *options) if weight is None else _weighted_slope(z, t, top, kept, weight, *options)


def _count(kept: Value, t: Value, weight: Value | None) -> Value:
    """What a mean is taken over."""
    if weight is None:
        return maximum(col_sum(where(kept, 1, 0)), 1)
    total = col_sum(where(kept, take_column(weight, t), 0))
    return where(total == 0, 1, total)


@operator(contract=CONTRACT, gradient=Gradient(constant=("weight",), autocast="f32"))
def cross_entropy(
    logits: Matrix[storage], target: Rows[i64], weight: Cols[f32] | None, *, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: Literal["none", "sum", "mean"] = "none",
    smooth: bool = False, penalty: bool = False,
) -> Outputs:  # fmt: skip
    """The loss of each row, their sum or their mean over rows that are kept; and log(sum(exp(logits))) of each row."""
    z, top, kept, t = _row(logits, target, ignore_index)
    _, _, _, lse = log_sum_exp(z)
    loss = where(kept, _loss_of(z, top, lse, t, weight, label_smoothing, z_loss, smooth, penalty), 0)
    return outputs(loss=_reduce(loss, kept, t, weight, reduction), lse=top + lse)


def _reduce(loss: Value, kept: Value, t: Value, weight: Value | None, reduction: str) -> Value:
    if reduction == "none":
        return loss
    total = col_sum(loss)
    return total if reduction == "sum" else total / _count(kept, t, weight)


@operator(contract=CONTRACT, backward_of=cross_entropy)
def cross_entropy_backward(
    dloss: Rows[f32], logits: Matrix[storage], target: Rows[i64], weight: Cols[f32] | None, *,
    ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0, smooth: bool = False,
    penalty: bool = False,
) -> Outputs:  # fmt: skip
    """dlogits = dloss (softmax(logits) - onehot(target)) for the loss of each row, zero in ignored rows."""
    z, top, kept, t = _row(logits, target, ignore_index)
    slope = _slope_of(z, t, top, kept, weight, label_smoothing, z_loss, smooth, penalty)
    return outputs(dlogits=where(kept, slope * dloss, 0))


@operator(contract=CONTRACT)
def cross_entropy_with_grad(
    logits: Matrix[storage], target: Rows[i64], weight: Cols[f32] | None, *, ignore_index: int = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: Literal["mean", "sum", "none"] = "mean",
    smooth: bool = False, penalty: bool = False,
) -> Outputs:  # fmt: skip
    """The loss and its gradient in one call, the logits read from memory once."""
    z, top, kept, t = _row(logits, target, ignore_index)
    _, _, _, lse = log_sum_exp(z)
    loss = where(kept, _loss_of(z, top, lse, t, weight, label_smoothing, z_loss, smooth, penalty), 0)
    slope = _slope_of(z, t, top, kept, weight, label_smoothing, z_loss, smooth, penalty)
    if reduction == "mean":
        slope = slope * (1 / _count(kept, t, weight))
    return outputs(loss=_reduce(loss, kept, t, weight, reduction), dlogits=where(kept, slope, 0))


# ------------------------------------------------------------------------------------------------ textbook
def _parts(x: Any, target: Any, ignore_index: Any) -> tuple[Any, ...]:
    kept = target != ignore_index
    t = np.where(kept, target, 0)
    top = x.max(axis=1, keepdims=True)
    z = x - top
    largest = z == 0
    rest = np.where(largest, 0, np.exp(z)).sum(axis=1, keepdims=True) + (largest.sum(axis=1, keepdims=True) - 1)
    p = np.exp(z) / (1 + rest)
    return kept, t, z, top, np.log1p(rest), p, np.where(largest, -rest / (1 + rest), p - 1)


def _weights(z: Any, t: Any, weight: Any) -> tuple[Any, Any]:
    """The weights of the classes, and of each row's target."""
    w = np.broadcast_to(z.dtype.type(1) if weight is None else weight, z.shape)
    return w, np.take_along_axis(w, t, 1)


def _over(kept: Any, of_target: Any) -> Any:
    return np.where(kept, of_target, 0).sum() or 1


@cross_entropy.set_textbook
def textbook(
    logits: Any, target: Any, weight: Any = None, *, ignore_index: float = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str = "none", smooth: bool = False, penalty: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """-sum w q log p with q = (1 - s) onehot + s / n (Szegedy et al., 2016, section 7), plus z_loss log(Z)**2."""
    kept, t, z, top, lse, _, _ = _parts(logits, target, ignore_index)
    w, of_target = _weights(z, t, weight)
    logp = np.where(w == 0, 0, w * (z - lse))
    loss = -of_target * np.take_along_axis(z - lse, t, 1)
    if label_smoothing:
        loss = loss * (1 - label_smoothing) - label_smoothing * logp.mean(axis=1, keepdims=True)
    loss = np.where(kept, loss + of_target * z_loss * (top + lse) ** 2, 0)
    if reduction != "none":
        loss = loss.sum(axis=0, keepdims=True) / (_over(kept, of_target) if reduction == "mean" else 1)
    return dict(loss=loss, lse=top + lse)


@cross_entropy_backward.set_textbook
def textbook_backward(
    dloss: Any, logits: Any, target: Any, weight: Any = None, *, ignore_index: float = -100,
    label_smoothing: float = 0.0, z_loss: float = 0.0, smooth: bool = False, penalty: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """d(-sum q log p)/dx = p - q; weighted, p sum(w q) - w q."""
    kept, t, z, top, lse, p, less = _parts(logits, target, ignore_index)
    w, of_target = _weights(z, t, weight)
    slope = of_target * np.where(np.arange(logits.shape[1])[None, :] == t, less, p)
    spread = (p * w.sum(axis=1, keepdims=True) - w) / logits.shape[1]
    slope = slope + label_smoothing * (spread - slope) + of_target * p * 2 * z_loss * (top + lse)
    return dict(dlogits=np.where(kept, slope * dloss, 0))


@cross_entropy_with_grad.set_textbook
def textbook_with_grad(
    logits: Any, target: Any, weight: Any = None, *, reduction: str = "mean", **scalars: Any
) -> dict[str, Any]:
    """Both of the above."""
    loss = textbook(logits, target, weight, reduction=reduction, **scalars)["loss"]
    kept, t, z, *_ = _parts(logits, target, scalars.get("ignore_index", -100))
    dloss = 1 / _over(kept, _weights(z, t, weight)[1]) if reduction == "mean" else 1
    return dict(loss=loss, **textbook_backward(logits.dtype.type(dloss), logits, target, weight, **scalars))


# ------------------------------------------------------------------------------------------------ hard inputs
def _hard() -> Iterator[HardInput]:
    yield HardInput("129 times -10", dict(logits=np.full((1, 129), -10.0), target=[128]))
    yield HardInput("-inf beside the target", dict(logits=[[-np.inf, 0.0]], target=[1]))
    yield HardInput("some rows ignored", dict(logits=[[0.0, 0.0], [5.0, -5.0], [1.0, 2.0]], target=[0, -100, 1]))
    yield HardInput("all rows ignored", dict(logits=[[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], target=[-100, -100]))
    yield HardInput("another ignore index", dict(logits=[[0.0, 1.0], [5.0, -5.0]], target=[1, 0]), dict(ignore_index=0))
    yield HardInput("an almost certain row", dict(logits=[[30.0, 0.0, 1.0]], target=[0]))
    yield HardInput("an almost impossible target", dict(logits=[[0.0, -200.0]], target=[1]))
    yield HardInput("ties", dict(logits=[[1.0, 1.0, 1.0, 0.0]], target=[2]))
    yield HardInput("infinity and NaN", dict(logits=[[1.0, np.nan, 3.0], [np.inf, 1.0, 2.0]], target=[0, 1]))
    smoothed = dict(label_smoothing=0.2, z_loss=1e-2)
    weighed = dict(logits=[[1.0, 2.0, 3.0], [3.0, -30.0, 1.0], [0.0, 9.0, 0.0]], target=[1, 0, 2])
    yield HardInput("weights of 0 and 1000", dict(weighed, weight=[0.0, 0.0, 1000.0]), dict(label_smoothing=0.5))
    masked = dict(weighed, logits=[[1.0, 2.0, -np.inf]] * 3, target=[1, 0, 1], weight=[1.0, 2.0, 0.0])
    yield HardInput("-inf where the weight is 0", masked, dict(label_smoothing=0.5))
    yield HardInput("all weights are 0", dict(weighed, weight=[0.0, 0.0, 0.0]))
    yield HardInput("an ignored row has no weight", dict(weighed, target=[-100, 0, 2], weight=[1.0, 2.0, 4.0]))
    yield HardInput("smoothing and an ignored row", dict(logits=[[0.0, 0.0], [5.0, -5.0]], target=[0, -100]), smoothed)


for _op in (cross_entropy, cross_entropy_backward, cross_entropy_with_grad):
    _op.set_hard_inputs(_hard)
