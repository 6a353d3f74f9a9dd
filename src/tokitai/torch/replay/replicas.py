"""Replicas of a model on several ranks, compared with each other without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...errors import ArgumentError
from ..shards import part_of
from .difference import place_of
from .sums import CHUNK, locate, sums


def unequal_replicas(tensors: Mapping[str, Tensor], group: Any = None) -> list[str]:
    """What ranks of a group have that the others do not: for each tensor and rank a sentence, on every rank the same.
    Empty where all replicas have the same bits. With two ranks it cannot be told which of them is wrong.

    ``tensors`` are weights, or gradients, by name. Of one that is sharded the ranks of the group have the same part, as
    over another dimension of its mesh. A collective call. Raises ArgumentError where they have other parts."""
    ranks, found = dist.get_world_size(group), []
    for name, whole in tensors.items():
        x, first = (whole.to_local(), [p.start for p in part_of(whole)]) if isinstance(whole, DTensor) else (whole, [])
        _check_parts(name, whole, group)
        here = sums(x)
        every = [here.new_empty(here.shape) for _ in range(ranks)]
        dist.all_gather(every, here, group=group)
        made = [e.cpu().numpy() for e in every]
        common, count = Counter(m.tobytes() for m in made).most_common(1)[0]
        if count == ranks:
            continue
        if count * 2 <= ranks:
            found.append(f"{name}: no bits that most of the {ranks} ranks have")
            continue
        usual = np.frombuffer(common, made[0].dtype).reshape(made[0].shape)
        for rank in (r for r, m in enumerate(made) if m.tobytes() != common):
            chunk = int(np.flatnonzero((made[rank] != usual).any(axis=1))[0])
            single = locate(made[rank][chunk].tolist(), usual[chunk].tolist())
            per = 2 if x.dtype.itemsize == 8 else 1
            where = f"among elements {chunk * CHUNK // per} to {min((chunk + 1) * CHUNK // per, x.numel()) - 1}"
            if single is not None:
                place = place_of((chunk * CHUNK + single[0]) // per, x.shape)
                where = f"at element {[i + f for i, f in zip_longest(place, first, fillvalue=0)]}"
            found.append(f"{name}: rank {rank} has other bits {where} than the other ranks")
    return found


def _check_parts(name: str, x: Tensor, group: Any) -> None:
    """Raises ArgumentError for a tensor that is sharded over ranks of the group."""
    if not isinstance(x, DTensor):
        return
    here, mesh = set(dist.get_process_group_ranks(group)), x.device_mesh
    for dimension, placement in enumerate(x.placements):
        shared = here.intersection(dist.get_process_group_ranks(mesh.get_group(dimension)))
        if len(shared) > 1 and not placement.is_replicate():
            raise ArgumentError(
                f"{name} has other parts on the ranks {sorted(shared)}, {x.placements}; accepted: a group of ranks "
                "that have the same part"
            )
