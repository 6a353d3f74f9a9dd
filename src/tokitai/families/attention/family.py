"""Attention: products of queries and keys, what is made of them along each row, and weighted sums."""

from __future__ import annotations

from collections.abc import Mapping

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
    takes = staticmethod(is_attention)
    launch_sizes = staticmethod(product_sizes)  # as those of a product: queries are rows, keys are columns
    plan = staticmethod(plan_attention)

    def cpu_source(self, plan: AttentionPlan) -> KernelText:
        """The source of the kernel for the CPU."""
        steps = own("attention_steps.h") if plan.format else {}
        return KernelText(AttentionEmitter(plan).text(), headers(of_products=True) | own("attention.h") | steps)

    def bind(self, operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool = True) -> Bound:
        """Heads, groups of heads that share keys, what queries see."""
        return bind_attention(operator, graph, arrays)
