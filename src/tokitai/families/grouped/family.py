"""Grouped products, which partition the rows of one operand, or the K dimension, among them."""

from __future__ import annotations

from collections.abc import Mapping

from ...emit.cpp import KernelText, own
from ...lang import Graph, Operator
from ..arguments import Bound
from ..family import Array
from ..matmul.cpu import product_headers
from ..matmul.family import Matmul
from ..matmul.plan import is_product
from .arguments import bind_grouped
from .cpu import GroupedEmitter
from .gpu_kernels import GpuGrouped
from .plan import GroupedPlan, plan_grouped
from .shapes import GroupedShapes


class Grouped(Matmul):
    """Grouped products: bound and launched as one product is, whose batch is the groups."""

    priority = 20
    gpu = GpuGrouped()
    shapes = GroupedShapes()  # type: ignore[assignment]
    plan = staticmethod(plan_grouped)

    def takes(self, graph: Graph) -> bool:
        """A graph with a grouped product."""
        return is_product(graph) and bool(graph.ragged)

    def cpu_source(self, plan: GroupedPlan) -> KernelText:  # type: ignore[override]
        """The source of the kernel for the CPU."""
        return KernelText(GroupedEmitter(plan).text(), product_headers(plan) | own("groups.h"))

    def bind(self, operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool = True) -> Bound:
        """Which side of a group's matrices is which, and where groups begin."""
        return bind_grouped(operator, graph, arrays, read=read)
