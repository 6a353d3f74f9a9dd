"""Routing of tokens to experts: the k largest of each row, and softmax weights.

Larger values come first, among equal ones the lower column; a NaN is an error. The choice is made by the logits, which
are exact, so that two probabilities which round to one number still stand in their true order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..elementary import exp_down
from ..lang import (
    Contract,
    Gradient,
    HardInput,
    Index,
    Matrix,
    Outputs,
    Slots,
    Value,
    column_index,
    convert,
    f32,
    i32,
    operator,
    outputs,
    row_first,
    row_max,
    row_sum,
    slots,
    storage,
    take_column,
    where,
)  # fmt: skip

K = Literal[2, 1, 4, 8]


def _largest(x: Value, k: int) -> list[tuple[Value, Value]]:
    """(value, column) of the k largest elements of each row; columns as f32 whole numbers. Of a row with fewer columns
    the rest is (-inf, the number of columns)."""
    columns = convert(column_index(), f32)
    found: list[tuple[Value, Value]] = []
    for _ in range(k):
        taken = None
        for _, column in found:
            hit = columns == column
            taken = hit if taken is None else taken | hit
        shown = x if taken is None else where(taken, -np.inf, x)
        best = row_max(shown)
        wanted = shown == best
        found.append((best, row_first(wanted if taken is None else wanted & ~taken)))
    return found


@operator(contract=Contract(domain="no NaN", no_nan=("x",), places=("columns",), min_cols=1))
def top_k(x: Matrix[storage], *, k: K = 2) -> Outputs:
    """The k largest elements of each row with their columns, larger first, among equal ones the lower column."""
    found = _largest(x, k)
    return outputs(values=slots(*(v for v, _ in found)), columns=slots(*(c for _, c in found)))


ROUTER = Contract(
    domain="finite logits, at least as many experts as are chosen",
    no_nan=("logits",),
    places=("experts",),
    min_cols=1,
)


@operator(contract=ROUTER, gradient=Gradient(autocast="f32"))
def router(logits: Matrix[storage], *, k: K = 2, renormalise: bool = False) -> Outputs:
    """Softmax over all experts, then the k most probable of them, in that order; with ``renormalise`` their weights are
    divided by their sum, taken in that order."""
    found = _largest(logits, k)
    top = found[0][0]
    chosen = [exp_down(value - top) for value, _ in found]
    inverse = 1 / (_chain(chosen) if renormalise else row_sum(exp_down(logits - top)))
    return outputs(weights=slots(*(e * inverse for e in chosen)), experts=slots(*(c for _, c in found)))


WEIGHTED = Contract(domain="finite logits", indices={"experts": Index()}, min_cols=1)


@operator(contract=WEIGHTED, backward_of=router)
def router_backward(
    dweights: Slots[f32], logits: Matrix[storage], experts: Slots[i32], *, k: K = 2, renormalise: bool = False
) -> Outputs:
    """The gradient of the logits: softmax over all experts, or with ``renormalise`` over those that were chosen."""
    z = exp_down(logits - row_max(logits))
    each: Any = list(zip(dweights, experts, strict=True))
    chosen = [take_column(z, e) for _, e in each]
    inverse = 1 / (_chain(chosen) if renormalise else row_sum(z))
    dot = _chain([dw * (c * inverse) for (dw, _), c in zip(each, chosen, strict=True)])
    total: Any = 0.0 if renormalise else -dot
    for dw, e in each:
        total = total + where(column_index() == e, dw - dot if renormalise else dw, 0)
    return outputs(dlogits=z * inverse * total)


def _chain(values: list[Value]) -> Value:
    """One after another."""
    total = values[0]
    for v in values[1:]:
        total = total + v
    return total


@top_k.set_textbook
def textbook_top_k(x: Any, *, k: int) -> dict[str, Any]:
    """A stable sort by falling value."""
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    missing = ((0, 0), (0, k - order.shape[1]))
    values = np.pad(np.take_along_axis(x, order, 1), missing, constant_values=-np.inf)
    return dict(values=values, columns=np.pad(order, missing, constant_values=x.shape[1]))


@router.set_textbook
def textbook_router(logits: Any, *, k: int, renormalise: bool) -> dict[str, Any]:
    """Shazeer et al. (2017), with the softmax before the choice."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    found = textbook_top_k(logits, k=k)
    weights = np.pad(e, ((0, 0), (0, 1)))  # of a column that is missing: 0
    weights = np.take_along_axis(weights, found["columns"], 1)
    total = weights if renormalise else e
    return dict(weights=weights / total.sum(axis=1, keepdims=True), experts=found["columns"])


@router_backward.set_textbook
def textbook_router_backward(dweights: Any, logits: Any, experts: Any, *, k: int, renormalise: bool) -> dict[str, Any]:
    """The Jacobian of softmax is diag(p) - p p^T; renormalised, p is the softmax over the chosen."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    chosen = np.take_along_axis(p, experts, 1)
    p, chosen = (v / (chosen if renormalise else p).sum(axis=1, keepdims=True) for v in (p, chosen))
    dot = (dweights * chosen).sum(axis=1, keepdims=True)
    dp = np.zeros_like(p)
    for j in range(k):
        hit = np.arange(p.shape[1]) == experts[:, j : j + 1]
        dp += np.where(hit, dweights[:, j : j + 1] - (dot if renormalise else 0), 0)
    return dict(dlogits=p * (dp if renormalise else dp - dot))


def _hard(name: str) -> Iterator[HardInput]:
    yield HardInput("all equal", {name: np.zeros((2, 8))})
    yield HardInput("a tie at the boundary", {name: [[1.0, 3.0, 2.0, 2.0, 2.0, 0.0, 2.0, 1.0]]})
    yield HardInput("rising, falling", {name: [np.arange(64.0), -np.arange(64.0)]})
    yield HardInput("signed zeros", {name: [[-0.0, 0.0, -1.0, 0.0], [0.0, -0.0, -0.0, 0.0]]})
    yield HardInput("logarithms of 4, 2, 2", {name: np.log([[4.0, 2.0, 2.0]])})


@top_k.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Ties, zeros of both signs, infinities."""
    yield from _hard("x")
    infinite = [[-np.inf, -np.inf, 1.0, -np.inf], [np.inf, 0.0, np.inf, -np.inf]]
    yield HardInput("infinities", dict(x=infinite))
    yield HardInput("fewer columns than are chosen", dict(x=[[2.0], [-np.inf]]))


@router.set_hard_inputs
def hard_inputs_router() -> Iterator[HardInput]:
    """Ties, and logits far apart."""
    yield from _hard("logits")
    yield HardInput("one expert takes all", dict(logits=[[0.0, 100.0, -100.0, 50.0]]))
    yield HardInput("below the exponent range", dict(logits=[[0.0, -104.0, -200.0, -103.0]]))


@router_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """Ties, and logits far apart."""
    yield from _hard("logits")
    yield HardInput("one expert takes all", dict(logits=[[0.0, 100.0, -100.0, 50.0]]))
