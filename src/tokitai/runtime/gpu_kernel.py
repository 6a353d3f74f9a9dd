"""Kernels for GPUs and for the simulated device: one text for each schedule, compiled when a shape first needs it.

Which schedule a call takes follows from its number of columns and from how its tensors are aligned (`lower.gpu`); a
schedule decides speed, never a bit.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from ..backends.cuda.tensor_map import TensorMaps
from ..emit.cpp import KernelText
from ..emit.gpu_text import emit_flat, emit_rows, emit_scatter
from ..errors import TargetMissingError
from ..families import AttentionPlan, FlatPlan, Plan, ProductPlan, ScatterPlan, make_plan
from ..families.attention import tiling as walks
from ..families.elementwise.gpu import ENTRY
from ..families.matmul import tiling as gpu_product
from ..families.matmul.tiling import Tiling
from ..families.rowwise.plan import RowPlan, plan_rows
from ..families.scatter import schedule as gpu_scatter
from ..lang import Graph, Operator, Sizes
from ..lower import gpu as layout
from ..lower.gpu import CHUNK, FEW_SPILLS, FEW_SPILLS_OF_LONG, LONGEST_JOINED, FlatSchedule, Schedule, Step
from . import attention_launches as gpu_attention
from . import matmul_launches as gpu_products
from .kernel import Array, Identity, KernelBase, Scalars

Edit = Callable[[str], str]
T = TypeVar("T")
WIDTHS = (CHUNK, 4, 2)  # elements to an access


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
    shared_bytes: int  # of shared memory that a launch may ask for, for a block

    @property
    def matrix_units(self) -> bool:
        """Whether there are FP64 matrix units that add up in order."""

    @property
    def warpgroups(self) -> bool:
        """Whether there are Hopper's warpgroups, whose steps are those of ``fused16``, and its copy engine."""

    @property
    def fused_units(self) -> bool:
        """Whether there are matrix units of 16-bit operands whose steps are those of ``fused16``."""

    def entered(self) -> AbstractContextManager[None]:
        """Make the device's context the current one of this thread, and the caller's again afterwards."""

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


@dataclass(frozen=True)
class Ready:
    """A call with all settled but where its tensors lie, its host scalars and its workspace. The kernels' parameter is
    ``head``, the tensors' addresses, ``middle``, the scalars, the address of ``workspace`` bytes."""

    program: Program
    steps: tuple[Step, ...]
    head: bytes
    middle: bytes
    workspace: int
    maps: TensorMaps | None = None  # of which ``head`` then consists: they change with the addresses


