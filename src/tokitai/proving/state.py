"""What a walk through a kernel knows at a place: conditions, loops around it, facts about numbers that were made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import z3

from .logic import both, folded, variables
from .parse import Function, Node
from .values import (
    Access,
    Cell,
    Division,
    Frame,
    Loop,
    Piece,
    Ranged,
    Scope,
)


class State:
    """What is known where a walk stands. ``knows`` are facts about the sizes; ``calls`` are what functions of a name do
    in place of their text."""

    def __init__(
        self, functions: Mapping[str, Sequence[Function]], knows: Sequence[Any],
        calls: Mapping[str, Callable[..., Any]], constants: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.functions, self.calls = functions, calls
        self.knows = list(knows)
        self.globals = Scope()
        for name, value in constants.items():
            self.globals.names[name] = Cell(value)
        self.when: list[Any] = []
        self.loops: list[Loop] = []
        self.frames: list[Frame] = [Frame(0)]
        self.log: list[list[tuple[Cell, Any]]] = []
        self.dry = 0
        self.accesses: list[Access] = []
        self.ranged: list[Ranged] = []
        self.phase: list[Any] = [0]
        self.alone = 0
        self.pieces: list[Piece] = []
        self.line = ""
        self.names = count()
        self.solver = z3.Solver()
        self.solver.set("timeout", 1500)
        self.known: dict[tuple[Any, ...], bool] = {}
        self.alive: list[Any] = []
        self.facts: list[Any] = []
        self.tables: dict[str, Mapping[int, Any]] = {}
        self.in_closure = 0
        self.divisions: dict[tuple[int, ...], Division] = {}
        self.multiples: list[Any] = []  # sizes below which a quotient may be shown to be
        self.memory: dict[tuple[str, int], tuple[Any, Any]] = {}  # whole numbers stored ahead of all loops, and when
        self.thread = z3.Int("thread")

    def fresh(self, name: str) -> Any:
        """An unknown number."""
        return z3.Int(f"{name}!{next(self.names)}")

    def follows(self, term: Any) -> bool:
        """Whether a condition follows from what is known here. False where that is not found out in time."""
        term = folded(term)
        if isinstance(term, bool):
            return term
        key = (term.get_id(), *(w.get_id() for w in self.when if not isinstance(w, bool)))
        if key not in self.known:
            self.solver.push()
            self.solver.add(*self.knows, *self.when, *self.relevant([term, *self.when]), z3.Not(term))
            self.known[key] = self.solver.check() == z3.unsat
            self.solver.pop()
            self.alive.append((term, list(self.when)))  # what lives keeps its number
        return self.known[key]

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
        left = [(f, {v.get_id() for v in variables(f) if "!" in v.decl().name()}) for f in self.facts]
        while True:
            more = [(f, ids) for f, ids in left if ids & known]
            if not more:
                return found
            found += [f for f, _ in more]
            known |= set().union(*(ids for _, ids in more))
            left = [x for x in left if x not in more]

    def under(self, condition: Any, run: Callable[[], Any]) -> Any:
        """Run with one more condition."""
        mark = len(self.when)
        self.when.append(condition)
        try:
            return run()
        finally:
            del self.when[mark:]

    def value(self, n: Node, scope: Scope) -> Any:
        """The value of an expression; accesses in it are recorded."""
        raise NotImplementedError

    def execute(self, n: Node, scope: Scope) -> Any:
        """Walk a statement. Returns under which condition the next one is reached."""
        raise NotImplementedError
