"""Sums of rows over the entries of a table that they choose."""

from __future__ import annotations

from ...emit.cpp import KernelText, headers, segments
from ...lang import Graph
from ..family import Family
from .cpu import ScatterEmitter
from .gpu_kernels import GpuScatter
from .plan import ScatterPlan, plan_scatter
from .shapes import ScatterShapes


class Scatter(Family[ScatterPlan]):
    """Sums over entries."""

    priority = 40
    gpu = GpuScatter()
    shapes = ScatterShapes()
    plan = staticmethod(plan_scatter)

    def takes(self, graph: Graph) -> bool:
        """A graph with a sum over entries."""
        return any(n.op == "scatter_sum" for n in graph.nodes)

    def cpu_source(self, plan: ScatterPlan) -> KernelText:
        """The source of the kernel for the CPU."""
        return KernelText(ScatterEmitter(plan).text(), headers() | segments())
