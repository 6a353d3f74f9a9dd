"""Kernels for AMD GPUs without an AMD GPU: compiled and inspected for one, and run on the CPU's fibers.

Whatever schedule a run on the simulated device takes is also compiled for the architecture by clang, and refused where
the scan of its assembly finds something, or where it takes another call, fewer threads or other wavefronts than the
launch has. The fibers run the same source with the same header, over the builtins of AMD GPUs that `sim.h` has; so what
is shown is the source's bits and structure, and that the code of the architecture has the operations of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...emit.counters import sums_of
from ...emit.cpp import KernelText
from ...errors import CompileError
from ...lang import Graph
from ...lower.gpu import Step
from ...toolchain.build import Source
from ..backend import Array, Identity, Inspected, Program, source_digest
from ..machine_code import MachineCode
from ..sim.target import SimTarget
from . import assembly
from . import clang as hip


class HipTarget:
    """One AMD architecture. ``fma``, ``f64``: whether the definition holds fused multiply-adds, and sums in f64;
    ``inspect``: false leaves the compilation for the architecture out, and runs the source alone.

    Raises UnknownNameError, and CompilerMissingError without a clang for AMD GPUs or a C++ compiler.
    """

    name = "hip"
    shared_bytes = 0  # that launches may ask for: there are no copies that go on by themselves
    matrix_units = False
    fused_units = warpgroups = integer_units = integer_warpgroups = False
    entered = nullcontext

    def __init__(
        self, arch: str, fma: bool, compiler: str | None = None, inspect: bool = True, f64: bool = False
    ) -> None:
        hip.flags_of(arch)
        self.arch, self.fma, self.f64, self.inspect = arch, fma, f64, inspect
        self.warp = hip.ARCHITECTURES[arch]
        self.clang = hip.find_hip() if inspect else None
        self.sim = SimTarget(compiler, self.warp, hip=True)

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a source for the fibers and, where it computes with numbers, for the architecture."""
        runs, ran = self.sim.build(text, stem, structure)
        if structure or self.clang is None:  # hashes are never launched on a GPU that is not there
            return runs, ran
        source = Source(text.text, text.headers, stem)
        made = hip.build(source, self.arch, fma_allowed=self.fma, compiler=self.clang, f64_allowed=self.f64)
        clang = made.compiler.clang
        about = ("clang", clang.version, clang.digest, made.arch, made.flags)
        identity = Identity(structure, made.fingerprint, made.digest, source_digest(text), *about, sums_of(text))
        return HipProgram(made, runs, ran), identity

    def place(self, values: Array) -> tuple[int, object]:
        """The values where they are: fibers read this process's memory."""
        return self.sim.place(values)

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Memory of this process."""
        return self.sim.workspace(nbytes)

    def lent(self, memory: Sequence[Array]) -> AbstractContextManager[list[int]]:
        """Host memory where it lies."""
        return self.sim.lent(memory)

    def again(self) -> tuple[str, str | None] | None:
        """Its kernels stay in their process."""
        return None

    def describe(self) -> dict[str, Any]:
        """Where the kernels run, as certificates show it."""
        return {**self.sim.describe(), "architectures": self.arch, "warp": str(self.warp)}


class HipProgram(Inspected):
    """The kernels of one source, compiled for an architecture and run by fibers."""

    def __init__(self, artifact: hip.HipArtifact, runs: Program, ran: Identity) -> None:
        self.artifact, self.runs, self.beside = artifact, runs, (ran,)

    def spills(self, name: str) -> int:
        """Bytes of vector registers that a lane keeps in scratch memory."""
        return 4 * self.artifact.resources[name].spills

    def machine_code(self, graph: Graph) -> list[MachineCode]:
        """What a build lists, none of which is a finding (`hip.build`); and that what ran is no code of a GPU."""
        return [assembly.read(self.artifact.digest, self.artifact.read("ir")), *self.runs.machine_code(graph)]

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        """Hold the launch against the compiled kernel, then run the fibers. Raises CompileError where they differ."""
        self.check(step, call)
        self.runs.launch(step, call, order, stream)

    def check(self, step: Step, call: bytes) -> None:
        """Raises CompileError where the code object is not for this launch."""
        have = self.artifact.resources.get(step.name)
        arch, name = self.artifact.arch, step.name
        if have is None:
            raise CompileError(f"{arch}: the code object holds no kernel {name}")
        if have.argument != len(call):
            raise CompileError(f"{arch}, kernel {name}: takes {have.argument} bytes, the launch gives {len(call)}")
        if have.threads < step.block:
            raise CompileError(f"{arch}, kernel {name}: takes {have.threads} threads, the launch has {step.block}")
        if step.block % have.warp:
            raise CompileError(f"{arch}, kernel {name}: {step.block} threads are no whole wavefronts of {have.warp}")
