"""The polynomial of exp2 where 2**r is in [3/4, 3/2]: (2**r - 1) / r - LN2_HIGH."""

from __future__ import annotations

import mpmath as mp
import numpy as np

from .minimax import error_of, fit, show

LN2_HIGH = float(np.float32(np.log(2)))
LN2_LOW = float(np.float32(np.log(2) - LN2_HIGH))
LOW, HIGH = -0.416, 0.586


def first_order(r: mp.mpf) -> mp.mpf:
    """(2**r - 1) / r - LN2_HIGH"""
    return (mp.expm1(r * mp.log(2)) / r if r else mp.log(2)) - mp.mpf(LN2_HIGH)


def weight(r: mp.mpf) -> mp.mpf:
    """Relative to 2**r."""
    return abs(r) / mp.mpf(2) ** r


if __name__ == "__main__":
    c = fit(first_order, weight, range(6), LOW, HIGH, [LN2_LOW])
    show("exp2", c, error_of(first_order, weight, range(6), LOW, HIGH, c))
