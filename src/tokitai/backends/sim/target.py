"""The simulated device as a target: the source of GPU kernels over fibers of this machine's processor."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from ...emit.counters import sums_of
from ...emit.cpp import KernelText
from ...lang import Graph
from ...lower.gpu import Step
from ...toolchain.build import Source
from ...toolchain.compilers import find_compiler
from ..backend import Array, Identity, Program, source_digest, workspace_of
from ..cpu import device as cpu
from ..machine_code import MachineCode
from .device import build_sim, load

NO_GPU = "the simulated device runs sources of GPU kernels on this processor"


class SimTarget:
    """Kernels on the simulated device."""

    name = "sim"
    shared_bytes = 227 << 10  # as a block may have on sm_90
    fused_units = warpgroups = integer_units = integer_warpgroups = False
    entered = nullcontext  # there is none to enter

    def __init__(
        self, compiler: str | None = None, warp: int = 32, hip: bool = False, matrix_units: bool = False
    ) -> None:
        self.warp, self.hip, self.compiler, self.matrix_units = warp, hip, find_compiler(compiler), matrix_units

    def describe(self) -> dict[str, Any]:
        """The processor that stands in."""
        return {**cpu.describe(), "simulated": True, "warp": self.warp}

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a source as C++, or take it from the build cache, and load it."""
        source = Source(text.text, text.headers, stem)
        made = build_sim(source, self.compiler, structure, self.warp, self.hip)
        isa = f"sim{', HIP' * self.hip}, warps of {self.warp}"
        about = (made.compiler.kind, made.compiler.version, made.compiler.digest, isa)
        identity = Identity(
            structure, made.fingerprint, made.digest, source_digest(text), *about, made.flags, sums_of(text)
        )
        return SimProgram(load(made)), identity

    def place(self, values: Array) -> tuple[int, object]:
        """The values where they are."""
        return values.ctypes.data, values

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Memory of this process."""
        room = cpu.aligned_empty(nbytes, np.uint8)
        return room.ctypes.data, room

    @contextmanager
    def lent(self, memory: Sequence[Array]) -> Iterator[list[int]]:
        """Host memory where it lies."""
        yield [raw.ctypes.data for raw in memory]

    def again(self) -> tuple[str, str | None] | None:
        """The simulated device with the same compiler, where it is the one that users pick."""
        return (self.name, str(self.compiler.path)) if self.warp == 32 and not self.hip else None


class SimProgram:
    """The kernels of one source as C++."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def machine_code(self, graph: Graph) -> list[MachineCode]:
        """None of a GPU."""
        return [MachineCode(self.loaded.artifact.digest, "", missing=NO_GPU)]

    def spills(self, name: str) -> int:
        """Fibers have no registers of their own."""
        return 0

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        """Run one kernel with one of the orders of threads: 0 is forward. Blocks that take units in turn are two."""
        if step.cleared:
            ctypes.memset(workspace_of(call), 0, step.cleared)
        self.loaded.launch(step.name, min(step.grid, 2) if step.in_turn else step.grid, step.block, call, order)
