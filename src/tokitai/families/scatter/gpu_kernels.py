"""Which kernels a sum over entries takes on a GPU, and what they are launched with."""

from __future__ import annotations

from collections.abc import Sequence

from ...emit.cpp import KernelText, segments
from ...emit.gpu_text import gpu_own, headers
from ...lower.gpu import CHUNK
from ...meaning.structure import drawn_entries
from ..gpu_family import GpuFamily, GpuSource, KernelInMaking, Launches, packed, usual_width
from ..rowwise.gpu_kernels import width_of_rows
from . import schedule
from .gpu import GpuScatterEmitter
from .plan import ScatterPlan


def emit_scatter(plan: ScatterPlan, width: int, full: bool = False, wide: bool = False) -> KernelText:
    """The source of a sum over entries, with accesses of at most `width` elements: of rows that are whole chunks where
    they are `full`, and of 2**31 and more where they are `wide`."""
    text = GpuScatterEmitter(plan, width, full, wide).text()
    return KernelText(text, headers() | segments() | gpu_own("sorting.h", "entries.h"))


class GpuScatter(GpuFamily[ScatterPlan]):
    """Sums over entries on a GPU."""

    def source(self, plan: ScatterPlan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
        """The first choice for this shape, with as many entries as a verification draws."""
        entries = drawn_entries(shape[0])
        text = emit_scatter(plan, usual_width(shape[1]), shape[1] % CHUNK == 0, schedule.is_wide(shape[0]))
        return GpuSource(text, schedule.scatter_steps(plan, *shape, entries), f"{entries} entries", shape)

    def launches(
        self, kernel: KernelInMaking, plan: ScatterPlan, addresses: Sequence[int], sizes: Sequence[int],
        shape: tuple[int, int], threads: int, entries: int,
    ) -> Launches:  # fmt: skip
        """The source follows from the alignment of the tensors, and from how many rows there are."""
        rows, cols = shape
        how = width_of_rows(kernel, addresses, sizes, rows), cols % CHUNK == 0, schedule.is_wide(rows)
        program = kernel.program(how, lambda: emit_scatter(plan, *how))
        need = self.workspace_bytes(kernel, plan, [shape], threads, entries)
        return Launches(program, tuple(schedule.scatter_steps(plan, rows, cols, entries)), packed(*sizes), need)

    def workspace_bytes(
        self, kernel: KernelInMaking, plan: ScatterPlan, shapes: Sequence[tuple[int, int]], threads: int, entries: int
    ) -> int:
        """Segments, sorted rows, counts of digits, sums of windows."""
        return schedule.workspace_bytes(*shapes[0], entries, 8 if kernel.structure else 4)


__all__ = ["GpuScatter", "emit_scatter"]
