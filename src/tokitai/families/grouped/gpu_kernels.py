"""Which kernels a grouped product takes on a GPU: those of one product, each emitted with groups."""

from __future__ import annotations

from typing import Any

from ...emit.cpp import KernelText
from ...emit.gpu_text import gpu_own
from ..matmul.gpu_kernels import GpuProducts, product_headers
from ..matmul.tiling import Tiling
from .gpu import GpuGroupedEmitter
from .gpu_pipeline import GpuGroupedPipelineEmitter
from .plan import GroupedPlan


def emit_grouped(plan: GroupedPlan, tiling: Tiling) -> KernelText:
    """The source of the kernels for one tiling."""
    text = (GpuGroupedPipelineEmitter if tiling.stages else GpuGroupedEmitter)(plan, tiling).text()
    return KernelText(text, product_headers(plan, tiling) | gpu_own("groups.h"))


class GpuGrouped(GpuProducts):
    """Grouped products on a GPU."""

    def emit(self, plan: Any, tiling: Tiling) -> KernelText:
        """The source for one tiling."""
        return emit_grouped(plan, tiling)


__all__ = ["GpuGrouped", "emit_grouped"]
