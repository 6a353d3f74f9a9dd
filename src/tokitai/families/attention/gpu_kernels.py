"""Which kernels attention takes on a GPU, and what they are launched with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from ...emit.cpp import KernelText
from ...emit.gpu_text import gpu_own, headers
from ...errors import TargetMissingError
from ...lang import MATRICES, OPERANDS, Sizes, topological
from ...lower.gpu import CHUNK, FEW_SPILLS
from ..gpu_family import GpuFamily, GpuSource, KernelInMaking, Launches, packed, usual_width
from . import step_tiling as steps
from . import tiling as tilings
from .gpu import GpuAttentionEmitter
from .gpu_steps import GpuStepEmitter
from .plan import AttentionPlan
from .step_tiling import StepTiling
from .tiling import WalkTiling

USUAL_DIM = 64  # of heads, where no size is asked for


def emit_attention(plan: AttentionPlan, tiling: WalkTiling | StepTiling) -> KernelText:
    """The source of attention's kernels for one tiling."""
    if isinstance(tiling, StepTiling):
        text = GpuStepEmitter(plan, tiling).text()
        own = ("attention_steps.h", *(["warpgroup.h"] if tiling.warpgroups else []))
        return KernelText(text, headers(of_products=True) | gpu_own(*own))
    return KernelText(
        GpuAttentionEmitter(plan, tiling).text(), headers(of_products=True) | gpu_own("attention.h")
    )  # fmt: skip


class GpuAttention(GpuFamily[AttentionPlan]):
    """Attention on a GPU."""

    def plan(self, plan: AttentionPlan, target: str) -> AttentionPlan:
        """The same. Raises TargetMissingError for a result of several weighted sums, and for HIP where products are
        steps of a matrix unit: their slabs have no room there."""
        if plan.format and target == "hip":
            raise TargetMissingError(
                f"{plan.graph.name} with fused16 on {target}; accepted: cpu, cuda, sim; or f32 here"
            )
        for o in plan.graph.outputs:
            found = [n for n in topological([o.node]) if n.op == "weighted_sum"]
            if len(found) > 1:
                raise TargetMissingError(
                    f"{plan.graph.name}: {o.name} is made of {len(found)} weighted sums; accepted by {target}: one a "
                    "result"
                )
        return plan

    def describe(self, plan: AttentionPlan, used: Iterable[WalkTiling | StepTiling] = ()) -> dict[str, object]:
        """The plan in words, with its tiles."""
        if plan.format:
            return steps.described(plan, [t for t in used if isinstance(t, StepTiling)])
        return tilings.described(plan, [t for t in used if isinstance(t, WalkTiling)])

    def source(self, plan: AttentionPlan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
        """The first choice for this shape."""
        sizes = Sizes.of(shape) if isinstance(shape, Sizes) else Sizes(*shape, USUAL_DIM)
        if plan.format:
            tiling = steps.tiling_of(plan, sizes, usual_width(sizes.inner))
            return GpuSource(
                emit_attention(plan, tiling), steps.steps_of(plan, tiling, sizes, False), str(tiling), sizes
            )
        walk = tilings.tiling_of(plan, sizes, usual_width(sizes.inner))
        return GpuSource(emit_attention(plan, walk), tilings.attention_steps(plan, walk, sizes), str(walk), sizes)

    def launches(
        self, kernel: KernelInMaking, plan: AttentionPlan, addresses: Sequence[int], sizes: Sequence[int],
        shape: tuple[int, int], threads: int, entries: int,
    ) -> Launches:  # fmt: skip
        """The tiling follows from all sizes and the alignment of the operands."""
        read, k = [], 4
        for (space, size), address in zip(kernel.tensor_sizes[: len(kernel.graph.inputs)], addresses, strict=False):
            if space in OPERANDS:
                read += [(address, sizes[k], size), (address, sizes[k + 1], size)]
            k += 2 * (space in MATRICES)
        whole = Sizes(sizes[0], sizes[1], sizes[2], sizes[3])
        width = kernel.width(*zip(*read, strict=True))
        width = CHUNK if width == CHUNK else 1  # two sources do: dimensions of heads are whole chunks
        wished = self._wished(kernel, plan, whole, width)
        if wished not in kernel.settled:
            every = tilings.fallbacks(wished) if isinstance(wished, WalkTiling) else steps.fallbacks(wished)
            emit, names = partial(emit_attention, plan), tilings.kernels_of(plan)
            few = FEW_SPILLS if isinstance(wished, WalkTiling) else steps.FEW_SPILLS
            kernel.settled[wished] = kernel.without_spills(every, emit, few, names)
        tiling: WalkTiling | StepTiling = kernel.settled[wished]
        program = kernel.program(tiling, partial(emit_attention, plan, tiling))
        if isinstance(tiling, StepTiling):
            launched = tuple(steps.steps_of(plan, tiling, whole, kernel.structure))
        else:
            launched = tuple(tilings.attention_steps(plan, tiling, whole))
        need = self.workspace_bytes(kernel, plan, [whole], threads, entries)
        return Launches(program, launched, packed(*sizes), need)

    def workspace_bytes(
        self, kernel: KernelInMaking, plan: AttentionPlan, shapes: Sequence[tuple[int, int]], threads: int, entries: int
    ) -> int:
        """Values of rows, and pending partials."""
        sizes = Sizes.of(shapes[0])
        wished = [self._wished(kernel, plan, sizes, width) for width in (1, CHUNK)]
        return max(
            steps.workspace_bytes(plan, t, sizes, kernel.structure) if isinstance(t, StepTiling)
            else tilings.workspace_bytes(plan, t, sizes, kernel.structure)
            for t in wished
        )  # fmt: skip

    @staticmethod
    def _wished(kernel: KernelInMaking, plan: AttentionPlan, sizes: Sizes, width: int) -> WalkTiling | StepTiling:
        """The first choice for these sizes."""
        if kernel.schedule is not None:
            chosen: WalkTiling | StepTiling = kernel.schedule(plan, sizes, width)
            return chosen
        if not plan.format:
            return tilings.tiling_of(plan, sizes, width)
        target = kernel.target
        warpgroups = target.warpgroups and not kernel.structure
        found = steps.by_warpgroups(plan, sizes, width) if warpgroups else None
        if found is not None:
            return found
        return steps.tiling_of(plan, sizes, width, target.fused_units, kernel.structure, target.shared_bytes)


__all__ = ["GpuAttention", "emit_attention"]
