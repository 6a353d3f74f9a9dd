"""Python's own arithmetic on unknown whole numbers: a launch plan is run as it stands, for all sizes at once.

`whole` makes a number of a term; sums, products, quotients and comparisons of such are terms again. Where Python has to
know whether a condition holds, `every_path` runs the function once for each answer that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import z3

from ..errors import ProofError


class _Path:
    """The answers that conditions are given while a function runs."""

    def __init__(self, knows: Sequence[Any], answers: list[bool]) -> None:
        self.knows, self.answers, self.at = list(knows), answers, 0
        self.taken: list[Any] = []
        self.bits: dict[int, tuple[Any, Any]] = {}
        self.solver = z3.Solver()
        self.solver.set("timeout", 2000)
        self.solver.add(*knows)

    def decide(self, condition: Any) -> bool:
        """Whether a condition holds on this path."""
        condition = z3.simplify(condition)
        if z3.is_true(condition) or z3.is_false(condition):
            return bool(z3.is_true(condition))
        if self.at == len(self.answers):
            self.answers.append(self.solver.check(condition) != z3.unsat)
            if self.answers[-1] and self.solver.check(z3.Not(condition)) == z3.unsat:
                self.answers[-1] = True
                self.forced.add(self.at)
            elif not self.answers[-1]:
                self.forced.add(self.at)
        answer = self.answers[self.at]
        self.at += 1
        term = condition if answer else z3.Not(condition)
        self.solver.add(term)
        self.taken.append(term)
        return answer

    def bits_of(self, term: Any) -> Any:
        """How many bits a term has: the same unknown wherever it is asked again, also of a term that is equal."""
        same = (n for n, other in self.bits.values() if self.solver.check(other != term) == z3.unsat)
        if term.get_id() not in self.bits and (known := next(same, None)) is not None:
            self.bits[term.get_id()] = known, term
        if term.get_id() not in self.bits:
            n = z3.Int(f"bits!{len(self.bits)}")
            cases = [z3.And(n == k, term >= (1 << k) // 2, term < 1 << k) for k in range(1, 64)]
            fact = z3.Or(z3.And(n == 0, term == 0), *cases)
            self.solver.add(fact)
            self.taken.append(fact)
            self.bits[term.get_id()] = n, term
        return self.bits[term.get_id()][0]

    forced: set[int]


SMALL = 16  # numbers that Python may have to know


_path: _Path | None = None


class Whole(int):
    """An unknown whole number, for code that expects an int. Python's own value of it is never used."""

    term: Any

    def __new__(cls, term: Any) -> Whole:
        made = super().__new__(cls, 0)
        made.term = term
        return made

    def __bool__(self) -> bool:
        return _decided(self.term != 0)

    def __hash__(self) -> int:
        return hash(self.term)

    def __index__(self) -> int:
        """By cases, where Python has to know: of small numbers alone, such as how often a loop runs."""
        for n in range(SMALL):
            if _decided(self.term == n):
                return n
        raise ProofError(
            f"{self.term} is used as a number of Python's; accepted: arithmetic, and numbers below {SMALL}"
        )

    def __int__(self) -> int:
        return self.__index__()

    def bit_length(self) -> Any:
        """A number of which is known between which powers of two this one lies. Sizes have less than 64 bits."""
        if _path is None:
            raise ProofError(f"the bits of {self.term} are not known here; accepted: inside every_path")
        return Whole(_path.bits_of(self.term))

    def __neg__(self) -> Whole:
        return Whole(-self.term)

    def __pos__(self) -> Whole:
        return self

    def __repr__(self) -> str:
        return f"Whole({self.term})"


def _decided(condition: Any) -> bool:
    if _path is None:
        raise ProofError(f"whether {condition} holds is not known here; accepted: inside every_path")
    return _path.decide(condition)


def term_of(x: Any) -> Any:
    """The term of a number."""
    return x.term if isinstance(x, Whole) else z3.IntVal(int(x))


def whole(term: Any) -> Any:
    """A number for code that expects an int."""
    return Whole(term)


def _two(make: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
    def operation(self: Whole, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return Whole(z3.simplify(make(term_of(a), term_of(b))))

    return operation


def _quotient(a: Any, b: Any) -> Any:
    if z3.is_int_value(b) and b.as_long() > 0:
        return a / b
    if _path is not None and not _path.decide(b > 0):
        raise ProofError(f"a quotient by {b}; accepted: divisors above 0")
    return a / b


def _comparison(make: Callable[[Any, Any], Any]) -> Any:
    def operation(self: Whole, other: Any) -> Any:
        return _decided(make(self.term, term_of(other))) if isinstance(other, int) else NotImplemented

    return operation


for _name, _make in {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": _quotient,
    "mod": lambda a, b: a - _quotient(a, b) * b,
}.items():  # fmt: skip
    setattr(Whole, f"__{_name}__", _two(_make))
    setattr(Whole, f"__r{_name}__", _two(_make, swapped=True))
for _name, _make in {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}.items():  # fmt: skip
    setattr(Whole, f"__{_name}__", _comparison(_make))


def every_path(run: Callable[[], Any], knows: Sequence[Any], most: int = 400) -> list[tuple[list[Any], Any]]:
    """What a function returns, with the conditions under which it does: all of them together are all that is known."""
    global _path
    found: list[tuple[list[Any], Any]] = []
    pending: list[list[bool]] = [[]]
    done: set[tuple[bool, ...]] = set()
    while pending:
        answers = pending.pop()
        start = len(answers)
        path = _Path(knows, answers)
        path.forced = set()
        _path = path
        try:
            made = run()
        finally:
            _path = None
        if tuple(path.answers) not in done:
            done.add(tuple(path.answers))
            found.append((path.taken, made))
        for i in range(start, len(path.answers)):
            if i not in path.forced:
                pending.append([*path.answers[:i], not path.answers[i]])
        if len(found) > most:
            raise ProofError(f"more than {most} paths; accepted: functions with fewer cases")
    return found


def one_term(run: Callable[[], Any], knows: Sequence[Any]) -> Any:
    """The number that a function returns, as one term over all its paths."""
    *others, (_, made) = every_path(run, knows)
    term = term_of(made)
    for taken, value in others:
        term = z3.If(z3.And(*taken), term_of(value), term)
    return term


__all__ = ["Whole", "every_path", "one_term", "term_of", "whole"]
