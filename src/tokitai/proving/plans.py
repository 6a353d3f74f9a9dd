"""Launch plans, run on unknown sizes: the limits that every launch and every workspace of a GPU's kernels keeps to.

The functions are those that plan a call, such as `row_steps` and `product_steps`. A row-wise or a tiled kernel has many
schedules: each that there is for some number of columns is planned on its own, for all sizes for which it is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import z3

from ..families import Plan
from ..families.elementwise import schedule as flat
from ..families.matmul import tiling as products
from ..families.matmul.plan import ProductPlan
from ..families.rowwise import schedule as rowwise
from ..families.rowwise.plan import RowPlan
from ..families.scatter import schedule as scatter
from ..lang import Operator, Sizes
from ..lower.gpu import CHUNK, MOST_THREADS, Step
from .obligation import Obligation
from .symbolic import every_path, term_of, whole
from .terms import Answer, ask
from .work import pending_and_slices

MOST_BLOCKS = 2**31 - 1  # of a launch
SHARED_BYTES = {"cuda": 227 << 10, "hip": 0}  # that a launch may ask for, for each block
MOST_BYTES = 2**63 - 1  # of a workspace, whose size is an int64_t
MEMORY = 2**39  # elements of a tensor at most: 1 TiB in 16 bits, more than any GPU has
TILES = (1, 300)  # of a product's result, for which its plan is run: the K dimension is any
WARP = {"cuda": (32,), "hip": (32, 64)}


@dataclass(frozen=True)
class Planned:
    """What a call plans: its launches, and the bytes of its workspace."""

    steps: Sequence[Step]
    workspace: Any
    extra: Sequence[Any] = ()  # what else must hold


@dataclass(frozen=True)
class Choice:
    """A kernel's choice, the sizes for which it is made, and the plan that follows."""

    name: str
    knows: Sequence[Any]
    plan: Callable[[], Planned]
    key: Any = None  # of plans that are the same for several operators


_known: dict[Any, list[tuple[str, Answer]]] = {}  # by such keys


def obligations(operator: Operator, plan: Plan, target: str, name: str, seconds: float) -> Iterator[Obligation]:
    """Of all launches of an operator's kernels on a target."""
    found: dict[str, list[Answer]] = {}
    began: dict[str, float] = {}
    for choice in choices(operator, plan, target):
        key = choice.key and (choice.key, target, str(choice.knows))
        answers = _known.get(key) if key else None
        if answers is None:
            answers = list(limits(choice, target, seconds))
            if key:
                _known[key] = answers
        for what, answer in answers:
            found.setdefault(what, []).append(answer)
            began[what] = began.get(what, 0.0) + answer.seconds
    for what, all_of in found.items():
        worst = next((a for s in ("refuted", "undecided") for a in all_of if a.status == s), all_of[0])
        sizes = {n: v for n, v in worst.at.items() if n in ("rows", "cols", "inner", "batch", "entries")}
        proved = worst.status == "proved"
        yield Obligation(
            f"{name}: {what}",
            worst.status,
            began[what],
            {} if proved else sizes,
            "" if proved else worst.reason,
            len(all_of),
        )


def limits(choice: Choice, target: str, seconds: float) -> Iterator[tuple[str, Answer]]:
    """What must hold on every path through a plan."""
    start = time.perf_counter()
    paths = every_path(choice.plan, choice.knows)
    spent = time.perf_counter() - start
    for taken, made in paths:
        knows = [*choice.knows, *taken]
        for what, must in statements(made, target):
            answer = ask(must, knows, seconds)
            if answer.status != "proved":
                reason = f"{answer.reason or 'wrong'}: {choice.name}"
                answer = Answer(answer.status, answer.seconds, answer.at, reason)
            yield what, Answer(answer.status, answer.seconds + spent, answer.at, answer.reason)
            spent = 0.0


def statements(made: Planned, target: str) -> Iterator[tuple[str, Any]]:
    """The limits of launches and of a workspace."""
    for s in made.steps:
        grid, block, shared = map(term_of, (s.grid, s.block, s.shared))
        if not s.in_turn:  # else as many as a GPU runs at a time do the same
            yield "every launch has 1 to 2^31 - 1 blocks", z3.And(grid >= 1, grid <= MOST_BLOCKS)
        else:
            yield "every launch has 1 to 2^31 - 1 blocks", grid >= 1
        yield "every block has 1 to 1,024 threads", z3.And(block >= 1, block <= MOST_THREADS)
        yield "no launch asks for more shared memory than there is", z3.And(shared >= 0, shared <= SHARED_BYTES[target])
    need = term_of(made.workspace)
    yield "the size of the workspace fits an int64_t", z3.And(need >= 0, need <= MOST_BYTES)
    for must in made.extra:
        yield "the workspace has room for pending partials and parts", must


def family_of(plan: Plan) -> str:
    """The name of a plan's family."""
    return repr(plan.family).removeprefix("<family ").removesuffix(">")


