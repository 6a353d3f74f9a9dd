"""Compile an operator for a device: graph, plan, source, binary; for the CPU loaded and ready to launch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from ..backends import backend_named
from ..backends.backend import Array, Identity
from ..backends.cpu import device as cpu
from ..backends.cpu import x86
from ..backends.machine_code import MachineCode
from ..emit.counters import sums_of
from ..emit.cpp import KernelText
from ..errors import TokitaiError, UnavailableError
from ..families import Plan, emit_cpu, make_plan
from ..families.attention.plan import is_attention as has_weighted_sums
from ..formats import FORMATS
from ..lang import GROUPS, MATRICES, OPERANDS, Graph, Node, Operator
from ..lower.scalars import HostScalars, rounded_scalars, whole_scalars
from ..toolchain.build import Isa, Source, build, native_isa
from ..toolchain.compilers import find_compiler

T = TypeVar("T")
CPU = "cpu"


def is_product(operator: Operator) -> bool:
    """Whether an operator is a matrix product."""
    return any(t.space in OPERANDS for t in operator.tensors)


def is_grouped(operator: Operator) -> bool:
    """Whether an operator is a grouped product."""
    return any(t.space in GROUPS for t in operator.tensors)


def is_attention(operator: Operator) -> bool:
    """Whether an operator has weighted sums."""
    return is_product(operator) and has_weighted_sums(operator.trace(operator.contract.formats[0]))


@dataclass(frozen=True, eq=False)
class Scalars:
    """The host scalars of a launch: those rounded to f32 (or hashes in their place), and whole numbers."""

    table: Array
    whole: tuple[int, ...] = ()


class Placed(Protocol):
    """A buffer in guard zones: all of its memory, the array inside, and where in it that begins."""

    raw: Array
    array: Array

    def start(self) -> int:
        """Bytes from the beginning of the memory to the first element."""


class KernelBase:
    """What kernels of all targets have in common."""

    operator: Operator
    graph: Graph
    plan: Plan
    structure: bool

    def __copy__(self) -> Self:
        """A kernel is loaded once in a process."""
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def element(self, format_name: str) -> np.dtype[Any]:
        """The dtype in which a tensor of this format is handed to the kernel."""
        fmt = FORMATS[format_name]
        return np.dtype(np.uint64) if self.structure and fmt.is_float else fmt.dtype

    @cached_property
    def tensor_sizes(self) -> list[tuple[str, int]]:
        """Space and bytes an element of each tensor, inputs first."""
        named = [(t.space, str(t.format)) for t in self.graph.inputs]
        named += [(o.space, o.format) for o in self.graph.outputs]
        return [(space, self.element(fmt).itemsize) for space, fmt in named]

    @cached_property
    def matrices(self) -> int:
        """How many tensors have rows with a stride: those of rows x cols, and tables."""
        return sum(space in MATRICES for space, _ in self.tensor_sizes)

    @cached_property
    def whole_count(self) -> int:
        """How many host scalars are whole numbers."""
        return len(whole_scalars(self.graph))

    @cached_property
    def host_scalars(self) -> HostScalars:
        """What computes the host scalars of a call."""
        return HostScalars(self.graph)

    def scalar_table(self, rows: int, cols: int, params: Mapping[str, float]) -> Scalars:
        """The host scalars of a call, each computed in f64 and rounded once: to f32, or to a whole number."""
        with cpu.default_float_mode(), np.errstate(over="ignore"):
            values, whole = self.host_scalars(rows, cols, params)
            return Scalars(np.array(values, np.float64).astype(np.float32), whole)

    def hash_table(self, hashes: Mapping[Node, int], rows: int, cols: int, params: Mapping[str, float]) -> Scalars:
        """The same for a structure build: hashes in place of numbers; whole numbers stay."""
        table = np.array([hashes[n] for n in rounded_scalars(self.graph)], np.uint64)
        return Scalars(table, self.host_scalars(rows, cols, params)[1])

    def entries_in(self, sizes: Sequence[int]) -> int:
        """The entries of a table that is summed into, among the sizes of a launch; 0 where there is none."""
        counted = self.plan.entries
        if counted is None:
            return 0
        return sizes[len(sizes) - self.whole_count + whole_scalars(self.graph).index(counted)]

    def described(self) -> dict[str, object]:
        """The plan in words, for certificates."""
        return self.plan.describe()

    def identities(self) -> list[Identity]:
        """The binaries that were used so far."""
        raise NotImplementedError

    def machine_code(self) -> list[MachineCode]:
        """What the listings of the binaries that were used so far hold; of hashes none is read. A backend that reads
        none says so."""
        why = "its backend has no listing"
        return [MachineCode(i.digest, "", missing=why) for i in self.identities() if not i.structure]

    def workspace_bytes(self, shapes: Sequence[tuple[int, int]], threads: int, entries: int = 0) -> int:
        """How much workspace a launch needs; ``entries`` of a table that is summed into."""
        raise NotImplementedError

    def launch_raw(
        self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]], table: Array,
        threads: int, workspace: Array | None = None,
    ) -> None:  # fmt: skip
        """Run on addresses and sizes as the kernel's source reads them. ``workspace`` is room for `workspace_bytes`,
        whatever it holds; a new one where none is given."""
        raise NotImplementedError

    def launch(
        self, tensors: Mapping[str, Array], results: Mapping[str, Array], shape: tuple[int, int], scalars: Scalars,
        threads: int, workspace: Array | None = None,
    ) -> None:  # fmt: skip
        """Run on arrays that already have the right dtypes: rows x cols ones two-dimensional with unit column stride,
        all others contiguous. Nothing is checked here but in ``tokitai.runtime.call``. Releases the GIL."""
        self.launch_list([tensors], [results], [shape], scalars, threads, workspace)

    def launch_list(
        self, tensors: Sequence[Mapping[str, Array]], results: Sequence[Mapping[str, Array]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int, workspace: Array | None = None,
    ) -> None:  # fmt: skip
        """Run an element-wise kernel on a list of tensors; any other takes a list of one."""
        addresses = [a.ctypes.data for a in self._in_order(tensors, results)]
        self._launch_at(addresses, tensors, results, shapes, scalars, threads, workspace)

    def launch_buffers(
        self, tensors: Sequence[Mapping[str, Placed]], results: Sequence[Mapping[str, Placed]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int, workspace: Placed | None = None,
    ) -> None:  # fmt: skip
        """The same on buffers in guard zones, which stay where they lie in their zones on every target."""
        given, made = ([{n: b.array for n, b in some.items()} for some in many] for many in (tensors, results))
        self.launch_list(given, made, shapes, scalars, threads, None if workspace is None else workspace.array)

    def _in_order(self, tensors: Sequence[Mapping[str, T]], results: Sequence[Mapping[str, T]]) -> list[T]:
        """The inputs and results of each tensor of a list, as the kernel takes them."""
        found = []
        for some, made in zip(tensors, results, strict=True):
            found += [some[t.name] for t in self.graph.inputs] + [made[o.name] for o in self.graph.outputs]
        return found

    def _launch_at(
        self, addresses: Sequence[int], tensors: Sequence[Mapping[str, Array]],
        results: Sequence[Mapping[str, Array]], shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int,
        workspace: Array | None = None, **where: Any,
    ) -> None:  # fmt: skip
        """Run on arrays that lie at other addresses than their own. Nothing is run where there is nothing to write."""
        if all(array.size == 0 for made in results for array in made.values()):
            return
        sizes = self.sizes_of(tensors, results, shapes, scalars)
        self.launch_raw(addresses, sizes, shapes, scalars.table, threads, workspace, **where)

    def sizes_of(
        self, tensors: Sequence[Mapping[str, Array]], results: Sequence[Mapping[str, Array]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars,
    ) -> list[int]:  # fmt: skip
        """The sizes of a launch as the kernel takes them: those of its family, then whole scalars."""
        spaces = [space for space, _ in self.tensor_sizes]
        arrays = [self._in_order([some], [made]) for some, made in zip(tensors, results, strict=True)]
        return [*self.plan.family.launch_sizes(spaces, arrays, shapes), *scalars.whole]


@dataclass(frozen=True, eq=False)
class Kernel(KernelBase):
    """A compiled kernel of an operator, whether or not it can run here.

    One for the CPU is launched as it is. One that is compiled for a GPU is of one architecture and one shape, and is
    run by calling the operator: ``schedule`` and ``launches`` say in words how the shape is partitioned. ``artifact``
    holds the binary and what the compiler tells of it; for a GPU registers, spills and shared memory of each launch. In
    a *structure* build float tensors hold 64-bit hashes in place of numbers.
    """

    operator: Operator
    graph: Graph
    plan: Plan
    text: KernelText
    artifact: Any
    structure: bool = False
    device: str = CPU
    shape: tuple[int, int] | None = None
    schedule: str = ""
    launches: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The emitted source; its headers are in ``text``."""
        return self.text.text

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that can change the binary."""
        return str(self.artifact.fingerprint)

    def identities(self) -> list[Identity]:
        """The one binary. Raises UnavailableError for a kernel that is compiled for a GPU."""
        self._runs()
        a = self.artifact
        source = hashlib.sha256(self.source.encode()).hexdigest()
        about = (a.compiler.kind, a.compiler.version, a.compiler.digest, a.isa, a.flags)
        return [Identity(self.structure, a.fingerprint, a.digest, source, *about, sums_of(self.text))]

    def machine_code(self) -> list[MachineCode]:
        """That of the one binary."""
        return [] if self.structure else [x86.read(self.artifact)]

    def _runs(self) -> None:
        if self.device != CPU:
            raise UnavailableError(
                f"{self}: compiled ahead; accepted: calls of the operator on arrays of such a GPU, and tokitai.verify"
            )

    @cached_property
    def loaded(self) -> cpu.LoadedKernel:
        """The kernel in this process."""
        self._runs()
        return cpu.load(self.artifact)

    def workspace_bytes(self, shapes: Sequence[tuple[int, int]], threads: int, entries: int = 0) -> int:
        """How much workspace a launch needs; ``entries`` of a table that is summed into."""
        self._runs()
        return self.plan.workspace_bytes(shapes, 8 if self.structure else 4, threads, entries)

    def launch_raw(
        self,
        addresses: Sequence[int],
        sizes: Sequence[int],
        shapes: Sequence[tuple[int, int]],
        table: Array,
        threads: int,
        workspace: Array | None = None,
    ) -> None:
        """Run on addresses and sizes as the kernel's source reads them. ``workspace`` is room for `workspace_bytes`,
        whatever it holds; a new one where none is given."""
        if workspace is None:
            workspace = cpu.aligned_empty(self.workspace_bytes(shapes, threads, self.entries_in(sizes)), np.uint8)
        self.succeeded(self.loaded(addresses, sizes, table, workspace.ctypes.data, threads))

    def succeeded(self, status: int) -> None:
        """Raise TokitaiError for a status other than 0."""
        if status != 0:
            raise TokitaiError(f"{self}: status {status}; a kernel returns 0")

    def __repr__(self) -> str:
        built_for = self.artifact.isa if self.device == CPU else self.artifact.arch
        return f"<kernel {self.graph.name} {self.graph.dtype} {built_for} {self.fingerprint[:12]}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process takes it from its build cache, or compiles it again."""
        variant = (self.operator, *variant_of(self.graph))
        if self.device != CPU:
            compiler = getattr(self.artifact, "compiler", None)  # NVRTC is no choice
            named = None if compiler is None else str(compiler.clang.path)
            return compiled_ahead, (*variant, self.device, self.shape, self.artifact.arch, named)
        compiler, isa = str(self.artifact.compiler.path), self.artifact.isa
        return _again, (*variant, self.source, compiler, isa, self.structure)


