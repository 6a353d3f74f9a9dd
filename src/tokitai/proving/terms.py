"""Sums of products of unknowns, as indices are: their parts along one unknown, and the solver's questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import z3

from .logic import variables

Monomial = tuple[int, ...]  # the numbers of its factors, sorted


class Sum:
    """A polynomial whose unknowns are what Z3 has no sum or product for: constants, quotients, choices."""

    def __init__(self, term: Any) -> None:
        self.atoms: dict[int, Any] = {}
        self.parts = {m: n for m, n in self._of(term).items() if n}

    def _of(self, term: Any) -> Mapping[Monomial, int]:
        if isinstance(term, int):
            return {(): term} if term else {}
        i = term.get_id()
        if i not in _sums:
            before, self.atoms = self.atoms, {}
            _sums[i] = term, self._parts(term), self.atoms  # what lives keeps its number
            self.atoms = before
        self.atoms.update(_sums[i][2])
        return _sums[i][1]

    def _parts(self, term: Any) -> Mapping[Monomial, int]:
        kind = term.decl().kind() if z3.is_app(term) else None
        if kind == z3.Z3_OP_ANUM and z3.is_int_value(term):
            return {(): term.as_long()} if term.as_long() else {}
        if kind in (z3.Z3_OP_ADD, z3.Z3_OP_SUB, z3.Z3_OP_UMINUS):
            made: dict[Monomial, int] = {}
            for k, t in enumerate(term.children()):
                sign = -1 if (kind == z3.Z3_OP_SUB and k) or kind == z3.Z3_OP_UMINUS else 1
                for m, n in self._of(t).items():
                    made[m] = made.get(m, 0) + sign * n
            return made
        if kind == z3.Z3_OP_MUL:
            made = {(): 1}
            for t in term.children():
                made = _product(made, self._of(t))
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


_sums: dict[int, tuple[Any, Mapping[Monomial, int], Mapping[int, Any]]] = {}


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
    """Whether a statement follows from what is known. What was proved of the same terms with other names for unknowns
    is proved."""
    began = time.perf_counter()
    given = [z3.BoolVal(t) if isinstance(t, bool) else t for t in (statement, *knows)]
    terms = [z3.Not(given[0]), *given[1:]]
    question = _renamed(terms)
    if question.get_id() in _proved:
        return Answer("proved", time.perf_counter() - began, {})
    # What the solver finds in time depends on the numbers that terms have, and so on all that was asked before in this
    # process. Where it gives up, terms are numbered anew.
    for anew in (False, True):
        context = z3.Context() if anew else None
        solver = z3.Solver(ctx=context)
        solver.add(*([t.translate(context) for t in terms] if anew else terms))
        answer = checked(solver, seconds / 2)
        if answer.status != "undecided":
            break
    if answer.status == "proved":
        _proved[question.get_id()] = question
    return replace(answer, seconds=time.perf_counter() - began)


_proved: dict[int, Any] = {}  # questions; what lives keeps its number


def _renamed(terms: Sequence[Any]) -> Any:
    """The same with unknowns that are called by their order."""
    found = {v.get_id(): v for t in terms for v in variables(t)}
    names = [(v, z3.Const(f"#{i}", v.sort())) for i, v in enumerate(found.values())]
    return z3.substitute(z3.And(*terms), names)


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
