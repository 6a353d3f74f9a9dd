"""The plan of a grouped product: the parts of all groups' results are tasks, which threads take one after another.

A task is a part of at most TALL x WIDE elements of one group's result, computed by one thread as a product of its own;
so a group is no parallel call, and threads never synchronize before the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ...errors import DefinitionError
from ...lang import Graph, Sizes
from ..matmul.plan import DEPTH, ProductPlan, plan_product

TALL, WIDE = 1008, 1024
_REFUSED = frozenset({"rows", "row_index", "element_word"})  # they would not be those of a group


@dataclass(frozen=True)
class GroupedPlan(ProductPlan):
    """Products whose groups partition one side, and what is made of each element by element."""

    @property
    def share(self) -> str:
        """The side that is partitioned: r or k."""
        return self.graph.ragged

    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """For each thread what ``Room`` in products.h has for a task."""
        return self.bytes_for(Sizes.of(shapes[0]), TALL, WIDE, element, threads, threads)

    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""
        share = {"r": "rows", "k": "the K dimension"}[self.share]
        return {**super().describe(), "groups share": share, "task": f"{TALL} x {WIDE}", "tile": f"{DEPTH} along k"}


def plan_grouped(graph: Graph) -> GroupedPlan:
    """The plan for a graph. Raises DefinitionError for what no product allows, and for what knows rows as places."""
    plan = plan_product(graph)
    for n in graph.nodes:
        if n.op in _REFUSED:
            raise DefinitionError(f"{n.origin}: {n.op} beside groups; accepted: element-wise work on their products")
    for n in plan.products:
        if n.data[2:] != plan.products[0].data[2:]:
            raise DefinitionError(f"{n.origin}: a product in other groups; accepted: the same for all products")
    return GroupedPlan(**{f.name: getattr(plan, f.name) for f in fields(plan)})
