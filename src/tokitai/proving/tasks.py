"""Tasks of grouped products on CPUs: `each_task` in `groups.h`, walked.

Offsets ascend from 0 to the side that groups partition, as calls check. Tasks are counted group after group: FIRST(g)
of them lie ahead of group g, so FIRST ascends from 0 to their number as offsets do. Each loop has its invariants. Shown
of tasks is that they lie in their groups, that no two have an element in common, and that each element lies in one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..families.grouped.plan import GroupedPlan
from ..lang import Operator
from .kernel import PER_ROW, Extent
from .logic import both, holds, variables
from .monomials import Questions
from .partition import Partition, applied
from .products import ProductStart, variable
from .stated import Stated
from .terms import Answer, Sum, applications, ask
from .twins import Place, Twins
from .values import OPAQUE, Access, Base, Cell, Division, Int, Pointer, Scope, Truth
from .walk import Walk
from .written import Written

MEMBERS = ("group", "row", "col", "begin", "rows", "cols", "k_size")
LONGEST, TILES = "for ( int64_t g = 0 ; g < groups ; ++ g", "while ( double ( tile_m )"
TASKS, SEARCH = "for ( int64_t t = 0 ; t < tasks ; ++ t", "while ( t >= first + m_tiles ( group ) * n_tiles"
TASK = "task"
ROW_COL = z3.Ints("element_row element_col")
FEW = 4096  # elements of a side
SOME = z3.Int("some_group")  # any; where an element is looked for, its group
# Of a group: tasks ahead of it; tasks one above the other; rows of one, in whole panels, and ahead of that.
FIRST, DOWN, DOWN_LEFT, SPLIT, SPLIT_LEFT = (
    z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("first", "down", "down_left", "split", "split_left")
)


@dataclass(frozen=True)
class Groups:
    """Groups of a call: ``start`` is the function of their offsets, ``blocks`` how large tasks are at most."""

    share: str
    rows: Any
    cols: Any
    inner: Any
    count: Any
    start: Any
    blocks: tuple[int, int]

    @property
    def side(self) -> Any:
        """The side that is partitioned."""
        return self.rows if self.share == "r" else self.inner

    def size(self, g: Any) -> Any:
        """How much of it a group has."""
        return self.start(g + 1) - self.start(g)

    def height(self, g: Any) -> Any:
        """Rows of a group's result."""
        return self.size(g) if self.share == "r" else self.rows

    def top(self, g: Any) -> Any:
        """The first of them."""
        return self.start(g) if self.share == "r" else 0

    def of_task(self, task: Mapping[str, Any]) -> Any:
        """That a task lies in its group, is not empty and no larger than a block."""
        g, (tall, wide) = task["group"], self.blocks
        top, rows, cols = self.top(g), task["rows"], task["cols"]
        return both(
            g >= 0, g < self.count, rows >= 1, rows <= tall, cols >= 1, cols <= wide,
            top <= task["row"], task["row"] + rows <= top + self.height(g), task["col"] >= 0,
            task["col"] + cols <= self.cols, task["begin"] == (0 if self.share == "r" else self.start(g)),
            task["k_size"] == (self.inner if self.share == "r" else self.size(g)),
        )  # fmt: skip

    def ascends(self, terms: Sequence[Any]) -> list[Any]:
        """What is known of the offsets in these terms."""
        return list(Partition(self.start, self.count, self.side, self.start, lambda i: i).ascends(terms))


