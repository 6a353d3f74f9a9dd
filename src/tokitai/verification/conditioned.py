"""Errors and their bounds against the condition of elements, over any number of results and cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..evidence.check import LEAST_BIN, MOST_BIN
from ..evidence.statement import ConditionedErrors
from ..formats import Format

Array = np.ndarray[Any, Any]
BINS = MOST_BIN - LEAST_BIN + 1


@dataclass
class Conditioned:
    """Of the ``elements`` whose bound is at most 1e6 units (`meaning.condition`) the largest error, bound and
    probabilistic bound, in units, and the largest error in roundings of the largest exact result of its row (of results
    with one element a row or column, of all). ``counts`` has the number of errors nearest to each power of two from
    2**LEAST_BIN, those below among them, to 2**MOST_BIN: no edge is a number of any format. ``unbounded`` elements have
    a larger bound or none, for the reasons ``why``."""

    elements: int = 0
    error: float = 0.0
    of_row: float = 0.0
    bound: float = 0.0
    likely: float = 0.0
    counts: tuple[int, ...] = (0,) * BINS
    unbounded: int = 0
    why: frozenset[str] = frozenset()

    def stated(self) -> ConditionedErrors:
        """What a certificate says of it."""
        return ConditionedErrors(
            self.elements, self.error, self.of_row, self.bound, self.likely, list(self.counts), self.unbounded,
            sorted(self.why),
        )  # fmt: skip


def measured(
    got: Array, exact: Array, limits: Sequence[Array], fmt: Format, scale: Array, sentences: Sequence[str]
) -> Conditioned:
    """The errors of a stored result. ``limits`` are bound, probabilistic bound, unit and reason of each element
    (`meaning.condition.evaluate`), ``scale`` is the largest exact magnitude of its row.

    An infinity stands for the power of two behind the largest number, as all that rounds to it does: so the distance is
    at most that of numbers without a largest exponent, for which the bounds are derived. Nothing is asked of elements
    whose exact value is NaN, or such an infinity as is stored.
    """
    limit, likely, unit, reason = limits
    top = REAL(2.0) ** (fmt.emax + 1)
    value, want = (np.clip(x, -top, top) for x in (got.astype(np.float64).astype(REAL), exact))
    with np.errstate(all="ignore"):
        away = np.abs(value - want)
        asked = ~(np.isnan(want) | ((away == 0) & (np.abs(want) == top)))
        bounded = asked & (reason == 0)
        row = np.broadcast_to(2.0**-fmt.precision * np.maximum(scale, 2.0**fmt.emin), away.shape)[bounded]
        found, unit = away[bounded], unit[bounded]
        errors = (found / unit).astype(np.float64)
        bins = np.clip(np.rint(np.log2(errors)), LEAST_BIN, MOST_BIN).astype(np.int64)
    open_ones = asked & ~bounded
    return Conditioned(
        errors.size, float(errors.max(initial=0)), float((found / row).max(initial=0)),
        float((limit[bounded] / unit).max(initial=0)), float((likely[bounded] / unit).max(initial=0)),
        tuple(np.bincount(bins - LEAST_BIN, minlength=BINS).tolist()), int(open_ones.sum()),
        frozenset(sentences[number - 1] for number in np.unique(reason[open_ones])),
    )  # fmt: skip


ByFormat = Mapping[str, Conditioned]  # of results, by the format in which they are stored


def stated(found: ByFormat) -> dict[str, ConditionedErrors] | None:
    """What a certificate says of results; None where none was measured."""
    return {fmt: found[fmt].stated() for fmt in sorted(found)} or None


def together(every: Iterable[ByFormat]) -> dict[str, Conditioned]:
    """That of all."""
    of: dict[str, list[Conditioned]] = {}
    for fmt, one in (item for found in every for item in found.items()):
        of.setdefault(fmt, []).append(one)
    return {fmt: _sum(found) for fmt, found in of.items()}


def _sum(found: Sequence[Conditioned]) -> Conditioned:
    counts = tuple(map(sum, zip(*(c.counts for c in found), strict=True)))
    return Conditioned(
        sum(c.elements for c in found), max(c.error for c in found), max(c.of_row for c in found),
        max(c.bound for c in found), max(c.likely for c in found), counts,
        sum(c.unbounded for c in found), frozenset().union(*(c.why for c in found)),
    )  # fmt: skip
