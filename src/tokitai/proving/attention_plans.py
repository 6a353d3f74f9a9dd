"""Launch plans of attention, for every tiling that its sizes choose and all that are tried in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import z3

from ..families.attention import tiling
from ..families.attention.gpu_kernels import emit_attention
from ..families.attention.plan import AttentionPlan
from ..lang import Operator, Sizes
from .choice import MEMORY, SIDE, Choice, Planned
from .symbolic import whole
from .work import end_of_workspace

# Of queries, or of keys, where both have kernels: for these plans are run, with any number of the others.
TILES = (1, 300)
BATCH = 3  # heads of keys, there


def choices(operator: Operator, plan: AttentionPlan, target: str, knows: Sequence[Any]) -> Iterator[Choice]:
    """A choice for each tiling that may be launched in place of the one that is chosen."""
    inner, batch = z3.Int("inner"), z3.Int("batch")
    knows = [*knows, inner >= 0, inner <= SIDE]
    every = [*sizes_of(plan)]
    for wished in tiling.TILINGS:
        for pieces in (1, 2):
            w = replace(wished, width=8, pieces=pieces)
            for t in tiling.fallbacks(w):
                for rows, cols, heads in every:
                    of = [batch >= 0, batch <= SIDE, batch * rows <= MEMORY, batch * cols <= MEMORY]
                    known = [*knows, z3.Int("rows") == rows, z3.Int("cols") == cols]
                    known += [] if isinstance(heads, int) else of
                    name = f"{t} in place of {w}, {rows} queries, {cols} keys"
                    made = _walks(plan, w, t, Sizes(*map(sized, (rows, cols, inner, heads))))
                    yield Choice(name, known, made, (operator.name, name))


def sizes_of(plan: AttentionPlan) -> Iterator[tuple[Any, Any, Any]]:
    """Queries, keys and heads, as unknowns or numbers. One kernel's plan is run for any; where there is another, whose
    blocks have keys, products of unknowns are too many, and one of them is a number."""
    rows, cols = z3.Int("rows"), z3.Int("cols")
    if len(tiling.kernels_of(plan)) == 1:
        yield rows, cols, z3.Int("batch")
        return
    for n in TILES:
        side = n * tiling.TILINGS[0].rows - 1
        yield side, cols, BATCH
        yield rows, side, BATCH


def sized(n: Any) -> Any:
    """A size for a plan."""
    return n if isinstance(n, int) else whole(n)


def _walks(
    plan: AttentionPlan, wished: tiling.WalkTiling, taken: tiling.WalkTiling, sizes: Sizes
) -> Callable[[], Planned]:  # fmt: skip
    text = emit_attention(plan, taken)
    named = zip(("rows", "cols", "k_size", "batch"), (*sizes, sizes.inner, sizes.batch), strict=True)
    given = dict(named)

    def made() -> Planned:
        steps = tiling.attention_steps(plan, taken, sizes)
        need = tiling.workspace_bytes(plan, wished, sizes, False)
        return Planned(steps, need, [4 * end_of_workspace(text, s.name, s.grid, given) for s in steps])

    return made


__all__ = ["choices"]
