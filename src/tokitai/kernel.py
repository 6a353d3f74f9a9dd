"""Compile an operator for a target: graph, plan, text, binary, loaded and ready to launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .device import cpu
from .emit.cpp import emit_cpu, workspace_elements
from .errors import TokitaiError, UnknownNameError
from .formats import FORMATS
from .lang import Graph, Operator
from .lower.rowwise import RowPlan, plan_rows
from .lower.scalars import host_values, rounded_scalars
from .toolchain.build import Artifact, Isa, Source, build, native_isa
from .toolchain.compilers import find_compiler

Array = np.ndarray[Any, Any]

TARGETS = ("cpu",)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled kernel. In a *structure* build every float tensor holds 64-bit hashes instead of numbers."""

    operator: Operator
    graph: Graph
    plan: RowPlan
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

    def scalar_table(self, rows: int, cols: int, params: Mapping[str, float]) -> Array:
        """The host scalars of a call, each computed in f64 and rounded once to f32."""
        with np.errstate(over="ignore"):
            return np.array(host_values(self.graph, rows, cols, params), np.float64).astype(np.float32)

    def workspace_elements(self, shape: tuple[int, int], threads: int) -> int:
        """How many values of workspace a launch needs, each of the dtype ``element("f32")``."""
        return workspace_elements(self.plan, *shape, threads)

    def launch(
        self,
        tensors: Mapping[str, Array],
        results: Mapping[str, Array],
        shape: tuple[int, int],
        scalars: Array,
        threads: int,
        workspace: Array | None = None,
    ) -> None:
        """Run on arrays that already have the right dtypes: rows x cols ones two-dimensional with unit column stride,
        all others contiguous. Nothing is checked here: see ``tokitai.call`` for the checks. Releases the GIL.

        ``workspace`` is room for `workspace_elements` values, whatever they hold; a new one where none is given."""
        rows, cols = shape
        addresses, sizes = [], [rows, cols]
        arrays = [(tensors[t.name], t.space) for t in self.graph.inputs]
        arrays += [(results[o.name], o.space) for o in self.graph.outputs]
        for array, space in arrays:
            addresses.append(array.ctypes.data)
            if space == "rc":
                sizes.append(array.strides[0] // array.itemsize)
        if all(array.size == 0 for array in results.values()):
            return
        if workspace is None:
            workspace = cpu.aligned_empty(self.workspace_elements(shape, threads), self.element("f32"))
        status = self._run(addresses, sizes, scalars, workspace.ctypes.data, threads)
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
    plan = plan_rows(graph)
    text = emit_cpu(plan)
    return build_text(operator, graph, plan, text.text, text.headers, compiler, isa, structure)


def build_text(
    operator: Operator,
    graph: Graph,
    plan: RowPlan,
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


__all__ = ["TARGETS", "Kernel", "build_text", "compile", "rounded_scalars"]
