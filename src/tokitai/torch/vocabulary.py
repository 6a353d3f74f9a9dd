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

from .. import ops
from ..errors import ArgumentError
from .arguments import checked
from .custom_ops import plain
from .dispatch import custom_op
from .reductions import Spread, spread_of
from .shards import named_group
from .transforms import refuse_second_derivatives, refuse_vmap

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
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(f"{name}: there is no process group; accepted: after torch.distributed.init_process_group")
    if logits.ndim == 0 or tuple(target.shape) != tuple(logits.shape[:-1]):
        accepted = "(..., columns) and (...)"
        raise ArgumentError(f"{name}: logits of {tuple(logits.shape)}, target of {tuple(target.shape)}; {accepted=!s}")
    if target.dtype != torch.int64:
        raise ArgumentError(f"{name}: target of {target.dtype}; accepted: int64")
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"{name}: reduction={reduction!r}; accepted: {', '.join(map(repr, REDUCTIONS))}")
    flat = logits.reshape(-1, logits.shape[-1])
    over: Any = dist.group.WORLD if group is None else group
    made: Tensor = _loss(flat, target.reshape(-1), ignore_index, reduction, over.group_name)[0]
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


@custom_op("tokitai::parallel_cross_entropy")
def _loss(
    logits: Tensor, target: Tensor, ignore_index: int, reduction: str, group: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The loss of all rows, or of each, and what a backward pass takes: of each row, and this rank's first class."""
    over, x = named_group(group), plain(logits)
    first, classes = _columns("parallel_cross_entropy", x, over)
    outside = (target != ignore_index) & ((target < 0) | (target >= classes))
    if bool(outside.any()):
        found, accepted = int(target[outside][0]), f"0 to {classes - 1}, or ignore_index={ignore_index}"
        raise ArgumentError(f"parallel_cross_entropy: target {found}; accepted: {accepted}")
    top = ops.part_top(x)
    dist.all_reduce(top, dist.ReduceOp.MAX, group=over)  # exact, in whichever order
    here = torch.stack(ops.part_sums(x, target, top, first=first))
    every = [torch.empty_like(here) for _ in range(dist.get_world_size(over))]
    dist.all_gather(every, here, group=over)
    largest, others, chosen = torch.stack(every, dim=-1)
    loss, _, rest, total = ops.merged_cross_entropy(largest, others, chosen, top, target, ignore_index=ignore_index)
    if reduction != "none":
        loss = ops.linear_backward_bias(loss.reshape(-1, 1)).reshape(())  # the operators' sum over rows
    if reduction == "mean":
        loss = loss / (target != ignore_index).sum().clamp(min=1)
    return loss, top, rest, total, torch.tensor(first, device="cpu")


def _shapes(logits: Tensor, target: Tensor, ignore_index: int, reduction: str, group: str) -> tuple[Tensor, ...]:
    each = [logits.new_empty(target.shape, dtype=torch.float32) for _ in range(4)]
    first = torch.empty((), dtype=torch.int64, device="cpu")
    return (each[0] if reduction == "none" else each[0].new_empty(()), *each[1:], first)


@custom_op("tokitai::parallel_cross_entropy_backward")
def _backward(
    dloss: Tensor, logits: Tensor, target: Tensor, top: Tensor, rest: Tensor, total: Tensor, first: Tensor,
    ignore_index: int,
) -> Tensor:  # fmt: skip
    given = map(plain, (dloss.contiguous(), logits, target, top, rest, total))
    made: Tensor = ops.part_cross_entropy_backward(*given, first=int(first), ignore_index=ignore_index)
    return made


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, target, *words, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.words = dict(zip(("ignore_index", "reduction"), words, strict=True))
    ctx.save_for_backward(logits, target, *output[1:])


def _gradients(ctx: Any, dloss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    logits, target, *rest = ctx.saved_tensors
    each = _over_rows(dloss, dict(logits=logits, target=target, **ctx.words))
    return _backward(each, logits, target, *rest, ctx.words["ignore_index"]), None, None, None, None


_loss.register_fake(_shapes)
_loss.register_vmap(refuse_vmap("parallel_cross_entropy"))
_loss.register_autograd(_gradients, setup_context=_keep)
_backward.register_fake(lambda dloss, logits, *rest: torch.empty_like(logits))
_backward.register_autograd(refuse_second_derivatives("parallel_cross_entropy"))
