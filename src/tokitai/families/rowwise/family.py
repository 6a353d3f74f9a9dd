"""Row-wise kernels: passes over each row, sums along rows and down columns. They take what no other family does."""

from __future__ import annotations

from ...emit.cpp import KernelText, first, headers
from ...errors import DefinitionError
from ...lang import TOTALS, Graph
from ..family import Family
from .cpu import RowEmitter
from .gpu_kernels import GpuRows
from .plan import RowPlan, plan_rows
from .shapes import RowShapes


class Rowwise(Family[RowPlan]):
    """Rows."""

    priority = 100
    gpu = GpuRows()
    shapes = RowShapes()

    def takes(self, graph: Graph) -> bool:
        """Whatever no other family takes."""
        return True

    def plan(self, graph: Graph) -> RowPlan:
        """The plan for a graph. Raises DefinitionError for totals and indices of tensors, and what `plan_rows` does."""
        for n in graph.nodes:
            if n.op in TOTALS or n.op == "tensor_index":
                raise DefinitionError(
                    f"{n.origin}: {n.op} beside sums or indices of rows; accepted: in element-wise definitions"
                )
        return plan_rows(graph)

    def cpu_source(self, plan: RowPlan) -> KernelText:
        """The source of the kernel for the CPU."""
        return KernelText(RowEmitter(plan).text(), headers() | (first() if plan.has_firsts else {}))
