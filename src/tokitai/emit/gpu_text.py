"""The text of a kernel for GPUs, and for the CPU's fibers that stand in for one.

One text serves CUDA and the simulated device, numbers as well as hashes: the headers decide.
"""

from __future__ import annotations

from importlib import resources

from ..families.attention.gpu import GpuAttentionEmitter
from ..families.attention.plan import AttentionPlan
from ..families.attention.tiling import WalkTiling
from ..families.elementwise.gpu import GpuFlatEmitter
from ..families.elementwise.plan import FlatPlan
from ..families.grouped.gpu import GpuGroupedEmitter
from ..families.grouped.plan import GroupedPlan
from ..families.matmul.gpu import GpuProductEmitter
from ..families.matmul.gpu_pipeline import GpuGroupedPipelineEmitter, GpuPipelineEmitter
from ..families.matmul.plan import ProductPlan
from ..families.matmul.tiling import Tiling
from ..families.rowwise.gpu import GpuRowEmitter
from ..families.rowwise.plan import RowPlan
from ..families.scatter.gpu import GpuScatterEmitter
from ..families.scatter.plan import ScatterPlan
from ..lower.gpu import FlatSchedule, Schedule
from .cpp import KernelText, first, segments

OWN = ("threads.h", "lanes.h", "numbers.h", "rows.h", "quotients.h", "sim.h", "hip.h")
OF_PRODUCTS = ("accumulators.h", "matrix_unit.h", "work.h", "products.h")
SHARED = ("integers.h", "hashes.h")  # with the cpu target


def headers(of_products: bool = False) -> dict[str, str]:
    """The headers of GPU kernels, by the name under which a kernel includes them."""
    package = resources.files(__package__)
    own = {name: (package / "gpu" / name).read_text() for name in OWN + OF_PRODUCTS * of_products}
    return own | {name: (package / "cpu" / name).read_text() for name in SHARED}


def warpgroup_headers() -> dict[str, str]:
    """The headers of Hopper's warpgroups, by name."""
    package = resources.files(__package__) / "gpu"
    return {name: (package / name).read_text() for name in ("warpgroup.h", "pipeline.h")}


def emit_rows(plan: RowPlan, schedule: Schedule) -> KernelText:
    """The text of a row-wise operator's kernels for one schedule."""
    return KernelText(GpuRowEmitter(plan, schedule).text(), headers() | (first() if plan.has_firsts else {}))


def emit_scatter(plan: ScatterPlan, width: int, full: bool = False, wide: bool = False) -> KernelText:
    """The text of a sum over entries, with accesses of at most `width` elements: of rows that are whole chunks where
    they are `full`, and of 2**31 and more where they are `wide`."""
    package = resources.files(__package__) / "gpu"
    sorting = {name: (package / name).read_text() for name in ("sorting.h", "entries.h")}
    return KernelText(GpuScatterEmitter(plan, width, full, wide).text(), headers() | segments() | sorting)


def emit_flat(plan: FlatPlan, width: int, schedule: FlatSchedule) -> KernelText:
    """The text of an element-wise operator's kernels for one schedule, with accesses of at most `width` elements."""
    return KernelText(GpuFlatEmitter(plan, width, schedule).text(), headers())


def emit_product(plan: ProductPlan, tiling: Tiling) -> KernelText:
    """The text of a matrix product's kernels for one tiling, alone or in groups."""
    shared = headers(of_products=True) | (warpgroup_headers() if tiling.stages else {})
    if isinstance(plan, GroupedPlan):
        shared |= {"groups.h": (resources.files(__package__) / "gpu" / "groups.h").read_text()}
        emitter = GpuGroupedPipelineEmitter if tiling.stages else GpuGroupedEmitter
        return KernelText(emitter(plan, tiling).text(), shared)
    return KernelText((GpuPipelineEmitter if tiling.stages else GpuProductEmitter)(plan, tiling).text(), shared)


def emit_attention(plan: AttentionPlan, tiling: WalkTiling) -> KernelText:
    """The text of attention's kernels for one tiling."""
    walks = {"attention.h": (resources.files(__package__) / "gpu" / "attention.h").read_text()}
    return KernelText(GpuAttentionEmitter(plan, tiling).text(), headers(of_products=True) | walks)
