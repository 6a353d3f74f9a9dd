"""The text of a plan's kernels for a GPU, at one shape, and how they are launched there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..emit.cpp import KernelText
from ..emit.gpu_text import emit_attention, emit_flat, emit_product, emit_rows, emit_scatter
from ..families import AttentionPlan, FlatPlan, Plan, ProductPlan, ScatterPlan
from ..families.attention import tiling as gpu_attention
from ..families.matmul import tiling as gpu_product
from ..families.rowwise.plan import RowPlan, plan_rows
from ..families.scatter import schedule as gpu_scatter
from ..lang import Operator, Sizes
from ..lower import gpu as layout
from ..meaning.structure import drawn_entries

USUAL_DIM = 64  # of the heads of attention, where no size is asked for


@dataclass(frozen=True)
class GpuSource:
    """A text, the launches of its kernels in order, and the schedule and shape for which it was made."""

    text: KernelText
    steps: Sequence[layout.Step]
    schedule: str
    shape: tuple[int, int]

    @property
    def launches(self) -> tuple[str, ...]:
        """The launches in words."""
        return tuple(
            f"{s.name}: {s.grid} blocks of {s.block} threads{', or fewer in turn' * s.in_turn}" for s in self.steps
        )


def gpu_source(plan: Plan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
    """The first choice for this shape, of tensors that allow wide accesses; a kernel that turns out to spill registers
    is replaced by another when it runs. ``staged``: rows may be copied to shared memory ahead of their use."""
    if isinstance(plan, FlatPlan):
        text = emit_flat(plan, layout.CHUNK, layout.schedule_flat(plan))
        return GpuSource(text, layout.flat_steps(plan, [shape]), f"tiles of {layout.TILE} elements", shape)
    if isinstance(plan, ScatterPlan):
        entries = drawn_entries(shape[0])
        steps = gpu_scatter.scatter_steps(plan, *shape, entries)
        text = emit_scatter(plan, _width(shape[1]), shape[1] % layout.CHUNK == 0, gpu_scatter.is_wide(shape[0]))
        return GpuSource(text, steps, f"{entries} entries", shape)
    if isinstance(plan, AttentionPlan):
        sizes = Sizes.of(shape) if isinstance(shape, Sizes) else Sizes(*shape, USUAL_DIM)
        walk = gpu_attention.tiling_of(plan, sizes, _width(sizes.inner))
        return GpuSource(emit_attention(plan, walk), gpu_attention.attention_steps(plan, walk, sizes), str(walk), sizes)
    if isinstance(plan, ProductPlan):
        sizes = Sizes.of(shape)
        tiling = gpu_product.tiling_of(plan, sizes, _width(sizes.inner))
        return GpuSource(emit_product(plan, tiling), gpu_product.product_steps(tiling, sizes), str(tiling), sizes)
    assert isinstance(plan, RowPlan), "others have no text for GPUs"
    chosen = layout.schedule_rows(plan, shape[1], _width(shape[1]), warp)
    chosen = replace(chosen, staged=chosen.staged and staged)
    text = emit_rows(plan if chosen.kept else plan_rows(plan.graph, "nothing"), chosen)
    return GpuSource(text, layout.row_steps(plan, chosen, *shape), str(chosen), shape)


def usual_shape(operator: Operator) -> tuple[int, int]:
    """A shape of ordinary use."""
    c = operator.contract
    return min(4096, c.max_rows), min(max(4096, c.min_cols), c.max_cols)


def _width(elements: int) -> int:
    return layout.CHUNK if elements % layout.CHUNK == 0 else 1
