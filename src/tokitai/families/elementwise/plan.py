"""The plan of an element-wise kernel, over one tensor or a list of any number of them.

Tensors are cut into tiles of neighbouring elements; tiles of all tensors are one range of work. Totals over all
elements come first: one value a tile, then the tree over a tensor's tiles, then over the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import DefinitionError
from ...lang import ROW_REDUCTIONS, TOTALS, Graph, Node, topological
from ..family import Plan

TILE = 16384  # a power of two, so that a tile's sum is a node of the balanced tree along the tensor


@dataclass(frozen=True)
class FlatPlan(Plan):
    """What is computed before the elements, for each total, and for the elements."""

    graph: Graph
    uniform: tuple[Node, ...]  # scalars of the whole call
    totals: tuple[Node, ...]
    after: tuple[Node, ...]  # scalars made of totals
    of_tensor: tuple[Node, ...]  # scalars that differ from tensor to tensor
    late: frozenset[Node]  # those that are made of totals as well
    compute: tuple[Node, ...]  # what the stored results need
    tile: int = TILE
    flat: bool = True
    block: int = 1

    @property
    def of_all(self) -> bool:
        """Whether something is found once for all elements: totals, or results that are scalars."""
        return bool(self.totals) or any(o.space == "s" for o in self.graph.outputs)

    def under(self, total: Node) -> list[Node]:
        """What a total needs for each element, operands first."""
        return elements([total.args[0]])

    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """Where tensors' tiles begin, which tensors are not empty, and one value a tile for each total."""
        tiles = sum(rows * -(-cols // self.tile) for rows, cols in shapes)
        return 8 * (2 * len(shapes) + 1) + element * tiles * len(self.totals)

    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""
        return {
            "passes": 1 + bool(self.totals),
            "elements in a tile": self.tile,
            "totals": len(self.totals),
            "flat": True,
        }


def is_flat(graph: Graph) -> bool:
    """Whether all elements are treated alike, wherever they lie."""
    special = {*ROW_REDUCTIONS, "col_sum", "take_column", "gather", "row_index", "column_index"}
    tables = any(t.space == "t" for t in graph.inputs)  # also one that is not used
    return not tables and all(n.op not in special and n.space in ("rc", "s") for n in graph.nodes)


def plan_flat(graph: Graph) -> FlatPlan:
    """The plan for an element-wise graph. Raises DefinitionError for a total of a total."""
    totals = tuple(n for n in graph.nodes if n.op in TOTALS)
    made_of_totals: set[Node] = set()
    of_tensor: set[Node] = set()
    for n in graph.nodes:
        if n.op in TOTALS or (n.space == "s" and any(a in made_of_totals for a in n.args)):
            made_of_totals.add(n)
        if n.op == "tensor_index" or (n.space == "s" and any(a in of_tensor for a in n.args)):
            of_tensor.add(n)
    for total in totals:
        if any(n in made_of_totals for n in topological([total.args[0]])):
            raise DefinitionError(
                f"{total.origin}: {total.op} of a value made of a total; accepted: totals of elements alone"
            )
    for o in graph.outputs:
        if o.node in of_tensor:
            raise DefinitionError(
                f"{o.node.origin}: the result {o.name}, a scalar made of tensor_index(); accepted: results of rows x "
                "cols, and scalars of the whole call"
            )
    scalars = [n for n in graph.nodes if n.space == "s" and n.type != "host"]
    return FlatPlan(
        graph=graph,
        uniform=tuple(n for n in scalars if n not in made_of_totals and n not in of_tensor),
        totals=totals,
        after=tuple(n for n in scalars if n in made_of_totals and n not in totals and n not in of_tensor),
        of_tensor=tuple(n for n in scalars if n in of_tensor),
        late=frozenset(of_tensor & made_of_totals),
        compute=tuple(elements([o.node for o in graph.outputs if o.space == "rc"])),
    )


def elements(roots: Sequence[Node]) -> list[Node]:
    """The element values that roots need, operands first, not looking behind totals."""
    need: set[Node] = set()
    stack = [r for r in roots if r.space == "rc"]
    while stack:
        n = stack.pop()
        if n not in need:
            need.add(n)
            stack.extend(a for a in n.args if a.space == "rc")
    return [n for n in topological(roots) if n in need]
