"""Which rank works through which blocks of tokens of the global batch.

The blocks are part of what a run computes; the arrangement is not: any number of ranks gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ...errors import ArgumentError

LARGEST_BLOCK = 4096


@dataclass(frozen=True)
class Arrangement:
    """``blocks`` of the global batch, in order, over ``ranks``: each has a run of neighbouring ones."""

    blocks: int
    ranks: int = 1
    rank: int = 0
    group: Any = None

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.ranks < 1 or not 0 <= self.rank < self.ranks:
            raise ArgumentError(
                f"rank {self.rank} of {self.ranks} with {self.blocks} blocks; accepted: 1 block or more, 1 rank or more"
            )
        if self.ranks > self.blocks:
            raise ArgumentError(
                f"{self.ranks} ranks beside {self.blocks} blocks of the global batch; accepted: at most as many ranks"
            )

    def of(self, rank: int) -> range:
        """The blocks of a rank. Ranks differ by one block at most."""
        return range(self.blocks * rank // self.ranks, self.blocks * (rank + 1) // self.ranks)

    @property
    def mine(self) -> range:
        """The blocks of this rank."""
        return self.of(self.rank)

    @property
    def turns(self) -> int:
        """How many passes each rank makes: the most blocks that any has."""
        return -(-self.blocks // self.ranks)


def arrange(tokens: int, block: int = LARGEST_BLOCK, group: Any = None) -> Arrangement:
    """The arrangement of a global batch of ``tokens`` over the ranks of ``group`` (default: all of them, or the one
    where there is no process group).

    Raises ArgumentError for a block that is no power of two up to 4,096, a batch that is no multiple of it, and fewer
    blocks than ranks.
    """
    if not 1 <= block <= LARGEST_BLOCK or block & (block - 1):
        raise ArgumentError(f"a block of {block} tokens; accepted: a power of two from 1 to {LARGEST_BLOCK}")
    if tokens < 1 or tokens % block:
        raise ArgumentError(f"a global batch of {tokens} tokens; accepted: a multiple of the block, of {block}")
    if not (dist.is_available() and dist.is_initialized()):
        return Arrangement(tokens // block)
    return Arrangement(tokens // block, dist.get_world_size(group), dist.get_rank(group), group)
