"""Routing of tokens to experts: the k largest of each row, softmax weights, and tokens brought there and back.

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
    HardInput,
    Index,
    Matrix,
    Outputs,
    Rows,
    Slots,
    Table,
    Value,
    column_index,
    convert,
    f32,
    fma,
    gather,
    i64,
    operator,
    outputs,
    row_first,
    row_max,
    row_sum,
    scatter_sum,
    slots,
    storage,
    where,
)  # fmt: skip

K = Literal[2, 1, 3, 4, 6, 8]


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


@operator(contract=Contract(domain="no NaN", no_nan=("x",), places=("columns",)))
def top_k(x: Matrix[storage], *, k: K = 2) -> Outputs:
    """The k largest elements of each row with their columns, larger first, among equal ones the lower column."""
    found = _largest(x, k)
    return outputs(values=slots(*(v for v, _ in found)), columns=slots(*(c for _, c in found)))


ROUTER = Contract(
    domain="finite logits, at least as many experts as are chosen",
    no_nan=("logits",),
    places=("experts",),
)


@operator(contract=ROUTER)
def router(logits: Matrix[storage], *, k: K = 2, renormalise: bool = False) -> Outputs:
    """Softmax over all experts, then the k most probable of them, in that order; with ``renormalise`` their weights are
    divided by their sum, taken in that order."""
    found = _largest(logits, k)
    top = found[0][0]
    chosen = [exp_down(value - top) for value, _ in found]
    total = row_sum(exp_down(logits - top))
    if renormalise:
        total = chosen[0]
        for e in chosen[1:]:
            total = total + e
    inverse = 1 / total
    return outputs(weights=slots(*(e * inverse for e in chosen)), experts=slots(*(c for _, c in found)))


MOVES = Contract(domain="all values", indices={"order": Index(entries=True)})


@operator(contract=MOVES)
def dispatch(x: Table[storage], order: Rows[i64]) -> Outputs:
    """y[s] = x[order[s]]: the tokens in the order of their experts, each as often as it is chosen."""
    return outputs(y=gather(x, order))


@operator(
    contract=Contract(domain="all values", indices={"order": Index(entries=True)}, ranges={"entries": (0, 2**31)}),
    backward_of=dispatch,
)
def dispatch_backward(dy: Matrix[storage], order: Rows[i64], *, entries: int) -> Outputs:
    """dx[t] = the sum of dy[s] over the places s that token t was brought to, in their order."""
    return outputs(dx=scatter_sum(dy, order, entries))


PLACES = Contract(domain="all values", indices={"place": Index(besides="dropped", entries=True)})


@operator(contract=PLACES)
def combine(
    y: Table[storage], weights: Slots[f32], place: Slots[i64], *, k: K = 2, dropped: int = -1
) -> Outputs:
    """x[t] = the sum of weights[t, j] * y[place[t, j]] over the slots j, in their order: a chain of fused
    multiply-adds, rounded once to storage. A slot whose place is ``dropped`` is not looked at, whatever it holds."""
    total: Value | None = None
    for w, p in zip(weights, place, strict=True):  # type: ignore[call-overload]
        kept = p != convert(dropped, i64)
        term = gather(y, where(kept, p, 0))
        total = where(kept, term * w if total is None else fma(term, w, total), 0.0 if total is None else total)
    assert total is not None
    return outputs(x=total)
