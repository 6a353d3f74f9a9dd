"""The plan of a sum of rows over the entries of a table that they choose.

Rows are brought into the order of their entries, those of one entry in the order in which they stand: a *segment* each.
Up to 32 rows are one chain. Longer segments are cut into blocks of 32, whose sums meet in the balanced tree; so that
threads find blocks without a list of them, the sorted rows are seen through *windows* of 32: at most two blocks of long
segments begin in one, the first of a segment that began before it or with it, and one that begins behind its start.

A plan decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import DefinitionError
from ...lang import COL_SUM_BLOCK, ROW_REDUCTIONS, TOTALS, Graph, Node, topological
from ..family import Plan

_REFUSED = {*ROW_REDUCTIONS, *TOTALS, "col_sum", "take_column", "tensor_index", "element_word"}


@dataclass(frozen=True)
class ScatterPlan(Plan):
    """What is computed once, of each row, of its elements, and of an entry's elements once its sum is complete."""

    graph: Graph
    total: Node  # the one scatter_sum
    uniform: tuple[Node, ...]  # scalars of the whole call
    of_row: tuple[Node, ...]  # values with one element a row that the summands need
    of_index: tuple[Node, ...]  # those that the index needs
    compute: tuple[Node, ...]  # the summands
    finish: tuple[Node, ...]  # values of the entries
    block: int = COL_SUM_BLOCK
    flat: bool = False

    @property
    def entries(self) -> Node:
        """The scalar that says how many entries the table has."""
        return self.total.args[2]

    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """Where segments begin, the order of the rows, and two sums for each window."""
        ((rows, cols),) = shapes
        return 8 * (entries + 2 + rows) + element * 2 * windows(rows) * cols

    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""
        return {"passes": 1, "rows in a block": self.block, "order": "rows by entry, then by place"}


def windows(rows: int) -> int:
    """Windows over so many sorted rows."""
    return -(-rows // COL_SUM_BLOCK)


def plan_scatter(graph: Graph) -> ScatterPlan:
    """The plan for a graph with a sum over entries. Raises DefinitionError for what it cannot hold beside it."""
    totals = [n for n in graph.nodes if n.op == "scatter_sum"]
    if len(totals) != 1:
        raise DefinitionError(f"{totals[1].origin}: a second scatter_sum; accepted: one in a definition")
    (total,) = totals
    for n in graph.nodes:
        if n.op in _REFUSED:
            raise DefinitionError(f"{n.origin}: {n.op} beside scatter_sum; accepted: element-wise values of rows")
    for o in graph.outputs:
        if o.space != "t":
            raise DefinitionError(
                f"{o.node.origin}: the result {o.name} beside scatter_sum; accepted: results of entries x cols"
            )
    values, index = list(topological([total.args[0]])), list(topological([total.args[1]]))
    return ScatterPlan(
        graph=graph,
        total=total,
        uniform=tuple(n for n in graph.nodes if n.space == "s" and n.type != "host"),
        of_row=tuple(n for n in values if n.space == "r"),
        of_index=tuple(n for n in index if n.space == "r"),
        compute=tuple(n for n in values if n.space in ("rc", "c")),
        finish=_behind(graph, total),
    )


def _behind(graph: Graph, total: Node) -> tuple[Node, ...]:
    """What is made of the complete sum, operands first, without the sum itself."""
    need: set[Node] = set()
    stack = [o.node for o in graph.outputs]
    while stack:
        n = stack.pop()
        if n not in need and n is not total and n.space in ("t", "c"):
            need.add(n)
            stack.extend(n.args)
    return tuple(n for n in graph.nodes if n in need)
