"""What a verification draws from its seed: shapes, kinds of values, threads, and where tensors lie.

A list of shapes and layouts that somebody wrote is one that a wrong kernel can pass by. What is drawn here follows from
the seed, the definition's name and the case, on every machine, so that a certificate need only name the seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..families import AttentionPlan, GroupedPlan, Plan, ProductPlan, RowPlan, ScatterPlan
from ..formats import FORMATS
from ..lang import MATRICES, TOTALS, Graph, Operator, Output, Sizes
from ..lang.graph import Space
from .cases import DRAWS, rng_for

MOST_THREADS = 33
SHAPES = 4  # of structure runs; numbers take other ones, twice as many
LONG = 50257  # columns whose sum takes more levels than any of the shapes that are listed
LARGE = 8 << 20  # bytes of a result from which on stores pass the caches by: STREAM_BYTES of rows.h


# ------------------------------------------------------------------ shapes
def shapes(operator: Operator, plan: Plan, device: str, seed: int) -> list[tuple[int, int]]:
    """Shapes of structure runs."""
    rng = rng_for(seed, "shapes", operator.name)
    return [_shape(rng, operator, plan, device) for _ in range(SHAPES)]


def long_shapes(operator: Operator, plan: Plan, device: str) -> list[tuple[int, int]]:
    """Shapes of long sums along rows, and down columns."""
    if device == "sim" or isinstance(plan, (ProductPlan, AttentionPlan)) or plan.flat:
        return []
    most = operator.contract.max_rows
    return [(min(2, most), LONG)] + ([(LONG, 3)] if isinstance(plan, RowPlan) and plan.block > 1 else [])


def in_turn(operator: Operator, plan: Plan, device: str) -> list[tuple[int, int]]:
    """Shapes at which the units of work meet that blocks take in turn. Of products: several, whose chains along the
    inner side are shared out. On the simulated device, which has two blocks where they take rows in turn: several rows
    to each, of one thread, of part of a warp, of whole warps; whole blocks of rows; rows that give every lane a chunk.
    """
    if isinstance(plan, ProductPlan):
        return [Sizes(3, 2, 4097, 2)] if operator.contract.batched and not isinstance(plan, GroupedPlan) else []
    if device != "sim" or not isinstance(plan, RowPlan):
        return []
    shapes = ((416, 8), (160, 17), (21, 200), (7, 257), (7, 1025), (5, 256), (3, 512))
    return [s for s in shapes if s[0] <= operator.contract.max_rows and s[1] >= operator.contract.min_cols]


def seeded_ids(
    operator: Operator, plan: Plan, lanes: int, device: str, seed: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """How and in which shape values are drawn, beside what the first version of the suite has."""
    rng = rng_for(seed, "values", operator.name)
    if isinstance(plan, (ProductPlan, AttentionPlan)):
        yield "exponents", _sizes(plan, 5, 9, 33, 1)
        yield "exponents", _sizes(plan, 17, 33, 6, 1)
    else:
        most = operator.contract.max_rows
        for cols in (2 * lanes + 1, 257):
            yield "exponents", (min(5, most), cols)
        for tail in range(1, lanes):  # behind a vector, and behind the four that are taken together
            yield "normal", (min(2, most), (5 if tail % 2 else 1) * lanes + tail)
        # An empty sum is +0, which zeros tell from nothing: hashes do not (`meaning.structure.add`).
        yield from (("zeros", (min(rows, most), cols)) for rows, cols in ((0, 5), (3, 0), (0, 0)))
        yield "nans", (min(3, most), 1000)
        yield "special", (min(2, most), 700)
        if device != "sim":
            yield "nans", (min(2, most), 4100)
        yield from (("normal", shape) for shape in long_shapes(operator, plan, device))
        if device == "cpu" and (shape := _large(operator, plan)) is not None:
            yield "tiled", shape
    for _ in range(2 * SHAPES):
        yield str(rng.choice(list(DRAWS))), _shape(rng, operator, plan, device)


def _large(operator: Operator, plan: Plan) -> tuple[int, int] | None:
    """A shape whose results are stored past the caches, where the oracle of some rows is that of all."""
    sizes = [FORMATS[o.format].dtype.itemsize for o in plan.graph.outputs if o.space == "rc"]
    drawn = operator.contract.draw.keys() & {t.name for t in plan.graph.inputs}
    of_rows = {t.name for t in plan.graph.inputs if t.slots or not FORMATS[str(t.format)].is_float}
    if not sizes or drawn or of_rows or isinstance(plan, ScatterPlan) or not rows_are_apart(plan, (2, 1)):
        return None
    return LARGE // min(sizes) // 2048, 2048


def of_rows(graph: Graph) -> list[Output]:
    """Results that have rows."""
    return [o for o in graph.outputs if o.space in ("rc", "r")]


def rows_are_apart(plan: Plan, shape: tuple[int, int]) -> bool:
    """Whether each row is its own affair, and there are some."""
    rows, cols = shape
    early = isinstance(plan, RowPlan) and plan.early
    meets = bool(early) or any(n.op in (*TOTALS, "row_index", "rows", "element_word") for n in plan.graph.nodes)
    batch = isinstance(shape, Sizes) and shape.several
    return rows >= 2 and not meets and not batch and bool(of_rows(plan.graph)) and rows * cols <= 1 << 20


def _shape(rng: np.random.Generator, operator: Operator, plan: Plan, device: str) -> tuple[int, int]:
    """Small sides more often than large ones."""

    def side(levels: float) -> int:
        return int(2 ** rng.uniform(0, levels))

    rows, cols = side(7), side(8 if device == "sim" else 11)
    if isinstance(plan, (ProductPlan, AttentionPlan)):
        return _sizes(plan, rows, side(7), side(7), side(3) if operator.contract.batched else 1)
    return min(rows, operator.contract.max_rows), max(cols, operator.contract.min_cols)


def _sizes(plan: Plan, rows: int, cols: int, inner: int, batch: int) -> Sizes:
    if isinstance(plan, GroupedPlan):
        return Sizes(rows, cols, inner, max(batch, 3), plan.share)
    return Sizes(rows, cols, inner, batch)


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
    half = rng.choice([0, 16 // itemsize, 32 // itemsize, 48 // itemsize])
    offset = 0 if aligned else int(half if rng.random() < 0.5 else rng.integers(0, line))
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
