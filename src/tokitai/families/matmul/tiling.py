"""How a matrix product is laid over the threads of a GPU: tiles of the result, slabs along k, sums that meet later.

A block of threads works on a tile of the result, through slabs of the operands in shared memory. Chains of 4096 along k
are nodes of one tree: where tiles are few, whole subtrees of chains are shared out among blocks, and a second kernel
adds up what these leave; where they are many, a block computes one chain after another and keeps the sums that wait.
A tiling decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...lang import FIXED_BITS, MATMUL_BLOCK, Sizes
from ...lower.gpu import Step
from .plan import ProductPlan

ENOUGH = 100  # blocks that keep a GPU at work
FEW = 32  # tiles by warpgroups that take less time than many smaller ones do without
MOST_UNITS = 256  # blocks among which chains are shared out, where nobody says how many
PIPELINE_BLOCKS = 144  # as many as a Hopper GPU has multiprocessors
ROOMS = 1024  # blocks at a time that keep sums which wait
MOST_BLOCKS = 2**31 - 1
FINISH_THREADS = 256
MOST_PRODUCTS = 8  # of one left operand
MOST_FIXED_PRODUCTS = 4  # the same, whose slices have room in shared memory


@dataclass(frozen=True)
class Tiling:
    """One way to lay out a product."""

    rows: int  # of a block's tile
    cols: int  # the same, of each product
    tall: int  # rows of a thread's tile
    wide: int  # columns of it, of each product
    depth: int  # products along k in a slab, where accumulators have four bytes; half of them where they have eight
    lanes: int  # threads side by side, of 32 that work on neighbouring rows and columns
    unrolled: int  # products along k whose instructions follow each other; fewer take fewer registers
    width: int  # elements to an access at most: 8, 4, 2 or 1
    per_sm: int = 1  # blocks that shall fit on a multiprocessor at least: fewer registers a thread
    matrix: bool = False  # sums in f64 by matrix units
    atom: bool = False  # 16-bit operands are multiplied by matrix units; elsewhere their steps are computed by integers
    stages: int = 0  # of the ring that feeds warpgroups: of Hopper's kernels alone
    alternate: bool = False  # each warpgroup has tiles of its own: one stores while the other multiplies
    line: int = 128  # bytes of a stage for each row and each column, of all slices
    once: bool = False  # a block works on one tile: of groups with one chain along k, which takes fewer registers

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 384 if self.stages else self.rows // self.tall * (self.cols // self.wide)

    def shared_bytes(self, products: int) -> int:
        """Bytes of shared memory that a launch gives a block: the ring, which begins at a multiple of 1,024, and 16 KiB
        for each of two warpgroups' results."""
        stage = self.line * (self.rows + products * self.cols)
        return self.stages * stage + 1024 + (32 << 10) if self.stages else 0

    def __str__(self) -> str:
        if self.stages:
            turns = " in turns" * self.alternate
            return f"tiles of {self.rows} x {self.cols} by warpgroups{turns}, fed through {self.stages} stages"
        units = ", matrix units" * (self.matrix or self.atom)
        return (
            f"tiles of {self.rows} x {self.cols}, {self.tall} x {self.wide} of each of {self.threads} threads, "
            f"{self.depth} along k at a time, {self.width} elements an access{units}"
        )


# From large to small, by bytes of an accumulator. Measured on an H200 (bench/gpu_products.py).
TILINGS: dict[int, tuple[Tiling, ...]] = {
    4: (
        Tiling(128, 256, 16, 8, 16, 8, 16, 8),
        Tiling(64, 64, 4, 8, 16, 8, 16, 8, per_sm=4),
        Tiling(32, 32, 4, 4, 16, 8, 16, 8, per_sm=8),
    ),
    8: (
        Tiling(128, 64, 8, 8, 16, 8, 8, 8, per_sm=2),
        Tiling(64, 32, 4, 4, 16, 8, 2, 8, per_sm=4),
        Tiling(32, 32, 4, 4, 16, 8, 2, 8, per_sm=8),
    ),
}

MATRIX_TILINGS = (
    Tiling(128, 128, 4, 16, 16, 4, 8, 8, matrix=True),
    Tiling(64, 64, 4, 8, 16, 4, 8, 8, per_sm=2, matrix=True),
    Tiling(32, 32, 4, 4, 16, 4, 8, 8, per_sm=4, matrix=True),
)