class KernelList(list[KernelBase]):
    """Kernels that stay in the process that has them: whoever reads a verdict elsewhere needs no compiler."""

    def __reduce__(self) -> tuple[Any, ...]:
        return KernelList, ()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> KernelList:
        return KernelList(self)


def variant_of(graph: Graph) -> tuple[str, tuple[str, ...], dict[str, object]]:
    """What an operator was traced with: storage format, optional tensors, options."""
    return graph.dtype, tuple(t.name for t in graph.inputs if t.optional), dict(graph.options)


def _again(
    operator: Operator, dtype: str, present: Iterable[str], options: Mapping[str, object], source: str, compiler: str,
    isa: Isa, structure: bool,
) -> Kernel:  # fmt: skip
    """The kernel of a source that was emitted, and perhaps altered, elsewhere. Raises what `host_kernel` does."""
    graph = operator.trace(dtype, present, options)
    plan = make_plan(graph)
    return build_text(operator, graph, plan, source, emit_cpu(plan).headers, compiler, isa, structure)


def host_kernel(
    operator: Operator,
    dtype: object = "f32",
    present: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    compiler: str | None = None,
    isa: Isa | None = None,
    structure: bool = False,
) -> Kernel:
    """Compile an operator for the CPU, or take it from the build cache.

    ``present`` names the optional tensors that calls will give (default: all of them), ``compiler`` a C++ compiler,
    ``isa`` an instruction set (default: the widest one here).
    Raises UnknownNameError, DefinitionError, CompilerMissingError, CompileError.
    """
    graph = operator.trace(dtype, present, options)
    plan = make_plan(graph)
    text = emit_cpu(plan)
    return build_text(operator, graph, plan, text.text, text.headers, compiler, isa, structure)


