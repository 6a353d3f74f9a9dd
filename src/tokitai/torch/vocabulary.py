"""Cross-entropy of logits whose classes are split over the ranks of a process group, with gradients.

Each rank has neighbouring columns of the logits, and three numbers a row are exchanged beside the largest logit, in
place of the logits (Shoeybi et al., "Megatron-LM", 2019, section 3). What is added is added in the order of the ranks,
as `tokitai.ops.vocabulary` defines it: results do not depend on who was ready first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..errors import ArgumentError
from .arguments import checked

REDUCTIONS = ("mean", "sum", "none")


@checked
def parallel_cross_entropy(
    logits: Tensor, target: Tensor, *, group: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """The loss of rows whose classes are split over the ranks of ``group`` (default: all), in f32: the same on each.

    ``logits`` of (..., columns) are this rank's columns, rank after rank; ``target`` of (...), int64, is the same on
    each rank and counts classes over all of them. ``reduction`` is ``"mean"`` over targets that are kept, ``"sum"`` or
    ``"none"``. Where every rank but the last has the same power of two of columns, and the last no more, the loss has
    the bits of `functional.cross_entropy` on whole rows, and so have the gradients.

    A collective call: every rank of the group makes it with as many rows, forwards and backwards, and with the same
    gradient of the loss. Raises ArgumentError on every rank, where targets lie outside of all classes or shapes do not
    agree.
    """
    name = "parallel_cross_entropy"
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(f"{name}: there is no process group; accepted: after torch.distributed.init_process_group")
    if logits.ndim == 0 or tuple(target.shape) != tuple(logits.shape[:-1]):
        accepted = "(..., columns) and (...)"
        raise ArgumentError(f"{name}: logits of {tuple(logits.shape)}, target of {tuple(target.shape)}; {accepted=!s}")
    if target.dtype != torch.int64:
        raise ArgumentError(f"{name}: target of {target.dtype}; accepted: int64")
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"{name}: reduction={reduction!r}; accepted: {', '.join(map(repr, REDUCTIONS))}")
    first, classes = _columns(name, logits, group)
    kept = target != ignore_index
    outside = kept & ((target < 0) | (target >= classes))
    if bool(outside.any()):
        found = int(target[outside][0])
        raise ArgumentError(f"{name}: target {found}; accepted: 0 to {classes - 1}, or ignore_index={ignore_index}")
    flat = logits.reshape(-1, logits.shape[-1])
    made: Tensor = _Parts.apply(flat, target.reshape(-1), first, ignore_index, group)  # type: ignore[no-untyped-call]
    if reduction == "none":
        return made.reshape(target.shape)
    reduced: Tensor = _Reduced.apply(made, kept.sum() if reduction == "mean" else None)  # type: ignore[no-untyped-call]
    return reduced


def _columns(name: str, logits: Tensor, group: Any) -> tuple[int, int]:
    """This rank's first class, and how many there are. Raises ArgumentError where ranks have not as many rows."""
    rows, columns = logits.shape[:-1].numel(), logits.shape[-1]
    here = torch.tensor([rows, columns], device=logits.device)
    every = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, here, group=group)
    sizes = torch.stack(every).tolist()
    if any(r != rows for r, _ in sizes) or min(c for _, c in sizes) == 0:
        raise ArgumentError(
            f"{name}: rows and columns of the ranks are {sizes}; accepted: as many rows on each, one column or more"
        )
    rank = dist.get_rank(group)
    return sum(c for _, c in sizes[:rank]), sum(c for _, c in sizes)


class _Parts(torch.autograd.Function):
    """The loss of each row."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, first: int, ignore_index: int, group: Any) -> Tensor:
        logits = logits.detach()
        top = ops.part_top(logits)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)  # exact, in whichever order
        here = torch.stack(ops.part_sums(logits, target, top, first=first))
        every = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, here, group=group)
        largest, others, chosen = torch.stack(every, dim=-1)
        loss, _, rest, total = ops.merged_cross_entropy(largest, others, chosen, top, target, ignore_index=ignore_index)
        ctx.save_for_backward(logits, target, top, rest, total)
        ctx.first, ctx.ignore_index = first, ignore_index
        made: Tensor = loss
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (dloss,) = slopes
        logits, target, top, rest, total = ctx.saved_tensors
        dlogits = ops.part_cross_entropy_backward(
            dloss.contiguous(), logits, target, top, rest, total, first=ctx.first, ignore_index=ctx.ignore_index
        )
        return dlogits, None, None, None, None


class _Reduced(torch.autograd.Function):
    """The sum of the rows' losses in the order of the operators, over ``count`` where one is given."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: Tensor | None) -> Tensor:
        ctx.rows, ctx.count = len(loss), None if count is None else count.clamp(min=1).float()
        total: Tensor = ops.linear_backward_bias(loss.detach().reshape(-1, 1)).reshape(())
        return total if ctx.count is None else total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        return (slope if ctx.count is None else slope * (1 / ctx.count)).expand(ctx.rows), None
