"""Loops, walked once, for an iteration that stands for all.

A variable that grows by the same amount each time is its first value plus that many times the iteration, and whatever
else changes is unknown but for bounds that are shown to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import z3

from .arithmetic import BITS
from .effects import quiet
from .expressions import Expressions
from .logic import folded, holds, no, variables
from .parse import Node
from .values import OPAQUE, Cell, Closure, Int, Loop, Pointer, Scope, Truth


class Loops(Expressions):
    """What a loop does, and the state behind it."""

    def execute_for(self, n: Node, scope: Scope, shared: bool = False) -> Any:
        begin, condition, step, body = n.args
        if self.dry and self.quiet(n, scope):
            return True
        inner = Scope(scope)
        self.execute(begin, inner)
        if not shared and not (self.naming and self.once_known(n, inner)):
            for _ in range(33):
                go = folded(self.truth(self.value(condition, inner)))
                if not isinstance(go, bool) and not (step.kind == "block" and self.follows(no(go))):
                    break
                if go is not True:
                    return True
                self.turn(body, step, inner)
                if self.frames[-1].broken:
                    break
        return self.summary(n, inner, shared)

    def quiet(self, n: Node, scope: Scope) -> bool:
        """Whether a loop leaves all variables outside as they are."""

        def called(name: str) -> Node | bool | None:
            cell = scope.find(name)
            if cell is not None and isinstance(cell.value, Closure):
                return Node("closure", (cell.value.params, cell.value.body))
            mine = self.functions.get(name, ()) if name not in self.calls else ()
            return any(kind.endswith("&") and kind.rstrip("&") in BITS for f in mine for kind, _ in f.params) or None

        return quiet(n, called)

    def once_known(self, n: Node, scope: Scope) -> bool:
        """Whether a loop is known to begin and not how it goes on."""
        _, condition, step, _ = n.args
        if step.kind == "block" or folded(self.truth(self.value(condition, scope))) is not True:
            return False
        self.log.append([])
        self.value(step, scope)
        known = isinstance(folded(self.truth(self.value(condition, scope))), bool)
        for cell, before in reversed(self.log.pop()):
            cell.value = before
        return not known

    def turn(self, body: Node, step: Node, scope: Scope) -> None:
        self.execute(body, Scope(scope))
        self.value(step, scope) if step.kind != "block" else None

    def changes(self, n: Node, scope: Scope) -> dict[int, tuple[Cell, Any, Any]]:
        """Variables that one iteration changes: before and after."""
        _, condition, step, body = n.args
        born = next(Cell.made)
        self.log.append([])
        self.dry += 1
        mark, phase, broken = len(self.when), list(self.phase), self.frames[-1].broken
        returned = len(self.frames[-1].returned)
        go = folded(self.truth(self.value(condition, scope)))
        if go is not False:
            self.when.append(go)
            self.turn(body, step, scope)
        del self.when[mark:]
        del self.frames[-1].returned[returned:]
        self.phase, self.dry = phase, self.dry - 1
        self.breaks = self.frames[-1].broken
        self.frames[-1].broken = broken
        log = self.log.pop()
        found: dict[int, tuple[Cell, Any, Any]] = {}
        for cell, before in log:
            if cell.born < born:  # else one of the iteration's own
                found.setdefault(id(cell), (cell, before, cell.value))
        for cell, before in reversed(log):
            cell.value = before
        return found

    def summary(self, n: Node, scope: Scope, shared: bool) -> Any:
        """An iteration that stands for all, then the state behind the loop."""
        _, condition, _step, body = n.args
        changed = {k: c for k, c in self.changes(n, scope).items() if c[0].type != "local"}
        first = {k: c.value for k, (c, _, _) in changed.items()}
        unknown: dict[int, Any] = {}
        for k, (cell, _, _) in changed.items():
            if isinstance(cell.value, Int):
                unknown[k] = self.fresh("before")
                self.assign(cell, Int(unknown[k], cell.value.type))
            elif isinstance(cell.value, Pointer):
                unknown[k] = self.fresh("before")
                self.assign(cell, replace(cell.value, at=unknown[k]))
            else:
                self.assign(cell, OPAQUE if not isinstance(cell.value, Truth) else Truth(self.unknown_truth()))
        again = self.changes(n, scope)
        breaks = self.breaks
        linear: dict[int, tuple[Any, Any]] = {}
        for k, s in unknown.items():
            after = again[k][2] if k in again else None
            term = after.term if isinstance(after, Int) else after.at if isinstance(after, Pointer) else None
            if term is None:
                continue
            grown = folded(z3.simplify(term - s, som=True) if not isinstance(term, int) else term)
            if isinstance(term, int):
                if term == _term(first[k]):  # so it is after each iteration
                    linear[k] = (term, 0)
                continue
            known = isinstance(grown, int) or not any(holds(grown, u) for u in unknown.values())
            if known and _invariant(grown):
                linear[k] = (_term(first[k]), grown)
        k_ = self.counted(list(linear.values()))
        for k, (f, d) in linear.items():
            cell = changed[k][0]
            at = self.grown(f, d, k_)
            cell.value = Int(at, cell.value.type) if isinstance(cell.value, Int) else replace(cell.value, at=at)
        uneven = {k: s for k, s in unknown.items() if k not in linear}
        second = {k: _next(s, again[k][2], first[k]) for k, s in uneven.items() if k in again}
        kept = self.invariants(n, scope, uneven, first, second, k_)
        mark = len(self.when)
        self.when += [k_ >= 0, *self.bounded(kept)]
        if unknown.keys() == linear.keys():
            self.dry += 1
            before = folded(self.truth(self.value(condition, scope)))
            self.dry -= 1
            if not isinstance(before, bool):  # the iteration before this one went on
                self.when.append(z3.Or(k_ == 0, z3.substitute(before, (k_, k_ - 1))))
        go = folded(self.truth(self.value(condition, scope)))
        self.when.append(go)
        loop = Loop(next(self.names), k_, shared)
        self.loops.append(loop)
        self.log.append([])
        self.execute(body, Scope(scope))
        log = self.log.pop()
        for cell, before in reversed(log):
            cell.value = before
        self.loops.pop()
        del self.when[mark:]
        return self.behind(n, scope, linear, changed, unknown, kept, k_, breaks)

    def counted(self, linear: Sequence[tuple[Any, Any]]) -> Any:
        """The number of an iteration in which variables have grown from such first numbers by so much each time."""
        return self.fresh("k")

    def grown(self, first: Any, by: Any, iteration: Any) -> Any:
        """What a variable is in an iteration."""
        return folded(first + iteration * by)

    def bounded(self, kept: Sequence[Any]) -> Sequence[Any]:
        """What is a condition of an iteration of bounds that each keeps."""
        return kept

    def invariants(
        self, n: Node, scope: Scope, unknown: Mapping[int, Any], first: Mapping[int, Any], second: Mapping[int, Any],
        k_: Any,
    ) -> list[Any]:  # fmt: skip
        """Bounds of variables that grow unevenly which hold at first, and which an iteration keeps."""
        made: dict[tuple[int, int], Callable[[Any], Any]] = {}
        for k in unknown:
            f = _term(first[k])
            made |= {(k, 0): partial(_least, 0), (k, 1): partial(_most, f), (k, 2): partial(_least, f)}
            if isinstance(then := second.get(k), int):  # of what alternates
                made[k, 3] = partial(_most, then)
        made = {key: c for key, c in made.items() if self.follows(c(_term(first[key[0]])))}
        while made:
            mark = len(self.when)
            self.when += [k_ >= 0, *(c(unknown[k]) for (k, _), c in made.items())]
            made_so_far = len(self.accesses), len(self.ranged)
            self.when.append(folded(self.truth(self.value(n.args[1], scope))))
            del self.accesses[made_so_far[0] :], self.ranged[made_so_far[1] :]  # under bounds that may not be kept
            again = self.changes(n, scope)
            lost = []
            for key, c in made.items():
                after = again.get(key[0])
                term = None if after is None else _term(after[2])
                if after is not None and (term is None or not self.follows(c(term))):
                    lost.append(key)
            del self.when[mark:]
            if not lost:
                return [c(unknown[k]) for (k, _), c in made.items()]
            for key in lost:
                del made[key]
        return []

    def behind(
        self, n: Node, scope: Scope, linear: Mapping[int, tuple[Any, Any]], changed: Mapping[int, Any],
        unknown: Mapping[int, Any], kept: Sequence[Any], k_: Any, breaks: bool,
    ) -> Any:  # fmt: skip
        """The state behind a loop."""
        self.dry += 1
        condition = folded(self.truth(self.value(n.args[1], scope)))
        self.dry -= 1
        turns = None if breaks else self.closed(condition, k_)
        facts: list[Any] = []
        if turns is None:
            turns = self.fresh("turns")
            at_end = z3.substitute(condition, (k_, turns)) if not isinstance(condition, bool) else z3.BoolVal(condition)
            facts = [turns >= 0] if breaks else [turns >= 0, z3.Not(at_end)]
            if not unknown.keys() - linear.keys():
                before = condition if isinstance(condition, bool) else z3.substitute(condition, (k_, turns - 1))
                facts.append(z3.Or(turns == 0, before))
            facts += kept
        for k, (cell, _, _) in changed.items():
            if k in linear:
                f, d = linear[k]
                at = folded(f + turns * d)
                value = cell.value
                self.assign(cell, Int(at, value.type) if isinstance(value, Int) else replace(value, at=at))
        for fact in facts:
            self.fact(fact)
        return True

    def closed(self, condition: Any, k_: Any) -> Any:
        """How many iterations a loop has whose condition is that something which grows evenly is below a bound."""
        if isinstance(condition, bool) or z3.is_and(condition):
            return None
        c = condition
        strict = None
        if z3.is_lt(c) or z3.is_le(c):
            low, high, strict = c.arg(0), c.arg(1), z3.is_lt(c)
        elif z3.is_gt(c) or z3.is_ge(c):
            low, high, strict = c.arg(1), c.arg(0), z3.is_gt(c)
        if strict is None:
            return None
        gap = high - low  # falls by d each time; the loop goes on while it is above 0, or at least 0
        at0 = z3.substitute(gap, (k_, z3.IntVal(0)))
        d = folded(z3.simplify(at0 - z3.substitute(gap, (k_, z3.IntVal(1))), som=True))
        rest = z3.simplify(gap - at0 + k_ * d, som=True)
        if not isinstance(d, int) or d <= 0 or folded(rest) != 0:
            return None
        top = at0 + d - 1 if strict else at0 + d
        return folded(z3.If(top < d, 0, z3.simplify(top) / d))


def _least(bound: Any, x: Any) -> Any:
    return x >= bound


def _most(bound: Any, x: Any) -> Any:
    return x <= bound


def _next(unknown: Any, after: Any, first: Any) -> Any:
    """What a variable is after the first iteration."""
    term, start = _term(after), _term(first)
    if not isinstance(start, int) or not z3.is_expr(term):
        return None
    return folded(z3.substitute(term, (unknown, z3.IntVal(start))))


def _term(value: Any) -> Any:
    return value.term if isinstance(value, Int) else value.at if isinstance(value, Pointer) else None


def _invariant(term: Any) -> bool:
    """Whether a term is made of what was known ahead of the loop: nothing that was made up meanwhile."""
    return not any("data" in str(v) or "quotient" in str(v) for v in variables(term))