def choices(operator: Operator, plan: Any, target: str) -> Iterator[Choice]:
    """Every choice of a plan's family on a target."""
    family = family_of(plan)
    rows, cols, c = z3.Int("rows"), z3.Int("cols"), operator.contract
    knows = [rows >= 0, rows <= c.max_rows, cols >= c.min_cols, cols <= c.max_cols, rows * cols <= MEMORY]
    if family == "rowwise":
        for warp in WARP[target]:
            for s, low, high in row_schedules(plan, warp, c.max_cols, target):
                yield Choice(str(s), [*knows, cols >= low, cols <= high], _rows(plan, s, rows, cols))
    elif family == "elementwise":

        def of_flat() -> Planned:
            shapes = [(whole(rows), whole(cols))]
            return Planned(flat.flat_steps(plan, shapes), 4 * flat.flat_workspace_elements(plan, shapes))

        yield Choice("one tensor", knows, of_flat)
    elif family == "scatter":
        entries = z3.Int("entries")

        def of_entries() -> Planned:
            sides = whole(rows), whole(cols), whole(entries)
            return Planned(scatter.scatter_steps(plan, *sides), scatter.workspace_bytes(*sides, 4))

        yield Choice("entries", [*knows, entries >= 1, entries < 2**31, entries * cols <= MEMORY], of_entries)
    elif family == "matmul":
        inner = z3.Int("inner")
        for t in tilings(plan, target):
            for count in TILES:
                name, sides = f"{t}, {count} of them", [inner >= 0, inner <= 2**31]
                yield Choice(name, sides, _products(plan, t, count), (t, count, len(plan.products), plan.accumulator))


def row_schedules(
    plan: RowPlan, warp: int, most: int, target: str
) -> Iterator[tuple[rowwise.Schedule, int, int]]:  # fmt: skip
    """Every schedule, and what is tried in its place, with the least and the largest number of columns for which it is
    chosen. They differ by the number of chunks and by whether the last one is whole, so these are all tried; of those
    with the same launches one stands for all."""
    ends: dict[Any, tuple[rowwise.Schedule, int, int]] = {}
    for low, high in column_classes(most):
        wished = rowwise.schedule_rows(plan, low, 8, warp)
        fits = rowwise.stage_bytes(plan, wished) <= SHARED_BYTES[target]
        seen: rowwise.Schedule | None = wished if fits else replace(wished, staged=False)
        while seen is not None:
            shared = rowwise.stage_bytes(plan, seen)
            key = (
                seen.threads, seen.rows, seen.chunks * seen.sliced, seen.sliced, seen.apart, seen.kept, seen.staged,
                seen.ahead > 0, shared,
            )  # fmt: skip
            first, least, greatest = ends.get(key, (seen, low, high))
            ends[key] = first, min(least, low), max(greatest, high)
            room = rowwise.stage_bytes(plan, replace(seen, staged=True)) <= SHARED_BYTES[target]
            seen = seen.with_fewer_registers(rowwise.blocked(plan), room)
    yield from ends.values()


def column_classes(most: int) -> Iterator[tuple[int, int]]:
    """Numbers of columns, from and to, of which all have the same schedule: by chunks up to the longest row that
    threads keep, and all beyond by whether they are whole chunks."""
    longest = min(most, rowwise.LONGEST_KEPT)
    for first in range(0, longest + 1, CHUNK):
        yield first, first
        if first < longest:
            yield first + 1, min(first + CHUNK - 1, longest)
    if most > longest:
        yield longest + 1, most
        yield longest + CHUNK, most


def _rows(plan: RowPlan, schedule: rowwise.Schedule, rows: Any, cols: Any) -> Callable[[], Planned]:
    def made() -> Planned:
        steps = rowwise.row_steps(plan, schedule, whole(rows), whole(cols))
        return Planned(steps, 4 * rowwise.workspace_elements(plan, whole(rows), whole(cols)))

    return made


def tilings(plan: ProductPlan, target: str) -> list[products.Tiling]:
    """All tilings that a target has."""
    found = list(products.offered(plan, 8, False))
    if target == "cuda":
        found += products.offered(plan, 8, True)
        found += products.pipelines(plan) if plan.accumulator == "fused16" else []
    return list(dict.fromkeys(found))


def _products(plan: ProductPlan, tiling: products.Tiling, tiles: int) -> Callable[[], Planned]:
    """Of so many tiles of the result, the last of which is not whole, and any K dimension."""

    def made() -> Planned:
        sizes = Sizes(tiles * tiling.rows - 1, tiling.cols, whole(z3.Int("inner")))
        together = products.together(tiling, sizes)
        steps = products.product_steps(tiling, sizes, products=len(plan.products))
        each = 8 if plan.accumulator == "f64" else 4
        need = each * len(plan.products) * products._workspace(tiling, sizes, products.MOST_UNITS)
        grid = next(s for s in steps if s.name == "work").grid
        used = pending_and_slices(len(plan.products), tiling, sizes, together, term_of(grid))
        return Planned(steps, need, [term_of(need) >= each * used])

    return made


__all__ = ["family_of", "obligations"]
