"""Kernels for AMD GPUs without an AMD GPU: compiled and inspected for one, and run on the CPU's fibers.

Whatever schedule a run on the simulated device takes is also compiled for the architecture by clang, and refused where
the scan of its assembly finds something, or where it takes another call, fewer threads or other wavefronts than the
launch has. The fibers run the same text with the same header, over the builtins of AMD GPUs that `sim.h` has; so what
is shown is the text's bits and structure, and that the code of the architecture has the operations of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from ..backends.hip import clang as hip
from ..backends.hip.probe import probe
from ..emit.cpp import KernelText
from ..errors import ArgumentError, CompileError
from ..lang import Graph, Node, Operator
from ..lower.gpu import Step
from ..toolchain.build import Source
from .gpu_kernel import Edit, GpuKernel, Program, gpu_plan, source_digest
from .gpu_targets import SimTarget
from .kernel import Array, Identity, KernelBase

DEFAULT = ("gfx942", "gfx1101")  # one for each width of wavefronts


class HipTarget:
    """One AMD architecture. ``fma``, ``f64``: whether the definition holds fused multiply-adds, and sums in f64;
    ``inspect``: false leaves the compilation for the architecture out, and runs the text alone.

    Raises UnknownNameError, and CompilerMissingError without a clang for AMD GPUs or a C++ compiler.
    """

    name = "hip"
    shared_bytes = 0  # that launches may ask for: there are no copies that go on by themselves
    matrix_units = False
    fused_units = warpgroups = False
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
        """Compile a text for the fibers and, where it computes with numbers, for the architecture."""
        runs, ran = self.sim.build(text, stem, structure)
        if structure or self.clang is None:  # hashes are never launched on a card that is not there
            return runs, ran
        source = Source(text.text, text.headers, stem)
        made = hip.build(source, self.arch, fma_allowed=self.fma, compiler=self.clang, f64_allowed=self.f64)
        clang = made.compiler.clang
        about = ("clang", clang.version, clang.digest, made.arch, made.flags)
        identity = Identity(structure, made.fingerprint, made.digest, source_digest(text), *about)
        return HipProgram(made, runs, ran), identity

    def place(self, values: Array) -> tuple[int, object]:
        """The values where they are: fibers read this process's memory."""
        return self.sim.place(values)

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Memory of this process."""
        return self.sim.workspace(nbytes)


class HipProgram:
    """The kernels of one text, compiled for an architecture and run by fibers."""

    def __init__(self, artifact: hip.HipArtifact, runs: Program, ran: Identity) -> None:
        self.artifact, self.runs, self.ran = artifact, runs, ran

    def spills(self, name: str) -> int:
        """Bytes of vector registers that a lane keeps in scratch memory."""
        return 4 * self.artifact.resources[name].spills

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


class HipKernel(GpuKernel):
    """Kernels of which each text has two binaries."""

    def identities(self) -> list[Identity]:
        """The code objects, and what the fibers ran."""
        ran = [program.ran for program, _ in self.programs.values() if isinstance(program, HipProgram)]
        return [*super().identities(), *ran]


def holds_fma(graph: Graph) -> bool:
    """Whether a definition holds a fused multiply-add, in a function that it calls perhaps; the sums of products do."""

    def under(some: Iterable[Node]) -> Iterator[Node]:
        for n in some:
            yield n
            if n.body is not None:
                yield from under(n.body.nodes)

    return any(n.op in ("fma", "matmul") for n in under(graph.nodes))


def holds_f64(graph: Graph) -> bool:
    """Whether a definition holds sums in f64."""
    return any(n.op == "matmul" and n.data[1] == "f64" for n in graph.nodes)


def archs_of(device: str, arch: str | None) -> tuple[str, ...]:
    """The AMD architectures that kernels of a device are compiled for: none but for hip. Raises UsageError."""
    if arch is None:
        return DEFAULT if device == "hip" else ()
    if device != "hip":
        raise ArgumentError(f"arch={arch!r} goes with the device hip, not with {device}")
    hip.flags_of(arch)
    return (arch,)


def kernels(
    operator: Operator, graph: Graph, arch: str, compiler: str | None = None, edit: Edit | None = None
) -> list[KernelBase]:  # fmt: skip
    """The kernel over numbers, and the same text over hashes. Raises what `HipTarget` raises."""
    target, plan = HipTarget(arch, holds_fma(graph), compiler, f64=holds_f64(graph)), gpu_plan(graph, "hip")
    return [HipKernel(operator, graph, plan, structure, target, edit) for structure in (False, True)]


def compiled(kernels: Iterable[KernelBase]) -> list[str]:
    """The architectures for which some text was compiled and inspected: a case over hashes alone needs none."""
    some = [k for k in kernels if isinstance(k, HipKernel)]
    made = [p.artifact.arch for k in some for p, _ in k.programs.values() if isinstance(p, HipProgram)]
    return list(dict.fromkeys(made))


def not_run(kernels: Iterable[KernelBase]) -> str:
    """What was done in place of running kernels on an AMD device, and why."""
    archs = compiled(kernels)
    done = f"compiled and inspected for {', '.join(archs)}, not run" if archs else "neither compiled nor run"
    return f"{done}: {probe()}"


def describe(archs: Iterable[str], compiler: str | None = None) -> dict[str, Any]:
    """Where the kernels ran, as certificates show it."""
    widths = sorted({hip.ARCHITECTURES[a] for a in archs})
    about = SimTarget(compiler, widths[0], hip=True).describe()
    return {**about, "architectures": ", ".join(archs), "warp": ", ".join(map(str, widths))}
