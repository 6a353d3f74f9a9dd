"""How attention is laid over the threads of a GPU: tiles of queries walk along the keys, tiles of keys along queries.

A block keeps the sums of its tile in registers and computes the scores of each step where they are needed, in every
pass again: multiply-adds cost less time than memory that holds scores, and what is held in memory grows with the rows
alone. Sums over queries have a kernel of their own, in which a block has a tile of keys: so each runs through the
queries in the definition's order, and what it needs of whole rows, such as their sums, the kernel before has left in
the workspace.
A tiling decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ...lang import MATMUL_BLOCK, Node, Sizes
from ...lower.gpu import Step
from ..matmul.tiling import MOST_BLOCKS, ROOMS, Tiling
from .plan import AttentionPlan

ENOUGH = 200  # blocks that keep a GPU at work


@dataclass(frozen=True)
class WalkTiling(Tiling):
    """One way to lay out attention: ``rows`` of a block's tile, ``cols`` of a step."""

    pieces: int = 1  # tiles of the inner side whose sums a walk makes at a time

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.pieces} x {self.cols} of the inner side at a time"


# From large to small.
TILINGS = (
    WalkTiling(64, 64, 8, 4, 16, 16, 8, 8, per_sm=2),
    WalkTiling(32, 64, 4, 4, 16, 16, 8, 8, per_sm=2),
)


@dataclass(frozen=True)
class Walk:
    """One sweep along the keys, for a tile of queries."""

    compute: tuple[Node, ...]  # values with a row and a column, operands first
    maxima: tuple[Node, ...]
    sums: tuple[Node, ...]
    weights: bool  # whether sums over keys are made
    after: tuple[Node, ...]  # values with one element a row that can be computed once the walk is over


def walks_of(plan: AttentionPlan) -> list[Walk]:
    """What a tile of queries needs, walk by walk; all sums over keys are made in the last."""
    found = []
    for p in plan.passes:
        last = p is plan.passes[-1] and bool(plan.over_keys)
        roots = [n.args[0] for n in (*p.maxima, *p.sums, *(plan.over_keys if last else ()))]
        if roots:
            found.append(Walk(cone(roots), p.maxima, p.sums, last, p.after))
    return found


def cone(roots: Iterable[Node]) -> tuple[Node, ...]:
    """Values with a row or a column that these are made of, down to products, operands first."""
    found: dict[Node, None] = {}

    def visit(n: Node) -> None:
        if n.space in ("rc", "c") and n not in found:
            for a in n.args if n.op != "matmul" else ():
                visit(a)
            found[n] = None

    for n in roots:
        visit(n)
    return tuple(found)


def handed_on(plan: AttentionPlan) -> list[Node]:
    """Values of whole rows that the sums over queries need, and that need a walk: they lie in the workspace."""
    walked = {n for p in plan.passes for n in (*p.maxima, *p.sums, *p.after)}
    needed: set[Node] = set()
    stack = [a for n in cone(w.args[0] for w in plan.over_queries) for a in n.args if a.space == "r"]
    while stack:
        n = stack.pop()
        if n not in needed:
            needed.add(n)
            stack += n.args if n not in walked or n.type == "bool" else ()
    return [n for n in plan.graph.nodes if n in needed & walked and n.type != "bool"]


def kernels_of(plan: AttentionPlan) -> list[str]:
    """The kernels by name: for tiles of queries, for tiles of keys."""
    queries = bool(plan.over_keys or handed_on(plan) or any(o.space == "r" for o in plan.graph.outputs))
    return ["work"] * queries + ["over_queries"] * bool(plan.over_queries)


def tiling_of(plan: AttentionPlan, sizes: Sizes, width: int) -> WalkTiling:
    """The largest tiling with blocks enough for a GPU, or the smallest."""
    side = sizes[0] if "work" in kernels_of(plan) else sizes[1]
    enough = (t for t in TILINGS if sizes.batch * -(-side // t.rows) >= ENOUGH)
    chosen = next(enough, TILINGS[-1])
    several = max(len(plan.over_keys), len(plan.over_queries)) > 1  # their sums take the registers of two pieces
    return replace(chosen, width=width, pieces=2 if sizes.inner > chosen.cols and not several else 1)


def fallbacks(tiling: WalkTiling) -> Iterator[WalkTiling]:
    """A tiling, then what to try where threads lack registers."""
    for pieces in range(tiling.pieces, 0, -1):
        yield replace(tiling, pieces=pieces)
    if tiling.rows > TILINGS[-1].rows:
        yield replace(TILINGS[-1], width=tiling.width)


def attention_steps(plan: AttentionPlan, tiling: WalkTiling, sizes: Sizes) -> list[Step]:
    """The launches, in order. Where sums of chains wait for each other blocks take several tiles in turn."""
    rows, cols = sizes
    steps = []
    for name in kernels_of(plan):
        side, along = (rows, cols) if name == "work" else (cols if sizes.inner else 0, rows)
        units, waits = sizes.batch * -(-side // tiling.rows), max(along, sizes.inner) > MATMUL_BLOCK
        if units:
            steps.append(Step(name, min(units, ROOMS if waits else MOST_BLOCKS), tiling.threads, in_turn=waits))
    return steps


def workspace_bytes(plan: AttentionPlan, tiling: WalkTiling, sizes: Sizes, structure: bool) -> int:
    """Values of rows, and sums of chains that wait, for each block that is at work; enough for every fallback."""
    rows, cols = sizes
    values = len(handed_on(plan)) * sizes.batch * rows
    rooms = 0
    for t in fallbacks(tiling):
        for step, sums, terms in (("work", plan.over_keys, cols), ("over_queries", plan.over_queries, rows)):
            levels = _levels(sizes.inner) + len(sums) * t.pieces * _levels(terms)
            blocks = sum(s.grid for s in attention_steps(plan, t, sizes) if s.name == step)
            rooms = max(rooms, blocks * levels * t.rows * t.cols)
    return (8 if structure else 4) * (values + rooms)


def _levels(terms: int) -> int:
    return max(0, -(-terms // MATMUL_BLOCK) - 1).bit_length()


def described(plan: AttentionPlan, used: Iterable[Tiling] = ()) -> dict[str, object]:
    """The plan in words, with the tiles that were used, or else all on offer."""
    about = {k: v for k, v in plan.describe().items() if k != "panels of queries x keys"}
    tiles = [f"{t.rows} with steps of {t.cols}" for t in used or TILINGS]
    return about | {"tiles": ", ".join(dict.fromkeys(tiles))}