@dataclass(eq=False)
class GpuKernel(KernelBase):
    """The kernels of an operator. In a *structure* build every float tensor holds 64-bit hashes instead of numbers.
    Raises TargetMissingError for the plan of a product that GPUs have no kernels for."""

    operator: Operator
    graph: Graph
    plan: Plan
    structure: bool
    target: Target
    edit: Edit | None = None
    schedule: Callable[[RowPlan, int, int, int], Schedule] = layout.schedule_rows
    tiling: Callable[[ProductPlan, Sizes, int, bool], Tiling] = gpu_product.tiling_of
    programs: dict[object, tuple[Program, Identity]] = field(default_factory=dict)
    settled: dict[Schedule, Schedule] = field(default_factory=dict)
    flat: dict[int, FlatSchedule] = field(default_factory=dict)
    settled_tilings: dict[Tiling, Tiling] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan = _offered(self.graph, self.plan, self.target.name)

    def __reduce__(self) -> tuple[Any, ...]:
        from .gpu_targets import pickled

        return pickled(self)

    def described(self) -> dict[str, object]:
        """The plan in words; of a product with the tiles that were used so far."""
        if isinstance(self.plan, AttentionPlan):
            return walks.described(self.plan, self.settled_tilings.values())
        if not isinstance(self.plan, ProductPlan):
            return self.plan.describe()
        return gpu_product.described(self.plan, self.settled_tilings.values())

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
        if isinstance(self.plan, AttentionPlan):
            return gpu_attention.workspace_bytes(self, Sizes.of(shapes[0]))
        if isinstance(self.plan, ProductPlan):
            return gpu_products.workspace_bytes(self, Sizes.of(shapes[0]), threads)
        assert isinstance(self.plan, RowPlan)
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
        for width in WIDTHS:
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
        workspace on the target; ``threads`` the order of a simulated device's threads, and of a product among how many
        blocks its chains are shared out: 0 leaves it to the plan."""
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
        shape, entries = (sizes[0], sizes[1]), self.entries_in(sizes)
        program, steps, ahead, maps = self._steps(addresses, sizes, shape, threads, entries)
        packed = b"" if maps is None else maps.at(addresses)
        packed += struct.pack(f"<{len(addresses)}q{len(ahead) + len(sizes)}q", *addresses, *ahead, *sizes)
        call = packed + self._scalars(table) + struct.pack("<q", place)
        for step in steps:
            program.launch(step, call, threads, stream)
        del alive

    def ready(
        self, addresses: Sequence[int], sizes: Sequence[int], shape: tuple[int, int], entries: int = 0
    ) -> Ready:  # fmt: skip
        """What calls on one tensor of each name have in common whose sizes are these, without whole numbers, and whose
        addresses have the same remainders by 16; ``entries`` of a table that is summed into."""
        if isinstance(self.plan, FlatPlan):
            made = self.table(addresses, sizes, [shape])
            head, need = made.packed[: -8 * len(addresses)], self.workspace_bytes(made.shapes, 1)
            return Ready(self.program_for(made), made.steps, head, b"", need)
        program, steps, ahead, maps = self._steps(addresses, sizes, shape, 0, entries)
        middle = struct.pack(f"<{len(ahead) + len(sizes)}q", *ahead, *sizes)
        head = b"" if maps is None else maps.at(addresses)
        return Ready(program, tuple(steps), head, middle, self.workspace_bytes([shape], 0, entries), maps)

    def scalar_bytes(self, scalars: Scalars) -> bytes:
        """Host scalars as the kernels' parameter holds them: whole numbers, then those rounded to f32."""
        whole = list(scalars.whole) or ([0] if self.plan.flat else [])
        return struct.pack(f"<{len(whole)}q", *whole) + self._scalars(scalars.table)

    def _steps(
        self, addresses: Sequence[int], sizes: Sequence[int], shape: tuple[int, int], threads: int, entries: int
    ) -> tuple[Program, list[Step], list[int], TensorMaps | None]:
        """The kernels and launches of a call, the numbers that kernels take before the sizes, and tensor maps."""
        if isinstance(self.plan, AttentionPlan):
            return *gpu_attention.launches(self, addresses, sizes), [], None
        if not isinstance(self.plan, ProductPlan):
            return *self._rows(addresses, sizes, *shape, entries), [], None
        return gpu_products.launches(self, addresses, sizes, threads)

    def without_spills(
        self, tilings: Iterable[T], emit: Callable[[T], KernelText], few: int = 0, names: Sequence[str] = ("work",)
    ) -> T:
        """The first of these tilings whose kernels spill at most ``few`` bytes each; the last may spill more."""
        *others, last = tilings
        for tiling in others:
            program = self.program(tiling, partial(emit, tiling))
            if all(program.spills(name) <= few for name in names):
                return tiling
            del self.programs[tiling]
        self.program(last, partial(emit, last))
        return last

    def _rows(
        self, addresses: Sequence[int], sizes: Sequence[int], rows: int, cols: int, entries: int
    ) -> tuple[Program, list[Step]]:
        assert isinstance(self.plan, RowPlan | ScatterPlan)
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
            how = width, cols % CHUNK == 0, gpu_scatter.is_wide(rows)
            program = self.program(how, lambda: emit_scatter(plan, *how))
            return program, gpu_scatter.scatter_steps(plan, rows, cols, entries)
        wished = self.schedule(plan, cols, width, self.target.warp)
        if layout.stage_bytes(plan, wished) > self.target.shared_bytes:
            wished = replace(wished, staged=False)
        if wished not in self.settled:
            self.settled[wished] = self._without_spills(plan, wished)
        schedule = self.settled[wished]
        return self.programs[schedule][0], layout.row_steps(plan, schedule, rows, cols)

    def _without_spills(self, plan: RowPlan, schedule: Schedule) -> Schedule:
        """The schedule, or one for fewer registers a thread where more than a few are spilled."""
        long = schedule.threads * schedule.chunks * CHUNK > LONGEST_JOINED
        few = FEW_SPILLS_OF_LONG if long else FEW_SPILLS
        chosen = plan if schedule.kept else plan_rows(plan.graph, "nothing")
        while True:
            program = self.program(schedule, lambda s=schedule: emit_rows(chosen, s))  # type: ignore[misc]
            room = layout.stage_bytes(plan, replace(schedule, staged=True)) <= self.target.shared_bytes
            fewer = schedule.with_fewer_registers(layout.blocked(plan), room)
            if fewer is None or program.spills("work") <= few:
                return schedule
            del self.programs[schedule]
            schedule = fewer

    def table(
        self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]],
        place: Callable[[Array], tuple[int, object]] | None = None,
    ) -> Table:  # fmt: skip
        """A list of tensors, placed where kernels can read it: once for many launches."""
        assert isinstance(self.plan, FlatPlan)
        count, per, names = sizes[0], 2 + self.matrices, len(self.tensor_sizes)
        given = np.array(sizes[1 : 1 + count * per], np.int64).reshape(count, per)
        rows, cols, own = given[:, 0].copy(), given[:, 1].copy(), given[:, 2:].copy()
        dense = (rows > 1) & (own == cols[:, None]).all(1)  # contiguous: one long row
        cols[dense] *= rows[dense]
        rows[dense] = 1
        own[dense] = cols[dense, None]
        tiles_each = rows * -(-cols // layout.TILE)
        tiles, some = int(tiles_each.sum()), tiles_each > 0
        run = layout.run_of(tiles)
        units_each = rows * -(-cols // (layout.TILE * run))
        entries = np.zeros((max(count, 1), ENTRY + self.matrices + names), np.int64)
        if count:
            entries[:, 0], entries[:, 1] = rows, cols
            entries[:, 2] = np.cumsum(tiles_each) - tiles_each
            entries[:, 3] = np.where(some, np.cumsum(some) - 1, -1)
            entries[:, 4] = np.cumsum(units_each) - units_each
            entries[:, ENTRY : ENTRY + self.matrices] = own
            entries[:, ENTRY + self.matrices :] = np.array(addresses, np.int64).reshape(count, names)
        bytes_of = np.array([size for space, size in self.tensor_sizes if space == "rc"], np.int64)
        where = entries[:count, ENTRY + self.matrices :][:, [space == "rc" for space, _ in self.tensor_sizes]][some]
        strides = np.where(rows[some, None] > 1, own[some], 0)
        places = where | strides * bytes_of  # a power of two divides both where it divides this
        width = next((w for w in WIDTHS if not (places % np.minimum(16, w * bytes_of)).any()), 1)
        pointers, alive = (0, 0, 0, 0), []
        if count != 1:
            of_tile, of_unit = (np.repeat(np.arange(count, dtype=np.int32), each) for each in (tiles_each, units_each))
            filled = np.flatnonzero(some).astype(np.int32)
            placed = [(place or self.target.place)(a) for a in (entries, of_tile, of_unit, filled)]
            pointers, alive = tuple(address for address, _ in placed), [keep for _, keep in placed]  # type: ignore[assignment]
        tight = tuple(zip(rows.tolist(), cols.tolist(), strict=True))
        numbers = count, tiles, units_each.sum(), run, some.sum()
        packed = struct.pack(f"<9q{entries.shape[1]}q", *numbers, *pointers, *entries[0].tolist())
        return Table(tight, width, packed, tuple(layout.flat_steps(self.plan, tight)), (alive, entries))

    def program_for(self, made: Table) -> Program:
        """The kernels for the width of a table's accesses; with fewer blocks on a multiprocessor where registers would
        not do."""
        plan, width = self.plan, made.width
        assert isinstance(plan, FlatPlan)
        schedule = self.flat.get(width, layout.schedule_flat(plan))
        while True:
            program = self.program((width, schedule), lambda s=schedule: emit_flat(plan, width, s))  # type: ignore[misc]
            fewer = None if width in self.flat or not plan.compute else schedule.with_fewer_blocks()
            if fewer is None or program.spills("work") <= FEW_SPILLS:
                self.flat[width] = schedule
                return program
            del self.programs[width, schedule]
            schedule = fewer

    def launch_table(
        self, made: Table, whole: Sequence[int], table: Array, order: int, workspace: Array | None = None,
        place: int | None = None, stream: int = 0,
    ) -> None:  # fmt: skip
        """Run an element-wise kernel on a list of tensors."""
        assert isinstance(self.plan, FlatPlan)
        alive = None
        if place is None:
            need = self.workspace_bytes(made.shapes, 1)
            if workspace is not None and workspace.nbytes >= need:
                place = workspace.ctypes.data
            else:
                place, alive = self.target.workspace(need)
        program = self.program_for(made)
        call = made.packed + self.scalar_bytes(Scalars(table, tuple(whole))) + struct.pack("<q", place)
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


def gpu_plan(graph: Graph, target: str) -> Plan:
    """The plan of a kernel for a GPU. Raises TargetMissingError for a product that has none there."""
    return _offered(graph, make_plan(graph), target)


def _offered(graph: Graph, plan: Plan, target: str) -> Plan:
    if isinstance(plan, AttentionPlan):
        gpu_attention.refuse(plan, target)
    if not isinstance(plan, ProductPlan):
        return plan_rows(graph, "in registers") if isinstance(plan, RowPlan) else plan
    if len({str(n.data[0]) for n in plan.products}) > 1 or len(plan.products) > gpu_product.MOST_PRODUCTS:
        layouts, most = ", ".join(str(n.data[0]) for n in plan.products), gpu_product.MOST_PRODUCTS
        raise TargetMissingError(
            f"{graph.name}: products stored as {layouts}; accepted by {target}: up to {most}, all stored in one way"
        )
    return plan


def source_digest(text: KernelText) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.text.encode()).hexdigest()


__all__ = ["GpuKernel", "Program", "Ready", "Table", "Target", "gpu_plan", "source_digest"]
