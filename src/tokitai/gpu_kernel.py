"""Kernels for GPUs and for the simulated device: one text for each schedule, compiled when a shape first needs it.

Which schedule a call takes follows from its number of columns and from how its tensors are aligned (`lower.gpu`); a
schedule decides speed, never a bit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from .emit.cpp import KernelText
from .emit.gpu_flat import ENTRY
from .emit.gpu_text import emit_flat, emit_rows, emit_scatter
from .kernel import Array, Identity, KernelBase
from .lang import Graph, Operator
from .lower import FlatPlan, Plan, ScatterPlan, gpu_scatter
from .lower import gpu as layout
from .lower.gpu import CHUNK, Schedule, Step
from .lower.rowwise import RowPlan, plan_rows

Edit = Callable[[str], str]


class Program(Protocol):
    """The kernels of one text, ready to be launched."""

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        """Launch one kernel; ``order`` picks one of the orders of threads that a simulated device can try."""

    def spills(self, name: str) -> int:
        """Bytes of registers that a thread of a kernel has to keep in memory."""


class Target(Protocol):
    """Where kernels of a text run: the simulated device, or a card."""

    name: str
    warp: int

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a text, or take it from the build cache, and load it."""

    def place(self, values: Array) -> tuple[int, object]:
        """The address at which kernels can read these values, and what keeps them there."""

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """The address of so many bytes, whatever they hold, and what keeps them there."""


@dataclass(frozen=True)
class Table:
    """A list of tensors as kernels read it."""

    shapes: tuple[tuple[int, int], ...]
    width: int
    packed: bytes
    steps: tuple[Step, ...]
    alive: object


