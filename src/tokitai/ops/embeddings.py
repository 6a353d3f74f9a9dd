"""Embedding: every id chooses an entry of a table; the gradient of an entry is the sum over the rows that chose it."""

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
    Table,
    convert,
    gather,
    i64,
    operator,
    outputs,
    scatter_sum,
    storage,
    where,
)  # fmt: skip

CONTRACT = Contract(domain="all values", indices={"ids": Index(entries=True)})


@operator(contract=CONTRACT, gradient=Gradient(composed=True))
def embedding(table: Table[storage], ids: Rows[i64]) -> Outputs:
    """y[r] = table[ids[r]], bit for bit but for NaN, of which there is one. A negative id is out of range."""
    return outputs(y=gather(table, ids))


NO_PADDING = -(2**53)  # further below than any table has entries

BACKWARD = Contract(
    domain="all values",
    indices={"ids": Index(entries=True)},
    ranges={"entries": (0, 2**31)},
    entry={"padding_idx": NO_PADDING},
    defaults={"padding_idx": -1},
)


@operator(contract=BACKWARD, backward_of=embedding)
def embedding_backward(
    dy: Matrix[storage], ids: Rows[i64], dtable: Table[storage] | None, *, entries: int, padding_idx: int = NO_PADDING
) -> Outputs:
    """dtable[e] = the sum of dy[r] over the rows with ids[r] = e, in f32, rounded once; +0 where there is none.

    Where ``dtable`` is given, it is added to in place: old gradient plus sum in f32, then the one rounding (an entry
    that nobody chose gets +0 added: -0 becomes +0). Rows whose id is ``padding_idx`` contribute nothing; a negative one
    counts from the end of the table. One out of range is refused.
    """
    padding = convert(padding_idx, i64)
    padding = where(padding < 0, padding + convert(entries, i64), padding)
    total = scatter_sum(where(ids == padding, 0, dy), ids, entries)
    return outputs(dtable=total if dtable is None else dtable + total)


@embedding.set_textbook
def textbook(table: Any, ids: Any) -> dict[str, Any]:
    """A look-up."""
    return dict(y=table[ids[:, 0]])


@embedding.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Few entries and many, repeated and in disorder; values that a sum or a rounding would change."""
    yield HardInput("one entry", dict(table=[[1.0, -0.0, 3.0]], ids=[0, 0, 0]))
    yield HardInput("first and last", dict(table=np.arange(24.0).reshape(8, 3), ids=[7, 0, 7, 0, 1]))
    yield HardInput("a transposed view", dict(table=np.arange(4.0).reshape(4, 1), ids=[0, 2, 1, 3]))
    special = [[np.nan, np.inf, -np.inf], [0.0, -0.0, 2.0**-24]]
    yield HardInput("infinity, NaN, zeros", dict(table=special, ids=[1, 0, 1]))


@embedding_backward.set_textbook
def textbook_backward(
    dy: Any, ids: Any, dtable: Any = None, *, entries: float, padding_idx: float = NO_PADDING
) -> dict[str, Any]:
    """Adding up rows one by one."""
    total = np.zeros((int(entries), dy.shape[1]), dy.dtype) if dtable is None else dtable.copy()
    for row, entry in zip(dy, ids[:, 0], strict=True):
        if entry != padding_idx + (entries if padding_idx < 0 else 0):
            total[entry] += row
    return dict(dtable=total)


@embedding_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """One id many times, blocks that are full, one short and one over; padding; entries that nobody chose."""
    ones = dict(dy=np.ones((1000, 4)), ids=np.full(1000, 3), dtable=np.zeros((35, 4)))
    yield HardInput("one id 1000 times", ones, dict(entries=35))
    for count in (31, 32, 33, 64, 65, 1024, 1025):
        some = dict(dy=np.sin(np.arange(count * 3)).reshape(count, 3), ids=np.full(count, 1), dtable=np.ones((3, 3)))
        yield HardInput(f"one id {count} times", some, dict(entries=3))
    ids = np.concatenate([np.zeros(768, int), [1]])
    padded = dict(dy=np.ones((769, 8)), ids=ids, dtable=np.zeros((10, 8)))
    yield HardInput("768 rows of padding", padded, dict(entries=10, padding_idx=0))
    last = dict(dy=np.ones((2, 3)), ids=[9, 1], dtable=np.full((10, 3), 0.5))
    yield HardInput("the last entry is padding", last, dict(entries=10, padding_idx=-1))
    long = np.repeat([2, 0, 3, 1], [33, 40, 64, 31])
    two = dict(dy=np.cos(np.arange(168 * 2)).reshape(168, 2), ids=np.concatenate([long[::2], long[1::2]]))
    yield HardInput("long segments side by side", dict(two, dtable=np.ones((4, 2))), dict(entries=4))
    special = [[np.inf, 1.0, -0.0], [-np.inf, np.nan, -0.0], [1.0, 2.0, 3.0]]
    yield HardInput("infinity, NaN, zeros", dict(dy=special, ids=[0, 0, 2], dtable=np.zeros((3, 3))), dict(entries=3))
    nan_padding = dict(dy=[[np.nan, np.inf], [1.0, 2.0]], ids=[1, 0], dtable=np.zeros((2, 2)))
    yield HardInput("NaN in rows of padding", nan_padding, dict(entries=2, padding_idx=1))
    none = dict(dy=np.zeros((0, 4)), ids=np.zeros(0, int), dtable=np.ones((10, 4)))
    yield HardInput("no rows", none, dict(entries=10))
