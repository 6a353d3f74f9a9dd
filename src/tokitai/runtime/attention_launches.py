"""Which kernels a call of attention takes on a GPU, and what they are launched with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..emit.gpu_text import emit_attention
from ..errors import TargetMissingError
from ..families import AttentionPlan
from ..families.attention import tiling as gpu_attention
from ..families.attention.tiling import WalkTiling
from ..lang import MATRICES, OPERANDS, Sizes, topological
from ..lower.gpu import CHUNK, FEW_SPILLS, Step

if TYPE_CHECKING:
    from .gpu_kernel import GpuKernel, Program


def launches(kernel: GpuKernel, addresses: Sequence[int], sizes: Sequence[int]) -> tuple[Program, list[Step]]:
    """The kernels of a call, and their launches in order."""
    plan = kernel.plan
    assert isinstance(plan, AttentionPlan)
    read, k = [], 4
    for (space, size), address in zip(kernel.tensor_sizes[: len(kernel.graph.inputs)], addresses, strict=False):
        if space in OPERANDS:
            read += [(address, sizes[k], size), (address, sizes[k + 1], size)]
        k += 2 * (space in MATRICES)
    whole = Sizes(sizes[0], sizes[1], sizes[2], sizes[3])
    width = kernel.width(*zip(*read, strict=True))
    width = CHUNK if width == CHUNK else 1  # two texts do: dimensions of heads are whole chunks
    wished = gpu_attention.tiling_of(plan, whole, width)
    if wished not in kernel.settled_tilings:
        every, names = gpu_attention.fallbacks(wished), gpu_attention.kernels_of(plan)
        kernel.settled_tilings[wished] = kernel.without_spills(every, partial(emit_attention, plan), FEW_SPILLS, names)
    tiling = kernel.settled_tilings[wished]
    assert isinstance(tiling, WalkTiling)
    return kernel.programs[tiling][0], gpu_attention.attention_steps(plan, tiling, whole)


def refuse(plan: AttentionPlan, target: str) -> None:
    """Raises TargetMissingError for a plan that GPUs have no kernels for."""
    for o in plan.graph.outputs:
        found = [n for n in topological([o.node]) if n.op == "weighted_sum"]
        if len(found) > 1:
            raise TargetMissingError(
                f"{plan.graph.name}: {o.name} is made of {len(found)} weighted sums; accepted by {target}: one a result"
            )


def workspace_bytes(kernel: GpuKernel, sizes: Sizes) -> int:
    """How much workspace a launch needs, whichever tiling it takes."""
    plan = kernel.plan
    assert isinstance(plan, AttentionPlan)
    wished = gpu_attention.tiling_of(plan, sizes, 1)
    return gpu_attention.workspace_bytes(plan, wished, sizes, kernel.structure)
