"""Hold a definition against its kernels at one shape, as numbers and as hashes."""

from __future__ import annotations

from tokitai.backends import backend_of
from tokitai.formats import format_of
from tokitai.lang import Operator
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.kernel import KernelBase, host_kernel
from tokitai.toolchain.build import Isa
from tokitai.verification import cases
from tokitai.verification.run import run_numbers, run_structure

DEVICES = ("cpu", "sim")


def kernels(op: Operator, device: str, dtype: str = "f32", **options: object) -> list[KernelBase]:
    """The kernel over numbers, and over hashes; for vectors of one element on the device "scalar"."""
    if device in ("cpu", "scalar"):
        isa: Isa | None = "scalar" if device == "scalar" else None
        return [host_kernel(op, dtype, options=options, isa=isa, structure=s) for s in (False, True)]
    graph = op.trace(dtype, options=options)
    plan = gpu_plan(graph, device)
    return [GpuKernel(op, graph, plan, s, backend_of(device).open(device)) for s in (False, True)]


def fault(
    op: Operator, device: str, *shapes: tuple[int, int], dtype: str = "f32", how: str = "normal", **options: object
) -> str | None:
    """What a kernel does that differs from the definition, in any layout; None where all of them do the same."""
    numbers, hashed = kernels(op, device, dtype, **options)
    for shape in shapes:
        case = cases.seeded(op, numbers.graph, how, shape, 0)
        integers = {n: a for n, a in case.tensors.items() if not format_of(a.dtype).is_float}
        for result in (run_numbers(numbers, case, None, 2), run_structure(hashed, shape, integers, case.params, 0)):
            if result.failure is not None:
                return f"{result.id}: {result.failure}"
    return None
