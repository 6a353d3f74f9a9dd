"""Shapes of attention: queries, keys, the dimension of a head, heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...lang import Operator, Sizes
from ..matmul.shapes import InnerShapes
from ..shapes import Shape, size
from .plan import AttentionPlan

# Panels of 2, 16 and 32 queries, whole and not; groups of eight keys and what is left, tiles of keys and of the inner
# side; pieces of 256, chains of 4096 along keys, queries and the inner side; nothing along each; batches.
ATTENTION: tuple[Shape, ...] = (
    Sizes(1, 1, 1), Sizes(2, 2, 2), Sizes(3, 5, 7), Sizes(16, 8, 6), Sizes(17, 9, 13), Sizes(31, 33, 16),
    Sizes(33, 16, 33), Sizes(65, 25, 64), Sizes(5, 130, 9), Sizes(70, 257, 3), Sizes(9, 300, 12), Sizes(4, 6, 257),
    Sizes(3, 4099, 3), Sizes(2, 3, 4098), Sizes(4101, 3, 2), Sizes(8195, 2, 1), Sizes(1, 8200, 1), Sizes(1, 12291, 2),
    Sizes(3, 5, 0), Sizes(3, 0, 4), Sizes(0, 3, 4), Sizes(0, 0, 0),
    Sizes(3, 5, 7, 2), Sizes(18, 17, 5, 3), Sizes(2, 3, 4, 40), Sizes(3, 0, 2, 2), Sizes(0, 3, 2, 2),
)  # fmt: skip
# Larger tiles of a GPU's kernels: two pieces of the inner side; several tiles and steps. What the simulated device
# would take a minute for: the scores of an inner side of several chains, for each of its pieces.
GPU_ATTENTION: tuple[Shape, ...] = (Sizes(2, 5, 66, 200), Sizes(65, 70, 9, 100))
SIM_LEFT_OUT = Sizes(2, 3, 4098)
# All keys of three chains are seen by a query of those that are taken together; one whole chain along each side, and
# one element more; several pieces of a head's dimension beside whole panels of keys, and one key more.
CHAINS: tuple[Shape, ...] = (
    Sizes(3, 8203, 1), Sizes(2, 3, 4096), Sizes(2, 3, 4097), Sizes(2, 4096, 1), Sizes(2, 4097, 1), Sizes(4096, 2, 1),
    Sizes(4097, 2, 1), Sizes(3, 24, 313), Sizes(3, 25, 312),
)  # fmt: skip
# Tiles that blocks take in turn, as sums of chains wait: of queries, and of keys.
IN_TURN: tuple[Shape, ...] = (Sizes(70, 4098, 1), Sizes(4098, 70, 1))
ATTENTION_OF_USE: tuple[Shape, ...] = (Sizes(96, 128, 64),)
JUDGED: tuple[Shape, ...] = (
    Sizes(1, 1, 1), Sizes(3, 5, 7), Sizes(17, 9, 13), Sizes(33, 16, 33), Sizes(70, 257, 3), Sizes(9, 300, 12),
    Sizes(4, 6, 257), Sizes(3, 4099, 3), Sizes(0, 3, 4),
)  # fmt: skip


class AttentionShapes(InnerShapes[AttentionPlan]):
    """Shapes of attention."""

    def structure(self, operator: Operator, plan: AttentionPlan, lanes: int, device: str) -> list[Shape]:
        """Every branch of the tilings for a device."""
        kept = any(o.space == "r" for o in plan.graph.outputs)  # without an inner side there is nothing else to compare
        every = (*ATTENTION, *(GPU_ATTENTION if device != "cpu" else ()))
        return [s for s in every if (kept or Sizes.of(s).inner) and (device != "sim" or s != SIM_LEFT_OUT)]

    def chains(self, operator: Operator, plan: AttentionPlan, device: str) -> list[Shape]:
        """Three chains of keys; on a GPU several tiles beside them."""
        every = [*CHAINS, *(IN_TURN if device != "cpu" else ())]
        return [s for s in every if device != "sim" or Sizes.of(s).inner < SIM_LEFT_OUT.inner - 2]

    def of_use(self, operator: Operator, plan: AttentionPlan, device: str, version: int) -> Sequence[Shape]:
        """One head."""
        return ATTENTION_OF_USE

    def edges(self, operator: Operator, plan: AttentionPlan) -> list[Shape]:
        """Edges of panels, two chains, batches."""
        return [*JUDGED, *([Sizes(3, 5, 7, 2), Sizes(18, 17, 5, 3)] if operator.contract.batched else [])]

    def unforeseen(self, operator: Operator, plan: AttentionPlan, rng: np.random.Generator) -> Iterator[Shape]:
        """Few keys and many."""
        for _ in range(3):
            yield Sizes(size(rng, 1, 120), size(rng, 1, 200), size(rng, 1, 80))
        yield Sizes(size(rng, 130, 260), size(rng, 300, 700), size(rng, 33, 80))
        yield Sizes(size(rng, 20, 60), size(rng, 2000, 3000), size(rng, 16, 40))

    def probed(self, operator: Operator, plan: AttentionPlan, rng: np.random.Generator) -> list[Shape]:
        """Sums over more keys than a tile has."""
        return [Sizes(33, 300, 40)]


__all__ = ["AttentionShapes"]
