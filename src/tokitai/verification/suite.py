"""Which shapes and inputs a verification tries: every branch of a plan, hard inputs, noise of several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..families import AttentionPlan, FlatPlan, GroupedPlan, Plan, ProductPlan
from ..lang import Operator, Sizes
from ..runtime.shapes import allowed
from . import cases, drawn
from .cases import Case

# Of what is run. Certificates that do not name it are of the first, and the cases of each go on being what they were:
# the second draws from its seed, the third has shapes at which blocks take several units in turn.
VERSION = 3
STRUCTURE_LIMIT = 1 << 23  # elements: beyond, hashing a whole tensor takes longer than a person waits

# Odd sizes, tails of vectors of 4, 8 and 16 lanes, blocks of eight vectors and more than one of them.
BRANCH_COLS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 255, 257, 384, 641, 1000)
# One group of four rows and less, blocks of 32 rows, lone and paired blocks.
BRANCH_ROWS = (1, 2, 3, 4, 5, 31, 32, 33, 63, 65, 97, 130)
EMPTY = ((0, 5), (3, 0), (0, 0))


# Of a schedule's threads and chunks: a lane, part of a warp, whole warps, several chunks, rows beyond the registers;
# whole and ragged rows, rows of one block more. The simulated device is slow and takes a few of them.
GPU_COLS = (
    1, 3, 7, 8, 9, 16, 17, 31, 64, 65, 128, 200, 255, 256, 257, 512, 513, 1000, 1024, 1025, 2048, 2056, 3000, 4096,
    4104, 8192, 8200, 12288, 16392, 20000, 32768, 32776, 50257, 65536 + 8,
)  # fmt: skip
SIM_COLS = (1, 8, 17, 200, 257, 1025)
SIM_LONG = ((2, 2056),)


# Of a product: edges of the micro-kernel's tiles and of what is packed at a time, along rows, columns and k; chains of
# 4096, one and two and three of them and what is left; nothing along each side; batches that are shared out and not.
PRODUCTS: tuple[tuple[int, int], ...] = (
    Sizes(1, 1, 1), Sizes(1, 1, 2), Sizes(3, 5, 7), Sizes(6, 16, 9), Sizes(7, 17, 33), Sizes(12, 32, 31),
    Sizes(13, 33, 1), Sizes(25, 65, 130), Sizes(2, 129, 255), Sizes(5, 9, 256), Sizes(37, 18, 257), Sizes(1, 300, 12),
    Sizes(150, 7, 65), Sizes(301, 2, 19), Sizes(2, 3, 4096), Sizes(3, 2, 4097), Sizes(1, 2, 8193), Sizes(2, 1, 12290),
    Sizes(3, 1031, 5), Sizes(2053, 3, 4), Sizes(2, 3, 0), Sizes(0, 3, 4), Sizes(3, 0, 4), Sizes(0, 0, 0),
)  # fmt: skip
BATCHES: tuple[tuple[int, int], ...] = (Sizes(3, 5, 7, 2), Sizes(7, 17, 33, 3), Sizes(2, 3, 5, 40), Sizes(2, 3, 0, 2))
# Larger tiles of a GPU's kernels, cut off at the edges.
GPU_PRODUCTS: tuple[tuple[int, int], ...] = (Sizes(650, 643, 19), Sizes(129, 13000, 9))
# Of products in groups, by rows, columns, inner side and groups; where these share out the inner side, rows are that.
GROUPED = (
    Sizes(1, 1, 1, 1), Sizes(3, 5, 7, 2), Sizes(25, 33, 12, 3), Sizes(40, 18, 257, 7), Sizes(70, 9, 31, 64),
    Sizes(2, 65, 130, 5), Sizes(150, 2, 19, 2), Sizes(2500, 3, 4, 3), Sizes(5, 1031, 5, 2), Sizes(300, 260, 3, 200),
    Sizes(3, 2, 4097, 2), Sizes(9000, 1, 2, 2), Sizes(13000, 2, 1, 1), Sizes(2, 3, 0, 3), Sizes(0, 3, 4, 2),
    Sizes(3, 0, 4, 2),
)  # fmt: skip
GROUPED_OF_USE = Sizes(192, 64, 96, 12)
# Larger tiles of a GPU's kernels, by the side that groups share out.
GPU_GROUPED = {
    "r": (Sizes(650, 643, 19, 3, "r"), Sizes(129, 8600, 9, 3, "r")),
    "k": (Sizes(140, 643, 40, 4, "k"), Sizes(130, 2600, 20, 5, "k")),
}
# Of attention: panels of 2, 16 and 32 queries, whole and not; groups of eight keys and what is left, tiles of keys and
# of the inner side; pieces of 256, chains of 4096 along keys, queries and the inner side; nothing along each; batches.
ATTENTION: tuple[tuple[int, int], ...] = (
    Sizes(1, 1, 1), Sizes(2, 2, 2), Sizes(3, 5, 7), Sizes(16, 8, 6), Sizes(17, 9, 13), Sizes(31, 33, 16),
    Sizes(33, 16, 33), Sizes(65, 25, 64), Sizes(5, 130, 9), Sizes(70, 257, 3), Sizes(9, 300, 12), Sizes(4, 6, 257),
    Sizes(3, 4099, 3), Sizes(2, 3, 4098), Sizes(4101, 3, 2), Sizes(8195, 2, 1), Sizes(1, 8200, 1), Sizes(1, 12291, 2),
    Sizes(3, 5, 0), Sizes(3, 0, 4), Sizes(0, 3, 4), Sizes(0, 0, 0),
    Sizes(3, 5, 7, 2), Sizes(18, 17, 5, 3), Sizes(2, 3, 4, 40), Sizes(3, 0, 2, 2), Sizes(0, 3, 2, 2),
)  # fmt: skip
# Larger tiles of a GPU's kernels: two pieces of the inner side; several tiles and steps. What the simulated device
# would take a minute for: the scores of an inner side of several chains, for each of its pieces.
GPU_ATTENTION: tuple[tuple[int, int], ...] = (Sizes(2, 5, 66, 200), Sizes(65, 70, 9, 100))
SIM_LEFT_OUT = Sizes(2, 3, 4098)
ATTENTION_OF_USE: tuple[tuple[int, int], ...] = (Sizes(96, 128, 64),)
PRODUCTS_OF_USE: tuple[tuple[int, int], ...] = (Sizes(64, 192, 128),)


def structure_shapes(operator: Operator, plan: Plan, lanes: int, device: str) -> list[tuple[int, int]]:
    """Shapes at which it is shown that a kernel evaluates its definition for all inputs."""
    if isinstance(plan, GroupedPlan):
        return [*(_shared(s, plan) for s in GROUPED), *_larger(plan, device)]
    if isinstance(plan, AttentionPlan):
        kept = any(o.space == "r" for o in plan.graph.outputs)  # without an inner side there is nothing else to compare
        every = (*ATTENTION, *(GPU_ATTENTION if device != "cpu" else ()))
        return [s for s in every if (kept or Sizes.of(s).inner) and (device != "sim" or s != SIM_LEFT_OUT)]
    if isinstance(plan, ProductPlan):
        return [*PRODUCTS, *(BATCHES if operator.contract.batched else ()), *_larger(plan, device)]
    most = operator.contract.max_rows
    if device == "cpu":
        return branch_shapes(plan, lanes, most) + list(EMPTY)
    simulated = device == "sim"
    shapes = [(min(3, most), c) for c in (SIM_COLS if simulated else GPU_COLS)]
    if isinstance(plan, FlatPlan):
        shapes += [(1, 4096), (1, 4097)] + ([] if simulated else [(1, 3 * 4096 - 1), (1, 1 << 20), (1, 5 * 4096 + 3)])
    else:
        shapes += SIM_LONG if simulated else [(2, 1 << 20), (100003, 5)]
    rows = (33, 70, 1100) if simulated else (1, 2, 31, 32, 33, 64, 97, 1000)
    some = [r for r in (rows if plan.block > 1 else (1, 2, 7)) if r <= most]
    shapes += [(r, c) for r in some for c in ((17,) if simulated else (9, 300))]
    return [*(s for s in dict.fromkeys(shapes) if s[0] <= most), *EMPTY]


def expanded_shapes(operator: Operator, plan: Plan) -> list[tuple[int, int]]:
    """Shapes of structure runs whose inputs have one row in memory that stands for all: with a row stride of 0."""
    if operator.contract.lists or isinstance(plan, (AttentionPlan, GroupedPlan)):
        return []
    return [Sizes(7, 17, 33)] if isinstance(plan, ProductPlan) else [(35, max(21, operator.contract.min_cols))]


def branch_shapes(plan: Plan, lanes: int, max_rows: int = 1 << 31) -> list[tuple[int, int]]:
    """Shapes that together take every branch of a plan with vectors of so many lanes, of at most `max_rows` rows where
    an operator takes no more; but for results too large for any cache (`STREAM_BYTES`), which would take too long."""
    block = lanes * max(lanes, 8)  # columns that the tree takes at a time
    cols = sorted({*BRANCH_COLS, lanes - 1 or 1, lanes, lanes + 1, block - 1, block, block + 1, 3 * block + lanes + 1})
    shapes = [(min(3, max_rows), c) for c in cols]
    if isinstance(plan, FlatPlan):
        tiles = ((1, plan.tile), (2, plan.tile + 1), (3, 2 * plan.tile - 1), (1, 5 * plan.tile + 3))
        shapes += [(min(r, max_rows), c) for r, c in tiles]
    rows = BRANCH_ROWS if plan.block > 1 else (1, 2, 7)
    shapes += [(r, lanes + 1) for r in rows if r <= max_rows]
    return list(dict.fromkeys(shapes))


def structure_ids(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str = "cpu",
    version: int = VERSION,
) -> list[tuple[int, int]]:  # fmt: skip
    """The shapes of all structure runs: those of the plan, and the shape asked for or those of ordinary use."""
    shapes = structure_shapes(operator, plan, lanes, device)
    shapes += [shape] if shape is not None else list(default_shapes(operator, plan, device, version))
    if version > 1:
        shapes += [*drawn.long_shapes(operator, plan, device), *drawn.shapes(operator, plan, device, seed)]
    if version > 2:
        shapes += drawn.in_turn(operator, plan, device)
    return [
        s for s in dict.fromkeys(shapes) if allowed(operator, s) and cases.work_of(s) <= STRUCTURE_LIMIT
    ]  # fmt: skip


def number_cases(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str = "cpu",
    version: int = 1,
) -> Iterator[Case]:  # fmt: skip
    """The cases of a verification, cheapest first: hard inputs, all values, seeded noise, the shape asked for."""
    graph = plan.graph
    yield from cases.hard(operator, graph)
    every = None if isinstance(plan, (ProductPlan, AttentionPlan)) else cases.exhaustive(operator, graph)
    if every is not None:
        yield every
    for how, chosen in seeded_ids(operator, plan, lanes, shape, seed, device, version):
        yield cases.seeded(operator, graph, how, chosen, seed)


def seeded_ids(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str,
    version: int = VERSION,
) -> list[tuple[str, tuple[int, int]]]:  # fmt: skip
    """How and in which shape the inputs of a verification's seeded cases are drawn.

    What the first version has is never changed: certificates name its cases, and are checked for ever.
    """
    of_use = [shape] if shape is not None else list(default_shapes(operator, plan, device, version))
    if isinstance(plan, (ProductPlan, AttentionPlan)):
        shapes = structure_shapes(operator, plan, lanes, device)
        tried = [(how, shapes[i + 3]) for i, how in enumerate(cases.FIRST_DRAWS)]
        # Structure runs take every shape for all inputs; numbers take every other one again.
        tried += [("normal", s) for s in (*shapes[::2], *_larger(plan, device), *of_use)]
    else:
        most = operator.contract.max_rows
        first = branch_shapes(plan, lanes, most) if device == "cpu" else structure_shapes(operator, plan, lanes, device)
        small = [(how, s) for how in cases.FIRST_DRAWS for s in ((1, 1), (3, 2 * lanes + 1), (5, 257))]
        # Structure runs take every branch for all inputs; numbers take one in three again, and shapes of ordinary use.
        some = first[:: 3 if device == "cpu" else 2]
        small += [("normal", s) for s in [(67, 130 if device == "cpu" else 200), *some, *EMPTY]]
        tried = [(how, (min(rows, most), cols)) for how, (rows, cols) in small]
        tried = [(how, s) for how, s in tried + [("normal", asked) for asked in of_use] if allowed(operator, s)]
    if version > 1:
        tried += drawn.seeded_ids(operator, plan, lanes, device, seed)
    return [(how, s) for how, s in dict.fromkeys(tried) if isinstance(s, Sizes) or allowed(operator, s)]


def default_shapes(
    operator: Operator, plan: Plan, device: str = "cpu", version: int = 1
) -> Sequence[tuple[int, int]]:  # fmt: skip
    """Shapes of ordinary use, where none is asked for."""
    if isinstance(plan, GroupedPlan):
        return [_shared(GROUPED_OF_USE, plan)]
    if isinstance(plan, AttentionPlan):
        return ATTENTION_OF_USE
    if isinstance(plan, ProductPlan):
        return PRODUCTS_OF_USE
    if device == "sim":
        return []
    if operator.contract.lists:
        return [(1, 98304), (1, 69632)]
    return [(96, 1024)] if version > 1 and drawn.long_shapes(operator, plan, device) else [(96, 1024), (17, 4096)]


def _larger(plan: Plan, device: str) -> Sequence[tuple[int, int]]:
    """Shapes of larger tiles than few elements take."""
    if device == "cpu" or not isinstance(plan, ProductPlan):
        return ()
    return GPU_GROUPED[plan.share] if isinstance(plan, GroupedPlan) else GPU_PRODUCTS


def _shared(sizes: Sizes, plan: GroupedPlan) -> Sizes:
    """Sizes of groups that share out rows, as those of groups that share out what the plan has."""
    rows, cols = sizes
    if plan.share == "k":
        return Sizes(sizes.inner, cols, rows, sizes.batch, "k")
    return Sizes(rows, cols, sizes.inner, sizes.batch, "r")
