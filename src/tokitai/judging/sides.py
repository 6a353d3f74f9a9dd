"""Rows and columns that are apart: which results may be computed for some of them alone, and how tensors are taken
apart for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..lang import GROUPS, MATRICES, TOTALS, Graph, Node, Output, Sizes
from ..lang.graph import Space

Array = np.ndarray[Any, Any]

# Operations by which an element of a result depends on more than its own row, or on which row it is; and on columns.
MEET_ROWS = {*TOTALS, "col_sum", "scatter_sum", "row_index", "rows", "element_word", "tensor_index"}
MEET_COLUMNS = {
    *TOTALS, "row_sum", "row_max", "row_first", "take_column", "column_index", "columns", "element_word",
    "tensor_index", "slots",
}  # fmt: skip


def only(graph: Graph, outputs: list[Output]) -> Graph:
    """The graph of some of the results alone."""
    return graph if len(outputs) == len(graph.outputs) else replace(graph, outputs=tuple(outputs))


def apart(graph: Graph, side: str, finite: bool = False) -> bool:
    """Whether rows (``r``) or columns (``c``) of all results of a graph are each an affair of their own. Where all
    inputs are ``finite``, a largest element that is only compared with a limit tells no more."""
    meet, over = (MEET_ROWS, "rows") if side == "r" else (MEET_COLUMNS, "columns")
    gates = {n for n in graph.nodes if n.op == "total_max" and finite and not _matters(graph, n)}
    for n in graph.nodes:
        if n in gates:
            continue
        limited = side == "c" and len(n.args) > 2  # what is met is counted along columns
        if n.op in meet or (n.op == "weighted_sum" and (n.data[0] == over or limited)):
            return False
    return all(axis_of(o.space, o.slots, side) is not None for o in graph.outputs)


def _matters(graph: Graph, total: Node) -> bool:
    """Whether a total is more than one side of a comparison."""
    return any(total in n.args and n.type != "bool" for n in graph.nodes)


def axis_of(space: Space, slots: int, side: str) -> int | None:
    """Which axis of a tensor a side is, counted from the last; None where it has none."""
    if space in GROUPS:
        return None
    if space in MATRICES:
        sides = "tc" if space == "t" else space  # entries and columns
        return sides.find(side) - 2 if side in sides else None
    return (-2 if slots else -1) if space == side else None


def taken(values: Array, space: Space, slots: int, side: str, places: Array | None) -> Array:
    """Some rows or columns of a tensor, in the order of ``places``; all of one that has no such side."""
    axis = axis_of(space, slots, side)
    return values if axis is None or places is None else np.take(values, places, axis=axis)


def part(
    graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], rows: Array | None, cols: Array | None
) -> tuple[dict[str, Array], tuple[int, int]]:
    """Tensors and sizes of some rows and columns of a call. Rows that groups partition must rise."""
    made = {}
    for t in graph.inputs:
        values = tensors[t.name]
        if t.space == "gr" and rows is not None:
            values = np.searchsorted(rows, values).astype(values.dtype)
        made[t.name] = taken(taken(values, t.space, t.slots, "r", rows), t.space, t.slots, "c", cols)
    sides = [shape[0] if rows is None else len(rows), shape[1] if cols is None else len(cols)]
    if isinstance(shape, Sizes):
        return made, Sizes(sides[0], sides[1], shape.inner, shape.batch, shape.ragged)
    return made, (sides[0], sides[1])
