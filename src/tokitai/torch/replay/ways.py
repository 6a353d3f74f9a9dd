"""The ranks that share the layers of a model, and pass through the same blocks: those of tensor-parallel layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ..ranks import Gradients

Blocks = dict[int, dict[str, list[Any]]]


@dataclass(frozen=True)
class Ways:
    """``count`` ranks, of which this one is number ``index``."""

    count: int = 1
    index: int = 0
    group: Any = None

    @classmethod
    def of(cls, gradients: Gradients) -> Ways:
        """Those of a model: along the dimension of a weight's mesh that is not that of the arrangement."""
        a = gradients.arrangement
        alone = a.ranks == 1
        over_blocks = None if alone else dist.get_process_group_ranks(a.group)
        for _, p in gradients.named:
            mesh = p.device_mesh if isinstance(p, DTensor) else None
            for group in mesh.get_all_groups() if mesh is not None else ():
                if dist.get_world_size(group) > 1 and dist.get_process_group_ranks(group) != over_blocks:
                    return cls(dist.get_world_size(group), dist.get_rank(group), group)
        return cls()

    @property
    def suffix(self) -> str:
        """What names a result of one of several ranks, which may be a part, or the whole."""
        return f", way {self.index} of {self.count}" if self.count > 1 else ""

    def merged(self, blocks: Blocks) -> Blocks:
        """The entries of all, each name once. A collective call."""
        if self.count == 1:
            return blocks
        every: list[Any] = [None] * self.count
        dist.all_gather_object(every, blocks, group=self.group)
        made: Blocks = {}
        for index, kinds in every[0].items():
            for kind in kinds:
                entries = (e for row in zip_longest(*(b[index][kind] for b in every)) for e in row if e is not None)
                made.setdefault(index, {})[kind] = list({e.name: e for e in entries}.values())
        return made
