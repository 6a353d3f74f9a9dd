"""Which elements of a whole tensor a rank has, of one sharded over a device mesh in any way; groups by their names."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..errors import ArgumentError


def part_of(x: DTensor) -> tuple[slice, ...]:
    """Where in the whole tensor this rank's elements lie."""
    sizes, first = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return tuple(slice(f, f + n) for f, n in zip(first, sizes, strict=True))


def parts_of(x: DTensor) -> list[tuple[int, list[list[int]]]]:
    """For each rank, by its number in the world, where its elements lie: [first, end] along each dimension. A
    collective call."""
    ends = [[p.start, p.stop] for p in part_of(x)]
    every = gathered(torch.tensor(ends, device=x.to_local().device), x.device_mesh).tolist()
    return list(zip(x.device_mesh.mesh.flatten().tolist(), every, strict=True))


def run_of(x: DTensor) -> tuple[Tensor, int]:
    """Neighbouring elements of the whole tensor, flat, and the place of the first: each element is in the run of one
    rank, of several that have the same part the first one's.

    A collective call where shards are cut otherwise than by rows: elements then move to where their rows are. Raises
    ArgumentError for a tensor that is a sum over ranks which was not added up.
    """
    mesh = x.device_mesh
    if any(p.is_partial() for p in x.placements):
        raise ArgumentError(f"a tensor with placements {x.placements}; accepted: shards and replicas")
    if any(p.is_shard() and getattr(p, "dim", 0) != 0 for p in x.placements):
        x = x.redistribute(placements=[p if p.is_replicate() else Shard(0) for p in x.placements])
    first = part_of(x)[0].start * math.prod(x.shape[1:]) if x.to_local().numel() and x.ndim else 0
    replica = any(p.is_replicate() and mesh.get_local_rank(d) > 0 for d, p in enumerate(x.placements))
    here = x.to_local().reshape(-1)
    return here[:0] if replica else here, first


def gathered(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """(ranks, ...): x of each rank of a mesh, in its order. A collective call."""
    every = x[None]
    for dimension in reversed(range(mesh.ndim)):
        made = [torch.empty_like(every) for _ in range(mesh.size(dimension))]
        dist.all_gather(made, every.contiguous(), group=mesh.get_group(dimension))
        every = torch.cat(made)
    return every


def named_group(name: str) -> Any:
    """The process group of a ``group_name``, by which a custom op takes it."""
    given: Any = name
    return _resolve_process_group(given)
