"""Cross-entropy of logits whose classes are split over the ranks of a process group, with gradients.

Each rank has neighbouring columns of the logits, and three numbers a row are exchanged beside the largest logit, in
place of the logits (Shoeybi et al., "Megatron-LM", 2019, section 3). What is added is added in the order of the ranks,
as `tokitai.ops.vocabulary` defines it: results do not depend on who was ready first.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import ops
from ..errors import ArgumentError
from .arguments import checked
from .reductions import Spread, spread_of
from .transforms import refuse_vmap

REDUCTIONS = ("mean", "sum", "none")
_over_rows = cast("Spread", spread_of(ops.cross_entropy))


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
    gradient of the loss. Raises ArgumentError: on every rank where the ranks' rows do not agree or the targets, which
    are the same on each, lie outside of all classes; for a wrong argument on those that give it, before any exchange.
    """
    name = "parallel_cross_entropy"
    refuse_vmap(name, logits, target)
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
    given = dict(logits=flat.detach(), target=target.reshape(-1), ignore_index=ignore_index, reduction=reduction)
    made: Tensor = _Parts.apply(flat, given, first, group)  # type: ignore[no-untyped-call]
    return made.reshape(target.shape) if reduction == "none" else made


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
    """The loss of all rows, or of each."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, given: dict[str, Any], first: int, group: Any) -> Tensor:
        target, ignore_index, reduction = given["target"], given["ignore_index"], given["reduction"]
        top = ops.part_top(given["logits"])
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)  # exact, in whichever order
        here = torch.stack(ops.part_sums(given["logits"], target, top, first=first))
        every = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, here, group=group)
        largest, others, chosen = torch.stack(every, dim=-1)
        loss: Tensor
        loss, _, rest, total = ops.merged_cross_entropy(largest, others, chosen, top, target, ignore_index=ignore_index)
        ctx.save_for_backward(logits, target, top, rest, total)
        ctx.words, ctx.first = dict(ignore_index=ignore_index, reduction=reduction), first
        if reduction == "none":
            return loss
        loss = ops.linear_backward_bias(loss.reshape(-1, 1)).reshape(())  # the operators' sum over rows
        return loss / (target != ignore_index).sum().clamp(min=1) if reduction == "mean" else loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, top, rest, total = ctx.saved_tensors
        dloss = _over_rows(slopes[0], dict(logits=logits, target=target, **ctx.words)).contiguous()
        dlogits = ops.part_cross_entropy_backward(
            dloss, logits.detach(), target, top, rest, total, first=ctx.first, ignore_index=ctx.words["ignore_index"]
        )
        return dlogits, None, None, None
