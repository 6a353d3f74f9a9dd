"""Which kernels a call of a product takes on a GPU, and what they are launched with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..backends.cuda.tensor_map import Matrix, TensorMaps
from ..emit.gpu_text import emit_product
from ..families import ProductPlan
from ..families.matmul import tiling as gpu_product
from ..families.matmul.gpu_pipeline import padding
from ..families.matmul.tiling import Tiling
from ..lang import MATRICES, OPERANDS, Sizes
from ..lower.gpu import Step
from ..lower.scalars import rounded_scalars

if TYPE_CHECKING:
    from .gpu_kernel import GpuKernel, Program

Strides = dict[int, tuple[int, int]]  # of each operand, by its place: from row to row, from one product to the next


def launches(
    kernel: GpuKernel, addresses: Sequence[int], sizes: Sequence[int], threads: int
) -> tuple[Program, list[Step], list[int], TensorMaps | None]:
    """The kernels of a call, their launches in order, the number that they take before the sizes, and tensor maps of
    the operands where the copy engine reads them."""
    plan = kernel.plan
    assert isinstance(plan, ProductPlan)
    whole = Sizes(sizes[0], sizes[1], sizes[2], sizes[3], kernel.graph.ragged)
    strides = _strides(kernel, sizes)
    wished = _by_warpgroups(kernel, plan, whole, addresses, strides) or kernel.tiling(
        plan, whole, _width(kernel, whole, addresses, strides), _has_units(kernel, plan)
    )
    if wished not in kernel.settled_tilings:
        every = gpu_product.fallbacks(plan, wished)
        kernel.settled_tilings[wished] = kernel.without_spills(every, partial(emit_product, plan))
    tiling = kernel.settled_tilings[wished]
    assert isinstance(tiling, Tiling)
    most = threads or gpu_product.MOST_UNITS
    steps = gpu_product.product_steps(tiling, whole, most, len(plan.products))
    maps = _maps(kernel, plan, tiling, whole, strides) if tiling.stages else None
    return kernel.programs[tiling][0], steps, [gpu_product.together(tiling, whole, most)], maps


def workspace_bytes(kernel: GpuKernel, sizes: Sizes, threads: int) -> int:
    """How much workspace a launch needs, whichever tiling it takes."""
    plan = kernel.plan
    assert isinstance(plan, ProductPlan)
    most, every = threads or gpu_product.MOST_UNITS, {kernel.tiling(plan, sizes, 1, m) for m in (False, True)}
    if _may_use_warpgroups(kernel, plan):
        every.add(gpu_product.tiling_of(plan, sizes, 8, True, pipeline=True))
    return max(gpu_product.workspace_bytes(plan, t, sizes, kernel.structure, most) for t in every)


def _strides(kernel: GpuKernel, sizes: Sequence[int]) -> Strides:
    found, k = {}, 4
    for i, (space, _) in enumerate(kernel.tensor_sizes):
        if space in OPERANDS:
            found[i] = (sizes[k], sizes[k + 1])
        k += 2 * (space in MATRICES)
    return found


def _width(kernel: GpuKernel, whole: Sizes, addresses: Sequence[int], strides: Strides) -> int:
    """Elements to an access; groups may begin at any element."""
    if any(space in OPERANDS and space[1] == whole.ragged for space, _ in kernel.tensor_sizes):
        return 1
    each = [(addresses[i], stride, kernel.tensor_sizes[i][1]) for i, both in strides.items() for stride in both]
    return kernel.width(*zip(*each, strict=True))


def _has_units(kernel: GpuKernel, plan: ProductPlan) -> bool:
    """Whether the device has matrix units with the bits of the plan's accumulator."""
    if plan.accumulator == "fused16":
        return kernel.target.fused_units
    return plan.accumulator == "f64" and kernel.target.matrix_units


def _may_use_warpgroups(kernel: GpuKernel, plan: ProductPlan) -> bool:
    fused = plan.accumulator == "fused16" and not kernel.structure
    return fused and kernel.target.warpgroups and bool(gpu_product.pipelines(plan))


def _by_warpgroups(
    kernel: GpuKernel, plan: ProductPlan, whole: Sizes, addresses: Sequence[int], strides: Strides
) -> Tiling | None:
    """The tiling for warpgroups, where the device has them, and its copy engine can read the operands: at multiples of
    16 bytes, from line to line forwards."""
    if not _may_use_warpgroups(kernel, plan):
        return None
    if min(whole[0], whole[1], whole.inner) == 0 or max(*whole, whole.inner, whole.batch) >= 2**31:
        return None
    for i, (row, batch) in strides.items():
        if addresses[i] % 16 or row % 8 or batch % 8 or not 0 < row < 2**38 or not 0 <= batch < 2**38:
            return None
    tiling = gpu_product.tiling_of(plan, whole, 8, True, pipeline=True)
    return tiling if gpu_product.tiles_of(tiling, whole) * gpu_product.chains_of(whole) < 2**31 else None


def _maps(kernel: GpuKernel, plan: ProductPlan, tiling: Tiling, whole: Sizes, strides: Strides) -> TensorMaps:
    """The tensor maps of the left operand, then of the right ones."""
    names = [t.name for t in kernel.graph.inputs]
    matrices = []
    for node, tile in ((plan.left, tiling.rows), *((n.args[1], tiling.cols) for n in plan.products)):
        place, space = names.index(str(node.data[0])), str(node.space)
        row, batch = strides[place]
        lines = whole[0] if "r" in space else whole[1]
        inner, outer = (whole.inner, lines) if space[1] == "k" else (lines, whole.inner)
        box = (64, tile) if space[1] == "k" else (64, 64)
        sides = (inner, outer, whole.batch if batch else 1)
        matrices.append((place, Matrix(str(node.data[1]), sides, (row, batch or 8), box)))
    numbers = 4 + 2 * kernel.matrices + kernel.whole_count
    words = padding(len(kernel.tensor_sizes), numbers, len(rounded_scalars(kernel.graph)))
    return TensorMaps(tuple(matrices), 8 * words, kernel.target.entered)