FUSED_TILINGS = (  # whose slabs have room in 48 KiB as hashes, too
    Tiling(128, 64, 8, 8, 32, 4, 16, 8),
    Tiling(64, 64, 4, 8, 32, 4, 16, 8, per_sm=2),
    Tiling(32, 32, 4, 4, 32, 4, 16, 8, per_sm=4),
)


FIXED_TILINGS = {  # by bits: each slice of an operand has lines of its own in shared memory, each weight its sums
    "fixed8": (
        Tiling(128, 128, 8, 8, 32, 4, 16, 8),
        Tiling(64, 64, 4, 8, 32, 4, 16, 8, per_sm=2),
        Tiling(32, 32, 4, 4, 32, 4, 16, 8, per_sm=4),
    ),
    "fixed16": (Tiling(128, 64, 4, 8, 32, 4, 16, 8), Tiling(32, 32, 4, 4, 32, 4, 16, 8, per_sm=4)),
    "fixed24": (Tiling(64, 64, 4, 4, 32, 4, 16, 8), Tiling(32, 32, 2, 4, 32, 4, 16, 8, per_sm=2)),
}
CUT_LINES, CUT_THREADS, MOST_CUTS = 32, 256, 1 << 20  # of the kernel that cuts operands into slices


# Rows, columns and stages of 64 along k, as many as shared memory has room for.
PIPELINES = (
    Tiling(128, 256, 0, 0, 64, 0, 0, 8, atom=True, stages=4),
    Tiling(128, 128, 0, 0, 64, 0, 0, 8, atom=True, stages=6),
    Tiling(128, 64, 0, 0, 64, 0, 0, 8, atom=True, stages=8),
)
# A warpgroup of its own for each tile: one stores while the other multiplies.
TURNS = Tiling(128, 128, 0, 0, 64, 0, 0, 8, atom=True, stages=6, alternate=True)
# The same in fixed point: rows, columns, products along k and stages; a line of a stage has all of its digits.
FIXED_PIPELINES = {
    "fixed8": Tiling(128, 256, 0, 0, 128, 0, 0, 8, atom=True, stages=4),
    "fixed16": Tiling(128, 128, 0, 0, 128, 0, 0, 8, atom=True, stages=3, line=256),
    "fixed24": Tiling(128, 64, 0, 0, 64, 0, 0, 8, atom=True, stages=5, line=192),
}


