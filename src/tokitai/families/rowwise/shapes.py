"""Shapes of rows x cols: of row-wise kernels, and what element-wise ones and sums over entries share with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from ...formats import FORMATS
from ...lang import Operator
from ..family import Plan
from ..shapes import EMPTY, LARGE, Seeded, Shape, Shapes, side, size
from .plan import RowPlan

P = TypeVar("P", bound=Plan)

# Odd sizes, tails of vectors of 4, 8 and 16 lanes, blocks of eight vectors and more than one of them.
BRANCH_COLS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 255, 257, 384, 641, 1000)
# One group of four rows and less, blocks of 32 rows, lone and paired blocks.
BRANCH_ROWS = (1, 2, 3, 4, 5, 31, 32, 33, 63, 65, 97, 130)

# Of a schedule's threads and chunks: a lane, part of a warp, whole warps, several chunks, rows beyond the registers;
# whole and ragged rows, rows of one block more. The simulated device is slow and takes a few of them.
GPU_COLS = (
    1, 3, 7, 8, 9, 16, 17, 31, 64, 65, 128, 200, 255, 256, 257, 512, 513, 1000, 1024, 1025, 2048, 2056, 3000, 4096,
    4104, 8192, 8200, 12288, 16392, 20000, 32768, 32776, 50257, 65536 + 8,
)  # fmt: skip
SIM_COLS = (1, 8, 17, 200, 257, 1025)
LONG = 50257  # columns whose sum takes more levels than any of the shapes that are listed

# The judge's.
SMALL = ((1, 1), (3, 33), (5, 257))  # at which noise of every kind is tried
COLUMNS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 384, 641, 1000)
OF_USE = ((67, 130), (96, 1024), (17, 4096))
FLAT_OF_USE = (98304, 69632)  # elements, where there is one row
WITHOUT = ((0, 5), (0, 64))


class TableShapes(Shapes[P], Generic[P]):
    """Shapes of kernels whose tensors have rows and columns."""

    # ------------------------------------------------------------------ a verification's
    def structure(self, operator: Operator, plan: P, lanes: int, device: str) -> list[Shape]:
        """Every branch of the schedules for a device."""
        most = operator.contract.max_rows
        if device == "cpu":
            return [*self.branches(plan, lanes, most), *EMPTY]
        simulated = device == "sim"
        shapes = [(min(3, most), c) for c in (SIM_COLS if simulated else GPU_COLS)]
        shapes += self.longer(simulated)
        rows = (33, 70, 1100) if simulated else (1, 2, 31, 32, 33, 64, 97, 1000)
        some = [r for r in (rows if plan.block > 1 else (1, 2, 7)) if r <= most]
        shapes += [(r, c) for r in some for c in ((17,) if simulated else (9, 300))]
        return [*(s for s in dict.fromkeys(shapes) if s[0] <= most), *EMPTY]

    def longer(self, simulated: bool) -> list[Shape]:
        """Long rows, and many of them, for a GPU."""
        return [(2, 2056)] if simulated else [(2, 1 << 20), (100003, 5)]

    def branches(self, plan: P, lanes: int, max_rows: int = 1 << 31) -> list[Shape]:
        """Shapes that together take every branch of a plan with vectors of so many lanes, of at most `max_rows` rows
        where an operator takes no more; but for results too large for any cache, which would take too long."""
        block = lanes * max(lanes, 8)  # columns that the tree takes at a time
        edges = (lanes - 1 or 1, lanes, lanes + 1, block - 1, block, block + 1, 3 * block + lanes + 1)
        shapes = [(min(3, max_rows), c) for c in sorted({*BRANCH_COLS, *edges})]
        shapes += [(min(r, max_rows), c) for r, c in self.tiles(plan)]
        rows = BRANCH_ROWS if plan.block > 1 else (1, 2, 7)
        shapes += [(r, lanes + 1) for r in rows if r <= max_rows]
        return list(dict.fromkeys(shapes))

    def tiles(self, plan: P) -> list[Shape]:
        """Edges of a plan's own tiles."""
        return []

    def expanded(self, operator: Operator, plan: P) -> list[Shape]:
        """Rows of one row in memory, where there are several."""
        return [] if operator.contract.lists else [(35, max(21, operator.contract.min_cols))]

    def of_use(self, operator: Operator, plan: P, device: str, version: int) -> Sequence[Shape]:
        """Rows of a thousand columns and more. The simulated device would take too long."""
        if device == "sim":
            return []
        if operator.contract.lists:
            return [(1, 98304), (1, 69632)]
        return [(96, 1024)] if version > 1 and self.long(operator, plan, device) else [(96, 1024), (17, 4096)]

    def seeded(
        self, operator: Operator, plan: P, lanes: int, device: str, draws: Sequence[str], of_use: Sequence[Shape]
    ) -> list[Seeded]:
        """Structure runs take every branch for all inputs; numbers take one in two or three again."""
        most = operator.contract.max_rows
        first = self.branches(plan, lanes, most) if device == "cpu" else self.structure(operator, plan, lanes, device)
        small = [(how, s) for how in draws for s in ((1, 1), (3, 2 * lanes + 1), (5, 257))]
        some = first[:: 3 if device == "cpu" else 2]
        small += [("normal", s) for s in [(67, 130 if device == "cpu" else 200), *some, *EMPTY]]
        return [(how, (min(r, most), cols)) for how, (r, cols) in small] + [("normal", asked) for asked in of_use]

    def seeded_later(self, operator: Operator, plan: P, lanes: int, device: str) -> Iterator[Seeded]:
        """Exponents of all sizes, tails of vectors, nothing, NaN, long sums, results that pass the caches by."""
        most = operator.contract.max_rows
        for cols in (2 * lanes + 1, 257):
            yield "exponents", (min(5, most), cols)
        for tail in range(1, lanes):  # behind a vector, and behind the four that are taken together
            yield "normal", (min(2, most), (5 if tail % 2 else 1) * lanes + tail)
        # An empty sum is +0, which zeros tell from nothing: hashes do not (`meaning.structure.add`).
        yield from (("zeros", (min(rows, most), cols)) for rows, cols in EMPTY)
        yield "nans", (min(3, most), 1000)
        yield "special", (min(2, most), 700)
        if device != "sim":
            yield "nans", (min(2, most), 4100)
        yield from (("normal", shape) for shape in self.long(operator, plan, device))
        if device == "cpu" and (shape := self.large(operator, plan)) is not None:
            yield "tiled", shape

    def seeded_last(self, operator: Operator, plan: P) -> list[Seeded]:
        """NaN among what is left behind the last vector, in rows that are neighbours and in rows that are apart."""
        return [("nans", (min(3, operator.contract.max_rows), 37))]

    def in_threads(self, operator: Operator, plan: P) -> Shape:
        """Many rows, or, where there is one, many tiles of it."""
        most = operator.contract.max_rows
        return (517, max(13, operator.contract.min_cols)) if most > 1 else (1, 34 * 4096 + 5)

    def large(self, operator: Operator, plan: P) -> Shape | None:
        """A shape whose results are stored past the caches, where the oracle of some rows is that of all."""
        sizes = [FORMATS[o.format].dtype.itemsize for o in plan.graph.outputs if o.space == "rc"]
        drawn = operator.contract.draw.keys() & {t.name for t in plan.graph.inputs}
        named = {t.name for t in plan.graph.inputs if t.slots or not FORMATS[str(t.format)].is_float}
        if not sizes or drawn or named or not plan.rows_are_apart((2, 1)):
            return None
        return LARGE // min(sizes) // 2048, 2048

    def long(self, operator: Operator, plan: P, device: str) -> list[Shape]:
        """Long sums along rows."""
        return [] if device == "sim" else [(min(2, operator.contract.max_rows), LONG)]

    def sampled(self, rng: np.random.Generator, operator: Operator, plan: P, device: str) -> Shape:
        """Within the contract."""
        rows, cols = side(rng, 7), side(rng, 8 if device == "sim" else 11)
        return min(rows, operator.contract.max_rows), max(cols, operator.contract.min_cols)

    # ------------------------------------------------------------------ the judge's
    def small(self, operator: Operator, plan: P) -> list[Shape]:
        """At most as many rows as an operator takes."""
        return [(min(r, operator.contract.max_rows), c) for r, c in SMALL]

    def edges(self, operator: Operator, plan: P) -> list[Shape]:
        """Edges of vectors, nothing along a side, and shapes of ordinary use."""
        if operator.contract.lists:
            return [*((1, c) for c in (*COLUMNS, *FLAT_OF_USE)), (0, 5)]
        return [*((3, c) for c in COLUMNS), *((r, 17) for r in (1, 2, 31, 33, 65)), *OF_USE, *WITHOUT]

    def unforeseen(self, operator: Operator, plan: P, rng: np.random.Generator) -> Iterator[Shape]:
        """Small ones, long rows, many rows."""
        if operator.contract.lists:
            for low, high in ((2, 100), (100, 5000), (5000, 60000), (100000, 400000)):
                yield 1, size(rng, low, high)
            return
        for _ in range(4):
            yield size(rng, 2, 300), size(rng, 2, 1500)
        yield size(rng, 200, 400), size(rng, 1000, 2500)
        yield 3, size(rng, 30000, 66000)
        yield size(rng, 2000, 8000), size(rng, 2, 9)

    def probed(self, operator: Operator, plan: P, rng: np.random.Generator) -> list[Shape]:
        """Long sums of few results, and many results."""
        if operator.contract.lists:
            return [(1, 1000), (1, int(rng.integers(40_000, 70_000)))]
        return [(40, 1100), (2, int(rng.integers(33_000, 60_000))), (int(rng.integers(2000, 4000)), 5)]

    def blocked(self, operator: Operator, plan: P, rng: np.random.Generator) -> list[Shape]:
        """A short and a long row, where there are several."""
        return [] if operator.contract.lists else [(12, 300), (16, int(rng.integers(33_000, 45_000)))]


