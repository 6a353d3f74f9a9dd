"""Terms of Z3 that may be numbers and truths of Python's: what is known need not be asked."""

from __future__ import annotations

from typing import Any

import z3

Term = Any  # an int of Python's, or an arithmetic term of Z3


def both(*terms: Any) -> Any:
    """The conjunction."""
    left = [t for t in terms if t is not True]
    if any(t is False for t in left):
        return False
    return True if not left else left[0] if len(left) == 1 else z3.And(*left)


def no(term: Any) -> Any:
    """The negation."""
    return not term if isinstance(term, bool) else z3.Not(term)


def either(a: Any, b: Any) -> Any:
    """The disjunction."""
    if a is True or b is True:
        return True
    return b if a is False else a if b is False else z3.Or(a, b)


def folded(term: Term) -> Term:
    """A term that is a number as Python's."""
    if isinstance(term, (int, bool)):
        return term
    made = z3.simplify(term)
    if z3.is_int_value(made):
        return made.as_long()
    if z3.is_true(made) or z3.is_false(made):
        return z3.is_true(made)
    return term


def variables(term: Any) -> list[Any]:
    """The unknowns of a term."""
    if isinstance(term, (int, bool)):
        return []
    if term.get_id() not in _unknowns:
        _unknowns[term.get_id()] = term, _variables(term)  # what lives keeps its number
    return _unknowns[term.get_id()][1]


_unknowns: dict[int, tuple[Any, list[Any]]] = {}


def _variables(term: Any) -> list[Any]:
    if z3.is_const(term):
        return [term] if term.decl().kind() == z3.Z3_OP_UNINTERPRETED else []
    return list({v.get_id(): v for t in term.children() for v in variables(t)}.values())


def holds(term: Any, variable: Any) -> bool:
    """Whether an unknown is part of a term."""
    if isinstance(term, int):
        return False
    seen, stack = set(), [term]
    while stack:
        t = stack.pop()
        if t.get_id() == variable.get_id():
            return True
        if t.get_id() not in seen:
            seen.add(t.get_id())
            stack += t.children()
    return False
