"""CUDA C++ of a grouped product by Hopper's warpgroups: `matmul.gpu_pipeline` with groups in place of a batch."""

from __future__ import annotations

from ..matmul.gpu_pipeline import GpuPipelineEmitter
from ..matmul.tiling import Tiling
from .gpu import GpuGroupedEmitter
from .plan import GroupedPlan


class GpuGroupedPipelineEmitter(GpuPipelineEmitter, GpuGroupedEmitter):
    """Prints the kernels of one operator for one tiling."""

    includes: tuple[str, ...] = ("groups.h", "pipeline.h")

    def __init__(self, plan: GroupedPlan, tiling: Tiling) -> None:
        super().__init__(plan, tiling)
        if self.divided:
            self.includes = (*self.includes, "quotients.h")
        along_k = ("#define PLAN_GROUPS_ALONG_K 1",) if self.share == "k" else ()
        self.defines = (*self.defines, *along_k)

    def each_unit(self) -> None:
        if self.share == "r":
            self.open("for (int64_t at = block_index();; at += grid_size())")
            self.line("Group group;")
            self.line(f"if (!group.find({self.offsets}, batch, work.across * work.slices, at)) break;")
            self.line("const Work mine(group.count, cols, k_size, 1, call.chains_per_slice);")
            self.line("Unit unit = placed(mine, group.unit);")
            return
        self.open("for (int64_t at = block_index(); at < work.units; at += grid_size())")
        self.line("const Unit unit = placed(work, at);")
        self.line("Group group;")
        self.line(f"group.take({self.offsets}, unit.item);")
        self.line("const Work mine(rows, cols, group.count, 1, call.chains_per_slice);")
        self.line("if (unit.slice >= mine.slices) continue;")

    def origin(self, operand: str, left: bool) -> str:
        if self.share == "k":
            return "Origin{0, group.begin, 0}"
        return "Origin{group.begin, 0, 0}" if left else "Origin{0, 0, group.index}"
