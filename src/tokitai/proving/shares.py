"""Shares of a number of panels, as products deal them out: part b of n gets those from floor(m b / n) to
floor(m (b + 1) / n).

Share 0 begins at 0 and share n at m, and shares ascend as m b does. As floor(x + d) - floor(x) is d rounded up at most,
no share has more than K where m is K n at most, and none is empty where m is n at least. So each number below m lies in
exactly one share. The solver is given that for the shares of a statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import z3

from .terms import applications

SHARE = z3.Function("share", *4 * [z3.IntSort()])  # of m, b and n


def share_of(x: Any, y: Any, below: Mapping[int, Any]) -> Any:
    """The share that x / y is; None where x is no product of a number and a part or the one behind it. ``below`` says
    of unknowns what they are below."""
    if not z3.is_mul(x) or x.num_args() != 2:
        return None
    m, b = x.children()
    part = (
        b.arg(0) if z3.is_add(b) and b.num_args() == 2 and z3.is_int_value(b.arg(1)) and b.arg(1).as_long() == 1 else b
    )
    found = below.get(part.get_id())
    return SHARE(m, b, y) if found is not None and found.eq(y) else None


def lemmas(terms: Sequence[Any], most: int) -> Iterator[Any]:
    """What is known of these shares; ``most`` is K."""
    found = applications(SHARE, terms)
    for s in found:
        m, b, n = s.children()
        yield z3.Implies(z3.And(m >= 0, b >= 0, b <= n), z3.And(s >= 0, s <= m))
        yield z3.Implies(z3.And(b == 0, n > 0), s == 0)
        yield z3.Implies(z3.And(b == n, n > 0), s == m)
        yield z3.Implies(z3.And(b >= 0, b < n, m >= n), s < m)
    for s, t in permutations(found, 2):
        (m, b, n), (o, c, p) = s.children(), t.children()
        if str(m).rstrip("'") != str(o).rstrip("'"):
            continue  # shares of other things
        yield z3.Implies(z3.And(m == o, n == p, m >= 0, n > 0, b <= c), s <= t)
        yield z3.Implies(z3.And(m == o, n == p, m >= 0, n > 0, c == b + 1, m <= most * n), t - s <= most)


def held(i: Any, m: Any, b: Any, n: Any) -> Any:
    """That part b of n holds a number below m; of some part that is so."""
    return z3.Implies(z3.And(i >= 0, i < m, n > 0), z3.And(b >= 0, b < n, SHARE(m, b, n) <= i, i < SHARE(m, b + 1, n)))


__all__ = ["SHARE", "held", "lemmas", "share_of"]
