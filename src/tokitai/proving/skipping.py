"""That a product modulo p^n may leave out what `padic.skipping` leaves out, and that it could leave out no more.

Elements of a tile of valuation i are p^i u, those of its partner p^j w, for integers u and w: each product is
p^(i + j) t with t = u w, an integer. For every i and j up to n the solver is asked for a t for which what is left out
is not 0 modulo p^n. The sum over the inner dimension leaves out terms that are 0, one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import z3

from ..padic.skipping import skips
from .obligation import Obligation


def obligations(prime: int, precision: int, decide: Callable[[int, int, int], Any] = skips) -> list[Obligation]:
    """Two statements about the products modulo prime^precision: what is left out is 0; and of all that is not left out
    some products are not. ``decide`` says what is left out."""
    pairs = [(i, j) for i in range(precision + 1) for j in range(precision + 1)]
    left_out = [pair for pair in pairs if decide(*pair, precision)]
    kept = [pair for pair in pairs if pair not in left_out]
    return [
        _stated(prime, precision, "what is left out is 0", left_out, changes=True),
        _stated(prime, precision, "what is 0 is left out", kept, changes=False),
    ]


def _stated(prime: int, precision: int, name: str, pairs: Sequence[tuple[int, int]], *, changes: bool) -> Obligation:
    """Refuted by the first pair of valuations of which a product changes a sum, or none does."""
    begun = time.monotonic()
    wrong = next((p for p in pairs if _changes(prime ** sum(p), prime**precision) == changes), None)
    sizes = {} if wrong is None else dict(zip(("i", "j"), wrong, strict=True))
    title = f"products modulo {prime}^{precision}: {name}"
    seconds = time.monotonic() - begun
    return Obligation(title, "proved" if wrong is None else "refuted", seconds, sizes, questions=len(pairs))


def _changes(power: int, modulus: int) -> bool:
    """Whether power * t is not 0 modulo a number, for some integer t."""
    t: Any = z3.Int("t")
    solver = z3.Solver()
    solver.add((power * t) % modulus != 0)
    answer = solver.check()
    assert answer != z3.unknown, "multiples of a constant modulo another are decided"
    return bool(answer == z3.sat)


__all__ = ["obligations"]
