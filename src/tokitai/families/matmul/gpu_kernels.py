"""Which kernels a product takes on a GPU, and what they are launched with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ...emit.cpp import KernelText
from ...emit.gpu_text import gpu_own, headers, warpgroup_headers
from ...errors import TargetMissingError
from ...lang import MATRICES, OPERANDS, Sizes
from ...lower.scalars import rounded_scalars
from ..gpu_family import Copied, GpuFamily, GpuSource, KernelInMaking, Launches, packed, usual_width
from . import tiling as tilings
from .gpu import GpuProductEmitter
from .gpu_pipeline import GpuFixedPipelineEmitter, GpuPipelineEmitter, padding
from .plan import ProductPlan
from .tiling import MOST_FIXED_PRODUCTS, MOST_PRODUCTS, MOST_UNITS, Tiling

Strides = dict[int, tuple[int, int]]  # of each operand, by its place: from row to row, from one product to the next


def emit_product(plan: ProductPlan, tiling: Tiling) -> KernelText:
    """The source of a matrix product's kernels for one tiling."""
    pipeline = GpuFixedPipelineEmitter if plan.fixed else GpuPipelineEmitter
    text = (pipeline if tiling.stages else GpuProductEmitter)(plan, tiling).text()
    return KernelText(text, product_headers(plan, tiling))


def product_headers(plan: ProductPlan, tiling: Tiling) -> dict[str, str]:
    """The headers of a product's kernels, by name."""
    more = warpgroup_headers() if tiling.stages else {}
    if plan.fixed:
        more |= gpu_own("digits.h", "fixed_pipeline.h" if tiling.stages else "fixed_point.h")
    return headers(of_products=True) | more


