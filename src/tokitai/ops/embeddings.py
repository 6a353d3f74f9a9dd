"""Embedding: every id chooses an entry of a table; the gradient of an entry is the sum over the rows that chose it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import (
    Contract,
    HardInput,
    Index,
    Outputs,
    Rows,
    Table,
    gather,
    i64,
    operator,
    outputs,
    storage,
)  # fmt: skip

CONTRACT = Contract(domain="all values", indices={"ids": Index(entries=True)})


@operator(contract=CONTRACT)
def embedding(table: Table[storage], ids: Rows[i64]) -> Outputs:
    """y[r] = table[ids[r]], bit for bit but for NaN, of which there is one. A negative id is out of range."""
    return outputs(y=gather(table, ids))


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
