"""Which kernels a row-wise call takes on a GPU, and what they are launched with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...emit.cpp import KernelText, first
from ...emit.gpu_text import headers
from ...lower.gpu import CHUNK, FEW_SPILLS, FEW_SPILLS_OF_LONG
from ..gpu_family import GpuFamily, GpuSource, KernelInMaking, Launches, packed, usual_width
from .gpu import GpuRowEmitter
from .plan import RowPlan, plan_rows
from .schedule import LONGEST_JOINED, Schedule, blocked, row_steps, schedule_rows, stage_bytes, workspace_elements


def emit_rows(plan: RowPlan, schedule: Schedule) -> KernelText:
    """The source of a row-wise operator's kernels for one schedule."""
    return KernelText(GpuRowEmitter(plan, schedule).text(), headers() | (first() if plan.has_firsts else {}))


class GpuRows(GpuFamily[RowPlan]):
    """Rows on a GPU."""

    def plan(self, plan: RowPlan, target: str) -> RowPlan:
        """Registers keep what scratch rows in a cache would."""
        return plan_rows(plan.graph, "in registers")

    def source(self, plan: RowPlan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
        """The first choice for this shape."""
        chosen = schedule_rows(plan, shape[1], usual_width(shape[1]), warp)
        chosen = replace(chosen, staged=chosen.staged and staged)
        text = emit_rows(plan if chosen.kept else plan_rows(plan.graph, "nothing"), chosen)
        return GpuSource(text, row_steps(plan, chosen, *shape), str(chosen), shape)

    def launches(
        self, kernel: KernelInMaking, plan: RowPlan, addresses: Sequence[int], sizes: Sequence[int],
        shape: tuple[int, int], threads: int, entries: int,
    ) -> Launches:  # fmt: skip
        """The schedule follows from the columns and the alignment of the tensors."""
        rows, cols = shape
        width = width_of_rows(kernel, addresses, sizes, rows)
        wished = (kernel.schedule or schedule_rows)(plan, cols, width, kernel.target.warp)
        if stage_bytes(plan, wished) > kernel.target.shared_bytes:
            wished = replace(wished, staged=False)
        if wished not in kernel.settled:
            kernel.settled[wished] = _without_spills(kernel, plan, wished)
        schedule = kernel.settled[wished]
        program = kernel.program(schedule, lambda: emit_rows(_of_schedule(plan, schedule), schedule))
        need = self.workspace_bytes(kernel, plan, [shape], threads, entries)
        return Launches(program, tuple(row_steps(plan, schedule, rows, cols)), packed(*sizes), need)

    def workspace_bytes(
        self, kernel: KernelInMaking, plan: RowPlan, shapes: Sequence[tuple[int, int]], threads: int, entries: int
    ) -> int:
        """Early sums, and partial sums of running ones."""
        return (8 if kernel.structure else 4) * workspace_elements(plan, *shapes[0])


def _of_schedule(plan: RowPlan, schedule: Schedule) -> RowPlan:
    """Rows that are read again in each pass keep nothing."""
    return plan if schedule.kept else plan_rows(plan.graph, "nothing")


def _without_spills(kernel: KernelInMaking, plan: RowPlan, schedule: Schedule) -> Schedule:
    """The schedule, or one for fewer registers a thread where more than a few are spilled."""
    long = schedule.threads * schedule.chunks * CHUNK > LONGEST_JOINED
    few = FEW_SPILLS_OF_LONG if long else FEW_SPILLS
    chosen = _of_schedule(plan, schedule)
    while True:
        program = kernel.program(schedule, lambda s=schedule: emit_rows(chosen, s))  # type: ignore[misc]
        room = stage_bytes(plan, replace(schedule, staged=True)) <= kernel.target.shared_bytes
        fewer = schedule.with_fewer_registers(blocked(plan), room)
        if fewer is None or program.spills("work") <= few:
            return schedule
        kernel.forget(schedule)
        schedule = fewer


def width_of_rows(kernel: KernelInMaking, addresses: Sequence[int], sizes: Sequence[int], rows: int) -> int:
    """Elements to an access that the alignment of matrices, columns and tables allows."""
    where, strides, bytes_of, k = [], [], [], 2
    for (space, size), address in zip(kernel.tensor_sizes, addresses, strict=True):
        if space in ("rc", "c", "t"):
            where.append(address)
            bytes_of.append(size)
            strides.append(sizes[k] if space == "t" or (space == "rc" and rows > 1) else 0)
        k += space in ("rc", "t")
    return kernel.width(where, strides, bytes_of)


__all__ = ["GpuRows", "emit_rows", "packed", "width_of_rows"]
