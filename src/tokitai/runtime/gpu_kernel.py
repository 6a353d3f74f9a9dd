"""Kernels for GPUs and for the simulated device: one source for each schedule, compiled when a shape first needs it.

Which schedule a call takes follows from its number of columns and from how its tensors are aligned (`families`); a
schedule decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ..backends import backend_of
from ..backends.backend import Array, Identity, Inspected, Target
from ..backends.cuda.tensor_map import Matrix, TensorMaps
from ..backends.machine_code import MachineCode
from ..emit.cpp import KernelText
from ..errors import ArgumentError
from ..families import Plan, make_plan
from ..families.gpu_family import Program, Table, packed
from ..lang import Graph, Operator
from ..lower.gpu import WIDTHS, Step
from .kernel import KernelBase, Placed, Scalars, variant_of

Edit = Callable[[str], str]
T = TypeVar("T")


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
    schedule: Callable[..., Any] | None = None  # chooses in the family's place
    programs: dict[object, tuple[Program, Identity]] = field(default_factory=dict)
    settled: dict[Any, Any] = field(default_factory=dict)  # what was taken for each choice of a schedule or a tiling

    def __post_init__(self) -> None:
        self.plan = self.plan.family.gpu.plan(self.plan, self.target.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a device has loaded stays there, and another process builds it for its own. Raises ArgumentError for a
        kernel that cannot be built again."""
        where = self.target.again() if self.edit is None else None
        if where is None:
            text = f"{self.graph.name} for {self.target.name}: its kernels stay in their process"
            raise ArgumentError(f"{text}; accepted: kernels for cuda and sim of which no source was edited")
        return _again, (self.operator, *variant_of(self.graph), *where, self.structure)

    def described(self) -> dict[str, object]:
        """The plan in words; of a product with the tiles that were used so far."""
        return self.plan.family.gpu.describe(self.plan, self.settled.values())

    def identities(self) -> list[Identity]:
        """The binaries that were used so far, then those that ran in place of inspected ones."""
        made = list(self.programs.values())
        beside = [i for program, _ in made if isinstance(program, Inspected) for i in program.beside]
        return [*(identity for _, identity in made), *beside]

    def machine_code(self) -> list[MachineCode]:
        """What the listings of the binaries that were used so far hold; of hashes none is read."""
        programs = [] if self.structure else [program for program, _ in self.programs.values()]
        return [code for program in programs for code in program.machine_code(self.graph)]

    def workspace_bytes(self, shapes: Sequence[tuple[int, int]], threads: int, entries: int = 0) -> int:
        """How much workspace a launch needs; ``entries`` of a table that is summed into."""
        return self.plan.family.gpu.workspace_bytes(self, self.plan, shapes, threads, entries)

    # ------------------------------------------------------------------ sources
    def program(self, key: object, make: Callable[[], KernelText]) -> Program:
        """The kernels for one schedule, built when they are first needed."""
        if key not in self.programs:
            text = make()
            if self.edit is not None:
                text = KernelText(self.edit(text.text), {n: self.edit(t) for n, t in text.headers.items()})
            self.programs[key] = self.target.build(text, self.graph.name, self.structure)
        return self.programs[key][0]

    def forget(self, key: object) -> None:
        """Drop the kernels for a choice that spills registers."""
        del self.programs[key]

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
    def launch_buffers(
        self, tensors: Sequence[Mapping[str, Placed]], results: Sequence[Mapping[str, Placed]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int, workspace: Placed | None = None,
    ) -> None:  # fmt: skip
        """Run on buffers of the host in guard zones, which the device lends or has copies of."""
        ordered = self._in_order(tensors, results)
        every = {id(b): b for b in (*ordered, *((workspace,) if workspace is not None else ()))}
        given, made = ([{n: b.array for n, b in some.items()} for some in many] for many in (tensors, results))
        with self.target.lent([b.raw for b in every.values()]) as addresses:
            at = dict(zip(every, addresses, strict=True))
            place = None if workspace is None else at[id(workspace)] + workspace.start()
            begins = [at[id(b)] + b.start() for b in ordered]
            self._launch_at(begins, given, made, shapes, scalars, threads, place=place)

    def launch_raw(
        self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]], table: Array,
        threads: int, workspace: Array | None = None, *, place: int | None = None, stream: int = 0,
    ) -> None:  # fmt: skip
        """Run on addresses and sizes as the CPU's kernels read them (see ``emit.cpp``). ``place`` is the address of a
        workspace on the target; ``threads`` the order of a simulated device's threads, and of a product among how many
        blocks its chains are partitioned: 0 leaves it to the plan."""
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
        made = self._ready(addresses, sizes, shape, threads, entries)
        lying = packed(*addresses)
        call = made.head + lying + made.middle + self._scalars(table) + packed(place)
        for step in made.steps:
            made.program.launch(step, call, threads, stream)
        del alive

    def ready(
        self, addresses: Sequence[int], sizes: Sequence[int], shape: tuple[int, int], entries: int = 0
    ) -> Ready:  # fmt: skip
        """What calls on one tensor of each name have in common whose sizes are these, without whole numbers, and whose
        addresses have the same remainders by 16; ``entries`` of a table that is summed into."""
        return self._ready(addresses, sizes, shape, 0, entries)

    def _ready(
        self, addresses: Sequence[int], sizes: Sequence[int], shape: tuple[int, int], threads: int, entries: int
    ) -> Ready:
        made = self.plan.family.gpu.launches(self, self.plan, addresses, sizes, shape, threads, entries)
        maps = None
        if made.copied:
            matrices = tuple((c.tensor, Matrix(c.format, c.sides, c.strides, c.box)) for c in made.copied)
            maps = TensorMaps(matrices, made.padding, self.target.entered)
        head = made.head if maps is None else maps.at(addresses) + made.head
        return Ready(made.program, made.steps, head, made.middle, made.workspace, maps)

    def scalar_bytes(self, scalars: Scalars) -> bytes:
        """Host scalars as the kernels' parameter holds them: whole numbers, then those rounded to f32."""
        whole = list(scalars.whole) or ([0] if self.plan.flat else [])
        return packed(*whole) + self._scalars(scalars.table)

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

    def table(
        self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]],
        place: Callable[[Array], tuple[int, object]] | None = None,
    ) -> Table:  # fmt: skip
        """A list of tensors, placed where kernels can read it: once for many launches."""
        family = self.plan.family.gpu
        return family.table(self, self.plan, addresses, sizes, shapes, place or self.target.place)

    def moved(
        self, made: Table, addresses: Sequence[int], place: Callable[[Array], tuple[int, object]]
    ) -> Table | None:
        """The table of the same tensors in other memory; None where all of it has to be made anew."""
        return self.plan.family.gpu.moved(self, made, addresses, place)

    def program_for(self, made: Table) -> Program:
        """The kernels for a table."""
        return self.plan.family.gpu.program_for(self, self.plan, made)

    def launch_table(
        self, made: Table, whole: Sequence[int], table: Array, order: int, workspace: Array | None = None,
        place: int | None = None, stream: int = 0,
    ) -> None:  # fmt: skip
        """Run an element-wise kernel on a list of tensors."""
        alive = None
        if place is None:
            need = self.workspace_bytes(made.shapes, 1)
            if workspace is not None and workspace.nbytes >= need:
                place = workspace.ctypes.data
            else:
                place, alive = self.target.workspace(need)
        program = self.program_for(made)
        call = made.packed + self.scalar_bytes(Scalars(table, tuple(whole))) + packed(place)
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


def _again(
    operator: Operator, dtype: str, present: Iterable[str], options: Mapping[str, object], device: str,
    compiler: str | None, structure: bool,
) -> GpuKernel:  # fmt: skip
    """The kernel that another process has pickled, for the device of the same name here. Raises DeviceMissingError."""
    graph = operator.trace(dtype, present, options)
    target = backend_of(device).open(device, compiler, graph)
    return GpuKernel(operator, graph, gpu_plan(graph, target.name), structure, target)


def gpu_plan(graph: Graph, target: str) -> Plan:
    """The plan of a kernel for a GPU. Raises TargetMissingError for a product that has none there."""
    plan = make_plan(graph)
    made: Plan = plan.family.gpu.plan(plan, target)
    return made


__all__ = ["GpuKernel", "Program", "Ready", "Table", "gpu_plan"]
