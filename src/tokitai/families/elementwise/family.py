"""Element-wise kernels, over one tensor or a list of any number of them."""

from __future__ import annotations

from collections.abc import Sequence

from ...emit.cpp import KernelText, headers
from ..family import Array, Family
from .cpu import FlatEmitter
from .gpu_kernels import GpuFlat
from .plan import FlatPlan, is_flat, plan_flat
from .shapes import FlatShapes


class Elementwise(Family[FlatPlan]):
    """Elements that are all treated alike, and totals over them."""

    priority = 50
    gpu = GpuFlat()
    shapes = FlatShapes()
    takes = staticmethod(is_flat)
    plan = staticmethod(plan_flat)

    def cpu_source(self, plan: FlatPlan) -> KernelText:
        """The source of the kernel for the CPU."""
        return KernelText(FlatEmitter(plan).text(), headers())

    def launch_sizes(
        self, spaces: Sequence[str], tensors: Sequence[Sequence[Array]], shapes: Sequence[tuple[int, int]]
    ) -> list[int]:
        """How many tensors the list has, then the sizes of each."""
        return [len(shapes), *super().launch_sizes(spaces, tensors, shapes)]
