"""Which shapes a family's kernels are tried at: by a verification, and by the judge of third-party kernels.

What certificates name is never changed: shapes of a verification's first version and of its draws stay as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from ..lang import Graph, Operator, Output

Shape = tuple[int, int]
Seeded = tuple[str, Shape]  # how values are drawn, and in which shape
P = TypeVar("P")

LARGE = 8 << 20  # bytes of a result from which on stores pass the caches by: STREAM_BYTES of rows.h
EMPTY: tuple[Shape, ...] = ((0, 5), (3, 0), (0, 0))


class Shapes(ABC, Generic[P]):
    """The shapes of one family. ``device`` is what a user picks; ``lanes`` those of a vector of its kernels."""

    # ------------------------------------------------------------------ a verification's
    @abstractmethod
    def structure(self, operator: Operator, plan: P, lanes: int, device: str) -> list[Shape]:
        """Shapes that together take every branch of a plan's kernels."""

    @abstractmethod
    def expanded(self, operator: Operator, plan: P) -> list[Shape]:
        """Shapes whose inputs may have one row in memory that stands for all."""

    @abstractmethod
    def of_use(self, operator: Operator, plan: P, device: str, version: int) -> Sequence[Shape]:
        """Shapes of ordinary use, where a user asks for none."""

    @abstractmethod
    def seeded(
        self, operator: Operator, plan: P, lanes: int, device: str, draws: Sequence[str], of_use: Sequence[Shape]
    ) -> list[Seeded]:
        """What values of every one of ``draws``, and numbers, are tried at."""

    @abstractmethod
    def seeded_later(self, operator: Operator, plan: P, lanes: int, device: str) -> Iterator[Seeded]:
        """The same, beside what the first version of verifications has."""

    def long(self, operator: Operator, plan: P, device: str) -> list[Shape]:
        """Shapes of long sums along rows, and down columns."""
        return []

    def seeded_last(self, operator: Operator, plan: P) -> list[Seeded]:
        """The same, beside what the second version has."""
        return []

    def whole_blocks(self, operator: Operator, plan: P, device: str) -> list[Shape]:
        """Shapes of several blocks of what is summed, where those of before have fewer or none without a remainder."""
        return []

    def chains(self, operator: Operator, plan: P, device: str) -> list[Shape]:
        """Shapes of more chains than those of before."""
        return []

    def whole_panels(self, operator: Operator, plan: P, device: str) -> list[Shape]:
        """Shapes of whole panels of columns beside a whole piece of the K dimension: behind them no space is left."""
        return []

    def partitioned(self, operator: Operator, plan: P, device: str) -> list[Seeded]:
        """How and in which shape values are drawn where work is partitioned by indices, or among so many blocks."""
        return []

    @abstractmethod
    def in_threads(self, operator: Operator, plan: P) -> Shape:
        """A shape with work for more threads than a verification tries."""

    def in_turn(self, operator: Operator, plan: P, device: str) -> list[Shape]:
        """Shapes at which the units of work meet that blocks take in turn."""
        return []

    @abstractmethod
    def sampled(self, rng: np.random.Generator, operator: Operator, plan: P, device: str) -> Shape:
        """One shape that is drawn: small sides more often than large ones."""

    # ------------------------------------------------------------------ the judge's
    @abstractmethod
    def small(self, operator: Operator, plan: P) -> list[Shape]:
        """Shapes at which noise of every kind is tried."""

    @abstractmethod
    def edges(self, operator: Operator, plan: P) -> list[Shape]:
        """Edges of vectors and tiles, nothing along a side, and shapes of ordinary use."""

    @abstractmethod
    def unforeseen(self, operator: Operator, plan: P, rng: np.random.Generator) -> Iterator[Shape]:
        """Shapes that nobody knows before: small ones, some with long and with short sides, and large ones."""

    @abstractmethod
    def probed(self, operator: Operator, plan: P, rng: np.random.Generator) -> list[Shape]:
        """Shapes of exact probes: long sums of few results, and results beyond the tiles of most kernels."""

    def blocked(self, operator: Operator, plan: P, rng: np.random.Generator) -> list[Shape]:
        """Shapes at which each row has its own block of columns."""
        return []


def of_rows(graph: Graph) -> list[Output]:
    """Results that have rows."""
    return [o for o in graph.outputs if o.space in ("rc", "r")]


def side(rng: np.random.Generator, levels: float) -> int:
    """A side of at most ``2**levels``."""
    return int(2 ** rng.uniform(0, levels))


def size(rng: np.random.Generator, low: float, high: float) -> int:
    """A size between two."""
    return int(2 ** rng.uniform(np.log2(low), np.log2(high + 1)))


__all__ = ["EMPTY", "LARGE", "Seeded", "Shape", "Shapes", "of_rows", "side", "size"]
