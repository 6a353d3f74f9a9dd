"""Cross-entropy of logits against probabilities of the classes, with label smoothing and z-loss.

Per row: loss = sum of q (lse - z) + z_loss (max + lse)**2, where q = (1 - smoothing) target + smoothing / columns,
z = x - max(x) and lse is the logarithm of the sum of exp(z). No term is negative, so that nothing cancels; a class of
probability 0 adds nothing, whatever its logit is. Targets need not sum to 1: they may hold weights of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..lang import (
    Contract,
    Gradient,
    HardInput,
    Matrix,
    Number,
    Outputs,
    Rows,
    Value,
    col_sum,
    columns,
    f32,
    maximum,
    operator,
    outputs,
    row_max,
    row_sum,
    rows,
    storage,
    where,
)  # fmt: skip
from .softmaxes import log_sum_exp

CONTRACT = Contract(
    domain="finite logits, or -inf where the target is 0; targets of at least 0",
    switches={"smooth": "label_smoothing", "penalty": "z_loss"},
    ranges={"label_smoothing": (0, 1), "z_loss": (0, math.inf)},
    draw={"target": "probabilities"},
    min_cols=1,
)


def _smoothed(target: Value, label_smoothing: Number, smooth: bool) -> Value:
    return target * (1 - label_smoothing) + label_smoothing / columns(target) if smooth else target


@operator(contract=CONTRACT, gradient=Gradient(constant=("target",), autocast="f32"))
def soft_cross_entropy(
    logits: Matrix[storage], target: Matrix[storage], *, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: Literal["none", "sum", "mean"] = "none", smooth: bool = False, penalty: bool = False,
) -> Outputs:  # fmt: skip
    """The loss of each row, their sum or their mean (0 over no rows); and log(sum(exp(logits))) of each row."""
    top = row_max(logits)
    z = logits - top
    _, _, _, lse = log_sum_exp(z)
    q = _smoothed(target, label_smoothing, smooth)
    loss = row_sum(where(q == 0, 0, q * (lse - z)))
    full = top + lse
    if penalty:
        loss = loss + full * full * z_loss
    if reduction != "none":
        loss = col_sum(loss)
    if reduction == "mean":
        loss = loss / maximum(rows(logits), 1)
    return outputs(loss=loss, lse=full)


@operator(contract=CONTRACT, backward_of=soft_cross_entropy)
def soft_cross_entropy_backward(
    dloss: Rows[f32], logits: Matrix[storage], target: Matrix[storage], *, label_smoothing: float = 0.0,
    z_loss: float = 0.0, smooth: bool = False, penalty: bool = False,
) -> Outputs:  # fmt: skip
    """dlogits = dloss (softmax(logits) sum(q) - q) for the loss of each row. Targets are constants."""
    top = row_max(logits)
    e, _, total, lse = log_sum_exp(logits - top)
    q = _smoothed(target, label_smoothing, smooth)
    weight = row_sum(q)
    if penalty:
        weight = weight + (top + lse) * (z_loss * 2)
    return outputs(dlogits=(e * (1 / total) * weight - q) * dloss)


def _parts(x: Any, target: Any, label_smoothing: float) -> tuple[Any, Any, Any]:
    top = x.max(axis=1, keepdims=True)
    lse = top + np.log(np.exp(x - top).sum(axis=1, keepdims=True))
    return x - lse, lse, target * (1 - label_smoothing) + label_smoothing / x.shape[1]


@soft_cross_entropy.set_textbook
def textbook(
    logits: Any, target: Any, *, label_smoothing: float = 0.0, z_loss: float = 0.0, reduction: str = "none",
    smooth: bool = False, penalty: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """-sum q log p (Szegedy et al., 2016, section 7), plus z_loss log(Z)**2."""
    logp, lse, q = _parts(logits, target, label_smoothing)
    loss = -np.where(q == 0, 0, q * logp).sum(axis=1, keepdims=True) + z_loss * lse**2
    if reduction != "none":
        loss = loss.sum(axis=0, keepdims=True) / (max(len(logits), 1) if reduction == "mean" else 1)
    return dict(loss=loss, lse=lse)


@soft_cross_entropy_backward.set_textbook
def textbook_backward(
    dloss: Any, logits: Any, target: Any, *, label_smoothing: float = 0.0, z_loss: float = 0.0, smooth: bool = False,
    penalty: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """d(-sum q log p)/dx = p sum(q) - q."""
    logp, lse, q = _parts(logits, target, label_smoothing)
    return dict(dlogits=(np.exp(logp) * (q.sum(axis=1, keepdims=True) + 2 * z_loss * lse) - q) * dloss)


def _hard() -> Iterator[HardInput]:
    yield HardInput("129 times -10", dict(logits=np.full((1, 129), -10.0), target=np.full((1, 129), 1 / 129)))
    yield HardInput("one class alone", dict(logits=[[0.0, 1.0], [5.0, -5.0]], target=[[1.0, 0.0], [0.0, 1.0]]))
    yield HardInput("-inf where the target is 0", dict(logits=[[-np.inf, 0.0, 1.0]], target=[[0.0, 0.5, 0.5]]))
    yield HardInput("an almost certain row", dict(logits=[[30.0, 0.0, 1.0]], target=[[1.0, 0.0, 0.0]]))
    yield HardInput("ties", dict(logits=[[1.0, 1.0, 1.0, 0.0]], target=[[0.25, 0.25, 0.5, 0.0]]))
    yield HardInput("weights that do not sum to 1", dict(logits=[[1.0, 2.0]], target=[[3.0, 0.5]]))
    yield HardInput("no weight", dict(logits=[[1.0, 2.0]], target=[[0.0, 0.0]]))
    special = dict(logits=[[1.0, np.nan, 3.0], [np.inf, 1.0, 2.0]], target=[[0.0, 0.0, 1.0]] * 2)
    yield HardInput("infinity and NaN", special)
    smoothed = dict(label_smoothing=0.2, z_loss=1e-2)
    yield HardInput("smoothing and z-loss", dict(logits=[[0.0, 0.5], [5.0, -5.0]], target=[[1.0, 0.0]] * 2), smoothed)


for _op in (soft_cross_entropy, soft_cross_entropy_backward):
    _op.set_hard_inputs(_hard)