class RowShapes(TableShapes[RowPlan]):
    """Shapes of row-wise kernels."""

    def long(self, operator: Operator, plan: RowPlan, device: str) -> list[Shape]:
        """Long sums along rows, and down columns."""
        down = [(LONG, 3)] if plan.block > 1 and device != "sim" else []
        return super().long(operator, plan, device) + down

    def whole_blocks(self, operator: Operator, plan: RowPlan, device: str) -> list[Shape]:
        """Of rows that the simulated device stages in shared memory, by one warp and by several."""
        shapes = [(70, 200), (64, 520)] if plan.block > 1 and device == "sim" else []
        return [s for s in shapes if s[0] <= operator.contract.max_rows and s[1] >= operator.contract.min_cols]

    def in_turn(self, operator: Operator, plan: RowPlan, device: str) -> list[Shape]:
        """Rows that blocks take in turn, of which the simulated device has two: of one thread, of part of a warp, of
        whole warps; whole blocks of rows; rows that give every lane of a warp a chunk."""
        if device != "sim":
            return []
        shapes = ((416, 8), (160, 17), (21, 200), (7, 257), (7, 1025), (5, 2056), (5, 256), (3, 512))
        return [s for s in shapes if s[0] <= operator.contract.max_rows and s[1] >= operator.contract.min_cols]


__all__ = ["LONG", "RowShapes", "TableShapes"]
