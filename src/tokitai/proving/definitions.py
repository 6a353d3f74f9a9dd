"""What defines the unknowns that a walk makes up: names of variables, quotients and what these leave.

Each is a function of the iterations in which it is made, and so the same number in two iterations that are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import z3

from .known import LET
from .logic import variables
from .walk import Walk

MADE = (LET, "quotient!", "rest!")


def made_up(v: Any) -> bool:
    """Whether an unknown is defined by facts."""
    return str(v).startswith(MADE)


class Definitions:
    """Of each such unknown the facts about it and what was made before it."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.facts: dict[int, list[Any]] = {}
        beside = {d.quotient.get_id(): d.rest for d in walk.divisions.values()}
        for fact in walk.facts:
            conclusion = fact.arg(1) if z3.is_implies(fact) else fact
            mine = [v for v in variables(conclusion) if "!" in str(v)]
            last = max(mine, key=lambda v: int(str(v).rpartition("!")[2]))
            self.facts.setdefault(last.get_id(), []).append(fact)
        for quotient, rest in beside.items():
            both = [*self.facts.get(quotient, ()), *self.facts.get(rest.get_id(), ())]
            self.facts[quotient] = self.facts[rest.get_id()] = both

    def of(self, terms: Sequence[Any], when: Sequence[Any]) -> list[Any]:
        """The facts that define the unknowns of these terms, where ``when`` is known."""
        holding = {w.get_id() for w in when if not isinstance(w, bool)}
        found: dict[int, Any] = {}
        seen: set[int] = set()
        stack = [v for t in terms for v in variables(t)]
        while stack:
            v = stack.pop()
            if v.get_id() in seen:
                continue
            seen.add(v.get_id())
            for fact in self.facts.get(v.get_id(), ()):
                conditions, conclusion = _guarded(fact)
                left = [c for c in conditions if c.get_id() not in holding]
                found[fact.get_id()] = z3.Implies(z3.And(*left), conclusion) if left else conclusion
                stack += variables(found[fact.get_id()])
        return list(found.values())

    def made_of(self, v: Any) -> dict[int, Any]:
        """The unknowns that are not defined of which one is made."""
        found: dict[int, Any] = {}
        seen: set[int] = set()
        stack = [v]
        while stack:
            one = stack.pop()
            if one.get_id() in seen:
                continue
            seen.add(one.get_id())
            if not made_up(one) or one.get_id() not in self.facts:
                found[one.get_id()] = one
            for fact in self.facts.get(one.get_id(), ()):
                stack += variables(_guarded(fact)[1])
        return found


def _guarded(fact: Any) -> tuple[Collection[Any], Any]:
    """The conditions of a fact, and what holds under them."""
    if not z3.is_implies(fact):
        return (), fact
    condition = fact.arg(0)
    return condition.children() if z3.is_and(condition) else (condition,), fact.arg(1)


__all__ = ["Definitions", "made_up"]