@dataclass(eq=False)
class GpuKernel(KernelBase):
    """The kernels of an operator. In a *structure* build every float tensor holds 64-bit hashes instead of numbers."""

    operator: Operator
    graph: Graph
    plan: Plan
    structure: bool
    target: Target
    edit: Edit | None = None
    schedule: Callable[[RowPlan, int, int, int], Schedule] = layout.schedule_rows
    programs: dict[object, tuple[Program, Identity]] = field(default_factory=dict)
    settled: dict[Schedule, Schedule] = field(default_factory=dict)

    def identities(self) -> list[Identity]:
        """The binaries that were used so far."""
        return [identity for _, identity in self.programs.values()]

    def workspace_bytes(self, shapes: Sequence[tuple[int, int]], threads: int, entries: int = 0) -> int:
        """How much workspace a launch needs; ``entries`` of a table that is summed into."""
        element = 8 if self.structure else 4
        if isinstance(self.plan, ScatterPlan):
            return gpu_scatter.workspace_bytes(*shapes[0], entries, element)
        if isinstance(self.plan, FlatPlan):
            return element * layout.flat_workspace_elements(self.plan, shapes)
        return element * layout.workspace_elements(self.plan, *shapes[0])

    # ------------------------------------------------------------------ texts
    def program(self, key: object, make: Callable[[], KernelText]) -> Program:
        """The kernels for one schedule, built when they are first needed."""
        if key not in self.programs:
            text = make()
            if self.edit is not None:
                text = KernelText(self.edit(text.text), {n: self.edit(t) for n, t in text.headers.items()})
            self.programs[key] = self.target.build(text, self.graph.name, self.structure)
        return self.programs[key][0]

    def width(self, addresses: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> int:
        """Elements to an access that the addresses and row strides of these matrices and columns allow."""
        for width in (CHUNK, 4, 2):
            if all(
                address % min(16, width * size) == 0 and stride * size % min(16, width * size) == 0
                for address, stride, size in zip(addresses, strides, sizes, strict=True)
            ):
                return width
        return 1

    # ------------------------------------------------------------------ launches
    def launch_raw(
        self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]], table: Array,
        threads: int, workspace: Array | None = None, *, place: int | None = None, stream: int = 0,
    ) -> None:  # fmt: skip
        """Run on addresses and sizes as the CPU's kernels read them (see ``emit.cpp``). ``place`` is the address of a
        workspace on the target; ``threads`` the order of a simulated device's threads."""
        if self.plan.flat:
            whole = list(sizes[len(sizes) - self.whole_count :]) if self.whole_count else []
            self.launch_table(self.table(addresses, sizes, shapes), whole, table, threads, workspace, place, stream)
            return
        alive: object = None
        if place is None:
            if workspace is not None:
                place = workspace.ctypes.data
            else:
                place, alive = self.target.workspace(self.workspace_bytes(shapes, threads, self.entries_in(sizes)))
        rows, cols = sizes[0], sizes[1]
        program, steps = self._rows(addresses, sizes, rows, cols)
        packed = struct.pack(f"<{len(addresses)}q{len(sizes)}q", *addresses, *sizes)
        call = packed + self._scalars(table) + struct.pack("<q", place)
        for step in steps:
            program.launch(step, call, threads, stream)
        del alive

    def _rows(
        self, addresses: Sequence[int], sizes: Sequence[int], rows: int, cols: int
    ) -> tuple[Program, list[Step]]:
        assert not isinstance(self.plan, FlatPlan)
        plan = self.plan
        where, strides, bytes_of, k = [], [], [], 2
        for (space, size), address in zip(self.tensor_sizes, addresses, strict=True):
            if space in ("rc", "c", "t"):
                where.append(address)
                bytes_of.append(size)
                strides.append(sizes[k] if space == "t" or (space == "rc" and rows > 1) else 0)
            k += space in ("rc", "t")
        width = self.width(where, strides, bytes_of)
        if isinstance(plan, ScatterPlan):
            program = self.program(width, lambda: emit_scatter(plan, width))
            return program, gpu_scatter.scatter_steps(plan, rows, cols, self.entries_in(sizes))
        wished = self.schedule(plan, cols, width, self.target.warp)
        if wished not in self.settled:
            self.settled[wished] = self._without_spills(plan, wished)
        schedule = self.settled[wished]
        return self.programs[schedule][0], layout.row_steps(plan, schedule, rows, cols)

    def _without_spills(self, plan: RowPlan, schedule: Schedule) -> Schedule:
        """The schedule, with fewer blocks on a multiprocessor where its registers would not do.

        No kernel spills that could do without: the rule is simple, and costs little but for layer norm over 32,768
        columns, which an H200 ran a fifth faster with a few spilled registers and twice the blocks.
        """
        chosen = plan if schedule.kept else plan_rows(plan.graph, keep=False)
        while True:
            program = self.program(schedule, lambda s=schedule: emit_rows(chosen, s))  # type: ignore[misc]
            if schedule.per_sm == 1 or not program.spills("work"):
                return schedule
            del self.programs[schedule]
            schedule = replace(schedule, per_sm=schedule.per_sm * 3 // 4)

    def table(self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]]) -> Table:
        """A list of tensors, placed where kernels can read it: once for many launches."""
        assert isinstance(self.plan, FlatPlan)
        count, per = sizes[0], 2 + self.matrices
        names = len(self.tensor_sizes)
        entries = np.zeros((max(count, 1), ENTRY + self.matrices + names), np.int64)
        tiles = filled = 0
        tile_counts, filled_list, tight = [], [], []
        where: list[int] = []
        strides: list[int] = []
        bytes_of: list[int] = []
        for i in range(count):
            rows, cols = sizes[1 + i * per], sizes[2 + i * per]
            own = list(sizes[3 + i * per : 1 + (i + 1) * per])
            mine = addresses[i * names : (i + 1) * names]
            if rows > 1 and all(stride == cols for stride in own):  # contiguous: one long row
                rows, cols, own = 1, rows * cols, [rows * cols] * len(own)
            n = layout.tiles_of(rows, cols)
            entries[i, : ENTRY] = rows, cols, tiles, filled if n else -1
            entries[i, ENTRY : ENTRY + self.matrices] = own
            entries[i, ENTRY + self.matrices :] = mine
            tight.append((rows, cols))
            tile_counts.append(n)
            tiles += n
            if n:
                filled_list.append(i)
                filled += 1
                matrix = 0
                for (space, size), address in zip(self.tensor_sizes, mine, strict=True):
                    if space == "rc":
                        where.append(address)
                        strides.append(own[matrix] if rows > 1 else 0)
                        bytes_of.append(size)
                        matrix += 1
        width = self.width(where, strides, bytes_of)
        pointers, alive = (0, 0, 0), []
        if count != 1:
            of_tile = np.repeat(np.arange(count, dtype=np.int32), tile_counts)
            placed = [self.target.place(a) for a in (entries, of_tile, np.array(filled_list, np.int32))]
            pointers, alive = tuple(address for address, _ in placed), [keep for _, keep in placed]  # type: ignore[assignment]
        packed = struct.pack(f"<6q{entries.shape[1]}q", count, tiles, filled, *pointers, *entries[0].tolist())
        return Table(tuple(tight), width, packed, tuple(layout.flat_steps(self.plan, tight)), (alive, entries))

    def launch_table(
        self, made: Table, whole: Sequence[int], table: Array, order: int, workspace: Array | None = None,
        place: int | None = None, stream: int = 0,
    ) -> None:  # fmt: skip
        """Run an element-wise kernel on a list of tensors."""
        assert isinstance(self.plan, FlatPlan)
        plan, alive = self.plan, None
        if place is None:
            need = self.workspace_bytes(made.shapes, 1)
            if workspace is not None and workspace.nbytes >= need:
                place = workspace.ctypes.data
            else:
                place, alive = self.target.workspace(need)
        program = self.program(made.width, lambda: emit_flat(plan, made.width))
        integers = list(whole) or [0]
        call = made.packed + struct.pack(f"<{len(integers)}q", *integers)
        call += self._scalars(table) + struct.pack("<q", place)
        for step in made.steps:
            program.launch(step, call, order, stream)
        del alive

    def _scalars(self, table: Array) -> bytes:
        """The scalar table, at least one long, up to the next multiple of 8 bytes."""
        element = 8 if self.structure else 4
        data = np.ascontiguousarray(table).tobytes() or bytes(element)
        return data + bytes(-len(data) % 8)

    def __repr__(self) -> str:
        return f"<kernel {self.graph.name} {self.graph.dtype} {self.target.name}>"


def source_digest(text: KernelText) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.text.encode()).hexdigest()


__all__ = ["GpuKernel", "Program", "Table", "Target", "source_digest"]
