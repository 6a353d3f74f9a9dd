"""How attention by steps of a matrix unit is laid over the threads of a GPU: fragments of tiles, slabs of heads.

A tiling decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...lang import MATMUL_BLOCK, Node, Sizes
from ...lower.gpu import CHUNK, Step
from ..matmul.tiling import MOST_BLOCKS, ROOMS
from .plan import AttentionPlan
from .tiling import ENOUGH, handed_on, kernels_of

DIMS = (16, 32, 64, 80, 96, 128)  # elements of a line in a slab
STAGES = 2  # of what a step needs of the other side


@dataclass(frozen=True)
class StepTiling:
    """One way to lay out attention by steps of a matrix unit."""

    rows: int  # of a block's tile
    cols: int  # of a step
    tiles: int  # of 16 rows that a warp has
    dim: int = 0  # elements of a line in a slab
    whole: bool = True  # whether a slab has all of a line
    width: int = CHUNK  # elements to an access
    per_sm: int = 2
    atom: bool = False  # by matrix units; elsewhere their steps are computed by integers
    warpgroups: bool = False  # by Hopper's instructions for four warps, which read K-tiles themselves

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.rows // self.tiles * 2

    def __str__(self) -> str:
        return (
            f"tiles of {self.rows} lines, {self.tiles * 16} a warp, {self.threads} threads, steps of {self.cols}, "
            f"{self.dim} of the inner side at a time, {self.width} elements an access"
            f"{', warpgroups' if self.warpgroups else ', matrix units' * self.atom}"
        )

    def shared_bytes(self, own: int, others: int, element: int) -> int:
        """Bytes of shared memory for slabs of so many operands of either side; results pass through it."""
        pitch = self.dim if self.warpgroups else (self.dim // CHUNK | 1) * CHUNK
        own, others = (own, STAGES * others) if self.whole else (1, 1)
        slabs = element * pitch * (own * self.rows + others * self.cols)
        return max(slabs, max(4, element) * self.rows // self.tiles * self.dim) + 1024 * self.warpgroups


# From large to small; steps are half as long where lines are longer than WIDE, whose sums take the registers.
TILINGS = (StepTiling(128, 64, 2), StepTiling(64, 64, 1), StepTiling(32, 64, 1))
WIDE = 80
FEW_SPILLS = 128  # bytes that a thread may spill: its walk takes thousands of steps


def sides_of(plan: AttentionPlan, kernel: str) -> tuple[list[Node], list[Node]]:
    """The operands of a kernel's own side, and those of the side that it walks along."""
    mine, other = (0, 1) if kernel == "work" else (1, 0)
    sums = plan.over_keys if kernel == "work" else plan.over_queries
    own = [n.args[mine] for n in plan.products]
    return list(dict.fromkeys(own)), list(
        dict.fromkeys([n.args[other] for n in plan.products] + [n.args[1] for n in sums])
    )


def shared_of(plan: AttentionPlan, tiling: StepTiling, kernel: str, structure: bool) -> int:
    """Bytes of shared memory that a launch of a kernel takes for slabs."""
    own, others = sides_of(plan, kernel)
    return tiling.shared_bytes(len(own), len(others), 8 if structure else 2)


def offered(plan: AttentionPlan, inner: int, width: int, atom: bool) -> Iterator[StepTiling]:
    """The tilings for heads of this size, from large to small; the largest has registers for one sum alone."""
    several = len(plan.products) > 1
    whole = inner <= DIMS[-1]
    dim = next(d for d in DIMS if d >= inner) if whole else 64 if inner <= 192 else 128
    for t in TILINGS[several:]:
        yield replace(t, cols=32 if dim > WIDE else t.cols, dim=dim, whole=whole, width=width, atom=atom)


