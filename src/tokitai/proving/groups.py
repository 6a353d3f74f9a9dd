"""Grouped products of CPUs, walked: from the emitted source through `each_task` in `groups.h` and `products`.

Groups partition the rows or the K dimension: the offsets ascend from 0 to that side, as calls check. Which group a task
lies in is modelled, not walked: the search for it stays among the groups, with no more tasks ahead than the task's
number. What is made of that is walked. Calls without an element of a result launch nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..families.grouped.plan import GroupedPlan
from ..lang import Operator
from .partition import Partition
from .products import WALKED, Products, ProductStart
from .terms import Answer
from .values import Access, Cell, Scope
from .walk import Walk

TASKS, SEARCH = "for ( int64_t t = 0 ; t < tasks ; ++ t", "while ( t >= first + m_tiles ( group ) * n_tiles"
LONGEST, TILES = "for ( int64_t g = 0 ; g < groups ; ++ g", "while ( double ( tile_m )"
FEW = 100  # elements of a side that are one tile
METHODS = {"left": ("data", "stride"), "right": ("data", "stride"), "team": ("rank", "size", "slot")}  # of a task


@dataclass
class Grouped(Products):
    """A walked grouped product. ``single`` is what the variables of loops are where one group is one task: there a
    wrong statement is looked for."""

    single: list[Any] = field(default_factory=list)
    narrow: bool = False

    def inside(self, a: Access) -> Answer:
        """Of a tensor or a buffer; where variables of loops are not known, of one task."""
        answer = super().inside(a)
        if answer.status == "undecided":
            self.narrow = True
            wrong = super().inside(a)
            self.narrow = False
            answer = wrong if wrong.status == "refuted" else answer
        return answer

    def given(self, *accesses: Access) -> list[Any]:
        """What is known where these accesses are made."""
        return [*super().given(*accesses), *(self.single if self.narrow else ())]

    def told(self, answer: Answer, a: Access | None, line: str = "") -> Answer:
        """With the line of the source; of one task all variables of loops are known."""
        at = {n: v for n, v in answer.at.items() if not (self.narrow and n.startswith("before"))}
        return super().told(replace(answer, at=at), a, line)


def walk_grouped(
    operator: Operator, plan: GroupedPlan, lanes: int, seconds: float, text: KernelText | None = None
) -> Products:
    """The walk through the CPU's kernel of a grouped product."""
    start = ProductStart(operator, plan, lanes, text, (*WALKED, "each_task", *METHODS))
    walk, offsets = start.walk, plan.graph.offsets
    assert offsets is not None
    name = f"in_{offsets.name}"
    walk.knows += [start.rows >= 1, start.cols >= 1, start.batch >= 1]
    groups = Partition(
        z3.Function(name, z3.IntSort(), z3.IntSort()), start.batch, start.sides[plan.share], walk.thread, lambda i: i
    )
    shares = walk.lemmas
    walk.lemmas = lambda terms: [*shares(terms), *groups.ascends(terms)]
    walk.contents.add(name)
    start.sides[str(offsets.space)] = start.batch + 1
    walk.calls = {**walk.calls, "Task": task}

    longest = groups.total
    first_task: list[Any] = []
    single: list[Any] = [start.batch == 1, start.rows <= FEW, start.cols <= FEW, longest <= FEW]

    def number(scope: Scope, name: str) -> Any:
        cell = scope.find(name)
        assert cell is not None
        return walk.number(cell.value)

    def found(head: str, scope: Scope) -> Sequence[Any]:
        if head.startswith(TILES):
            tile_m, tile_n = (number(scope, n) for n in ("tile_m", "tile_n"))
            single.extend([tile_m == (longest if plan.share == "r" else start.rows), tile_n == start.cols])
        if head == LONGEST:
            single.append(number(scope, "longest") == longest)
        if head not in (TASKS, SEARCH):
            return ()
        group, first, t = (number(scope, n) for n in ("group", "first", "t"))
        if head == TASKS and not first_task:
            first_task.extend([group == 0, first == 0, t == 0, number(scope, "tasks") == 1])
        ahead = [first <= t] if head == SEARCH else []
        return [z3.And(group >= 0, group < start.batch, first >= 0, *ahead)]

    walk.found_by = found
    made = start.products_walked(seconds, Grouped)
    assert isinstance(made, Grouped)
    made.single = [*single, *first_task]
    return made


def task(walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    """A task, whose members are assigned one by one, with the methods of the header."""
    made: dict[str, Any] = {}

    def method(name: str) -> Any:
        def call(walk: Walk, *given: Any) -> dict[str, Any]:
            (f,) = (f for f in walk.functions[name] if len(f.params) == len(given))
            scope = Scope(walk.globals)
            scope.names |= {n: Cell(v) for n, v in made.items()}
            return dict(zip(METHODS[name], walk.run(f.params, f.body, scope, given), strict=True))

        return call

    made |= {f".{name}": method(name) for name in METHODS}
    return made


__all__ = ["walk_grouped"]
