"""Replicas of a model on several ranks, compared with each other without a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor

from .difference import place_of
from .sums import CHUNK, locate, sums


def unequal_replicas(tensors: Mapping[str, Tensor], group: Any = None) -> list[str]:
    """What ranks of a group have that the others do not: for each tensor and rank a sentence, on every rank the same.
    Empty where all replicas have the same bits. With two ranks it cannot be told which of them is wrong.

    ``tensors`` are weights, or gradients, by name; none is sharded. A collective call."""
    ranks, found = dist.get_world_size(group), []
    for name, x in tensors.items():
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
                where = f"at element {list(place_of((chunk * CHUNK + single[0]) // per, x.shape))}"
            found.append(f"{name}: rank {rank} has other bits {where} than the other ranks")
    return found
