"""Which kernels an element-wise call takes on a GPU: a table of its tensors, and launches over the tiles of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...emit.cpp import KernelText
from ...emit.gpu_text import headers
from ...lower.gpu import CHUNK, FEW_SPILLS, WIDTHS
from ..gpu_family import Array, GpuFamily, GpuSource, KernelInMaking, Launches, Program, Table, packed
from .gpu import ENTRY, GpuFlatEmitter
from .plan import FlatPlan
from .schedule import (
    MANY_UNITS,
    SIM_UNITS,
    TILE,
    FlatSchedule,
    flat_steps,
    flat_workspace_elements,
    run_of,
    schedule_flat,
)


def emit_flat(plan: FlatPlan, width: int, schedule: FlatSchedule) -> KernelText:
    """The source of an element-wise operator's kernels for one schedule, with accesses of at most `width` elements."""
    return KernelText(GpuFlatEmitter(plan, width, schedule).text(), headers())


class GpuFlat(GpuFamily[FlatPlan]):
    """Elements on a GPU."""

    def source(self, plan: FlatPlan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
        """The first choice for this shape."""
        text = emit_flat(plan, CHUNK, schedule_flat(plan))
        return GpuSource(text, flat_steps(plan, [shape]), f"tiles of {TILE} elements", shape)

    def launches(
        self, kernel: KernelInMaking, plan: FlatPlan, addresses: Sequence[int], sizes: Sequence[int],
        shape: tuple[int, int], threads: int, entries: int,
    ) -> Launches:  # fmt: skip
        """Of one tensor of each name, whose entry stands in the kernels' parameter: its addresses come last."""
        made = self.table(kernel, plan, addresses, sizes, [shape], lambda values: (values.ctypes.data, values))
        head, need = made.packed[: -8 * len(addresses)], self.workspace_bytes(kernel, plan, made.shapes, 1, 0)
        return Launches(self.program_for(kernel, plan, made), made.steps, b"", need, head)

    def workspace_bytes(
        self, kernel: KernelInMaking, plan: FlatPlan, shapes: Sequence[tuple[int, int]], threads: int, entries: int
    ) -> int:
        """Counters, and a value of each total for each run of tiles and each tensor."""
        return (8 if kernel.structure else 4) * flat_workspace_elements(plan, shapes, _many(kernel))

    def table(
        self, kernel: KernelInMaking, plan: FlatPlan, addresses: Sequence[int], sizes: Sequence[int],
        shapes: Sequence[tuple[int, int]], place: Callable[[Array], tuple[int, object]],
    ) -> Table:  # fmt: skip
        """A list of tensors, placed where kernels can read it: once for many launches."""
        count, per, names = sizes[0], 2 + kernel.matrices, len(kernel.tensor_sizes)
        given = np.array(sizes[1 : 1 + count * per], np.int64).reshape(count, per)
        rows, cols, own = given[:, 0].copy(), given[:, 1].copy(), given[:, 2:].copy()
        dense = (rows > 1) & (own == cols[:, None]).all(1)  # contiguous: one long row
        cols[dense] *= rows[dense]
        rows[dense] = 1
        own[dense] = cols[dense, None]
        tiles_each = rows * -(-cols // TILE)
        tiles, some = int(tiles_each.sum()), tiles_each > 0
        run = run_of(tiles, _many(kernel))
        units_each = rows * -(-cols // (TILE * run))
        entries = np.zeros((max(count, 1), ENTRY + kernel.matrices + names), np.int64)
        if count:
            entries[:, 0], entries[:, 1] = rows, cols
            entries[:, 2] = np.cumsum(tiles_each) - tiles_each
            entries[:, 3] = np.where(some, np.cumsum(some) - 1, -1)
            entries[:, 4] = np.cumsum(units_each) - units_each
            entries[:, ENTRY : ENTRY + kernel.matrices] = own
            entries[:, ENTRY + kernel.matrices :] = np.array(addresses, np.int64).reshape(count, names)
        bytes_of = np.array([size for space, size in kernel.tensor_sizes if space == "rc"], np.int64)
        where = entries[:count, ENTRY + kernel.matrices :][:, [space == "rc" for space, _ in kernel.tensor_sizes]][some]
        strides = np.where(rows[some, None] > 1, own[some], 0)
        places = where | strides * bytes_of  # a power of two divides both where it divides this
        width = next((w for w in WIDTHS if not (places % np.minimum(16, w * bytes_of)).any()), 1)
        pointers, alive = (0, 0, 0, 0), []
        if count != 1:
            of_tile, of_unit = (np.repeat(np.arange(count, dtype=np.int32), each) for each in (tiles_each, units_each))
            filled = np.flatnonzero(some).astype(np.int32)
            placed = [place(a) for a in (entries, of_tile, of_unit, filled)]
            pointers, alive = tuple(address for address, _ in placed), [keep for _, keep in placed]  # type: ignore[assignment]
        tight = tuple(zip(rows.tolist(), cols.tolist(), strict=True))
        numbers = count, tiles, units_each.sum(), run, some.sum()
        parameter = packed(*numbers, *pointers, *entries[0].tolist())
        return Table(tight, width, parameter, tuple(flat_steps(plan, tight, _many(kernel))), (alive, entries))

    def moved(
        self,
        kernel: KernelInMaking,
        made: Table,
        addresses: Sequence[int],
        place: Callable[[Array], tuple[int, object]],
    ) -> Table | None:
        """The same list in other memory, of which only the entries are placed anew; None where it is aligned in another
        way."""
        held: Any = made.alive
        alive, entries = held
        names = len(kernel.tensor_sizes)
        where = np.array(addresses, np.int64).reshape(-1, names)
        if len(where) != len(entries) or ((entries[:, -names:] ^ where) & 15).any():
            return None
        entries = entries.copy()
        entries[:, -names:] = where
        numbers, pointers = made.packed[:40], made.packed[40:72]
        if alive:
            address, keep = place(entries)
            pointers, alive = packed(address) + pointers[8:], [keep, *alive[1:]]
        parameter = numbers + pointers + entries[0].tobytes()
        return Table(made.shapes, made.width, parameter, made.steps, (alive, entries))

    def program_for(self, kernel: KernelInMaking, plan: FlatPlan, table: Table) -> Program:
        """The kernels for the width of a table's accesses; with fewer blocks on a multiprocessor where registers would
        not do."""
        width = table.width
        schedule = kernel.settled.get(width, schedule_flat(plan))
        while True:
            program = kernel.program((width, schedule), lambda s=schedule: emit_flat(plan, width, s))  # type: ignore[misc]
            fewer = None if width in kernel.settled or not plan.compute else schedule.with_fewer_blocks()
            if fewer is None or program.spills("work") <= FEW_SPILLS:
                kernel.settled[width] = schedule
                return program
            kernel.forget((width, schedule))
            schedule = fewer


def _many(kernel: KernelInMaking) -> int:
    """Runs of tiles that keep a kernel's device busy."""
    return SIM_UNITS if kernel.target.name == "sim" else MANY_UNITS


__all__ = ["GpuFlat", "emit_flat"]
