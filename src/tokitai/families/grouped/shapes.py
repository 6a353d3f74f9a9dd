"""Shapes of grouped products: rows, columns, the K dimension, how many groups there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...lang import Operator, Sizes
from ..matmul.shapes import InnerShapes
from ..shapes import Shape, size
from .plan import GroupedPlan

# Where groups partition the K dimension, rows are that.
GROUPED = (
    Sizes(1, 1, 1, 1), Sizes(3, 5, 7, 2), Sizes(25, 33, 12, 3), Sizes(40, 18, 257, 7), Sizes(70, 9, 31, 64),
    Sizes(2, 65, 130, 5), Sizes(150, 2, 19, 2), Sizes(2500, 3, 4, 3), Sizes(5, 1031, 5, 2), Sizes(300, 260, 3, 200),
    Sizes(3, 2, 4097, 2), Sizes(9000, 1, 2, 2), Sizes(13000, 2, 1, 1), Sizes(2, 3, 0, 3), Sizes(0, 3, 4, 2),
    Sizes(3, 0, 4, 2),
)  # fmt: skip
GROUPED_OF_USE = Sizes(192, 64, 96, 12)
# Larger tiles of a GPU's kernels, by the side that groups partition.
GPU_GROUPED: dict[str, tuple[Shape, ...]] = {
    "r": (Sizes(650, 643, 19, 3, "r"), Sizes(129, 8600, 9, 3, "r")),
    "k": (Sizes(140, 643, 40, 4, "k"), Sizes(130, 2600, 20, 5, "k")),
}
JUDGED = (
    Sizes(1, 1, 1, 1), Sizes(3, 5, 7, 2), Sizes(25, 33, 12, 3), Sizes(40, 18, 257, 7), Sizes(2, 65, 130, 5),
    Sizes(192, 64, 96, 12), Sizes(2, 3, 0, 3), Sizes(0, 3, 4, 2),
)  # fmt: skip


def shared(sizes: Sizes, plan: GroupedPlan) -> Sizes:
    """Sizes of groups that partition rows, as those of groups that partition what the plan has."""
    rows, cols = sizes
    if plan.share == "k":
        return Sizes(sizes.inner, cols, rows, sizes.batch, "k")
    return Sizes(rows, cols, sizes.inner, sizes.batch, "r")


class GroupedShapes(InnerShapes[GroupedPlan]):
    """Shapes of grouped products."""

    def larger(self, plan: GroupedPlan, device: str) -> Sequence[Shape]:
        """A GPU's larger tiles."""
        return () if device == "cpu" else GPU_GROUPED[plan.share]

    def sizes(self, plan: GroupedPlan, rows: int, cols: int, inner: int, batch: int) -> Sizes:
        """Three groups at least."""
        return Sizes(rows, cols, inner, max(batch, 3), plan.share)

    def structure(self, operator: Operator, plan: GroupedPlan, lanes: int, device: str) -> list[Shape]:
        """Every branch of the tilings for a device."""
        return [*(shared(s, plan) for s in GROUPED), *self.larger(plan, device)]

    def chains(self, operator: Operator, plan: GroupedPlan, device: str) -> list[Shape]:
        """Two whole chains."""
        return [shared(Sizes(3, 2, 8192, 2), plan)]

    def whole_panels(self, operator: Operator, plan: GroupedPlan, device: str) -> list[Shape]:
        """Of vectors of every width."""
        return [shared(Sizes(5, 64, 256, 2), plan)]

    def of_use(self, operator: Operator, plan: GroupedPlan, device: str, version: int) -> Sequence[Shape]:
        """A dozen groups."""
        return [shared(GROUPED_OF_USE, plan)]

    def small(self, operator: Operator, plan: GroupedPlan) -> list[Shape]:
        """Two and three groups."""
        return [shared(Sizes(3, 5, 7, 2), plan), shared(Sizes(25, 33, 12, 3), plan)]

    def edges(self, operator: Operator, plan: GroupedPlan) -> list[Shape]:
        """Edges of tiles, two chains, groups of nothing."""
        return [shared(s, plan) for s in JUDGED]

    def unforeseen(self, operator: Operator, plan: GroupedPlan, rng: np.random.Generator) -> Iterator[Shape]:
        """Small groups, then larger ones."""
        for _ in range(3):
            yield shared(Sizes(size(rng, 1, 300), size(rng, 1, 120), size(rng, 1, 120), size(rng, 1, 12)), plan)
        yield shared(Sizes(size(rng, 200, 600), size(rng, 130, 300), size(rng, 130, 500), size(rng, 2, 9)), plan)

    def probed(self, operator: Operator, plan: GroupedPlan, rng: np.random.Generator) -> list[Shape]:
        """Several tiles, several chains."""
        return [shared(Sizes(300, 140, 300, 3), plan), shared(Sizes(40, 20, 4200, 2), plan)]


__all__ = ["GroupedShapes", "shared"]