@dataclass
class Tasks(Written):
    """Walked tasks: what is known of ``groups``, what one ``task`` is, and the numbers from which all are ``made``."""

    groups: Groups = field(kw_only=True)
    task: Mapping[str, Any] = field(kw_only=True)
    made: Mapping[str, Any] = field(kw_only=True)
    few: bool = False  # whether of one group that has no products: there all numbers are known

    def of_few(self) -> Tasks:
        """The same where what is wrong is looked for: where no task is made smaller for threads' sake."""
        groups, walk = self.groups, copy(self.walk)
        sides = (groups.rows if groups.share == "k" else self.made["longest"], groups.cols)
        tiles = zip((self.made["tile_m"], self.made["tile_n"]), groups.blocks, sides, strict=True)
        walk.knows = [*walk.knows, groups.count == 1, groups.inner == 0, self.made["longest"] == groups.side,
                      *(s <= FEW for s in (groups.rows, groups.cols)),
                      *(tile == z3.If(side < block, side, block) for tile, block, side in tiles)]  # fmt: skip
        return replace(self, walk=walk, few=True)

    def told(self, answer: Answer, a: Access | None, line: str = "") -> Answer:
        """With the line of the source; of few, what loops leave behind is known at an access."""
        known = self.few and a is not None
        at = {n: v for n, v in answer.at.items() if not (known and n.startswith("before"))}
        return super().told(replace(answer, at=at), a, line)

    def placed(self, a: Access) -> Place:
        """By the result of a group, where each has one, and by rows and columns."""
        t = self.task
        item = [(t["group"], 1)] if self.groups.share == "k" else []
        return [*item, (t["row"], t["rows"]), (t["col"], t["cols"])]

    def of_element(self, out: str, wanted: Sequence[Any]) -> list[Any]:
        """None are asked for: of tasks there are `covering` and the others."""
        return []

    def asked(self, knows: Sequence[Any]) -> Questions:
        """Questions where these are known."""
        made = (Exactly if self.few else Questions)(self.products_of, self.walk.lemmas)
        made.add([*self.walk.knows, *knows])
        return made

    @cached_property
    def access(self) -> Access:
        """A task, as an access to the results."""
        (found,) = (a for a in self.walk.accesses if a.base.name == TASK)
        return found

    def whole(self, a: Access) -> list[Any]:
        """What is known where an access is made."""
        terms = [t for t in (a.at, a.count, *a.when, *self.task.values()) if not isinstance(t, (int, bool))]
        return [*a.when, *self.facts(terms, a.when)]

    def inside(self, a: Access) -> Answer:
        """Of the offsets."""
        must = both(a.at >= 0, a.at + a.count <= self.extents[a.base.name].cols)
        return self.told(self.asked(self.whole(a)).ask(must, self.seconds), a)

    def lying(self) -> Iterator[Answer]:
        """Each task lies in its group, and is not empty."""
        groups, g = self.groups, self.task["group"]
        tile_m, tile_n, n_tiles, max_cols = (self.made[n] for n in ("tile_m", "tile_n", "n_tiles", "max_cols"))
        asked = self.asked(self.whole(self.access))
        longest = self.facts([self.made["longest"]], self.access.when)
        asked.add(z3.substitute(f, (SOME, g)) for f in longest)  # which hold of any group
        d, max_rows, _, down = self.divided()
        parts = (n_tiles, tile_n), (down.quotient, tile_m)
        asked.add(z3.Implies(z3.And(n >= 2, size >= 0), n * size >= 2 * size) for n, size in parts)
        on_the_way = [
            z3.Or(n_tiles == 1, max_cols <= tile_n), d.rest * tile_n < groups.cols, d.rest * max_cols < groups.cols,
            z3.Or(down.quotient == 1, max_rows <= tile_m), d.quotient * tile_m < groups.height(g),
            d.quotient * max_rows < groups.height(g),
        ]  # fmt: skip
        yield from self.steps(asked, [*([] if self.few else on_the_way), *groups.of_task(self.task).children()])

    def last_missed(self, there: Sequence[Any]) -> Answer:
        """Whether the last element of a result lies in no task, at a size of one task and at one of four."""
        groups, (row, col) = self.groups, ROW_COL
        for sides in ((1, 1), [block + 1 for block in groups.blocks]):
            at = dict(zip((groups.rows, groups.cols), sides, strict=True))
            fixed = [*(s == n for s, n in at.items()), row == groups.rows - 1, col == groups.cols - 1, SOME == 0]
            all_tasks = [*self.walk.knows, *fixed, *self.whole(self.access)]
            asked = [Exactly(self.products_of, self.walk.lemmas), Exactly(self.products_of, self.walk.lemmas)]
            for questions, more in zip(asked, ([], there), strict=True):
                questions.add([*all_tasks, *more])
            if [q.ask(False, self.seconds).status for q in asked] == ["refuted", "proved"]:
                return Answer("refuted", 0.0, {str(s): n for s, n in at.items()}, self.access.line)
        return Answer("undecided", 0.0, {}, "no sizes found")

    def divided(self) -> tuple[Division, Any, Division, Division]:
        """How a task's number is divided; rows of a task, and the divisions of a group's rows that these come from."""
        (digits,) = (d for d in self.walk.divisions.values() if Sum(d.of).factor(self.number) == 1)
        max_rows = variable("max_rows", self.task["row"], self.task["rows"])
        split = self.dividing(*variables(z3.And(*self.definitions.facts[max_rows.get_id()])))
        return digits, max_rows, split, self.dividing(*variables(split.by))

    def disjoint(self) -> Iterator[Answer]:
        """No two tasks have an element in common."""
        a, place = self.access, self.placed(self.access)
        pair = Twins(self.walk, self.definitions, self.products_of, a, a, (place, place), self.seconds)
        ask, same = pair.ask_exactly if self.few else pair.ask, pair.find() or pair.are_the_same(self.number)
        must = self.number == pair.other(self.number)
        yield Answer("proved", 0.0, {}) if same else self.told(ask(must, self.seconds), a)

    @property
    def number(self) -> Any:
        """The number of a task."""
        return self.access.loops[0].iteration

    def covering(self) -> Iterator[Answer]:
        """Each element of a result lies in the task that its group, its row and its column say."""
        groups, (row, col) = self.groups, ROW_COL
        there = [t for (first, n), e in zip(self.placed(self.access)[-2:], ROW_COL, strict=True)
                 for t in (first <= e, e < first + n)]  # fmt: skip
        if self.few:
            yield self.last_missed(there)
            return
        tile_m, n_tiles, max_cols = (self.made[n] for n in ("tile_m", "n_tiles", "max_cols"))
        i, j, each = (z3.Int(f"element_{n}") for n in ("i", "j", "each"))
        above, panel = row - groups.top(SOME), self.made["MR"]
        begin = next(n for n, w in enumerate(self.access.when) if holds(w, self.number))
        ahead, goes_on = self.access.when[:begin], self.access.when[begin]
        asked = self.asked([*ahead, *self.facts([tile_m, n_tiles, max_cols, self.made["tasks"]], ahead)])
        asked.add([each == (SPLIT(SOME) + panel - 1) / panel * panel])  # rows of a task of this group
        asked.add([SOME >= 0, groups.count > SOME, FIRST(SOME) >= 0, above >= 0, above < groups.height(SOME), col >= 0,
                   col < groups.cols])  # fmt: skip
        yield from self.steps(asked, [
            tile_m >= 1, n_tiles >= 1, max_cols >= 1, DOWN(SOME) >= 1, each >= 1,
            DOWN(SOME) * each >= groups.height(SOME), n_tiles * max_cols >= groups.cols,
        ])  # fmt: skip
        asked.add([i >= 0, i * each <= above, above < i * each + each, j >= 0, j * max_cols <= col,
                   col < j * max_cols + max_cols])  # fmt: skip
        number = FIRST(SOME) + i * n_tiles + j
        asked.add([self.number == number])
        yield from self.steps(asked, [i < DOWN(SOME), j < n_tiles, number < FIRST(SOME + 1), goes_on])
        asked.add(self.whole(self.access))
        digits, max_rows, split, down = self.divided()
        yield from self.steps(asked, [self.task["group"] == SOME, digits.quotient == i, down.quotient == DOWN(SOME)])
        halves = self.facts([split.quotient], [*self.access.when, down.by > 0])
        asked.add(z3.substitute(f, (down.quotient, DOWN(SOME))) for f in halves)
        yield from self.steps(asked, [split.quotient == SPLIT(SOME), max_rows == each])
        same = (digits.quotient, i), (max_rows, each)
        yield from self.steps(asked, [z3.substitute(t, *same) for t in there])

    def dividing(self, *unknowns: Any) -> Division:
        """The division whose quotient is one of these."""
        return next(d for d in self.walk.divisions.values() if any(v.eq(d.quotient) for v in unknowns))

    def steps(self, asked: Questions, musts: Sequence[Any]) -> Iterator[Answer]:
        """The answers for one statement after the other, of which each is known from then on."""
        for must in musts:
            yield self.told(asked.ask(must, self.seconds), self.access)
            asked.add([must])


