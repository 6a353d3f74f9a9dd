"""The source of a plan's kernels for a GPU, at one shape, and how they are launched there."""

from __future__ import annotations

from ..families import Plan
from ..families.gpu_family import GpuSource
from ..lang import Operator


def gpu_source(plan: Plan, shape: tuple[int, int], warp: int = 32, staged: bool = True) -> GpuSource:
    """The first choice for this shape, of tensors that allow wide accesses; a kernel that turns out to spill registers
    is replaced by another when it runs. ``staged``: rows may be copied to shared memory ahead of their use."""
    made: GpuSource = plan.family.gpu.source(plan, shape, warp, staged)
    return made


def usual_shape(operator: Operator) -> tuple[int, int]:
    """A shape of ordinary use."""
    c = operator.contract
    return min(4096, c.max_rows), min(max(4096, c.min_cols), c.max_cols)


__all__ = ["GpuSource", "gpu_source", "usual_shape"]
