"""Partitions of 0, 1 ... total - 1 into intervals that follow each other, as segments of sorted rows and groups are.

Interval e is [start(e), start(e + 1)), where start(0) is 0, start(count) is total and start never falls. So each number
below total lies in exactly one interval: by induction over the intervals, the first e of them hold the numbers below
start(e), each once. The solver is given that for the intervals and numbers that a statement is about, not for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from .terms import applications


@dataclass(frozen=True)
class Partition:
    """``start`` is a function of Z3. Of the numbers i to which ``named`` is applied, ``holder`` gives the interval."""

    start: Any
    count: Any
    total: Any
    named: Any
    holder: Callable[[Any], Any]

    def lemmas(self, terms: Sequence[Any]) -> list[Any]:
        """What is known of the numbers and intervals in these terms."""
        made = [z3.Implies(z3.And(i >= 0, i < self.total), self.holds(i)) for i in applied(self.named, terms)]
        return [*made, *self.ascends([*terms, *made])]

    def holds(self, i: Any) -> Any:
        """That a number lies in its interval."""
        e = self.holder(i)
        return z3.And(e >= 0, e < self.count, self.start(e) <= i, i < self.start(e + 1))

    def ascends(self, terms: Sequence[Any]) -> Iterator[Any]:
        """That starts of intervals ascend, from 0 to the total."""
        found = applied(self.start, terms)
        for i, a in enumerate(found):
            x = self.start(a)
            yield z3.Implies(a <= 0, x == 0)
            yield z3.Implies(a >= self.count, x == self.total)
            yield z3.And(x >= 0, x <= self.total)
            for b in found[i + 1 :]:
                yield z3.Implies(a <= b, x <= self.start(b))
                yield z3.Implies(b <= a, self.start(b) <= x)


def applied(function: Any, terms: Sequence[Any]) -> list[Any]:
    """What a function of one number is applied to in these terms."""
    return [t.arg(0) for t in applications(function, terms)]


__all__ = ["Partition", "applied"]