class Exactly(Questions):
    """Questions about products as they are."""

    def ask(self, must: Any, seconds: float) -> Answer:
        return ask(must, [*self.terms, *self.lemmas([*self.terms, must])], seconds)


class TaskStart(ProductStart):
    """What is known where `each_task` begins."""

    walks = Stated


def walk_tasks(operator: Operator, plan: GroupedPlan, lanes: int, seconds: float, text: KernelText | None) -> Tasks:
    """The walk through `each_task`, as the kernel of a grouped product calls it."""
    start = TaskStart(operator, plan, lanes, text, ("each_task", "ceil_div"))
    walk, groups = start.walk, groups_of(start, plan)
    assert isinstance(walk, Stated)
    known: dict[str, Any] = dict(start.numbers)
    (few_cols,) = start.defined("FEW_COLS", r"(\d+)")
    walk.globals.names["FEW_COLS"] = Cell(Int(few_cols, "int64_t"))

    def stated(head: str, scope: Scope) -> Sequence[Any]:
        def number(name: str) -> Any:
            cell = scope.find(name)
            return None if cell is None else walk.number(cell.value)

        if head.startswith(TILES):
            longest, (tall, wide) = number("longest") if groups.share == "r" else groups.rows, groups.blocks
            m, n = number("tile_m"), number("tile_n")
            panels = z3.Or(m == longest, m % known["MR"] == 0), z3.Or(n == groups.cols, n % known["NR"] == 0)
            return [m >= 0, m <= tall, n >= 1, n <= wide, z3.Implies(longest >= 1, m >= 1), *panels]
        if head == LONGEST:  # two loops
            g, longest, tasks = number("g"), number("longest"), number("tasks")
            known.update({n: number(n) for n in ("longest", "tile_m", "tile_n", "n_tiles", "max_cols")})
            counted = z3.Implies(z3.And(SOME >= 0, g > SOME), longest >= groups.size(SOME))
            return [g >= 0, g <= groups.count, longest >= 0, counted if tasks is None else tasks == FIRST(g)]
        if head not in (TASKS, SEARCH):
            return ()
        group, first, t = number("group"), number("first"), number("t")
        known["tasks"] = number("tasks")
        return [group >= 0, group < groups.count, first == FIRST(group), t >= 0, *[first <= t][: head == SEARCH]]

    def unfolded(g: Any) -> Any:
        """What FIRST and the others are."""
        tile_m, n_tiles, height = known["tile_m"], known["n_tiles"], groups.height(g)
        down, split = DOWN(g), SPLIT(g)
        tiles = z3.And(height + tile_m - 1 == down * tile_m + DOWN_LEFT(g), DOWN_LEFT(g) >= 0, DOWN_LEFT(g) < tile_m)
        rows = z3.And(height + down - 1 == split * down + SPLIT_LEFT(g), SPLIT_LEFT(g) >= 0, SPLIT_LEFT(g) < down)
        made = z3.And(
            FIRST(g + 1) == FIRST(g) + down * n_tiles, z3.Implies(tile_m == 0, down == 0), down >= 0, split >= 0,
            down <= height,
            z3.Implies(tile_m > 0, tiles), z3.Implies(down > 0, rows),
        )  # fmt: skip
        return z3.Implies(z3.And(g >= 0, g < groups.count), made)

    made_of: dict[tuple[int, ...], list[Any]] = {}

    def lemmas(terms: Sequence[Any]) -> list[Any]:
        found = (*applications(FIRST, terms), *applications(groups.start, terms))
        key = tuple(t.get_id() for t in found)
        if key not in made_of:
            made_of[key] = holding(found)
        return made_of[key]

    def holding(terms: Sequence[Any]) -> list[Any]:
        made = []
        if known.get("n_tiles") is not None:
            made = [unfolded(g) for g in applied(FIRST, terms) if z3.is_const(g)]
            counted = Partition(FIRST, groups.count, FIRST(groups.count), FIRST, lambda i: i)
            made += [*counted.ascends([*terms, *made]), FIRST(groups.count) <= PER_ROW]
        return [*made, *groups.ascends([*terms, *made])]

    task: dict[str, Any] = {}

    def taken(walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        if not walk.dry:
            task.update({n: walk.number(values[0][n]) for n in MEMBERS})
            walk.access(Pointer(Base(TASK, "tasks"), 0), 1, True)
        return OPAQUE

    walk.stated, walk.lemmas = stated, lemmas
    walk.calls = {**walk.calls, "f": taken, "Task": lambda walk, template, values: {}}
    sizes = (groups.rows, groups.cols, groups.inner, groups.count)
    offsets = Pointer(Base(groups.start.name(), "tensor", True, True), 0)
    walk.contents.add(offsets.base.name)
    given = [*(Int(s, "int64_t") for s in sizes), offsets, Int(start.threads, "int64_t"), OPAQUE]
    walk.function("each_task", [Truth(groups.share == "r")], given)
    walk.knows += [f for f in walk.facts if all(made_at(v) < walk.shared_from for v in variables(f))]
    extents = {offsets.base.name: Extent(groups.count + 1)}
    return Tasks(walk, extents, [], list(sizes), start.products, seconds, groups=groups, task=task, made=known)


def made_at(v: Any) -> int:
    """The number of an unknown; 0 of a size."""
    return int(str(v).rpartition("!")[2]) if "!" in str(v) else 0


def groups_of(start: ProductStart, plan: GroupedPlan) -> Groups:
    """The groups of a call, and what is known of them where it launches something."""
    assert plan.graph.offsets is not None
    start.walk.knows += [start.rows >= 1, start.cols >= 1, start.batch >= 1]
    offsets = z3.Function(f"in_{plan.graph.offsets.name}", z3.IntSort(), z3.IntSort())
    blocks = start.numbers["BLOCK_M"], start.numbers["BLOCK_N"]
    return Groups(plan.share, start.rows, start.cols, start.inner, start.batch, offsets, blocks)


__all__ = ["MEMBERS", "Groups", "Tasks", "groups_of", "walk_tasks"]
