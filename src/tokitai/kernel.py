"""Compile an operator for a target: graph, plan, text, binary, loaded and ready to launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .device import cpu
from .emit.cpp import emit_cpu
from .errors import TokitaiError, UnknownNameError
from .formats import FORMATS
from .lang import Graph, Node, Operator
from .lower import FlatPlan, Plan, make_plan
from .lower.scalars import host_values, rounded_scalars, whole_scalars
from .toolchain.build import Artifact, Isa, Source, build, native_isa
from .toolchain.compilers import find_compiler

Array = np.ndarray[Any, Any]

TARGETS = ("cpu",)


@dataclass(frozen=True, eq=False)
class Scalars:
    """The host scalars of a launch: those rounded to f32 (or hashes in their place), and whole numbers."""

    table: Array
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled kernel. In a *structure* build every float tensor holds 64-bit hashes instead of numbers."""

    operator: Operator
    graph: Graph
    plan: Plan
    source: str
    artifact: Artifact
    structure: bool

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that can change the binary."""
        return self.artifact.fingerprint

    @cached_property
    def _run(self) -> cpu.LoadedKernel:
        return cpu.load(self.artifact)

    def element(self, format_name: str) -> np.dtype[Any]:
        """The dtype in which a tensor of this format is handed to the kernel."""
        fmt = FORMATS[format_name]
        return np.dtype(np.uint64) if self.structure and fmt.is_float else fmt.dtype

    def scalar_table(self, rows: int, cols: int, params: Mapping[str, float]) -> Scalars:
        """The host scalars of a call, each computed in f64 and rounded once: to f32, or to a whole number."""
        with cpu.default_float_mode(), np.errstate(over="ignore"):
            values = host_values(self.graph, rounded_scalars(self.graph), rows, cols, params)
            return Scalars(np.array(values, np.float64).astype(np.float32), self._whole(rows, cols, params))

    def hash_table(self, hashes: Mapping[Node, int], rows: int, cols: int, params: Mapping[str, float]) -> Scalars:
        """The same for a structure build: hashes in place of numbers; whole numbers stay."""
        table = np.array([hashes[n] for n in rounded_scalars(self.graph)], np.uint64)
        return Scalars(table, self._whole(rows, cols, params))

    def _whole(self, rows: int, cols: int, params: Mapping[str, float]) -> tuple[int, ...]:
        return tuple(round(v) for v in host_values(self.graph, whole_scalars(self.graph), rows, cols, params))

    def workspace_bytes(self, shapes: Sequence[tuple[int, int]], threads: int) -> int:
        """How much workspace a launch needs."""
        element = 8 if self.structure else 4
        if isinstance(self.plan, FlatPlan):
            return self.plan.workspace_bytes(shapes, element)
        return self.plan.workspace_bytes(shapes, element, threads)

    def launch(
        self,
        tensors: Mapping[str, Array],
        results: Mapping[str, Array],
        shape: tuple[int, int],
        scalars: Scalars,
        threads: int,
        workspace: Array | None = None,
    ) -> None:
        """Run on arrays that already have the right dtypes: rows x cols ones two-dimensional with unit column stride,
        all others contiguous. Nothing is checked here: see ``tokitai.call`` for the checks. Releases the GIL."""
        self.launch_list([tensors], [results], [shape], scalars, threads, workspace)

    def launch_list(
        self,
        tensors: Sequence[Mapping[str, Array]],
        results: Sequence[Mapping[str, Array]],
        shapes: Sequence[tuple[int, int]],
        scalars: Scalars,
        threads: int,
        workspace: Array | None = None,
    ) -> None:
        """Run an element-wise kernel on a list of tensors; any other takes a list of one."""
        addresses: list[int] = []
        sizes: list[int] = [len(shapes)] if self.plan.flat else []
        inputs = [(t.name, t.space == "rc") for t in self.graph.inputs]
        outputs = [(o.name, o.space == "rc") for o in self.graph.outputs]
        for some, made, shape in zip(tensors, results, shapes, strict=True):
            sizes += shape
            for arrays, names in ((some, inputs), (made, outputs)):
                for name, matrix in names:
                    array = arrays[name]
                    addresses.append(array.ctypes.data)
                    if matrix:
                        sizes.append(array.strides[0] // array.itemsize)
        if all(array.size == 0 for made in results for array in made.values()):
            return
        self.launch_raw(addresses, [*sizes, *scalars.whole], shapes, scalars.table, threads, workspace)

    def launch_raw(
        self,
        addresses: Sequence[int],
        sizes: Sequence[int],
        shapes: Sequence[tuple[int, int]],
        table: Array,
        threads: int,
        workspace: Array | None = None,
    ) -> None:
        """Run on addresses and sizes as the kernel's text reads them. ``workspace`` is room for `workspace_bytes`,
        whatever it holds; a new one where none is given."""
        if workspace is None:
            workspace = cpu.aligned_empty(self.workspace_bytes(shapes, threads), np.uint8)
        status = self._run(addresses, sizes, table, workspace.ctypes.data, threads)
        if status != 0:
            raise TokitaiError(f"{self}: status {status}; a kernel returns 0")

    def __repr__(self) -> str:
        return f"<kernel {self.graph.name} {self.graph.dtype} {self.artifact.isa} {self.fingerprint[:12]}>"


def compile(
    operator: Operator,
    target: str = "cpu",
    dtype: object = "f32",
    present: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    compiler: str | None = None,
    isa: Isa | None = None,
    structure: bool = False,
) -> Kernel:
    """Compile an operator, or take it from the build cache.

    ``present`` names the optional tensors that calls will give (default: all of them), ``compiler`` a C++ compiler,
    ``isa`` an instruction set (default: the widest one here).
    Raises UnknownNameError, DefinitionError, CompilerMissingError, CompileError.
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS)
    graph = operator.trace(dtype, present, options)
    plan = make_plan(graph)
    text = emit_cpu(plan)
    return build_text(operator, graph, plan, text.text, text.headers, compiler, isa, structure)


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
    """A kernel from a given text, which need not be the emitted one: the verifier's own tests alter it."""
    source = Source(text, headers, graph.name)
    artifact = build(source, find_compiler(compiler), isa or native_isa(), structure)
    return Kernel(operator, graph, plan, text, artifact, structure)


__all__ = ["TARGETS", "Kernel", "Scalars", "build_text", "compile"]
