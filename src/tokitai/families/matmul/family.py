"""Matrix products with element-wise work on their result."""

from __future__ import annotations

from collections.abc import Mapping

from ...emit.cpp import KernelText
from ...lang import Graph, Operator
from ..arguments import Bound
from ..family import Array, Family
from .arguments import bind_product, product_sizes
from .cpu import ProductEmitter, product_headers
from .gpu_kernels import GpuProducts
from .plan import ProductPlan, is_product, plan_product
from .shapes import ProductShapes


class Matmul(Family[ProductPlan]):
    """Products."""

    priority = 30
    gpu = GpuProducts()
    shapes = ProductShapes()
    takes = staticmethod(is_product)
    launch_sizes = staticmethod(product_sizes)
    plan = staticmethod(plan_product)

    def cpu_source(self, plan: ProductPlan) -> KernelText:
        """The source of the kernel for the CPU."""
        return KernelText(ProductEmitter(plan).text(), product_headers(plan))

    def bind(self, operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool = True) -> Bound:
        """Which side of each matrix is which."""
        return bind_product(operator, graph, arrays)