def pipelines(plan: ProductPlan) -> list[Tiling]:
    """The tilings for warpgroups, from large to small, that of alternating ones first; several products share the
    columns of a tile. Groups in fixed point have none."""
    count = len(plan.products)
    if plan.fixed and plan.graph.ragged:
        return []
    every, least = ((FIXED_PIPELINES[plan.accumulator],), 32) if plan.fixed else ((TURNS, *PIPELINES), 64)
    return [replace(t, cols=t.cols // count) for t in every if t.cols % (least * count) == 0]


def _pipeline_fits(tiling: Tiling, sizes: Sizes) -> bool:
    """Whether a product has blocks enough of a tiling for warpgroups. Those that alternate take two tiles a block, and
    sums of one chain along k alone."""
    tiles = tiles_of(tiling, sizes)
    if tiling.alternate:
        return chains_of(sizes) == 1 and sizes.ragged != "k" and tiles >= 2 * ENOUGH
    return tiles * chains_of(sizes) >= ENOUGH


def worth_a_pipeline(tiling: Tiling, sizes: Sizes) -> bool:
    """Whether a product in fixed point has work enough for few large tiles by warpgroups."""
    units = tiles_of(tiling, sizes) * chains_of(sizes)
    return FEW <= units < 2**31 and min(sizes[0], sizes[1], sizes.inner) > 0


def offered(plan: ProductPlan, width: int, matrix: bool = False) -> Iterator[Tiling]:
    """The tilings of a plan, from large to small; several products share the columns of a tile. With ``matrix`` sums in
    f64, steps of 16-bit operands and products of slices take matrix units."""
    if plan.accumulator == "fused16" or plan.fixed:
        *larger, smallest = FIXED_TILINGS.get(plan.accumulator, FUSED_TILINGS)
        for t in (*_shared(plan, larger), smallest):
            yield replace(t, width=width, atom=matrix)
        return
    wide = plan.accumulator == "f64"
    *larger, smallest = MATRIX_TILINGS if wide and matrix else TILINGS[8 if wide else 4]
    count = len(plan.products)
    if not wide and str(plan.left.data[1]) == "f32":  # then a slab of the largest holds as many bytes as one of f16
        larger[0] = replace(larger[0], depth=8, unrolled=8)
    for t in _shared(plan, larger):
        yield replace(t, width=width)
    yield replace(smallest, width=width, per_sm=1 if count > 1 else smallest.per_sm)


def _shared(plan: ProductPlan, tilings: Sequence[Tiling]) -> Iterator[Tiling]:
    """Those tilings whose columns several products can share."""
    count = len(plan.products)
    for t in tilings:
        if t.wide % (4 * count) == 0:
            yield replace(t, cols=t.cols // count, wide=t.wide // count)


def described(plan: ProductPlan, used: Iterable[Tiling] = ()) -> dict[str, object]:
    """The plan in words: of the CPU's what GPUs have as well, and the tiles that were used, or else all on offer, in
    fixed point those for warpgroups first."""
    both = ("products", "layout", "accumulator", "groups share")
    of_both = {k: v for k, v in plan.describe().items() if k in both}

    def unit(t: Tiling) -> str:
        by_groups = plan.fixed and t.stages
        return " by Hopper's warpgroups" if by_groups else " by matrix units" * (t.matrix or t.atom)

    every = used or [*(pipelines(plan) if plan.fixed else ()), *offered(plan, 8)]
    return of_both | {"tiles": ", ".join(dict.fromkeys(f"{t.rows} x {t.cols}{unit(t)}" for t in every))}


def tiling_of(plan: ProductPlan, sizes: Sizes, width: int, matrix: bool = False, pipeline: bool = False) -> Tiling:
    """The largest tiling with blocks enough for a GPU, or the smallest that there is; with ``pipeline`` those for
    warpgroups."""
    if pipeline:
        every = pipelines(plan)
        return next((t for t in every if _pipeline_fits(t, sizes)), every[-1])
    every = list(offered(plan, width, matrix))
    found = next((t for t in every if tiles_of(t, sizes) * chains_of(sizes) >= ENOUGH), every[-1])
    alone = (
        sizes.ragged != "" and chains_of(sizes) == 1 and tiles_of(every[-1], sizes) <= MOST_BLOCKS
    )  # of fallbacks, too
    return replace(found, once=alone)


def fallbacks(plan: ProductPlan, tiling: Tiling) -> Iterator[Tiling]:
    """A tiling, then what to try where threads lack registers: fewer blocks on a multiprocessor, of groups shorter
    slabs, fewer instructions that follow each other, smaller tiles; in fixed point more threads."""
    if tiling.stages:
        yield tiling
        yield from (t for t in pipelines(plan) if t.cols <= tiling.cols and not t.alternate and t != tiling)
        return
    for per_sm in range(tiling.per_sm, 0, -1):
        yield replace(tiling, per_sm=per_sm)
    chain = plan.accumulator in ("f32", "f64") and not tiling.matrix
    if chain and plan.graph.ragged and tiling.tall > tiling.wide and len(plan.products) == 1:
        yield replace(tiling, depth=8, unrolled=8)
        yield replace(tiling, depth=8, unrolled=2, tall=tiling.wide, wide=tiling.tall)
    if chain and tiling.unrolled > 2:
        yield replace(tiling, unrolled=2, per_sm=1)
    for t in offered(plan, tiling.width, tiling.matrix or tiling.atom):
        if t.rows * t.cols < tiling.rows * tiling.cols:
            yield replace(t, once=tiling.once)
    if plan.fixed:  # more threads, that have fewer columns each
        yield replace(t, wide=2, once=tiling.once)


def tiles_of(tiling: Tiling, sizes: Sizes) -> int:
    """Tiles of all products of a batch; as many as there can be where its groups share out rows."""
    across = -(-sizes[1] // tiling.cols)
    if sizes.ragged == "r":
        some = min(sizes.batch, sizes[0])  # that have a row at least
        return (some + (sizes[0] - some) // tiling.rows) * across
    return sizes.batch * -(-sizes[0] // tiling.rows) * across


def _elements_of(sizes: Sizes) -> int:
    """Elements of all results."""
    return sizes[0] * sizes[1] * (1 if sizes.ragged == "r" else sizes.batch)


def chains_of(sizes: Sizes) -> int:
    """Chains along k, of a group at most; one where there is nothing to add up."""
    return max(1, -(-sizes.inner // MATMUL_BLOCK))


def together(tiling: Tiling, sizes: Sizes, most: int = MOST_UNITS) -> int:
    """How many neighbouring chains a block computes, a power of two: a whole node of the tree, or all of it. Chains are
    shared out among `most` blocks."""
    chains, count = chains_of(sizes), 1
    while count < chains and tiles_of(tiling, sizes) * -(-chains // count) > most:
        count *= 2
    return count


def _units(tiling: Tiling, sizes: Sizes, most: int) -> tuple[int, int, int]:
    """Parts into which chains are shared out, what blocks work on in all, and levels of sums that wait."""
    chains, count = chains_of(sizes), together(tiling, sizes, most)
    parts = -(-chains // count)
    return parts, parts * tiles_of(tiling, sizes), (min(chains, count) - 1).bit_length()


def product_steps(tiling: Tiling, sizes: Sizes, most: int = MOST_UNITS, products: int = 1) -> list[Step]:
    """The launches, in order. Units of groups differ: a GPU's own order balances them better than equal turns."""
    parts, units, levels = _units(tiling, sizes, most)
    in_turn = (levels > 0 and not sizes.ragged) or tiling.stages > 0
    most_blocks = PIPELINE_BLOCKS if tiling.stages else ROOMS if levels else MOST_BLOCKS
    shared = tiling.shared_bytes(products)
    steps = [Step("work", min(units, most_blocks), tiling.threads, in_turn, shared)]
    if parts > 1:
        steps.append(Step("finish", min(-(-_elements_of(sizes) // FINISH_THREADS), MOST_BLOCKS), FINISH_THREADS))
    return steps


def workspace_bytes(plan: ProductPlan, tiling: Tiling, sizes: Sizes, structure: bool, most: int = MOST_UNITS) -> int:
    """Sums that wait, for each block that is at work, and the sums of each part; enough for smaller tiles as well."""
    each = 8 if structure or plan.accumulator == "f64" else 4
    sums = each * len(plan.products) * max(_workspace(t, sizes, most) for t in fallbacks(plan, tiling))
    return sums + cut_bytes(plan, sizes, structure, tiling)


def cut_steps(plan: ProductPlan, sizes: Sizes, tiling: Tiling) -> list[Step]:
    """The launch that cuts operands into slices, where there is one; it takes strips of lines in turn, or single lines
    for warpgroups."""
    lines = 1 if tiling.stages else CUT_LINES
    items = [sizes.batch] * 2 if sizes.ragged != "r" else [1, sizes.batch]
    strips = [-(-n // lines) * i * chains_of(sizes) for n, i in zip(sizes[:2], items, strict=True)]
    most = min(max(*strips, 1), MOST_CUTS)
    return [Step("cut", most, CUT_THREADS, in_turn=True)] if plan.fixed else []


def cut_bytes(plan: ProductPlan, sizes: Sizes, structure: bool, tiling: Tiling) -> int:
    """The integers and the units of all operands: as ``Buffers`` in digits.h has them."""
    if not plan.fixed:
        return 0
    slices, element = (1, 8) if structure else (FIXED_BITS[plan.accumulator] // 8, 1)
    slab = 4 if structure else tiling.depth
    groups = sizes.batch if sizes.ragged == "k" else 0
    pitch, blocks = (-(-sizes.inner // slab) + groups) * slab, -(-sizes.inner // MATMUL_BLOCK) + groups
    left, right = {"r": (1, sizes.batch), "k": (1, 1)}.get(sizes.ragged, (sizes.batch, sizes.batch))
    lines = left * sizes[0] + right * sizes[1] * len(plan.products)
    return lines * (slices * element * pitch + (8 if structure else 4) * blocks) + 64


def _workspace(tiling: Tiling, sizes: Sizes, most: int) -> int:
    parts, units, levels = _units(tiling, sizes, most)
    left = parts * _elements_of(sizes) if parts > 1 else 0
    rooms = min(units, PIPELINE_BLOCKS if tiling.stages else ROOMS)
    return rooms * levels * tiling.rows * tiling.cols + left
