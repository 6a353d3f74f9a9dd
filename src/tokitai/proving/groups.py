"""Grouped products of CPUs, walked for one task: from the emitted source through `products`.

That tasks lie in their groups and make up the results is shown by `tasks`. Calls without an element of a result launch
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..families.grouped.plan import GroupedPlan
from ..lang import Operator
from .kernel import PER_ROW, products_in
from .products import WALKED, Products, ProductStart
from .tasks import MEMBERS, Groups, Tasks, groups_of, walk_tasks
from .terms import Answer
from .twins import Place
from .values import Access, Cell, Int, Scope
from .walk import Walk

METHODS = {"left": ("data", "stride"), "right": ("data", "stride"), "team": ("rank", "size", "slot")}  # of a task
TASK = {name: z3.Int(f"task_{name}") for name in MEMBERS}
FITS = "index arithmetic fits its types"
FEW = 100  # elements of a side that are one tile


class OfTask(Walk):
    """The walk of one task: two threads have tasks of their own."""

    @property
    def own(self) -> Sequence[Any]:
        return (self.thread, *TASK.values())


@dataclass
class Grouped(Products):
    """A grouped product, walked for one task of ``groups``, and its ``tasks``."""

    groups: Groups = field(kw_only=True)
    tasks: Tasks | None = None

    def statements(self) -> Iterator[tuple[str, Iterator[Answer]]]:
        """Those of a task, each beside what is shown of all tasks. What is wrong is looked for where a group is one."""
        few = replace(self, walk=copy(self.walk), tasks=None)
        few.walk.knows = [*self.walk.knows, *self.one_task()]
        for (what, answers), (_, wrong) in zip(super().statements(), super(Grouped, few).statements(), strict=True):
            yield what, chain(self.beside(what), looked_for(answers, wrong))
        assert self.tasks is not None
        for (what, answers), (_, wrong) in zip(self.tasks.statements(), self.tasks.of_few().statements(), strict=True):
            if what != FITS:
                yield what, looked_for(answers, wrong)

    def beside(self, what: str) -> Iterator[Answer]:
        """What is shown of all tasks for a statement."""
        assert self.tasks is not None
        shown: dict[str, Callable[[Tasks], Iterator[Answer]]] = {FITS: Tasks.fitting}
        for out in self.outputs:
            shown |= {f"{out} is accessed inside": Tasks.lying, f"no element of {out} is": Tasks.disjoint,
                      f"{out} has no": Tasks.disjoint, f"every element of {out} is": Tasks.covering}  # fmt: skip
        for name, of in shown.items():
            if what.startswith(name):
                yield from looked_for(of(self.tasks), of(self.tasks.of_few()))

    def one_task(self) -> list[Any]:
        """That a group is one task."""
        groups, g = self.groups, TASK["group"]
        sides = [s <= FEW for s in (groups.rows, groups.cols, groups.inner)]
        return [*sides, TASK["row"] == groups.top(g), TASK["rows"] == groups.height(g), TASK["rows"] >= 1,
                TASK["col"] == 0, TASK["cols"] == groups.cols]  # fmt: skip

    def of_memory(self, term: Any) -> Iterator[Any]:
        """Beside rows of a tensor the one behind the last, where a group that has none may begin."""
        yield from super().of_memory(term)
        for t in products_in(term):
            for most, unknown in self.products:
                if any(c.eq(unknown) for c in t.children()):
                    factor = prod(c for c in t.children() if not c.eq(unknown))
                    yield z3.Implies(z3.And(factor >= 0, factor <= most + 1), t <= 2 * PER_ROW)

    def differ(self) -> Any:
        """That threads do: of tasks it is not known."""
        return self.walk.thread != z3.Int(f"{self.walk.thread}'")

    def once(self, accesses: Sequence[Access], given: Sequence[Any] = ()) -> Iterator[Answer]:
        """No two iterations of a task write the same element."""
        return super().once(accesses, [*given, *(o == z3.Int(f"{o}'") for o in self.walk.own)])

    def placed(self, a: Access) -> Place:
        """In a result by row and column of the task."""
        place = super().placed(a)
        if a.base.name not in self.outputs:
            return place
        (_, _), (row, n), (col, m) = place
        return [(0, 1), (row - TASK["row"], n), (col - TASK["col"], m)]

    def of_element(self, out: str, wanted: Sequence[Any]) -> list[Any]:
        """The elements of a task."""
        sides = (1, TASK["rows"], TASK["cols"])
        return [z3.And(e >= 0, e < side) for e, side in zip(wanted, sides, strict=True)]

    def inside(self, a: Access) -> Answer:
        """Of a tensor or a buffer; of a result, inside its task."""
        answer = super().inside(a)
        if a.base.name not in self.outputs or answer.status != "proved":
            return answer
        (item, _), _, _ = super().placed(a)
        _, (row, _), (col, n) = self.placed(a)
        within = [item == TASK["group"], row >= 0, row < TASK["rows"], col >= 0, col + n <= TASK["cols"]]
        return self.told(self.ask(z3.And(*within), self.given(a)), a)


def looked_for(answers: Iterator[Answer], few: Iterator[Answer]) -> Iterator[Answer]:
    """Answers; where one is not proved, what is wrong of few sizes is looked for."""
    for answer in answers:
        if answer.status == "proved":
            yield answer
            continue
        wrong = next((a for a in few if a.status == "refuted"), None)
        yield wrong or replace(answer, status="undecided", reason=answer.reason or "no sizes found")
        return


def walk_grouped(
    operator: Operator, plan: GroupedPlan, lanes: int, seconds: float, text: KernelText | None = None
) -> Grouped:
    """The walk through the CPU's kernel of a grouped product."""
    start = GroupedStart(operator, plan, lanes, text, (*WALKED, *METHODS))
    groups, shares = groups_of(start, plan), start.walk.lemmas
    assert plan.graph.offsets is not None
    start.sides[str(plan.graph.offsets.space)] = start.batch + 1
    start.walk.lemmas = lambda terms: [*shares(terms), *groups.ascends(terms)]
    start.walk.knows.append(groups.of_task(TASK))
    start.walk.calls = {**start.walk.calls, "each_task": one_task}
    made = start.products_walked(seconds, Grouped, groups=groups)
    assert isinstance(made, Grouped)
    made.tasks = walk_tasks(operator, plan, lanes, seconds, text)
    made.sizes = [*made.sizes, *TASK.values()]
    return made


class GroupedStart(ProductStart):
    """What is known where the kernel of a grouped product begins."""

    walks = OfTask


def one_task(walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
    """A task, with the methods of the header."""
    made: dict[str, Any] = {name: Int(t, "int64_t") for name, t in TASK.items()}

    def method(name: str) -> Any:
        def call(walk: Walk, *given: Any) -> dict[str, Any]:
            (f,) = (f for f in walk.functions[name] if len(f.params) == len(given))
            scope = Scope(walk.globals)
            scope.names |= {n: Cell(v) for n, v in made.items()}
            return dict(zip(METHODS[name], walk.run(f.params, f.body, scope, given), strict=True))

        return call

    made |= {f".{name}": method(name) for name in METHODS}
    return walk.invoke(values[-1], [made])


__all__ = ["walk_grouped"]
