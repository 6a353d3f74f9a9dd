"""Loops whose invariants are stated: shown to hold at first, and to be kept by each iteration.

A variable that a loop changes is unknown in an iteration and behind the loop, but for its invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .logic import no
from .monomials import Products, Questions
from .parse import Node
from .values import OPAQUE, Int, Loop, Scope
from .walk import Walk


class Stated(Walk):
    """The walk; ``stated`` says what is invariant in the loop that begins with a head."""

    stated: Callable[[str, Scope], Sequence[Any]] = staticmethod(lambda head, scope: ())
    shared_from = 0  # unknowns of smaller numbers are made ahead of the partitioned loop: the same for all threads

    def execute_for(self, n: Node, scope: Scope, shared: bool = False) -> Any:
        begin, condition, step, body = n.args
        inner = Scope(scope)
        self.execute(begin, inner)
        self.keep(n, inner)
        changed = [cell for cell, _, _ in self.changes(n, inner).values()]
        if shared and not self.dry:
            self.shared_from = next(self.names)

        def unknown() -> None:
            for cell in changed:
                made = Int(self.fresh("before"), cell.value.type) if isinstance(cell.value, Int) else OPAQUE
                self.assign(cell, made)
            for invariant in self.stated(n.line, inner) if not self.dry else ():
                self.fact(invariant)

        unknown()
        mark = len(self.when)
        self.when.append(self.truth(self.value(condition, inner)))
        variable = next(iter(inner.names.values())).value.term if inner.names else self.fresh("k")
        self.loops.append(Loop(next(self.names), variable, shared))
        self.log.append([])
        self.turn(body, step, inner)
        self.keep(n, inner)
        for cell, before in reversed(self.log.pop()):
            cell.value = before
        self.loops.pop()
        del self.when[mark:]
        unknown()
        return no(self.truth(self.value(condition, inner)))  # else it goes on

    def keep(self, n: Node, scope: Scope) -> None:
        """Record that invariants must hold here."""
        for invariant in self.stated(n.line, scope) if not self.dry else ():
            self.must("an invariant of a loop", invariant)

    def follows(self, term: Any) -> bool:
        """With names in place of products."""
        if isinstance(term, bool):
            return term
        questions = Questions(Products(), self.lemmas)
        questions.add([*self.knows, *self.when, *self.relevant([term, *self.when])])
        return questions.ask(term, 1.0).status == "proved"


__all__ = ["Stated"]
