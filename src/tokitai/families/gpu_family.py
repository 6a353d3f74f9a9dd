"""What a family does for GPUs, and what it needs of a kernel while it chooses schedules and launches."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ..emit.cpp import KernelText
from ..lang import Graph
from ..lower.gpu import CHUNK, Step

Array = np.ndarray[Any, Any]
P = TypeVar("P")
T = TypeVar("T")


class Program(Protocol):
    """The kernels of one source, ready to be launched."""

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        """Launch one kernel; ``order`` picks one of the orders of threads that a simulated device can try."""

    def machine_code(self, graph: Graph) -> Sequence[Any]:
        """What the listings of its binaries hold (`backends.machine_code`), built for the definition ``graph``."""

    def spills(self, name: str) -> int:
        """Bytes of registers that a thread of a kernel has to keep in memory."""


class Capabilities(Protocol):
    """What a GPU has, as far as a schedule depends on it."""

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
    def integer_units(self) -> bool:
        """Whether there are matrix units of 8-bit integers, signed and not, that add exactly."""

    @property
    def integer_warpgroups(self) -> bool:
        """Whether Hopper's warpgroups do the same."""

    @property
    def fused_units(self) -> bool:
        """Whether there are matrix units of 16-bit operands whose steps are those of ``fused16``."""


class KernelInMaking(Protocol):
    """A kernel whose sources are made and built when a shape first needs them."""

    graph: Graph
    structure: bool  # whether float tensors hold 64-bit hashes instead of numbers
    schedule: Callable[..., Any] | None  # chooses in the family's place
    settled: dict[Any, Any]  # what was taken for each choice, once it was seen not to spill registers

    @property
    def target(self) -> Capabilities:
        """The GPU."""

    @property
    def tensor_sizes(self) -> list[tuple[str, int]]:
        """Space and bytes an element of each tensor, inputs first."""

    @property
    def matrices(self) -> int:
        """How many tensors have rows with a stride."""

    @property
    def whole_count(self) -> int:
        """How many host scalars are whole numbers."""

    def program(self, key: object, make: Callable[[], KernelText]) -> Program:
        """The kernels for one choice, built when they are first needed."""

    def forget(self, key: object) -> None:
        """Drop the kernels for a choice that spills registers."""

    def without_spills(
        self, choices: Iterable[T], emit: Callable[[T], KernelText], few: int = 0, names: Sequence[str] = ("work",)
    ) -> T:
        """The first of these choices whose kernels of these ``names`` spill at most ``few`` bytes each; the last may
        spill more."""

    def width(self, addresses: Sequence[int], strides: Sequence[int], sizes: Sequence[int]) -> int:
        """Elements to an access that the addresses and row strides of these matrices and columns allow."""


@dataclass(frozen=True)
class Copied:
    """A batch of matrices of 16-bit elements that the copy engine reads, and the box of one that it copies at a time.
    Sides are given from the innermost on, whose elements are neighbours; strides in elements."""

    tensor: int  # its place among the tensors
    format: str
    sides: tuple[int, int, int]  # the last is how many matrices there are
    strides: tuple[int, int]  # from line to line, and from matrix to matrix
    box: tuple[int, int]


@dataclass(frozen=True)
class Launches:
    """A call's launches in order. The kernels' parameter is tensor maps of ``copied`` and ``padding`` bytes, ``head``,
    the tensors' addresses, ``middle``, the host scalars, the address of ``workspace`` bytes."""

    program: Program
    steps: tuple[Step, ...]
    middle: bytes
    workspace: int
    head: bytes = b""
    copied: tuple[Copied, ...] = ()
    padding: int = 0


@dataclass(frozen=True)
class Table:
    """A list of tensors as kernels read it."""

    shapes: tuple[tuple[int, int], ...]
    width: int
    packed: bytes
    steps: tuple[Step, ...]
    alive: object


@dataclass(frozen=True)
class GpuSource:
    """A source, the launches of its kernels in order, and the schedule and shape for which it was made."""

    text: KernelText
    steps: Sequence[Step]
    schedule: str
    shape: tuple[int, int]

    @property
    def launches(self) -> tuple[str, ...]:
        """The launches in words."""
        return tuple(
            f"{s.name}: {s.grid} blocks of {s.block} threads{', or fewer in turn' * s.in_turn}" for s in self.steps
        )


class GpuFamily(ABC, Generic[P]):
    """The kernels of a family for GPUs. A schedule decides speed, never a bit."""

    def plan(self, plan: P, target: str) -> P:
        """The plan of the kernels for a GPU. Raises TargetMissingError where there are none."""
        return plan

    def describe(self, plan: P, used: Iterable[Any] = ()) -> dict[str, object]:
        """The plan in words, of what was ``used`` so far, or else of all that is on offer."""
        made: dict[str, object] = plan.describe()  # type: ignore[attr-defined]
        return made

    @abstractmethod
    def source(self, plan: P, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
        """The first choice for this shape, of tensors that allow wide accesses; ``staged``: rows may be copied to
        shared memory ahead of their use."""

    @abstractmethod
    def launches(
        self, kernel: KernelInMaking, plan: P, addresses: Sequence[int], sizes: Sequence[int], shape: tuple[int, int],
        threads: int, entries: int,
    ) -> Launches:  # fmt: skip
        """The launches of a call on one tensor of each name: at these ``addresses``, with the ``sizes`` of
        `Family.launch_sizes`; ``threads`` the order of a simulated device's threads, and among how many blocks sums are
        partitioned: 0 leaves it to the plan."""

    @abstractmethod
    def workspace_bytes(
        self, kernel: KernelInMaking, plan: P, shapes: Sequence[tuple[int, int]], threads: int, entries: int
    ) -> int:
        """How much workspace a launch needs, whichever schedule it takes."""

    def table(
        self, kernel: KernelInMaking, plan: P, addresses: Sequence[int], sizes: Sequence[int],
        shapes: Sequence[tuple[int, int]], place: Callable[[Array], tuple[int, object]],
    ) -> Table:  # fmt: skip
        """A list of tensors, placed by ``place`` where kernels can read it: once for many launches. Of plans that are
        flat alone."""
        raise NotImplementedError(f"{kernel}: takes one tensor of each name; accepted here: kernels that take lists")

    def moved(
        self, kernel: KernelInMaking, made: Table, addresses: Sequence[int],
        place: Callable[[Array], tuple[int, object]],
    ) -> Table | None:  # fmt: skip
        """The table of a list in other memory, made of ``made``; None where all of it has to be made anew."""
        return None

    def program_for(self, kernel: KernelInMaking, plan: P, table: Table) -> Program:
        """The kernels for a table. Of plans that are flat alone."""
        raise NotImplementedError(f"{kernel}: takes one tensor of each name; accepted here: kernels that take lists")


def packed(*words: int) -> bytes:
    """Sizes and addresses as a kernel's parameter holds them, 8 bytes each."""
    return struct.pack(f"<{len(words)}q", *words)


def usual_width(elements: int) -> int:
    """Elements to an access of rows of so many that lie side by side."""
    return CHUNK if elements % CHUNK == 0 else 1


__all__ = [
    "Capabilities", "Copied", "GpuFamily", "GpuSource", "KernelInMaking", "Launches", "Program", "Table", "packed",
    "usual_width",
]  # fmt: skip
