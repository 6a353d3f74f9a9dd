"""Tokens brought to their experts and back: rows of a table in another order, and sums of rows with weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import (
    Contract,
    Gradient,
    HardInput,
    Index,
    Matrix,
    Outputs,
    Rows,
    Slots,
    Table,
    Value,
    convert,
    f32,
    fma,
    gather,
    i64,
    operator,
    outputs,
    row_sum,
    scatter_sum,
    slots,
    storage,
    where,
)  # fmt: skip
from .routing import K

MOVES = Contract(domain="all values", indices={"order": Index(entries=True)})


@operator(contract=MOVES, gradient=Gradient(composed=True))
def dispatch(x: Table[storage], order: Rows[i64], weights: Rows[f32] | None) -> Outputs:
    """y[s] = x[order[s]], times weights[s] where those are given: tokens in the order of their experts, each as often
    as it is chosen. With weights it is also the gradient of what `combine` adds up."""
    y = gather(x, order)
    return outputs(y=y if weights is None else y * weights)


SUMS = Contract(domain="all values", indices={"order": Index(entries=True)}, ranges={"entries": (0, 2**31)})


@operator(contract=SUMS, backward_of=dispatch)
def dispatch_backward(dy: Matrix[storage], order: Rows[i64], weights: Rows[f32] | None, *, entries: int) -> Outputs:
    """dx[t] = the sum of dy[s], times weights[s] where given, over the places s that token t was brought to, in their
    order; in f32, rounded once."""
    return outputs(dx=scatter_sum(dy if weights is None else dy * weights, order, entries))


PLACES = Contract(domain="all values", indices={"place": Index(besides="dropped", entries=True)})


@operator(contract=PLACES, gradient=Gradient(composed=True))
def combine(y: Table[storage], weights: Slots[f32], place: Slots[i64], *, k: K = 2, dropped: int = -1) -> Outputs:
    """x[t] = the sum of weights[t, j] * y[place[t, j]] over the slots j, in their order: a chain of fused
    multiply-adds from 0 on, rounded once to storage. A slot whose place is ``dropped`` is not read, whatever its
    weight."""
    total: Any = 0.0
    for w, p in _pairs(weights, place):
        kept = p != convert(dropped, i64)
        total = where(kept, fma(gather(y, where(kept, p, 0)), w, total), total)
    return outputs(x=total)


@operator(contract=PLACES, backward_of=combine)
def combine_backward(
    dx: Matrix[storage], y: Table[storage], place: Slots[i64], *, k: K = 2, dropped: int = -1
) -> Outputs:
    """dweights[t, j] = the sum over columns of dx[t] * y[place[t, j]]; 0 in slots that were dropped."""
    found = []
    for (p,) in _pairs(place):
        kept = p != convert(dropped, i64)
        found.append(row_sum(where(kept, dx * gather(y, where(kept, p, 0)), 0)))
    return outputs(dweights=slots(*found))


def _pairs(*several: Any) -> list[tuple[Value, ...]]:
    return list(zip(*several, strict=True))


# ------------------------------------------------------------------------------------------------ textbooks
@dispatch.set_textbook
def textbook(x: Any, order: Any, weights: Any = None) -> dict[str, Any]:
    """A look-up."""
    return dict(y=x[order[:, 0]] * (1 if weights is None else weights))


@dispatch_backward.set_textbook
def textbook_backward(dy: Any, order: Any, weights: Any = None, *, entries: float) -> dict[str, Any]:
    """Adding up rows one by one."""
    total = np.zeros((int(entries), dy.shape[1]), dy.dtype)
    for s, t in enumerate(order[:, 0]):
        total[t] += dy[s] * (1 if weights is None else weights[s])
    return dict(dx=total)


@combine.set_textbook
def textbook_combine(y: Any, weights: Any, place: Any, *, k: int, dropped: float = -1) -> dict[str, Any]:
    """The weighted sum over the slots that are kept."""
    kept = (place != dropped)[:, :, None]
    terms = np.where(kept, y[np.where(kept[:, :, 0], place, 0)] * weights[:, :, None], 0)
    return dict(x=terms.sum(axis=1))


@combine_backward.set_textbook
def textbook_combine_backward(dx: Any, y: Any, place: Any, *, k: int, dropped: float = -1) -> dict[str, Any]:
    """Inner products."""
    kept = place != dropped
    return dict(dweights=np.where(kept, (dx[:, None, :] * y[np.where(kept, place, 0)]).sum(axis=2), 0))


# ------------------------------------------------------------------------------------------------ hard inputs
@dispatch.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Every token twice; one token for all places."""
    x = np.arange(24.0).reshape(8, 3)
    yield HardInput("each twice", dict(x=x, order=np.arange(16) * 5 % 8))
    yield HardInput("one for all", dict(x=x, order=np.full(40, 7)))


@dispatch_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """Two contributions each; a long segment; tokens that went nowhere."""
    dy = np.sin(np.arange(48.0)).reshape(16, 3)
    yield HardInput("each twice", dict(dy=dy, order=np.arange(16) * 5 % 8), dict(entries=8))
    yield HardInput("most went nowhere", dict(dy=dy, order=np.full(16, 11)), dict(entries=40))


@combine.set_hard_inputs
def hard_inputs_combine() -> Iterator[HardInput]:
    """Dropped slots of which table and weights hold NaN."""
    y = [[1.0, 2.0], [3.0, 4.0], [np.nan, np.inf]]
    masked = np.full((2, 8), -1)
    yield HardInput("all dropped", dict(y=y, place=masked[:, :2], weights=np.full((2, 2), np.nan)))
    half = np.array([[0, -1], [1, -1]])
    yield HardInput("half dropped", dict(y=y, place=half, weights=[[0.5, np.nan], [2.0, 0.0]]))
    yield HardInput("NaN is not dropped", dict(y=y, place=[[0, 2]], weights=[[0.5, 0.0]]))


@combine_backward.set_hard_inputs
def hard_inputs_combine_backward() -> Iterator[HardInput]:
    """Dropped slots have no gradient, whatever the table holds."""
    y = [[np.nan, np.inf], [3.0, 4.0]]
    yield HardInput("all dropped", dict(dx=np.ones((2, 2)), y=y, place=np.full((2, 2), -1)))
    yield HardInput("half dropped", dict(dx=[[1.0, 2.0], [3.0, 4.0]], y=y, place=[[1, -1], [1, -1]]))