def by_warpgroups(plan: AttentionPlan, sizes: Sizes, width: int) -> StepTiling | None:
    """A tiling for warpgroups: where blocks are enough, lines are read in whole chunks and fill most of a K-tile of 64
    or 128 elements. Sums of two results over lines of 128 do not leave registers for it."""
    several = len(plan.products) > 1
    if 32 < sizes.inner <= 64:
        found = StepTiling(64, 64, 1, 64, per_sm=2 if several else 3, atom=True, warpgroups=True)
    elif 96 < sizes.inner <= 128 and not several:
        found = StepTiling(128, 64, 1, 128, per_sm=1, atom=True, warpgroups=True)
    else:
        return None
    side = sizes[0] if "work" in kernels_of(plan) else sizes[1]
    return found if width == CHUNK and sizes.batch * -(-side // found.rows) >= ENOUGH // 2 else None


def tiling_of(
    plan: AttentionPlan, sizes: Sizes, width: int, atom: bool = False, structure: bool = False, shared: int = 227 << 10
) -> StepTiling:
    """The largest tiling with blocks enough for a GPU, or the smallest, whose slabs have room."""
    side = sizes[0] if "work" in kernels_of(plan) else sizes[1]
    every = list(offered(plan, sizes.inner, width, atom and not structure))
    chosen = next((t for t in every if sizes.batch * -(-side // t.rows) >= ENOUGH), every[-1])
    for t in (
        chosen,
        replace(chosen, dim=min(chosen.dim, 64), whole=chosen.dim <= 64),
        replace(chosen, dim=64, whole=False),
    ):
        if all(shared_of(plan, t, k, structure) + 8192 <= shared for k in kernels_of(plan)):
            return t
    return replace(every[-1], dim=16, whole=sizes.inner <= 16)


def fallbacks(tiling: StepTiling) -> Iterator[StepTiling]:
    """A tiling, then what to try where threads lack registers."""
    for per_sm in range(tiling.per_sm, 0, -1):
        yield replace(tiling, per_sm=per_sm)
    if tiling.warpgroups:
        small = replace(TILINGS[1], dim=tiling.dim, cols=32 if tiling.dim > WIDE else 64, width=tiling.width, atom=True)
        yield from (small, replace(small, per_sm=1))
        return
    for t in TILINGS:
        if t.rows < tiling.rows:
            yield replace(tiling, rows=t.rows, tiles=t.tiles, per_sm=t.per_sm)


def steps_of(plan: AttentionPlan, tiling: StepTiling, sizes: Sizes, structure: bool) -> list[Step]:
    """The launches, in order. Where sums of chains wait for each other blocks take several tiles in turn."""
    rows, cols = sizes
    steps = []
    for name in kernels_of(plan):
        side, along = (rows, cols) if name == "work" else (cols if sizes.inner else 0, rows)
        units, waits = sizes.batch * -(-side // tiling.rows), max(along, sizes.inner) > MATMUL_BLOCK
        if units:
            grid, shared = min(units, ROOMS if waits else MOST_BLOCKS), shared_of(plan, tiling, name, structure)
            steps.append(Step(name, grid, tiling.threads, in_turn=waits, shared=shared))
    return steps


def workspace_bytes(plan: AttentionPlan, tiling: StepTiling, sizes: Sizes, structure: bool) -> int:
    """Values of rows, and sums of chains that wait, for each block that is at work; enough for every fallback."""
    rows, cols = sizes
    rooms = 0
    for t in fallbacks(tiling):
        for step, sums, terms in (("work", plan.over_keys, cols), ("over_queries", plan.over_queries, rows)):
            each = _levels(sizes.inner) * t.rows * t.cols + len(sums) * _levels(terms) * t.rows * t.dim
            rooms = max(rooms, each * sum(s.grid for s in steps_of(plan, t, sizes, structure) if s.name == step))
    return (8 if structure else 4) * (len(handed_on(plan)) * sizes.batch * rows + rooms)


def _levels(terms: int) -> int:
    return max(0, -(-terms // MATMUL_BLOCK) - 1).bit_length()


def described(plan: AttentionPlan, used: Iterable[StepTiling] = ()) -> dict[str, object]:
    """The plan in words, with the tiles that were used, or else all on offer."""
    about = {k: v for k, v in plan.describe().items() if k != "panels of queries x keys"}
    chosen: Sequence[StepTiling] = [*used] or [*offered(plan, DIMS[-1], CHUNK, False)]
    tiles = [
        f"{t.rows} with steps of {t.cols}{' by warpgroups' * t.warpgroups or ' by matrix units' * t.atom}"
        for t in chosen
    ]
    return about | {"tiles": ", ".join(dict.fromkeys(tiles))}
