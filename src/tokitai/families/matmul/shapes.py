"""Shapes of products: rows, columns, the K dimension, a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from ...lang import Operator, Sizes
from ..family import Plan
from ..shapes import Seeded, Shape, Shapes, side, size
from .plan import ProductPlan

P = TypeVar("P", bound=Plan)

# Edges of the micro-kernel's tiles and of what is packed at a time, along rows, columns and k; chains of 4096, one and
# two and three of them and what is left; nothing along each side; batches that are shared out and not.
PRODUCTS: tuple[Shape, ...] = (
    Sizes(1, 1, 1), Sizes(1, 1, 2), Sizes(3, 5, 7), Sizes(6, 16, 9), Sizes(7, 17, 33), Sizes(12, 32, 31),
    Sizes(13, 33, 1), Sizes(25, 65, 130), Sizes(2, 129, 255), Sizes(5, 9, 256), Sizes(37, 18, 257), Sizes(1, 300, 12),
    Sizes(150, 7, 65), Sizes(301, 2, 19), Sizes(2, 3, 4096), Sizes(3, 2, 4097), Sizes(1, 2, 8193), Sizes(2, 1, 12290),
    Sizes(3, 1031, 5), Sizes(2053, 3, 4), Sizes(2, 3, 0), Sizes(0, 3, 4), Sizes(3, 0, 4), Sizes(0, 0, 0),
)  # fmt: skip
BATCHES: tuple[Shape, ...] = (Sizes(3, 5, 7, 2), Sizes(7, 17, 33, 3), Sizes(2, 3, 5, 40), Sizes(2, 3, 0, 2))
GPU_PRODUCTS: tuple[Shape, ...] = (Sizes(650, 643, 19), Sizes(129, 13000, 9))  # larger tiles, cut off at the edges
PRODUCTS_OF_USE: tuple[Shape, ...] = (Sizes(64, 192, 128),)
JUDGED: tuple[Shape, ...] = (
    Sizes(1, 1, 1), Sizes(3, 5, 7), Sizes(7, 17, 33), Sizes(25, 65, 130), Sizes(37, 18, 257), Sizes(1, 300, 12),
    Sizes(150, 7, 65), Sizes(2, 3, 4097), Sizes(2, 3, 0), Sizes(0, 3, 4),
)  # fmt: skip


class InnerShapes(Shapes[P], Generic[P]):
    """Shapes of kernels whose shapes are `Sizes`."""

    def larger(self, plan: P, device: str) -> Sequence[Shape]:
        """Shapes of larger tiles than few elements take."""
        return ()

    def sizes(self, plan: P, rows: int, cols: int, inner: int, batch: int) -> Sizes:
        """The sizes of a plan's call."""
        return Sizes(rows, cols, inner, batch)

    def in_threads(self, operator: Operator, plan: P) -> Shape:
        """Longer than is packed at a time along k. Where there are several products, just as many as are shared out
        whole among four threads."""
        return self.sizes(plan, 21, 27, 530, 8 if operator.contract.batched else 1)

    def expanded(self, operator: Operator, plan: P) -> list[Shape]:
        """None."""
        return []

    def seeded(
        self, operator: Operator, plan: P, lanes: int, device: str, draws: Sequence[str], of_use: Sequence[Shape]
    ) -> list[Seeded]:
        """Structure runs take every shape for all inputs; numbers take every other one again."""
        shapes = self.structure(operator, plan, lanes, device)
        tried = [(how, shapes[i + 3]) for i, how in enumerate(draws)]
        return tried + [("normal", s) for s in (*shapes[::2], *self.larger(plan, device), *of_use)]

    def seeded_later(self, operator: Operator, plan: P, lanes: int, device: str) -> Iterator[Seeded]:
        """Exponents of all sizes."""
        yield "exponents", self.sizes(plan, 5, 9, 33, 1)
        yield "exponents", self.sizes(plan, 17, 33, 6, 1)

    def sampled(self, rng: np.random.Generator, operator: Operator, plan: P, device: str) -> Shape:
        """Small products."""
        rows = side(rng, 7)
        side(rng, 8 if device == "sim" else 11)  # columns of what has no K dimension: draws stay as they are
        cols, inner = side(rng, 7), side(rng, 7)
        return self.sizes(plan, rows, cols, inner, side(rng, 3) if operator.contract.batched else 1)

    def small(self, operator: Operator, plan: P) -> list[Shape]:
        """Less than a tile, and more."""
        return [Sizes(3, 5, 7), Sizes(17, 9, 33)]


class ProductShapes(InnerShapes[ProductPlan]):
    """Shapes of one product, or of a batch."""

    def larger(self, plan: ProductPlan, device: str) -> Sequence[Shape]:
        """A GPU's larger tiles."""
        return () if device == "cpu" else GPU_PRODUCTS

    def structure(self, operator: Operator, plan: ProductPlan, lanes: int, device: str) -> list[Shape]:
        """Every branch of the tilings for a device."""
        return [*PRODUCTS, *(BATCHES if operator.contract.batched else ()), *self.larger(plan, device)]

    def expanded(self, operator: Operator, plan: ProductPlan) -> list[Shape]:
        """Operands of one row in memory, where there are several."""
        return [] if operator.contract.lists else [Sizes(7, 17, 33)]

    def in_turn(self, operator: Operator, plan: ProductPlan, device: str) -> list[Shape]:
        """Several products whose chains along the K dimension are partitioned."""
        return [Sizes(3, 2, 4097, 2)] if operator.contract.batched else []

    def whole_blocks(self, operator: Operator, plan: ProductPlan, device: str) -> list[Shape]:
        """Two whole chains, which may be shared out."""
        return [Sizes(3, 2, 8192)]

    def whole_panels(self, operator: Operator, plan: ProductPlan, device: str) -> list[Shape]:
        """Of vectors of every width."""
        return [Sizes(5, 64, 256)]

    def partitioned(self, operator: Operator, plan: ProductPlan, device: str) -> list[Seeded]:
        """On a GPU three chains of two tiles, among every number of blocks."""
        return [("threads", Sizes(40, 3, 8200))] if device != "cpu" else []

    def of_use(self, operator: Operator, plan: ProductPlan, device: str, version: int) -> Sequence[Shape]:
        """Small ones do."""
        return PRODUCTS_OF_USE

    def edges(self, operator: Operator, plan: ProductPlan) -> list[Shape]:
        """Edges of tiles, two chains, batches."""
        return [*JUDGED, *([Sizes(3, 5, 7, 2), Sizes(7, 17, 33, 3)] if operator.contract.batched else [])]

    def unforeseen(self, operator: Operator, plan: ProductPlan, rng: np.random.Generator) -> Iterator[Shape]:
        """Each side short and long."""
        for _ in range(4):
            yield Sizes(size(rng, 1, 200), size(rng, 1, 200), size(rng, 1, 600))
        yield Sizes(size(rng, 130, 400), size(rng, 130, 400), size(rng, 600, 1500))
        yield Sizes(size(rng, 65, 130), size(rng, 65, 130), size(rng, 4097, 6000))
        yield Sizes(size(rng, 2, 20), size(rng, 300, 3000), size(rng, 20, 300))
        yield Sizes(size(rng, 300, 3000), size(rng, 2, 20), size(rng, 20, 300))

    def probed(self, operator: Operator, plan: ProductPlan, rng: np.random.Generator) -> list[Shape]:
        """Several tiles, several chains."""
        return [Sizes(140, 150, 1100), Sizes(20, 20, int(rng.integers(4097, 9000)))]


__all__ = ["InnerShapes", "ProductShapes"]