class GpuProducts(GpuFamily[ProductPlan]):
    """Products on a GPU."""

    def emit(self, plan: Any, tiling: Tiling) -> KernelText:
        """The source for one tiling."""
        return emit_product(plan, tiling)

    def plan(self, plan: ProductPlan, target: str) -> ProductPlan:
        """The same. Raises TargetMissingError for products that are stored in several ways, and for too many."""
        most = MOST_FIXED_PRODUCTS if plan.fixed else MOST_PRODUCTS
        if len({str(n.data[0]) for n in plan.products}) > 1 or len(plan.products) > most:
            layouts = ", ".join(str(n.data[0]) for n in plan.products)
            raise TargetMissingError(
                f"{plan.graph.name}: products stored as {layouts}; accepted by {target}: up to {most}, all "
                "stored in one way"
            )
        return plan

    def describe(self, plan: ProductPlan, used: Iterable[Tiling] = ()) -> dict[str, object]:
        """The plan in words, with its tiles."""
        return tilings.described(plan, used)

    def source(self, plan: ProductPlan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
        """The first choice for this shape."""
        sizes = Sizes.of(shape)
        tiling = tilings.tiling_of(plan, sizes, usual_width(sizes.inner))
        steps = tilings.cut_steps(plan, sizes, tiling) + tilings.product_steps(tiling, sizes)
        return GpuSource(self.emit(plan, tiling), steps, str(tiling), sizes)

    def launches(
        self, kernel: KernelInMaking, plan: ProductPlan, addresses: Sequence[int], sizes: Sequence[int],
        shape: tuple[int, int], threads: int, entries: int,
    ) -> Launches:  # fmt: skip
        """The tiling follows from all sizes and the alignment of the operands; where warpgroups multiply, the copy
        engine reads the operands."""
        whole = Sizes(sizes[0], sizes[1], sizes[2], sizes[3], kernel.graph.ragged)
        strides = _strides(kernel, sizes)
        wished = _by_warpgroups(kernel, plan, whole, addresses, strides) or (kernel.schedule or tilings.tiling_of)(
            plan, whole, _width(kernel, whole, addresses, strides), _has_units(kernel, plan)
        )
        if wished not in kernel.settled:
            every = tilings.fallbacks(plan, wished)
            kernel.settled[wished] = kernel.without_spills(every, partial(self.emit, plan))
        tiling: Tiling = kernel.settled[wished]
        most = threads or MOST_UNITS
        copied = _copied(kernel, plan, tiling, whole, strides) if tiling.stages and not plan.fixed else ()
        numbers = 4 + 2 * kernel.matrices + kernel.whole_count
        return Launches(
            program=kernel.program(tiling, partial(self.emit, plan, tiling)),
            steps=(
                *tilings.cut_steps(plan, whole, tiling),
                *tilings.product_steps(tiling, whole, most, len(plan.products)),
            ),
            middle=packed(tilings.together(tiling, whole, most), *sizes),
            workspace=self.workspace_bytes(kernel, plan, [whole], threads, entries),
            copied=copied,
            padding=8 * padding(len(kernel.tensor_sizes), numbers, len(rounded_scalars(kernel.graph))) if copied else 0,
        )

    def workspace_bytes(
        self, kernel: KernelInMaking, plan: ProductPlan, shapes: Sequence[tuple[int, int]], threads: int, entries: int
    ) -> int:
        """Pending partials of whichever tiling needs most."""
        sizes, choose = Sizes.of(shapes[0]), kernel.schedule or tilings.tiling_of
        most, every = threads or MOST_UNITS, {choose(plan, sizes, 1, m) for m in (False, True)}
        if _may_use_warpgroups(kernel, plan):
            every.add(tilings.tiling_of(plan, sizes, 8, True, pipeline=True))
        return max(tilings.workspace_bytes(plan, t, sizes, kernel.structure, most) for t in every)


def _strides(kernel: KernelInMaking, sizes: Sequence[int]) -> Strides:
    found, k = {}, 4
    for i, (space, _) in enumerate(kernel.tensor_sizes):
        if space in OPERANDS:
            found[i] = (sizes[k], sizes[k + 1])
        k += 2 * (space in MATRICES)
    return found


def _width(kernel: KernelInMaking, whole: Sizes, addresses: Sequence[int], strides: Strides) -> int:
    """Elements to an access; groups may begin at any element."""
    if any(space in OPERANDS and space[1] == whole.ragged for space, _ in kernel.tensor_sizes):
        return 1
    each = [(addresses[i], stride, kernel.tensor_sizes[i][1]) for i, both in strides.items() for stride in both]
    return kernel.width(*zip(*each, strict=True))


def _has_units(kernel: KernelInMaking, plan: ProductPlan) -> bool:
    """Whether the device has matrix units with the bits of the plan's accumulator."""
    if plan.accumulator == "fused16":
        return kernel.target.fused_units
    if plan.fixed:
        return kernel.target.integer_units
    return plan.accumulator == "f64" and kernel.target.matrix_units


def _may_use_warpgroups(kernel: KernelInMaking, plan: ProductPlan) -> bool:
    if kernel.structure or not (plan.fixed or plan.accumulator == "fused16") or not tilings.pipelines(plan):
        return False
    return kernel.target.integer_warpgroups if plan.fixed else kernel.target.warpgroups


def _by_warpgroups(
    kernel: KernelInMaking, plan: ProductPlan, whole: Sizes, addresses: Sequence[int], strides: Strides
) -> Tiling | None:
    """The tiling for warpgroups, where the device has them. Its copy engine reads operands at multiples of 16 bytes,
    from line to line forwards; in fixed point it reads digits, and operands may lie anywhere."""
    if not _may_use_warpgroups(kernel, plan):
        return None
    if plan.fixed:
        tiling = tilings.tiling_of(plan, whole, 8, True, pipeline=True)
        return tiling if tilings.worth_a_pipeline(tiling, whole) else None
    if min(whole[0], whole[1], whole.inner) == 0 or max(*whole, whole.inner, whole.batch) >= 2**31:
        return None
    for i, (row, batch) in strides.items():
        if addresses[i] % 16 or row % 8 or batch % 8 or not 0 < row < 2**38 or not 0 <= batch < 2**38:
            return None
    tiling = tilings.tiling_of(plan, whole, 8, True, pipeline=True)
    return tiling if tilings.tiles_of(tiling, whole) * tilings.chains_of(whole) < 2**31 else None


def _copied(
    kernel: KernelInMaking, plan: ProductPlan, tiling: Tiling, whole: Sizes, strides: Strides
) -> tuple[Copied, ...]:
    """The left operand, then the right ones."""
    names = [t.name for t in kernel.graph.inputs]
    matrices = []
    for node, tile in ((plan.left, tiling.rows), *((n.args[1], tiling.cols) for n in plan.products)):
        place, space = names.index(str(node.data[0])), str(node.space)
        row, batch = strides[place]
        lines = whole[0] if "r" in space else whole[1]
        inner, outer = (whole.inner, lines) if space[1] == "k" else (lines, whole.inner)
        box = (64, tile) if space[1] == "k" else (64, 64)
        sides = (inner, outer, whole.batch if batch else 1)
        matrices.append(Copied(place, str(node.data[1]), sides, (row, batch or 8), box))
    return tuple(matrices)


__all__ = ["GpuProducts", "emit_product"]
