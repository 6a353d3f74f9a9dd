"""CUDA C++, also for the CPU's fibers, of a grouped product, from plan and tiling.

The kernels are those of ``families.matmul.gpu``, with groups in place of a batch. Where groups partition rows, a block
looks up which of them has its tile; where they partition the K dimension, all have as many tiles, and a sum only
as many chains as its group has.
"""

from __future__ import annotations

from ...lang import Node
from ..matmul.gpu import GpuProductEmitter
from ..matmul.tiling import Tiling
from .plan import GroupedPlan


class GpuGroupedEmitter(GpuProductEmitter):
    """Prints the kernels of one operator for one tiling."""

    includes: tuple[str, ...] = ("groups.h", "products.h")
    mine, item, row = "mine", "group.index", "row"

    def __init__(self, plan: GroupedPlan, tiling: Tiling) -> None:
        super().__init__(plan, tiling)
        self.defines = (*self.defines, "#define PLAN_GROUPED 1")
        self.share = plan.share
        assert plan.graph.offsets is not None
        self.offsets = f"in_{plan.graph.offsets.name}"
        self.batch = "1" if self.share == "r" else "batch"

    def units(self) -> None:
        """A block's units, or the one that it has, the group of each and its product."""
        self.open("" if self.tiling.once else "for (int64_t at = block_index();; at += grid_size())")
        if self.tiling.once:
            self.line("const int64_t at = block_index();")
        self.line("Group group;")
        if self.share == "r":
            self.line(f"if (!group.find({self.offsets}, batch, work.across * work.slices, at)) return;")
            self.line("const Work mine(group.count, cols, k_size, 1, call.chains_per_slice);")
            self.line("const Unit unit(mine, group.unit);")
        else:
            self.line("if (at >= work.units) return;")
            self.line("const Unit unit(work, at);")
            self.line(f"group.take({self.offsets}, unit.item);")
            self.line("const Work mine(rows, cols, group.count, 1, call.chains_per_slice);")
            self.line(f"if (unit.slice >= mine.slices) {'return' if self.tiling.once else 'continue'};")

    def side(self, operand: Node) -> str:
        """Where a group's share of an operand begins, or the operand that is a group's own."""
        name, space = f"in_{operand.data[0]}", str(operand.space)
        step = {0: f" + group.begin * {name}_stride", 1: " + group.begin", -1: ""}[space.find(self.share)]
        return f"{{{name}{step}, {name}_stride}}"

    def begin_result(self) -> None:
        """Rows of a group that has its share of them are numbered through all groups."""
        self.line(f"const int64_t r = {'group.begin + ' * (self.share == 'r')}row;")

    def parts_of_item(self) -> str:
        """As many as its group's sum has."""
        if self.share == "r":
            return "work.slices"
        return f"Work(rows, cols, {self.offsets}[item + 1] - {self.offsets}[item], 1, call.chains_per_slice).slices"