def compiled_ahead(
    operator: Operator, dtype: object, present: Iterable[str] | None, options: Mapping[str, object] | None, device: str,
    sizes: tuple[int, int], arch: str, compiler: str | None = None,
) -> Kernel:  # fmt: skip
    """The kernels of an operator for one architecture of GPUs, at one shape: what a pickled one is made of again.
    Raises what `tokitai.compile` does."""
    backend = backend_named(device)
    graph = operator.trace(dtype, present, options)
    plan = make_plan(graph)
    plan = plan.family.gpu.plan(plan, device)
    made = plan.family.gpu.source(plan, sizes, *backend.layout_of(arch))
    artifact = backend.compile(Source(made.text.text, made.text.headers, graph.name), graph, arch, compiler)
    return Kernel(
        operator, graph, plan, made.text, artifact, False, device, made.shape, made.schedule, made.launches
    )  # fmt: skip


def build_text(
    operator: Operator,
    graph: Graph,
    plan: Plan,
    text: str,
    headers: Mapping[str, str],
    compiler: str | None = None,
    isa: Isa | None = None,
    structure: bool = False,
) -> Kernel:
    """A kernel from a given source, which need not be the emitted one: the verifier's own tests alter it."""
    source = Source(text, headers, graph.name)
    artifact = build(source, find_compiler(compiler), isa or native_isa(), structure)
    return Kernel(operator, graph, plan, KernelText(text, headers), artifact, structure)


__all__ = [
    "Kernel", "KernelBase", "Scalars", "build_text", "compiled_ahead", "host_kernel", "is_attention", "is_grouped",
    "is_product",
]  # fmt: skip
