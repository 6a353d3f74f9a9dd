"""What a walk knows at a place of the source: facts about sizes, conditions, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import z3

from .logic import both, folded, variables
from .values import Ranged

LET = "let_"  # ahead of the names of unknowns that are variables of the source


class Known:
    """``knows`` are facts about the sizes of a call, ``when`` the conditions of a place."""

    def __init__(self, knows: Sequence[Any]) -> None:
        self.knows = list(knows)
        self.when: list[Any] = []
        self.dry = 0  # above 0, nothing is recorded
        self.ranged: list[Ranged] = []
        self.line = ""
        self.names = count()
        self.solver = z3.Solver()
        self.solver.set("timeout", 1500)
        self.known: dict[tuple[Any, ...], bool] = {}
        self.alive: list[Any] = []
        self.facts: list[Any] = []
        self.unknowns: list[set[int]] = []  # of each fact
        self.lemmas: Callable[[Sequence[Any]], list[Any]] = lambda terms: []  # what is known of contents of memory

    def fresh(self, name: str) -> Any:
        """An unknown number."""
        return z3.Int(f"{name}!{next(self.names)}")

    def unknown_truth(self) -> Any:
        """A condition of which nothing is known."""
        return z3.Bool(f"data!{next(self.names)}")

    def follows(self, term: Any) -> bool:
        """Whether a condition follows from what is known here. False where that is not found out in time."""
        term = folded(term)
        if isinstance(term, bool):
            return term
        key = (term.get_id(), *(w.get_id() for w in self.when if not isinstance(w, bool)))
        if key not in self.known:
            self.known[key] = self.asked(term)
            self.alive.append((term, list(self.when)))  # what lives keeps its number
        return self.known[key]

    def asked(self, term: Any) -> bool:
        """What the solver says."""
        self.solver.push()
        known = [*self.when, *self.relevant([term, *self.when])]
        self.solver.add(*self.knows, *known, *self.lemmas([term, *known]), z3.Not(term))
        found = bool(self.solver.check() == z3.unsat)
        self.solver.pop()
        return found

    def must(self, what: str, term: Any) -> None:
        """Record what has to hold here."""
        term = folded(term)
        if self.dry or term is True:
            return
        self.ranged.append(Ranged(what, term if term is not False else z3.BoolVal(False), tuple(self.when), self.line))

    def fact(self, term: Any) -> None:
        """What holds of numbers that were made up, wherever the source comes to this place."""
        self.facts.append(z3.Implies(both(*self.when), term) if self.when else term)

    def relevant(self, terms: Sequence[Any]) -> list[Any]:
        """The facts about the unknowns of these terms, and about those of such facts."""
        known = {v.get_id() for t in terms for v in variables(t)}
        found: list[Any] = []
        for f in self.facts[len(self.unknowns) :]:
            self.unknowns.append({v.get_id() for v in variables(f) if "!" in v.decl().name()})
        left = list(zip(self.facts, self.unknowns, strict=True))
        while more := [x for x in left if x[1] & known]:
            left = [x for x in left if not x[1] & known]
            found += [f for f, _ in more]
            known |= set().union(*(ids for _, ids in more))
        return found

    def under(self, condition: Any, run: Callable[[], Any]) -> Any:
        """Run with one more condition."""
        mark = len(self.when)
        self.when.append(condition)
        try:
            return run()
        finally:
            del self.when[mark:]

    def named(self, variable: str, term: Any) -> Any:
        """An unknown that is a term, so that what is made of it stays small."""
        name = self.fresh(f"{LET}{variable}")
        self.facts.append(name == term)
        return name
