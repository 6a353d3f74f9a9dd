"""Sums over ranks in the balanced tree over blocks: an all-to-all of f32 shards, then additions where they arrive.

No collective adds anything: `torch.distributed` moves bytes. Where each rank has one root (as many blocks on each, a
power of two), as many bytes move as in a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..tree import Partial, roots, total
from .arrangement import Arrangement

_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def reduce_scatter(own: Sequence[Tensor], arrangement: Arrangement) -> Tensor:
    """This rank's shard of the sum over all blocks, in f32. ``own``: for each root of this rank's blocks an f32 vector,
    shard after shard, all as long. A collective call."""
    a = arrangement
    if a.ranks == 1:
        (whole,) = own
        return whole
    shard = own[0].numel() // a.ranks
    sent = torch.stack([x.view(a.ranks, shard) for x in own], dim=1) if len(own) > 1 else own[0].contiguous()
    nodes = [roots(a.blocks, r.start, r.stop) for r in map(a.of, range(a.ranks))]
    arrived = sent.new_empty(sum(map(len, nodes)), shard)
    dist.all_to_all_single(
        arrived.view(-1), sent.view(-1), [len(n) * shard for n in nodes], [len(own) * shard] * a.ranks, group=a.group
    )
    partial: Partial[Tensor] = Partial(a.blocks, 0, torch.Tensor.add_)
    for node, value in zip((n for of_rank in nodes for n in of_rank), arrived, strict=True):
        partial.join(node, value)
    return partial.whole()


def all_reduce(own: Sequence[Tensor], arrangement: Arrangement, dtype: torch.dtype) -> Tensor:
    """The whole sum, rounded once to ``dtype``, on every rank. ``own`` as in `reduce_scatter`, of any length. A
    collective call."""
    a, length = arrangement, own[0].numel()
    if a.ranks == 1:
        return own[0].to(dtype)
    missing = -length % a.ranks
    padded = [torch.nn.functional.pad(x, (0, missing)) for x in own] if missing else own
    shard = reduce_scatter(padded, a).to(dtype)
    whole = shard.new_empty(shard.numel() * a.ranks)
    _gather(whole, shard, group=a.group)
    return whole[:length]


def sum_of_blocks(values: Tensor, arrangement: Arrangement) -> Tensor:
    """The sum over all blocks of small tensors, in f32 and in the tree: ``values`` holds those of this rank's blocks,
    in order. The same on every rank. A collective call."""
    a, here = arrangement, values.detach().to(torch.float32)
    if a.ranks == 1:
        return total(here.unbind(0), torch.add)
    padded = here.new_zeros(a.turns, *here.shape[1:])
    padded[: len(here)] = here
    every = padded.new_empty(a.ranks, *padded.shape)
    _gather(every.view(-1), padded.view(-1), group=a.group)
    return total((every[r, i] for r in range(a.ranks) for i in range(len(a.of(r)))), torch.add)
