"""C++ for the CPU: the source of a grouped product, from its plan.

The ABI is that of `matmul.cpu`, with the number of groups in place of the batch's. The stride from one group to the
next is 0 for a matrix that has the dimension that groups partition.
"""

from __future__ import annotations

from ...emit.cpp import IN_THREADS
from ...emit.text import POINTER
from ...lang import MATRICES
from ..matmul.cpu import ProductEmitter, plan_defines, unit_defines
from .plan import TALL, WIDE, GroupedPlan


class GroupedEmitter(ProductEmitter):
    """Prints one kernel."""

    includes = ("groups.h",)

    def __init__(self, plan: GroupedPlan) -> None:
        super().__init__(plan)
        self.defines = unit_defines(plan) + plan_defines(plan.accumulator == "f64", TALL, WIDE)
        self.share = plan.share

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        self.arguments()
        products, offsets = self.plan.products, self.graph.offsets
        assert offsets is not None
        count = len(products)
        head = f"const {self.buffers} buffers({count}, rows, cols, k_size"
        self.line(f"{head}, PLAN_SHARE * threads, threads, workspace);")
        self.open(IN_THREADS)
        self.line("const FloatMode mode;")
        for s in self.plan.uniform:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        along_rows = str(self.share == "r").lower()
        self.open(
            f"each_task<{along_rows}>(rows, cols, k_size, batch, in_{offsets.name}, threads, [&](const Task& task)"
        )
        for name, space, kind, const in self.tensors:
            if space in MATRICES:
                self.line(f"{const}{kind}* const {name} = all_{name} + task.group * {name}_batch;")
        left, layout = self.plan.left.data[0], str(products[0].data[0])
        rights = [n.args[1].data for n in products]
        turned = [str(str(n.data[0])[1] == "T").lower() for n in products]
        sides = (f"task.right(in_{r[0]}, in_{r[0]}_stride, {t})" for r, t in zip(rights, turned, strict=True))
        self.line(f"const Operand<{POINTER[str(rights[0][1])]}> right[{count}] = {{{', '.join(sides)}}};")
        self.line(f"const bool right_transposed[{count}] = {{{', '.join(turned)}}};")
        left_turned = str(layout[0] == "T").lower()
        self.line(f"const auto left = task.left(in_{left}, in_{left}_stride, {left_turned});")
        self.line(f"constexpr bool left_transposed = {left_turned};")
        sizes = "task.rows, task.cols, task.k_size, task.team()"
        head = f"products<left_transposed>({sizes}, buffers, left, right, right_transposed, "
        self.open(f"{head}[&](int64_t task_r, int64_t task_c, auto lanes, const V (&product)[{count}]) INLINE_LAMBDA")
        self.line("const int64_t r = task.row + task_r, c = task.col + task_c;")
        self.elements()
        self.close("});")
        self.close("});")
        self.close("});")
