"""Quotients that need no look at small dividends, by cases of a function's argument.

A correctly rounded quotient of few instructions (emit/gpu/quotients.h) asks for a dividend that is 0 or no small
number, or for a divisor of 1. Where the argument is a number of 16 bits, its values are cut into runs until each run
shows one of these: a run's intervals are narrow where those of all values say nothing.
"""

from __future__ import annotations

import numpy as np

from ..formats import FORMATS
from ..lang import Function, Node
from .ranges import ALL, Interval, ranges

MOST_RUNS = 500  # then the rest counts as not shown


def never_small(f: Function, fmt: str, small: float) -> frozenset[Node]:
    """The divisions of a function of one argument, stored in `fmt`, of which it is shown that wherever the dividend is
    below `small` and not 0 the divisor is exactly 1. NaN is left aside."""
    divisions = {n for n in f.nodes if n.op == "div"}
    stored = FORMATS[fmt]
    if stored.kind != "float" or stored.bits != 16 or len(f.params) != 1:
        return frozenset()
    patterns = np.arange(1 << 15, dtype=np.uint16).view(stored.dtype)
    with np.errstate(invalid="ignore"):
        sizes = patterns[~np.isnan(patterns)].astype(np.float64)  # from 0 to infinity
    last = len(sizes) - 1
    runs = [(sign, first, end) for sign in (1, -1) for first, end in ((2, last - 1), (last, last), (1, 1), (0, 0))]
    seen = 0
    while runs and divisions:
        sign, first, end = runs.pop()
        seen += 1
        ends = sign * float(sizes[first]), sign * float(sizes[end])
        found = ranges(f.nodes, {f.params[0]: (min(ends), max(ends))})
        open_ = {d for d in divisions if not _fine(found.get(d.args[0], ALL), found.get(d.args[1], ALL), small)}
        if open_ and (first == end or seen > MOST_RUNS):
            divisions -= open_
        elif open_:
            middle = (first + end) // 2
            runs += [(sign, first, middle), (sign, middle + 1, end)]
    return frozenset(divisions)


def _fine(dividend: Interval, divisor: Interval, small: float) -> bool:
    low, high = dividend
    return max(low, -high) >= small or (low, high) == (0.0, 0.0) or divisor == (1.0, 1.0)
