"""Sums of products of unknowns, as indices are: their parts along one unknown, and the solver's questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import z3

Monomial = tuple[int, ...]  # the numbers of its factors, sorted


class Sum:
    """A polynomial whose unknowns are what Z3 has no sum or product for: constants, quotients, choices."""

    def __init__(self, term: Any) -> None:
        self.parts: dict[Monomial, int] = {}
        self.atoms: dict[int, Any] = {}
        self._add(term, 1)

    def _add(self, term: Any, by: int) -> None:
        for monomial, n in self._of(term).items():
            self.parts[monomial] = self.parts.get(monomial, 0) + by * n
        self.parts = {m: n for m, n in self.parts.items() if n}

    def _of(self, term: Any) -> dict[Monomial, int]:
        if isinstance(term, int):
            return {(): term} if term else {}
        if z3.is_int_value(term):
            return {(): term.as_long()} if term.as_long() else {}
        if z3.is_add(term) or z3.is_sub(term) or (z3.is_app_of(term, z3.Z3_OP_UMINUS)):
            made: dict[Monomial, int] = {}
            for i, t in enumerate(term.children()):
                sign = -1 if (z3.is_sub(term) and i) or z3.is_app_of(term, z3.Z3_OP_UMINUS) else 1
                for m, n in self._of(t).items():
                    made[m] = made.get(m, 0) + sign * n
            return made
        if z3.is_mul(term):
            made = {(): 1}
            for t in term.children():
                other = self._of(t)
                made = _product(made, other)
            return made
        self.atoms[term.get_id()] = term
        return {(term.get_id(),): 1}

    def along(self, unknown: Any) -> tuple[Any, Any]:
        """The factor of an unknown and the rest, where the sum is factor * unknown + rest; else (None, None)."""
        i = unknown.get_id()
        factor, rest = {}, {}
        for m, n in self.parts.items():
            if m.count(i) > 1:
                return None, None
            if i in m:
                left = list(m)
                left.remove(i)
                factor[tuple(left)] = n
            else:
                rest[m] = n
        return self.term(factor), self.term(rest)

    def term(self, parts: Mapping[Monomial, int] | None = None) -> Any:
        """A term of Z3, or a number."""
        made: Any = 0
        for m, n in (self.parts if parts is None else parts).items():
            product: Any = n
            for i in m:
                product = product * self.atoms[i] if not (isinstance(product, int) and product == 1) else self.atoms[i]
            made = product if isinstance(made, int) and made == 0 else made + product
        return made

    def factor(self, unknown: Any) -> int | None:
        """The number by which an unknown is multiplied; 0 where it is not there, None where more than a number is."""
        i = unknown.get_id()
        mine = [m for m in self.parts if i in m]
        return 0 if not mine else self.parts[mine[0]] if mine == [(i,)] else None


def _product(a: Mapping[Monomial, int], b: Mapping[Monomial, int]) -> dict[Monomial, int]:
    made: dict[Monomial, int] = {}
    for m, n in a.items():
        for o, k in b.items():
            key = tuple(sorted(m + o))
            made[key] = made.get(key, 0) + n * k
    return made


@dataclass(frozen=True)
class Answer:
    """What the solver says of a statement, and where it is wrong: the values of its unknowns there."""

    status: str  # proved, refuted, undecided
    seconds: float
    at: Mapping[str, int]
    reason: str = ""
    assumes: bool = False  # that indices in tensors are in range


def ask(statement: Any, knows: Sequence[Any], seconds: float) -> Answer:
    """Whether a statement follows from what is known."""
    began = time.perf_counter()
    given = [z3.BoolVal(t) if isinstance(t, bool) else t for t in (statement, *knows)]
    terms = [z3.Not(given[0]), *given[1:]]
    # What the solver finds in time depends on the numbers that terms have, and so on all that was asked before in this
    # process. Where it gives up, terms are numbered anew.
    for anew in (False, True):
        context = z3.Context() if anew else None
        solver = z3.Solver(ctx=context)
        solver.add(*([t.translate(context) for t in terms] if anew else terms))
        answer = checked(solver, seconds / 2)
        if answer.status != "undecided":
            break
    return replace(answer, seconds=time.perf_counter() - began)


def checked(solver: Any, seconds: float) -> Answer:
    """What a solver finds that holds what is known, and the negation of a statement."""
    began = time.perf_counter()
    solver.set("timeout", max(1, int(seconds * 1000)))
    found = solver.check()
    took = time.perf_counter() - began
    if str(found) == "unsat":
        return Answer("proved", took, {})
    if str(found) == "unknown":
        return Answer("undecided", took, {}, f"the solver gave up: {solver.reason_unknown()}")
    model = solver.model()
    at = {d.name(): model[d].as_long() for d in model.decls() if d.arity() == 0 and z3.is_int_value(model[d])}
    return Answer("refuted", took, at)


def alike(term: Any, knows: Sequence[Any]) -> Any:
    """A sum of products in which quotients that are the same number, or its negative, are one."""
    atoms = [a for a in Sum(term).atoms.values() if not z3.is_const(a)]
    for i, a in enumerate(atoms):
        for b in atoms[i + 1 :]:
            for same in (a, -a):
                if ask(b == same, knows, 1.0).status == "proved":
                    term = z3.substitute(term, (b, same))
                    break
    return Sum(term).term()


def applications(function: Any, terms: Sequence[Any]) -> list[Any]:
    """The terms within these that apply the function, each once."""
    found: dict[int, Any] = {}
    for t in terms:
        if not isinstance(t, (int, bool)):
            key = function.get_id(), t.get_id()
            if key not in _applied:
                _applied[key] = function, t, _applications(function, t)  # what lives keeps its number
            found |= {a.get_id(): a for a in _applied[key][2]}
    return list(found.values())


_applied: dict[tuple[int, int], tuple[Any, Any, list[Any]]] = {}


def _applications(function: Any, term: Any) -> list[Any]:
    found, seen, stack = {}, set(), [term]
    while stack:
        t = stack.pop()
        if t.get_id() in seen:
            continue
        seen.add(t.get_id())
        if z3.is_app(t) and t.decl().eq(function):
            found[t.get_id()] = t
        stack += t.children()
    return list(found.values())
