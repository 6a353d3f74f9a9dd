"""The sizes that a kernel is tried at: edges of vectors and tiles, and sizes that are drawn, so that none is safe."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..families import AttentionPlan, GroupedPlan, Plan, ProductPlan
from ..lang import Operator, Sizes
from ..runtime import shapes
from ..verification import suite

SMALL = ((1, 1), (3, 33), (5, 257))  # at which noise of every kind is tried
COLUMNS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 384, 641, 1000)
OF_USE = ((67, 130), (96, 1024), (17, 4096))
FLAT_OF_USE = (98304, 69632)  # elements, where there is one row
EMPTY = ((0, 5), (0, 64))

PRODUCTS = (
    Sizes(1, 1, 1), Sizes(3, 5, 7), Sizes(7, 17, 33), Sizes(25, 65, 130), Sizes(37, 18, 257), Sizes(1, 300, 12),
    Sizes(150, 7, 65), Sizes(2, 3, 4097), Sizes(2, 3, 0), Sizes(0, 3, 4),
)  # fmt: skip
ATTENTION = (
    Sizes(1, 1, 1), Sizes(3, 5, 7), Sizes(17, 9, 13), Sizes(33, 16, 33), Sizes(70, 257, 3), Sizes(9, 300, 12),
    Sizes(4, 6, 257), Sizes(3, 4099, 3), Sizes(0, 3, 4),
)  # fmt: skip
GROUPED = (
    Sizes(1, 1, 1, 1), Sizes(3, 5, 7, 2), Sizes(25, 33, 12, 3), Sizes(40, 18, 257, 7), Sizes(2, 65, 130, 5),
    Sizes(192, 64, 96, 12), Sizes(2, 3, 0, 3), Sizes(0, 3, 4, 2),
)  # fmt: skip


def small(operator: Operator, plan: Plan) -> list[tuple[int, int]]:
    """Sizes at which noise of every kind is tried."""
    if isinstance(plan, GroupedPlan):
        return [shared(Sizes(3, 5, 7, 2), plan), shared(Sizes(25, 33, 12, 3), plan)]
    if isinstance(plan, (ProductPlan, AttentionPlan)):
        return [Sizes(3, 5, 7), Sizes(17, 9, 33)]
    return [(min(r, operator.contract.max_rows), c) for r, c in SMALL]


def edges(operator: Operator, plan: Plan) -> list[tuple[int, int]]:
    """Edges of vectors and tiles, nothing along a side, and sizes of ordinary use."""
    if isinstance(plan, GroupedPlan):
        return [shared(s, plan) for s in GROUPED]
    if isinstance(plan, AttentionPlan):
        return [*ATTENTION, *([Sizes(3, 5, 7, 2), Sizes(18, 17, 5, 3)] if operator.contract.batched else [])]
    if isinstance(plan, ProductPlan):
        return [*PRODUCTS, *([Sizes(3, 5, 7, 2), Sizes(7, 17, 33, 3)] if operator.contract.batched else [])]
    if operator.contract.lists:
        return [*((1, c) for c in (*COLUMNS, *FLAT_OF_USE)), (0, 5)]
    return [*((3, c) for c in COLUMNS), *((r, 17) for r in (1, 2, 31, 33, 65)), *OF_USE, *EMPTY]


def drawn(operator: Operator, plan: Plan, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Sizes that nobody knows before: small ones, some with long and with short sides, and large ones."""

    def size(low: float, high: float) -> int:
        return int(2 ** rng.uniform(np.log2(low), np.log2(high + 1)))

    if isinstance(plan, GroupedPlan):
        for _ in range(3):
            yield shared(Sizes(size(1, 300), size(1, 120), size(1, 120), size(1, 12)), plan)
        yield shared(Sizes(size(200, 600), size(130, 300), size(130, 500), size(2, 9)), plan)
    elif isinstance(plan, AttentionPlan):
        for _ in range(3):
            yield Sizes(size(1, 120), size(1, 200), size(1, 80))
        yield Sizes(size(130, 260), size(300, 700), size(33, 80))
        yield Sizes(size(20, 60), size(2000, 3000), size(16, 40))
    elif isinstance(plan, ProductPlan):
        for _ in range(4):
            yield Sizes(size(1, 200), size(1, 200), size(1, 600))
        yield Sizes(size(130, 400), size(130, 400), size(600, 1500))
        yield Sizes(size(65, 130), size(65, 130), size(4097, 6000))
        yield Sizes(size(2, 20), size(300, 3000), size(20, 300))
        yield Sizes(size(300, 3000), size(2, 20), size(20, 300))
    elif operator.contract.lists:
        for low, high in ((2, 100), (100, 5000), (5000, 60000), (100000, 400000)):
            yield 1, size(low, high)
    else:
        for _ in range(4):
            yield size(2, 300), size(2, 1500)
        yield size(200, 400), size(1000, 2500)
        yield 3, size(30000, 66000)
        yield size(2000, 8000), size(2, 9)


def probed(operator: Operator, plan: Plan, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Sizes of exact probes: long sums of few results, and results beyond the tiles of most kernels."""
    if isinstance(plan, GroupedPlan):
        return [shared(Sizes(300, 140, 300, 3), plan), shared(Sizes(40, 20, 4200, 2), plan)]
    if isinstance(plan, AttentionPlan):
        return [Sizes(33, 300, 40)]
    if isinstance(plan, ProductPlan):
        return [Sizes(140, 150, 1100), Sizes(20, 20, int(rng.integers(4097, 9000)))]
    if operator.contract.lists:
        return [(1, 1000), (1, int(rng.integers(40_000, 70_000)))]
    return [(40, 1100), (2, int(rng.integers(33_000, 60_000))), (int(rng.integers(2000, 4000)), 5)]


def blocked(operator: Operator, plan: Plan, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Sizes at which each row has its own block of columns."""
    if isinstance(plan, (ProductPlan, AttentionPlan)) or operator.contract.lists:
        return []
    return [(12, 300), (16, int(rng.integers(33_000, 45_000)))]


def shared(sizes: Sizes, plan: GroupedPlan) -> Sizes:
    """Sizes of groups that share out rows, as those of groups that share out what the plan has."""
    return suite._shared(sizes, plan)


def allowed(operator: Operator, shape: tuple[int, int]) -> bool:
    """Whether a shape lies within the operator's contract, and rows have columns: what a mean over nothing is, is for
    each kernel to say."""
    return shapes.allowed(operator, shape) and shape[1] > 0
