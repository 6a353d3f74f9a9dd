"""An iteration that writes an element, found from the element's coordinates.

A digit of a coordinate is an iteration's number, or such a number behind the share of a part, which holds it
(`shares`). A part's number is a digit of a unit of work; units are dealt out to threads in turn. Of a loop that no
digit speaks of the last iteration is taken. Conditions are then shown one by one, the outermost first, with the facts
that hold under those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import z3

from .logic import both, holds, variables
from .monomials import Questions
from .shares import SHARE, held
from .terms import Answer, Sum, applications
from .twins import digits_of
from .values import Access

if TYPE_CHECKING:
    from .written import Written

FAR = 2**40  # an iteration that no loop has


@dataclass
class Witness:
    """For accesses in the same loops, one of which is to reach every element of a result, where their conditions on
    sizes hold."""

    kernel: Written
    out: str
    group: Sequence[Access]
    chosen: list[tuple[Any, Any]] = field(default_factory=list)  # iterations and threads, and their numbers
    knows: list[Any] = field(default_factory=list)
    parts: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # quotients and rests, and what they are to be
    shown: list[Any] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.walk, self.loops = self.kernel.walk, list(self.group[0].loops)
        self.own = [k for k in self.walk.knows if holds(k, self.walk.thread)]
        self.knows += [k for k in self.walk.knows if not any(k.eq(o) for o in self.own)]
        self.questions = Questions(self.kernel.products_of, self.walk.lemmas)
        self.questions.add(self.knows)

    def answer(self) -> Answer:
        """Whether every element is reached."""
        places = [self.kernel.placed(a) for a in self.group]
        wanted = [z3.Int(f"element_{i}") for i, _ in enumerate(places[0])]
        self.knows += self.kernel.of_element(self.out, wanted)
        when = [[w for w in a.when if not isinstance(w, bool)] for a in self.group]
        common = [w for w in when[0] if all(any(w.eq(x) for x in other) for other in when)]
        self.terms: list[Any] = [*common, *(index for index, _ in places[0])]
        for (index, _), element in zip(places[0], wanted, strict=True):
            self.reach(index, element)
        for k in self.left():
            self.deal(k)
        for k in self.left():
            if (answer := self.last(k, common)).status != "proved":
                return answer
        self.shown += (cases := [w for w in common if of_sizes(w)])
        self.knows += cases
        if not any(v.eq(o) for v, _ in self.chosen for o in self.walk.own):
            self.knows += self.own  # any thread
        for w in [*common, *map(self.of, self.own)]:
            if (answer := self.ask(self.of(w))).status != "proved":
                return answer
            self.shown.append(w)
            self.knows.append(self.of(w))
        hits = []
        for place, conditions in zip(places, when, strict=True):
            there = [reaches(index, n, element) for (index, n), element in zip(place, wanted, strict=True)]
            hits.append(
                both(*(self.of(t) for t in (*there, *(w for w in conditions if not any(w.eq(x) for x in common)))))
            )
        return self.ask(z3.Or(*(z3.BoolVal(h) if isinstance(h, bool) else h for h in hits)))

    # ------------------------------------------------------------------ choices
    def left(self) -> list[Any]:
        """The iterations that are not chosen."""
        done = {v.get_id() for v, _ in self.chosen}
        return [l.iteration for l in self.loops if l.iteration.get_id() not in done]

    def number(self) -> Any:
        """A number, of which something will be known."""
        self.made += 1
        return z3.Int(f"witness_{self.made}")

    def of(self, t: Any) -> Any:
        """A term in the chosen iterations."""
        for pair in self.chosen:
            t = t if isinstance(t, (int, bool)) else z3.substitute(t, pair)
        return t

    def reach(self, index: Any, element: Any) -> None:
        """Choose iterations whose index is that of an element."""
        found = digits_of(index)
        for n in sorted(found, reverse=True):
            digit = element
            if n > 1:
                digit = self.number()
                self.knows += [n * digit <= element, element < n * digit + n]
                element = element - n * digit
            self.digit(found[n], digit)

    def digit(self, term: Any, value: Any) -> None:
        """Choose the iteration whose number is a digit, or that number behind the first one of a part."""
        mine = [k for k in self.left() if Sum(term).factor(k) == 1]
        if not mine:
            return
        _, first = Sum(term).along(mine[0])
        for v in variables(first):
            self.part(v, value)
        self.chosen.append((mine[0], value - self.of(first)))

    def part(self, first: Any, value: Any) -> None:
        """Choose the part that holds a value; ``first`` is the first one of a part."""
        equal = [f for f in self.kernel.definitions.facts.get(first.get_id(), ()) if z3.is_eq(f) and f.arg(0).eq(first)]
        shares = applications(SHARE, equal)
        if len(shares) != 1:
            return
        ahead = z3.simplify(equal[0].arg(1) - shares[0])
        for k in self.left():
            by, rest = Sum(ahead).along(k)
            if by is not None and not isinstance(by, int):
                w = self.number()
                begin = w * by
                within = z3.And(w >= 0, begin <= value - rest, value - rest < begin + by)
                self.knows.append(z3.Implies(z3.And(by > 0, value >= rest), within))
                self.chosen.append((k, w))
        m, b, n = shares[0].children()
        part = self.number()
        self.parts[b.get_id()] = b, part
        self.knows.append(held(value - self.of(ahead), m, part, n))

    def deal(self, k: Any) -> None:
        """Choose the turn, and the thread whose turn it is, of a unit of work."""
        for d in self.walk.divisions.values():
            by, rest = Sum(d.of).along(k)
            if (
                by is None
                or (isinstance(by, int) and by == 0)
                or not {d.quotient.get_id(), d.rest.get_id()} <= {*self.parts}
            ):
                continue
            unit = self.parts[d.quotient.get_id()][1] * d.by + self.parts[d.rest.get_id()][1]
            if isinstance(by, int):
                self.chosen.append((k, unit - rest))
                return
            turn, rank = self.number(), self.number()
            dealt = both(turn >= 0, rank >= 0, rank < by, rank + turn * by == unit)
            self.knows.append(z3.Implies(z3.And(by > 0, unit >= 0), dealt))
            self.chosen += [(k, turn), *((o, rank) for o in self.walk.own if Sum(rest).factor(o) == 1)]
            return

    def last(self, k: Any, when: Sequence[Any]) -> Answer:
        """Choose the last iteration of a loop; that there is one is to be shown."""
        begin = next(i for i, w in enumerate(when) if w.eq(k >= 0))
        goes_on = next(w for w in when[begin + 1 :] if holds(w, k) and not (z3.is_or(w) and w.arg(0).eq(k == 0)))

        def at(n: Any) -> Any:
            return z3.substitute(self.of(goes_on), (k, n))

        w = self.number()
        answer = self.questions.ask(both(at(z3.IntVal(0)), z3.Not(at(z3.IntVal(FAR)))), self.kernel.seconds)
        self.knows += [w >= 0, at(w), z3.Not(at(w + 1))]
        self.chosen.append((k, w))
        return answer

    # ------------------------------------------------------------------ questions
    def ask(self, must: Any) -> Answer:
        """The solver's answer with what holds under the conditions that were shown."""
        terms = [*self.terms, *self.knows]
        self.questions.add(map(self.of, [*self.knows, *self.kernel.definitions.of(terms, self.shown)]))
        for key, (unknown, value) in list(self.parts.items()):
            if self.questions.ask(unknown == value, 1.0).status == "proved":
                del self.parts[key]
                self.questions.add([unknown == value])
        return self.questions.ask(must, self.kernel.seconds)


def of_sizes(condition: Any) -> bool:
    """Whether a condition is on sizes alone."""
    return not any("!" in str(v) or str(v) == "thread" for v in variables(condition))


def reaches(index: Any, n: Any, element: Any) -> Any:
    """That one of n neighbours from an index on is an element."""
    return index == element if isinstance(n, int) and n == 1 else both(index <= element, element < index + n)


__all__ = ["Witness", "of_sizes", "reaches"]
