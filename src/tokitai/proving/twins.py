"""Two iterations that reach the same element: shown to be the same one, unknown by unknown.

The solver is not asked for everything at once. An index is a sum of digits, such as 2016 a + 6 b + c; equal indices
have equal digits, the largest first. What is shown to be the same in both iterations is one unknown from then on, and
so is what is made of such unknowns alone: a question is about what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import z3

from .definitions import Definitions, made_up
from .logic import both, variables
from .monomials import Products, Questions
from .terms import Answer, Sum, ask
from .values import Access
from .walk import Walk

Place = Sequence[tuple[Any, Any]]  # coordinates, each with how many neighbours an access takes along it


@dataclass
class Twins:
    """The two accesses of a pair, ``a`` and ``b`` in an iteration of its own. ``places`` are where they lie."""

    walk: Walk
    definitions: Definitions
    products: Products
    a: Access
    b: Access
    places: tuple[Place, Place]
    seconds: float
    given: Sequence[Any] = ()  # what is known beside, where unknowns of b are named as `other` names them
    same: list[tuple[Any, Any]] = field(default_factory=list)  # unknowns of b, and those of a that they are

    def __post_init__(self) -> None:
        own = {o.get_id() for o in self.walk.own}
        self.fixed = {v.get_id() for k in self.walk.knows for v in variables(k)} - own
        mine = [k for k in self.walk.knows if any(v.get_id() in own for v in variables(k))]
        self.left, right = (
            [*when, *self.definitions.of([*when, *(t for c in place for t in c)], when)]
            for when, place in zip((_terms(self.a), _terms(self.b)), self.places, strict=True)
        )
        right += mine
        self.unknowns = [v for t in right for v in variables(t) if v.get_id() not in self.fixed]
        self.unknowns = list({v.get_id(): v for v in self.unknowns}.values())
        self.right = [self.other(t) for t in right]

    def other(self, t: Any) -> Any:
        """A term of b with unknowns of its own."""
        if isinstance(t, (int, bool)):
            return t
        return z3.substitute(
            t, *((v, z3.Const(f"{v}'", v.sort())) for v in variables(t) if v.get_id() not in self.fixed)
        )

    def now(self, t: Any) -> Any:
        """A term of b as it is named by now."""
        return t if isinstance(t, (int, bool)) or not self.same else z3.substitute(t, *self.same)

    @property
    def meet(self) -> Any:
        """That both have an element in common."""
        made = []
        for (x, n), (y, m) in zip(*self.places, strict=True):
            z, m = self.other(y), self.other(m)
            made.append(x == z if _one(n) and _one(m) else both(n > 0, m > 0, x < z + m, z < x + n))
        return both(*made)

    def knows(self) -> list[Any]:
        """All that is known of a pair that meets."""
        return [*self.walk.knows, *self.left, *map(self.now, [*self.right, *self.given, self.meet])]

    def ask(self, must: Any, seconds: float) -> Answer:
        """The solver's answer, with names in place of products."""
        return self.questions.ask(self.now(must), seconds)

    def ask_exactly(self, must: Any, seconds: float) -> Answer:
        """The same with products as they are."""
        terms = [z3.BoolVal(t) if isinstance(t, bool) else t for t in (self.now(must), *self.knows())]
        return ask(terms[0], [*terms[1:], *self.walk.lemmas(terms)], seconds)

    def find(self) -> bool:
        """Show of unknowns that they are the same, until the pair is shown not to meet."""
        todo = [*self.digits(), *((v, self.other(v)) for v in self.unknowns if not made_up(v) or _division(v))]
        before = -1
        while before != len(todo):
            self.questions = Questions(self.products, self.walk.lemmas)
            self.questions.add(self.knows())
            if self.ask(False, 2.0).status == "proved":
                return True
            before, todo = len(todo), [(x, y) for x, y in todo if not self.shown(x, self.now(y))]
        return False

    def shown(self, x: Any, y: Any) -> bool:
        """Whether two terms are the same, which is known from then on."""
        if x.eq(y):
            return True
        if self.ask(x == y, 1.0).status != "proved":
            return False
        self.questions.add([x == y])
        if z3.is_const(y):
            self.same.append((y, x))
            self.follow()
        else:
            self.right.append(x == y)
        return True

    def follow(self) -> None:
        """What is made of the same unknowns is the same."""
        done = {str(y) for y, _ in self.same}
        for v in self.unknowns:
            if made_up(v) and f"{v}'" not in done:
                of = [u for u in self.definitions.made_of(v).values() if u.get_id() not in self.fixed]
                if all(f"{u}'" in done for u in of):
                    self.same.append((self.other(v), v))

    def digits(self) -> Iterator[tuple[Any, Any]]:
        """The digits of both places, the largest first."""
        for (x, _), (y, _) in zip(*self.places, strict=True):
            found = [digits_of(x), digits_of(y)]
            for n in sorted(set(found[0]) & set(found[1]), reverse=True):
                a, b = found[0][n], found[1][n]
                if not isinstance(a, int) and not isinstance(b, int):
                    yield a, self.other(b)

    def are_the_same(self, v: Any) -> bool:
        """Whether an unknown was shown to be the same in both."""
        return bool(self.now(self.other(v)).eq(v))


def digits_of(index: Any) -> dict[int, Any]:
    """The digits of an index, by what they are multiplied with."""
    found = Sum(index)
    made: dict[int, dict[Any, int]] = {}
    for monomial, n in found.parts.items():
        if monomial:
            made.setdefault(abs(n), {})[monomial] = n // abs(n)
    return {n: found.term(parts) for n, parts in made.items()}


def _terms(a: Access) -> list[Any]:
    return [t for t in (*a.when, a.at, a.count) if not isinstance(t, (int, bool)) and z3.is_bool(t)]


def _one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


def _division(v: Any) -> bool:
    return str(v).startswith(("quotient!", "rest!"))


__all__ = ["Place", "Twins", "digits_of"]
