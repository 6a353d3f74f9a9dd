"""`tokitai.compile`: the kernel of an operator for any target, to be read, inspected and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from ..backends import Backend, backend_named, backend_of, backends
from ..backends.backend import Language
from ..emit.cpp import KernelText
from ..errors import ArgumentError, UnknownNameError
from ..families import Plan, emit_cpu, make_plan
from ..lang import Graph, Operator, check_operator
from ..toolchain.build import Isa, Source
from .gpu_kernel import Edit, GpuKernel, gpu_plan
from .gpu_source import gpu_source, usual_shape
from .kernel import Kernel, KernelBase, build_text, variant_of
from .kernel import compile as compile_cpu
from .shapes import asked_shape, in_groups


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
    target: str
    artifact: Any

    @property
    def source(self) -> str:
        """The emitted text; its headers are in ``text``."""
        return self.text.text

    @property
    def fingerprint(self) -> str:
        """SHA-256 over everything that can change the binary."""
        return str(self.artifact.fingerprint)

    def __copy__(self) -> GpuBuild:
        return self

    def __deepcopy__(self, memo: Mapping[int, object]) -> GpuBuild:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Another process takes the binary from its build cache, or compiles it again."""
        compiler = getattr(self.artifact, "compiler", None)  # NVRTC is no choice
        named = None if compiler is None else str(compiler.clang.path)
        return _again, (self.operator, *variant_of(self.graph), self.target, self.shape, self.artifact.arch, named)

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
    ``arch`` the architecture, for which no GPU is needed: ``sm_90``, ``gfx942`` (default: the first NVIDIA GPU's).
    Raises UnknownNameError, ArgumentError, DefinitionError, CompilerMissingError, CompileError, and DeviceMissingError
    where no architecture is named and there is no GPU.
    """
    check_operator(operator)
    able = {b.name: b for b in backends() if b.ahead}
    if target not in able:
        raise UnknownNameError("target", target, able)
    backend = able[target]
    for_gpu = backend.language is Language.GPU
    misplaced: dict[str, object] = dict(isa=isa) if for_gpu else dict(shape=shape, arch=arch)
    misplaced |= {} if backend.picks_compiler else dict(compiler=compiler)
    for name, value in misplaced.items():
        if value is not None:
            raise ArgumentError(f"{name}={value!r} does not go with the target {target}")
    if not for_gpu:
        return compile_cpu(operator, "cpu", dtype, present, options, compiler, isa)
    graph = operator.trace(dtype, present, options)
    sizes = in_groups(graph, asked_shape(operator, shape) or usual_shape(operator))
    return _build(operator, backend, graph, sizes, backend.arch_for(arch), compiler)


def _build(
    operator: Operator, backend: Backend, graph: Graph, sizes: tuple[int, int], arch: str, compiler: str | None
) -> GpuBuild:  # fmt: skip
    plan = gpu_plan(graph, backend.name)
    warp, staged = backend.layout_of(arch)
    made = gpu_source(plan, sizes, warp, staged)
    source = Source(made.text.text, made.text.headers, graph.name)
    artifact = backend.compile(source, graph, arch, compiler)
    return GpuBuild(
        operator, graph, plan, made.shape, made.schedule, made.launches, made.text, backend.name, artifact
    )  # fmt: skip


def _again(
    operator: Operator, dtype: str, present: Iterable[str], options: Mapping[str, object], target: str,
    sizes: tuple[int, int], arch: str, compiler: str | None,
) -> GpuBuild:  # fmt: skip
    """The kernels that another process has pickled. Raises what `compile` does."""
    graph = operator.trace(dtype, present, options)
    return _build(operator, backend_named(target), graph, sizes, arch, compiler)


def plan_on(backend: Backend, graph: Graph) -> Plan:
    """The plan of a graph's kernels for a backend. Raises DefinitionError, TargetMissingError."""
    return gpu_plan(graph, backend.name) if backend.language is Language.GPU else make_plan(graph)


def kernel_on(
    device: str, operator: Operator, graph: Graph, structure: bool, compiler: str | None = None, isa: Isa | None = None,
    edit: Edit | None = None,
) -> KernelBase:  # fmt: skip
    """A kernel that is launched on a device, over numbers or, of a `structure` build, over hashes. ``edit`` changes the
    emitted source before it is compiled. Raises UnknownNameError, UnavailableError, CompileError."""
    backend = backend_of(device)
    if backend.language is Language.GPU:
        opened = backend.open(device, compiler, graph)
        return GpuKernel(operator, graph, gpu_plan(graph, backend.name), structure, opened, edit)
    if backend.language is Language.OWN:
        if edit is not None:
            raise ArgumentError(f"edit on {device}, whose kernels have no source; accepted: None")
        made: KernelBase = backend.kernel(operator, graph, structure)
        return made
    plan = make_plan(graph)
    text = emit_cpu(plan)
    if edit is not None:
        text = KernelText(edit(text.text), {name: edit(t) for name, t in text.headers.items()})
    return build_text(operator, graph, plan, text.text, text.headers, compiler, isa, structure)
