"""What a verification draws from its seed: shapes, kinds of values, threads, and where tensors lie.

A list of shapes and layouts that somebody wrote is one that a wrong kernel can pass by. What is drawn here follows from
the seed, the definition's name and the case, on every machine, so that a certificate need only name the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..families import Plan
from ..lang import MATRICES, Operator
from ..lang.graph import Space
from .cases import DRAWS, rng_for

MOST_THREADS = 33
SHAPES = 4  # of structure runs; numbers take other ones, twice as many


# ------------------------------------------------------------------ shapes
def shapes(operator: Operator, plan: Plan, device: str, seed: int) -> list[tuple[int, int]]:
    """Shapes of structure runs."""
    rng = rng_for(seed, "shapes", operator.name)
    return [plan.family.shapes.sampled(rng, operator, plan, device) for _ in range(SHAPES)]


def seeded_ids(
    operator: Operator, plan: Plan, lanes: int, device: str, seed: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """How and in which shape values are drawn, beside what the first version of the suite has."""
    rng = rng_for(seed, "values", operator.name)
    yield from plan.family.shapes.seeded_later(operator, plan, lanes, device)
    for _ in range(2 * SHAPES):
        yield str(rng.choice(list(DRAWS))), plan.family.shapes.sampled(rng, operator, plan, device)


# ------------------------------------------------------------------ layouts
@dataclass(frozen=True)
class Place:
    """Where a tensor lies: elements from a 64-byte boundary, elements between its rows and between the matrices of a
    batch, and whether its last row comes first in memory."""

    offset: int = 0
    gap: int = 0
    apart: int = 0
    turned: bool = False

    def __str__(self) -> str:
        gaps = f" gap {self.gap}" if self.gap else ""
        gaps += f" apart {self.apart}" if self.apart else ""
        return f"+{self.offset}{gaps}{' turned' * self.turned}"


def threads_of(rng: np.random.Generator) -> int:
    """One thread to 33, few more often than many."""
    return int(2 ** rng.uniform(0, math.log2(MOST_THREADS + 1)))


def place_of(rng: np.random.Generator, space: Space, size: tuple[int, ...], itemsize: int, aligned: bool) -> Place:
    """Where a tensor of this size lies. Only those of two sides have a row stride. Where all is ``aligned``, it begins
    at a boundary, and its rows do."""
    line = 64 // itemsize
    quarter = int(rng.integers(0, 4)) * 16 // itemsize
    offset = 0 if aligned else quarter if rng.random() < 0.5 else int(rng.integers(0, line))
    gap, apart, turned = int(rng.integers(0, 6)), int(rng.integers(0, 4)), bool(rng.random() < 0.25)
    long = int(rng.integers(1001, 1100)) if rng.random() < 0.3 else int(rng.integers(1, 100))
    if space not in MATRICES:
        return Place(offset)
    rows = max(math.prod(size[:-1]), 1)
    if aligned:
        gap = -size[-1] % line + line * int(gap)
    elif gap < 2:
        gap = long if rows * long <= 1 << 18 else gap
    elif gap < 4:
        gap = -size[-1] % 16 + 16 * int(gap)
    return Place(offset, gap if rows * gap <= 1 << 22 else 0, apart * (line if aligned else 1), turned)
