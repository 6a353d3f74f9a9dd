"""`tokitai.compile`: the kernel of an operator for any target, to be read, inspected and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

from ..emit.cpp import KernelText
from ..errors import ArgumentError, DeviceMissingError, UnknownNameError
from ..families import Plan
from ..lang import Graph, Operator, check_operator
from ..toolchain.build import Isa, Source
from .kernel import Kernel, variant_of
from .kernel import compile as compile_cpu
from .shapes import asked_shape, in_groups

if TYPE_CHECKING:
    from ..backends.cuda.nvrtc import CudaArtifact
    from ..backends.hip.clang import HipArtifact

COMPILED_FOR = ("cpu", "cuda", "hip")


@dataclass(frozen=True, eq=False)
class GpuBuild:
    """The kernels of an operator for one architecture of GPUs, at one shape. They are run by calling the operator.

    ``schedule`` and ``launches`` say in words how the shape is shared out; ``artifact`` holds the binary and what the
    compiler tells of each kernel: registers, spills, shared memory.
    """

    operator: Operator
    graph: Graph
    plan: Plan
    shape: tuple[int, int]
    schedule: str
    launches: tuple[str, ...]
    text: KernelText
    artifact: CudaArtifact | HipArtifact

    @property
    def source(self) -> str:
        """The emitted text; its headers are in ``text``."""
        return self.text.text

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that can change the binary."""
        return self.artifact.fingerprint

    def __copy__(self) -> GpuBuild:
        return self

    def __deepcopy__(self, memo: Mapping[int, object]) -> GpuBuild:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Another process takes the binary from its build cache, or compiles it again."""
        arch, compiler = self.artifact.arch, getattr(self.artifact, "compiler", None)  # NVRTC is no choice
        hip = None if compiler is None else str(compiler.clang.path)
        return _again, (self.operator, *variant_of(self.graph), self.shape, arch, hip)

    def __repr__(self) -> str:
        return f"<kernels {self.graph.name} {self.graph.dtype} {self.artifact.arch} {self.fingerprint[:12]}>"


@overload
def compile(
    operator: Operator,
    target: Literal["cpu"] = "cpu",
    dtype: object = "f32",
    present: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    *,
    compiler: str | None = None,
    isa: Isa | None = None,
) -> Kernel: ...
@overload
def compile(
    operator: Operator,
    target: str,
    dtype: object = "f32",
    present: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    *,
    compiler: str | None = None,
    isa: Isa | None = None,
    shape: Mapping[str, int] | None = None,
    arch: str | None = None,
) -> Kernel | GpuBuild: ...
def compile(
    operator: Operator, target: str = "cpu", dtype: object = "f32", present: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None, *, compiler: str | None = None, isa: Isa | None = None,
    shape: Mapping[str, int] | None = None, arch: str | None = None,
) -> Kernel | GpuBuild:  # fmt: skip
    """Compile an operator for ``cpu``, ``cuda`` or ``hip``, or take it from the build cache.

    ``present`` names the optional tensors that calls will give (default: all of them). For the CPU ``compiler`` is a
    C++ compiler and ``isa`` an instruction set (default: the widest one here). For a GPU ``shape`` is
    ``dict(rows=.., cols=..)``, and ``inner`` and ``batch`` of a product (default: a shape of ordinary use), and
    ``arch`` the architecture, for which no card is needed: ``sm_90``, ``gfx942`` (default: the first NVIDIA card's).
    Raises UnknownNameError, ArgumentError, DefinitionError, CompilerMissingError, CompileError, and DeviceMissingError
    where no architecture is named and there is no card.
    """
    check_operator(operator)
    if target not in COMPILED_FOR:
        raise UnknownNameError("target", target, COMPILED_FOR)
    misplaced: dict[str, object] = dict(shape=shape, arch=arch) if target == "cpu" else dict(isa=isa)
    misplaced |= dict(compiler=compiler) if target == "cuda" else {}
    for name, value in misplaced.items():
        if value is not None:
            raise ArgumentError(f"{name}={value!r} does not go with the target {target}")
    if target == "cpu":
        return compile_cpu(operator, "cpu", dtype, present, options, compiler, isa)
    return _for_gpu(operator, target, operator.trace(dtype, present, options), shape, arch, compiler)


def _for_gpu(
    operator: Operator, target: str, graph: Graph, shape: Mapping[str, int] | None, arch: str | None,
    compiler: str | None,
) -> GpuBuild:  # fmt: skip
    from ..backends.hip import clang as hip
    from .gpu_source import usual_shape

    sizes = in_groups(graph, asked_shape(operator, shape) or usual_shape(operator))
    if target == "cuda":
        arch = arch or _arch_here()
    elif arch is None:
        raise ArgumentError(f"arch: none is named; accepted: one of {', '.join(hip.ARCHITECTURES)}")
    return _build(operator, target, graph, sizes, arch, compiler)


def _build(
    operator: Operator, target: str, graph: Graph, sizes: tuple[int, int], arch: str, compiler: str | None
) -> GpuBuild:
    from ..backends.cuda import nvrtc
    from ..backends.hip import clang as hip
    from .gpu_hip import holds_f64, holds_fma
    from .gpu_kernel import gpu_plan
    from .gpu_source import gpu_source

    plan = gpu_plan(graph, target)
    artifact: CudaArtifact | HipArtifact
    if target == "cuda":
        nvrtc.options_of(arch)
        made = gpu_source(plan, sizes)
        artifact = nvrtc.build(Source(made.text.text, made.text.headers, graph.name), arch)
    else:
        hip.flags_of(arch)
        made = gpu_source(plan, sizes, hip.ARCHITECTURES[arch], staged=False)
        source = Source(made.text.text, made.text.headers, graph.name)
        artifact = hip.build(
            source, arch, fma_allowed=holds_fma(graph), compiler=hip.find_hip(compiler), f64_allowed=holds_f64(graph)
        )
    return GpuBuild(operator, graph, plan, made.shape, made.schedule, made.launches, made.text, artifact)


def _again(
    operator: Operator, dtype: str, present: Iterable[str], options: Mapping[str, object], sizes: tuple[int, int],
    arch: str, compiler: str | None,
) -> GpuBuild:  # fmt: skip
    """The kernels that another process has pickled. Raises what `compile` does."""
    graph = operator.trace(dtype, present, options)
    return _build(operator, "cuda" if compiler is None else "hip", graph, sizes, arch, compiler)


def _arch_here() -> str:
    from ..backends.cuda.device import open_device

    try:
        return open_device(0).arch
    except DeviceMissingError as missing:
        raise DeviceMissingError(f"{missing}; without one, name the architecture: arch='sm_90', say") from None
