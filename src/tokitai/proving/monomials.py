"""Products of unknowns, as unknowns of their own: what follows of them from their factors.

The solver decides sums of unknowns; of products it may find nothing in time. So each product of two unknowns or more
gets a name, and of names is known what holds of all whole numbers: signs, bounds, and that x a + a <= y a where x < y
and a is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import z3

from .logic import both
from .terms import Answer, Sum, checked

FEW, SIDE = 2**16, 2**31  # factors are below either, where a product is to be


def of_factors(factors: Sequence[Any], number: int, name: Any) -> Iterator[Any]:
    """What is known of the product of a number above 0 and of factors: that it is not negative where no factor is, and
    how large at most."""
    if number <= 0:
        return
    yield z3.Implies(both(*(f >= 0 for f in factors)), name >= 0)
    for most in product((FEW, SIDE), repeat=len(factors)):
        largest = number
        for n in most:
            largest *= n
        within = both(*(z3.And(f >= 0, f <= n) for f, n in zip(factors, most, strict=True)))
        yield z3.Implies(within, name <= largest)


class Products:
    """The names of products in terms."""

    def __init__(self) -> None:
        self.named: dict[tuple[int, ...], tuple[Any, list[Any]]] = {}  # by the factors, which are kept
        self.keys: dict[int, tuple[int, ...]] = {}  # of names
        self.made: dict[int, tuple[Any, Any, set[tuple[int, ...]]]] = {}

    def plain(self, t: Any) -> Any:
        """A term with names in place of products."""
        return self._made(t)[0]

    def within(self, t: Any) -> set[tuple[int, ...]]:
        """The products in a term."""
        return self._made(t)[1]

    def _made(self, t: Any) -> tuple[Any, set[tuple[int, ...]]]:
        if isinstance(t, (int, bool)) or z3.is_const(t):
            return t, set()
        if t.get_id() not in self.made:
            self.made[t.get_id()] = t, *self._plain(t)  # what lives keeps its number
        return self.made[t.get_id()][1:]

    def _plain(self, t: Any) -> tuple[Any, set[tuple[int, ...]]]:
        if z3.is_arith(t) and (z3.is_add(t) or z3.is_sub(t) or z3.is_mul(t) or z3.is_app_of(t, z3.Z3_OP_UMINUS)):
            found = Sum(t)
            inner = {i: self._made(a) for i, a in found.atoms.items()}
            keys = set().union(*(k for _, k in inner.values())) if inner else set()
            made: Any = z3.IntVal(0)
            for monomial, n in found.parts.items():
                product_ = self.name([inner[i][0] for i in monomial])
                keys |= {self.keys[product_.get_id()]} if len(monomial) > 1 else set()
                made = made + n * product_
            return made, keys
        parts = [self._made(c) for c in t.children()]
        changed = [(x, y) for x, (y, _) in zip(t.children(), parts, strict=True) if not x.eq(y)]
        return z3.substitute(t, *changed) if changed else t, set().union(*(k for _, k in parts)) if parts else set()

    def name(self, factors: Sequence[Any]) -> Any:
        """The product of factors."""
        if len(factors) < 2:
            return factors[0] if factors else 1
        key = tuple(sorted(f.get_id() for f in factors))
        if key not in self.named:
            self.named[key] = z3.Int(f"product_{len(self.named)}"), list(factors)
            self.keys[self.named[key][0].get_id()] = key
        return self.named[key][0]

    def known(self, key: tuple[int, ...], others: Iterable[tuple[int, ...]]) -> Iterator[Any]:
        """What is known of a product, also beside others."""
        a, factors = self.named[key]
        yield from of_factors(factors, 1, a)
        if len(factors) != 2:
            return
        for x, y in (factors, factors[::-1]):
            yield z3.Implies(x == 0, a == 0)
            yield z3.Implies(z3.And(x >= 1, y >= 0), a >= y)
        for other in others:
            b, behind = self.named[other]
            for common in (f for f in factors if len(behind) == 2 and any(f.eq(g) for g in behind)):
                (x,), (y,) = (_without(common, fs) for fs in (factors, behind))
                yield z3.Implies(z3.And(common >= 0, x < y), a + common <= b)
                yield z3.Implies(z3.And(common >= 0, y < x), b + common <= a)
                yield z3.Implies(x == y, a == b)


def _without(factor: Any, factors: Sequence[Any]) -> list[Any]:
    i = next(i for i, f in enumerate(factors) if f.eq(factor))
    return [f for j, f in enumerate(factors) if j != i]


class Questions:
    """The solver, asked about sums alone: products have names. ``lemmas`` is what is known of functions in terms."""

    def __init__(self, products: Products, lemmas: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self.products, self.lemmas = products, lemmas
        self.solver = z3.SolverFor("QF_UFLIA")
        self.terms: list[Any] = []
        self.keys: list[tuple[int, ...]] = []
        self.added: set[int] = set()

    def add(self, terms: Iterable[Any]) -> None:
        """Know these from now on."""
        for t in terms:
            if isinstance(t, bool):
                t = z3.BoolVal(t)
            if t.get_id() not in self.added:
                self.added.add(t.get_id())
                self.terms.append(t)
                self.solver.add(self.products.plain(t))
                self.meet(t)

    def meet(self, t: Any) -> None:
        """Know what is known of the products in a term."""
        for key in self.products.within(t):
            if key not in self.keys:
                self.solver.add(*self.products.known(key, self.keys))
                self.keys.append(key)

    def ask(self, must: Any, seconds: float) -> Answer:
        """Whether a statement follows."""
        must = z3.BoolVal(must) if isinstance(must, bool) else must
        self.meet(must)
        self.add(self.lemmas([*self.terms, must]))
        self.solver.push()
        self.solver.add(z3.Not(self.products.plain(must)))
        answer = checked(self.solver, seconds)
        self.solver.pop()
        return answer


__all__ = ["Products", "Questions", "of_factors"]
