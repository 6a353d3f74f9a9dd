"""That results are written once, and that threads keep apart, where indices are made of products of unknowns.

Of two accesses that meet is shown that their iterations are the same (`twins`); of an element, that there is an
iteration which writes it (`witness`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from math import prod
from typing import Any

import z3

from .definitions import Definitions
from .kernel import PER_ROW, Kernel, products_in
from .monomials import Products, Questions
from .terms import Answer, ask
from .twins import Place, Twins
from .values import Access, Loop, Ranged
from .witness import Witness, of_sizes, reaches

SMALL = (1, 2, 3)  # threads, where a wrong statement is looked for


@dataclass
class Written(Kernel, ABC):
    """A walked kernel. ``barriers``: phases that end at one, with the loops around it."""

    barriers: Sequence[tuple[Any, Sequence[Loop]]] = ()
    products_of: Products = field(default_factory=Products)
    written_once: set[Any] = field(default_factory=set)  # pairs of stores that no two iterations make to one element

    @abstractmethod
    def placed(self, a: Access) -> Place:
        """Where an access lies, by coordinates that are the same for the same elements alone."""

    @abstractmethod
    def of_element(self, out: str, wanted: Sequence[Any]) -> list[Any]:
        """Which coordinates the elements of a result have."""

    @cached_property
    def definitions(self) -> Definitions:
        """What defines the unknowns of the walk."""
        return Definitions(self.walk)

    def facts(self, terms: Sequence[Any], when: Sequence[Any]) -> list[Any]:
        """What defines the unknowns of these terms."""
        return self.definitions.of(terms, when)

    def statements(self) -> Iterator[tuple[str, Iterator[Answer]]]:
        """That threads do not meet in a result follows where each element is written once: so it is asked last."""
        late = {f"{out} has no conflicting accesses" for out in self.outputs}
        yield from sorted(super().statements(), key=lambda s: s[0] in late)

    def fitting(self) -> Iterator[Answer]:
        """Every whole number fits its type where it is computed: asked for all of a place at once."""
        places: dict[tuple[Any, ...], dict[int, Ranged]] = {}
        for r in self.walk.ranged:
            places.setdefault(tuple(map(_number, r.when)), {})[r.must.get_id()] = r
        for place in places.values():
            when = next(iter(place.values())).when
            questions = Questions(self.products_of, self.walk.lemmas)
            terms = [*when, *(r.must for r in place.values())]
            memory = [fact for r in place.values() for fact in self.of_memory(r.must)]
            questions.add([*self.walk.knows, *when, *self.facts(terms, when), *memory])
            for r in place.values():
                yield self.told(questions.ask(r.must, self.seconds), None, f"{r.what}: {r.line}")

    def of_memory(self, term: Any) -> Iterator[Any]:
        """That products in a term are no more than what memory holds, where a factor is within its count."""
        for t in products_in(term):
            for most, unknown in self.products:
                if any(c.eq(unknown) for c in t.children()):
                    factor = prod(c for c in t.children() if not c.eq(unknown))
                    yield z3.Implies(z3.And(factor >= 0, factor <= most), z3.And(t >= 0, t <= PER_ROW))

    def twins(self, a: Access, b: Access, given: Sequence[Any] = ()) -> Twins | None:
        """Both, with what was shown of them; None where they never are made in one call."""
        places = self.placed(a), self.placed(b)
        pair = Twins(self.walk, self.definitions, self.products_of, a, b, places, self.seconds, given)
        if self.contradict(a, b) or pair.find():
            return None
        return pair

    def contradict(self, a: Access, b: Access) -> bool:
        """Whether conditions on sizes alone exclude each other."""
        sizes = [w for x in (a, b) for w in x.when if not isinstance(w, bool) and of_sizes(w)]
        return ask(False, [*self.walk.knows, *sizes], 1.0).status == "proved"

    def once(self, accesses: Sequence[Access], given: Sequence[Any] = ()) -> Iterator[Answer]:
        """No two iterations, of whichever threads, write the same element; of those of which so much is ``given``."""
        for a, b in combinations_with_replacement(accesses, 2):
            pair = self.twins(a, b, given)
            if pair is None or (a is b and self.same(pair)):
                answer = Answer("proved", 0.0, {})
            else:
                answer = self.answered(pair, self.differing(pair) if a is b else True)
            if answer.status == "proved":
                self.written_once.add((_place(a), _place(b)))
            yield answer

    def same(self, pair: Twins) -> bool:
        """Whether two iterations that meet, in the same loops, were shown to be one."""
        loops = pair.a.loops
        alone = any(l.shared for l in loops) or all(map(pair.are_the_same, self.walk.own))
        return alone and all(pair.are_the_same(l.iteration) for l in loops)

    def differing(self, pair: Twins) -> Any:
        """That the iterations of a pair, or their threads, differ."""
        found = [x.iteration != pair.other(y.iteration) for x, y in zip(pair.a.loops, pair.b.loops, strict=True)]
        if not any(l.shared for l in pair.a.loops):
            found += [o != pair.other(o) for o in self.walk.own]
        return z3.Or(*found)

    def apart(self, accesses: Sequence[Access]) -> Iterator[Answer]:
        """No two accesses of different threads between the same barriers meet, one of which writes."""
        for a, b in combinations_with_replacement(_alike(accesses), 2):
            together = self.together(a, b) if a.write or b.write else None
            if together is None or (_place(a), _place(b)) in self.written_once:
                continue
            others = self.others(a, replace(b, loops=tuple(self.twin_of(l) for l in b.loops)))
            pair = None if others is False else self.twins(a, b, [*together, others, self.differ()])
            yield Answer("proved", 0.0, {}) if pair is None else self.answered(pair, True)

    def twin_of(self, loop: Loop) -> Loop:
        """A loop in another iteration."""
        return replace(loop, iteration=z3.Int(f"{loop.iteration}'"))

    def together(self, a: Access, b: Access) -> list[Any] | None:
        """What is known of iterations of two threads that no barrier lies between; None where one always does.

        All threads of a team come to the same barriers. So between two of them each thread is in the same iteration of
        the loops around them; behind the last one in such a loop another thread may be ahead of the first one of the
        next iteration."""
        around = [(phase, loops) for phase, loops in self.barriers if self.inner(a, loops) and self.inner(b, loops)]
        if not around:
            return [] if a.phase == b.phase else None
        first, last = around[0][0], (*around[-1][0][:-1], around[-1][0][-1] + 1)
        if {a.phase, b.phase} == {first, last}:
            return []
        if a.phase != b.phase:
            return None
        numbers = {l.number for _, loops in around for l in loops}
        return [l.iteration == z3.Int(f"{l.iteration}'") for l in a.loops if l.number in numbers]

    def inner(self, a: Access, loops: Sequence[Loop]) -> bool:
        """Whether an access lies in these loops."""
        return {l.number for l in loops} <= {l.number for l in a.loops}

    def answered(self, pair: Twins, others: Any) -> Answer:
        """That a pair does not meet, or not where ``others`` holds. What is wrong by names of products alone is wrong
        where the solver finds numbers."""
        must = z3.Not(others) if not isinstance(others, bool) else z3.BoolVal(not others)
        answer = pair.ask(must, self.seconds)
        if answer.status == "refuted":
            answer = self.exactly(lambda few: pair.ask_exactly(z3.Implies(few, must), self.seconds / len(SMALL)))
        return self.told(answer, pair.a)

    def exactly(self, asked: Callable[[Any], Answer]) -> Answer:
        """An answer with products as they are: for any number of threads, else for few."""
        answer = Answer("undecided", 0.0, {}, "no numbers found")
        for n in SMALL:
            answer = asked(z3.And(self.threads == n, z3.Int("running") == n))
            if answer.status == "refuted":
                return answer
        return replace(answer, status="undecided", reason=answer.reason or "no numbers found")

    def covered(self, out: str, accesses: Sequence[Access]) -> Iterator[Answer]:
        """Every element is written in the iteration that its coordinates say."""
        groups: dict[tuple[int, ...], list[Access]] = {}
        for a in accesses:
            groups.setdefault(tuple(l.number for l in a.loops), []).append(a)
        cases = [z3.BoolVal(False)]
        for group in groups.values():
            cases.append(z3.And(*(w for w in group[0].when if not isinstance(w, bool) and of_sizes(w))))
            answer = Witness(self, out, group).answer()
            yield self.told(answer if answer.status == "proved" else self.missed(out, accesses, answer), group[0])
        answer = self.ask(z3.Or(*cases), self.walk.knows)
        yield (
            answer if answer.status == "proved" else replace(answer, status="undecided", reason="no store in all cases")
        )

    def missed(self, out: str, accesses: Sequence[Access], found: Answer) -> Answer:
        """What follows where no iteration was found for an element: it is missed if none writes it at these sizes."""
        element = [z3.Int(f"element_{j}") for j, _ in enumerate(self.placed(accesses[0]))]
        sizes = [v for v in (*self.sizes, z3.Int("running"), *element) if str(v) in found.at]
        fixed = [(v, z3.IntVal(found.at[str(v)])) for v in sizes]
        there_is = all(z3.is_true(z3.simplify(z3.substitute(t, *fixed))) for t in self.of_element(out, element))
        unknown = replace(found, status="undecided", reason=found.reason or "no iteration was found")
        for a in accesses:
            there = [reaches(i, n, e) for (i, n), e in zip(self.placed(a), element, strict=True)]
            terms = [*there, *(w for w in a.when if not isinstance(w, bool))]
            terms += [*self.walk.knows, *self.definitions.of(terms, a.when)]
            terms = [z3.simplify(z3.substitute(t, *fixed)) for t in terms if not isinstance(t, bool)]
            if not there_is or ask(False, [*terms, *self.walk.lemmas(terms)], self.seconds).status != "proved":
                return unknown
        return found


def _alike(accesses: Sequence[Access]) -> list[Access]:
    """One of those to the same place, under the conditions that all of them have in common; a write where one is."""
    found: dict[Any, Access] = {}
    for a in accesses:
        key = (*map(_number, (a.at, a.count)), tuple(l.number for l in a.loops), a.phase, a.alone)
        if (b := found.get(key)) is None:
            found[key] = a
        else:
            when = tuple(w for w in b.when if any(_number(w) == _number(x) for x in a.when))
            found[key] = replace(b, when=when, write=a.write or b.write)
    return list(found.values())


def _place(a: Access) -> tuple[Any, ...]:
    return (*map(_number, (a.at, a.count, *a.when)), a.write)


def _number(t: Any) -> Any:
    return t if isinstance(t, (int, bool)) else t.get_id()


__all__ = ["Written"]
