"""`tokitai.compile`: the kernel of an operator for any device, to be read, inspected and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..backends import Backend, backend_of, backends
from ..backends.backend import Language
from ..emit.cpp import KernelText
from ..errors import ArgumentError, UnknownNameError
from ..families import Plan, emit_cpu, make_plan
from ..lang import Graph, Operator, check_operator
from ..toolchain.build import Isa
from .gpu_kernel import Edit, GpuKernel, gpu_plan
from .kernel import Kernel, KernelBase, build_text, compiled_ahead, host_kernel
from .shapes import asked_shape, in_groups, usual_shape


def compile(
    operator: Operator, device: str = "cpu", dtype: object = "f32", present: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None, *, compiler: str | None = None, isa: Isa | None = None,
    shape: Mapping[str, int] | None = None, arch: str | None = None,
) -> Kernel:  # fmt: skip
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
    if device not in able:
        raise UnknownNameError("device", device, able)
    backend = able[device]
    for_gpu = backend.language is Language.GPU
    misplaced: dict[str, object] = dict(isa=isa) if for_gpu else dict(shape=shape, arch=arch)
    misplaced |= {} if backend.picks_compiler else dict(compiler=compiler)
    for name, value in misplaced.items():
        if value is not None:
            raise ArgumentError(f"{name}={value!r} does not go with the device {device}")
    if not for_gpu:
        return host_kernel(operator, dtype, present, options, compiler, isa)
    graph = operator.trace(dtype, present, options)
    sizes = in_groups(graph, asked_shape(operator, shape) or usual_shape(operator))
    return compiled_ahead(operator, dtype, present, options, device, sizes, backend.arch_for(arch), compiler)


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
