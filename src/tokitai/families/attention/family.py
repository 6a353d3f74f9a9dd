"""Attention: products of queries and keys, what is made of them along each row, and weighted sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...emit.cpp import KernelText, headers, own
from ...lang import Graph, Operator
from ..arguments import Bound
from ..family import Array, Family
from ..matmul.arguments import product_sizes
from .arguments import bind_attention
from .cpu import AttentionEmitter
from .gpu_kernels import GpuAttention
from .plan import AttentionPlan, is_attention, plan_attention
from .shapes import AttentionShapes


class Attention(Family[AttentionPlan]):
    """Weighted sums."""

    priority = 10
    gpu = GpuAttention()
    shapes = AttentionShapes()

    def takes(self, graph: Graph) -> bool:
        """A graph with a weighted sum."""
        return is_attention(graph)

    def plan(self, graph: Graph) -> AttentionPlan:
        """The plan for a graph. Raises DefinitionError for what cannot be laid out beside weighted sums."""
        return plan_attention(graph)

    def cpu_source(self, plan: AttentionPlan) -> KernelText:
        """The source of the kernel for the CPU."""
        steps = own("attention_steps.h") if plan.format else {}
        return KernelText(AttentionEmitter(plan).text(), headers(of_products=True) | own("attention.h") | steps)

    def bind(self, operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool = True) -> Bound:
        """Heads, groups of heads that share keys, what queries see."""
        return bind_attention(operator, graph, arrays)

    def launch_sizes(
        self, spaces: Sequence[str], tensors: Sequence[Sequence[Array]], shapes: Sequence[tuple[int, int]]
    ) -> list[int]:
        """As those of a product: queries are rows, keys are columns."""
        return product_sizes(spaces, tensors, shapes)
