"""Launch plans of matrix products, and of products whose groups partition rows or the K dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..families.matmul import tiling as products
from ..families.matmul.gpu_kernels import GpuProducts
from ..families.matmul.plan import ProductPlan
from ..lang import Operator, Sizes
from .choice import SIDE, Choice, Planned
from .symbolic import term_of, whole
from .values import Base, Pointer
from .work import Evaluation, emitted, end_of_workspace

TILES = (1, 300)  # of a product's result, for which its plan is run: the K dimension is any
GROUPS = (1, 7)  # that partition a side, for which the same is done


def choices(operator: Operator, plan: Any, target: str, knows: Sequence[Any]) -> Iterator[Choice]:
    """Each tiling, of few tiles and of many; of groups, each tile of each of them has a block."""
    grouped = bool(plan.graph.ragged)
    inner = z3.Int("inner")
    for t in tilings(plan, target):
        for tiles in TILES:
            for groups in GROUPS if grouped else (1,):
                name = f"{t}, {tiles} of them{f' of {groups} groups' * grouped}"
                key = t, tiles, groups, plan.graph.ragged, len(plan.products), plan.accumulator
                yield Choice(name, [inner >= 0, inner <= SIDE], _products(plan, t, tiles, groups), key)
        if grouped:
            yield Choice(f"{t}, one group more", *_one_group_more(plan, t), (t, plan.graph.ragged))


def tilings(plan: ProductPlan, target: str) -> list[products.Tiling]:
    """All tilings that a target has."""
    found = list(products.offered(plan, 8, False))
    if target == "cuda":
        found += products.offered(plan, 8, True)
        found += products.pipelines(plan) if plan.accumulator == "fused16" or plan.fixed else []
    return list(dict.fromkeys(found))


def source_of(plan: ProductPlan, tiling: products.Tiling) -> KernelText:
    """The source of a product's kernels, or of a grouped one's."""
    of_products = plan.family.gpu
    assert isinstance(of_products, GpuProducts)
    return of_products.emit(plan, tiling)


def _products(plan: ProductPlan, tiling: products.Tiling, tiles: int, groups: int) -> Callable[[], Planned]:
    """Of so many tiles of the result, the last of which is not whole, and any K dimension."""
    text = source_of(plan, tiling)

    def made() -> Planned:
        sizes = Sizes(tiles * tiling.rows - 1, tiling.cols, whole(z3.Int("inner")), groups, plan.graph.ragged)
        together = products.together(tiling, sizes)
        steps = products.product_steps(tiling, sizes, products=len(plan.products))
        each = 8 if plan.accumulator == "f64" else 4
        need = each * len(plan.products) * products._workspace(tiling, sizes, products.MOST_UNITS)
        grid = next(s for s in steps if s.name == "work").grid
        given = {"rows": sizes[0], "cols": sizes[1], "k_size": sizes.inner, "batch": groups}
        end = end_of_workspace(text, "work", grid, {**given, "chains_per_slice": together})
        return Planned(steps, need, [each * end])

    return made


def _one_group_more(plan: ProductPlan, tiling: products.Tiling) -> tuple[list[Any], Callable[[], Planned]]:
    """The step of an induction over groups: a launch for one group more has as many blocks more as that group has
    tiles; and a block that works on one tile has one. Of sums of one chain, which are not split."""
    rows, groups, more = z3.Int("rows"), z3.Int("groups"), z3.Int("more")
    knows = [rows >= 0, groups >= 0, more >= 0, rows + more <= SIDE, groups < SIDE]
    source = emitted(source_of(plan, tiling))
    along_rows = plan.graph.ragged == "r"

    def sizes_of(rows: Any, groups: Any) -> Sizes:
        return Sizes(whole(rows), tiling.cols, 1, whole(groups), plan.graph.ragged)

    def made() -> Planned:
        before, after = sizes_of(rows, groups), sizes_of(rows + more if along_rows else rows, groups + 1)
        blocks = [term_of(products.tiles_of(tiling, s)) for s in (before, after)]
        run = Evaluation(source, {"ROWS": tiling.rows, "g": 0, "rows": rows})
        if along_rows:
            own = source.found(r"own = g < groups \? (ceil_div\([^;?:]*\)) \* each : 0;", "tiles of a group")
            run.walk.tables["offsets"] = {0: 0, 1: more}
        else:
            own = source.found(r"\bdown\((ceil_div\(\w+, \w+\))\)", "initializer of Work::down")
        table = Pointer(Base("offsets", "table", True, True), 0)
        tiles = run.walk.number(run.of(own, {"offsets": table}))
        chosen = products.tiling_of(plan, after, 8)
        every = [t for t in products.fallbacks(plan, chosen) if t.once]
        alone = [term_of(products.tiles_of(t, after)) <= term_of(_grid(t, after)) for t in every]
        return Planned(
            [], 0, [],
            [
                ("every tile of every group has a block", blocks[1] - blocks[0] >= tiles),
                *(("a launch of blocks with one tile each has all of them", a) for a in alone),
            ],
        )  # fmt: skip

    return knows, made


def _grid(tiling: products.Tiling, sizes: Sizes) -> Any:
    return next(s for s in products.product_steps(tiling, sizes) if s.name == "work").grid


__all__ = ["choices", "tilings"]
