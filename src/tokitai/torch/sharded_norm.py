"""The global norm of gradients that are sharded over ranks by rows, in the order of `ops.global_norm`.

Each rank adds the squares of its own elements as far as the tree over all elements of a tensor lets it, and the sums of
those subtrees, a few numbers a tensor, are gathered and added by every rank in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from ..errors import ArgumentError
from ..ops import clip_global_norm
from ..runtime.binding import check_params
from .tree import Partial, roots, total, width


def clip_sharded(grads: Sequence[Tensor], max_norm: float, error_if_nonfinite: bool) -> Tensor:
    """As `optim.clip_grad_norm_`, for gradients that are all DTensors of one mesh, sharded along dimension 0. A
    collective call. Raises ArgumentError for others, and RuntimeError for a norm that is infinite or NaN where
    ``error_if_nonfinite`` is set."""
    check_params(clip_global_norm, dict(max_norm=max_norm))
    every = [g for g in grads if isinstance(g, DTensor)]
    if len(every) != len(grads):
        raise ArgumentError(f"{len(every)} sharded gradients of {len(grads)}; accepted: all of them, or none")
    for g in every:
        if g.device_mesh != every[0].device_mesh or g.device_mesh.ndim != 1 or g.placements != (Shard(0),):
            raise ArgumentError(
                f"a gradient with placements {g.placements} on {g.device_mesh}; accepted: (Shard(dim=0),) on one mesh "
                "of 1 dimension for all"
            )
    norm = _norm([g for g in every if g.numel()])
    made = torch.tensor(norm, device=every[0].device)
    if error_if_nonfinite and not np.isfinite(norm):
        accepted = "a finite one, or error_if_nonfinite=False"
        raise RuntimeError(f"the norm of the gradients is {norm}; accepted: {accepted}")
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.minimum(np.float32(max_norm) / norm, np.float32(1)))
    for g in every:
        here = g.to_local()
        here.copy_(here.to(torch.float32) * factor)
    return made


def finite(grads: Sequence[Tensor]) -> Tensor:
    """Whether no element of sharded gradients, on any rank that holds a part, is infinite or NaN. A collective call:
    a rank whose parts are all empty takes part in it."""
    every = [g for g in grads if isinstance(g, DTensor)]
    flags = []
    for mesh in dict.fromkeys(g.device_mesh for g in every):
        parts = [g.to_local().isfinite().all() for g in every if g.device_mesh == mesh]
        flag = torch.stack(parts).all().to(torch.int32)
        for dimension in range(mesh.ndim):
            dist.all_reduce(flag, dist.ReduceOp.MIN, group=mesh.get_group(dimension))
        flags.append(flag > 0)
    return torch.stack(flags).all()


def shard_of(shape: Sequence[int], ranks: int, rank: int) -> tuple[int, int]:
    """Which elements of a tensor, in the order of its shape, a rank has where rows are sharded."""
    rows, of_row = shape[0], math.prod(shape[1:])
    chunk = -(-rows // ranks)
    return min(chunk * rank, rows) * of_row, min(chunk * (rank + 1), rows) * of_row


def _norm(every: Sequence[DTensor]) -> np.float32:
    """The norm of tensors of 1 element or more."""
    if not every:
        return np.float32(0)
    group = every[0].device_mesh.get_group()
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    lengths = [
        [len(roots(g.numel(), *shard_of(g.shape, ranks, r))) for g in every] for r in range(ranks)
    ]  # fmt: skip
    own = [
        value
        for g in every
        for value in _squares(g.to_local().reshape(-1), g.numel(), shard_of(g.shape, ranks, rank)[0])
    ]
    device = every[0].to_local().device
    sent = torch.zeros(max(map(sum, lengths)), dtype=torch.float32, device=device)
    if own:
        sent[: len(own)] = torch.cat(own)
    arrived = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(arrived, sent, group=group)
    values = [iter(x.cpu().numpy()) for x in arrived]
    sums: list[np.float32] = []
    for g in every:
        partial: Partial[np.float32] = Partial(g.numel(), 0, _add)
        for r in range(ranks):
            for node in roots(g.numel(), *shard_of(g.shape, ranks, r)):
                partial.join(node, next(values[r]))
        sums.append(partial.whole())
    made: np.float32 = np.sqrt(total(sums, _add))
    return made


def _add(a: np.float32, b: np.float32) -> np.float32:
    with np.errstate(over="ignore", invalid="ignore"):
        made: np.float32 = a + b
    return made


def _squares(x: Tensor, leaves: int, first: int) -> list[Tensor]:
    """The sums of squares of the subtrees that elements ``first`` and on make, in the order of `tree.roots`."""
    wide = x.to(torch.float32)
    values, left, right = wide * wide, list[Tensor](), list[Tensor]()
    level, last = 0, first + len(x)
    while first < last:
        count = width(leaves, level)
        if count == 1:
            left.append(values)
            break
        if first % 2:
            left.append(values[:1])
            values, first = values[1:], first + 1
        if last % 2 and last < count and first < last:
            right.append(values[-1:])
            values, last = values[:-1], last - 1
        pairs = len(values) // 2 * 2
        values = torch.cat([values[0:pairs:2] + values[1:pairs:2], values[pairs:]])
        first, last, level = first // 2, (last + 1) // 2, level + 1
    return left + right[::-1]
