"""The polynomial of erf: q with erf(a) = 1 - exp(-a (LEADING + q)), where LEADING is 2/sqrt(pi) rounded to f32."""

from __future__ import annotations

import mpmath as mp
import numpy as np

from .minimax import error_of, fit, show

LEADING = float(np.float32(2 / np.sqrt(np.pi)))


def exponent_of_erf(a: mp.mpf) -> mp.mpf:
    """q(a)"""
    return (-mp.log(mp.erfc(a)) / a if a else 2 / mp.sqrt(mp.pi)) - mp.mpf(LEADING)


def weight_of_erf(a: mp.mpf) -> mp.mpf:
    """d ln erf / d q: the error relative to erf."""
    return a * mp.erfc(a) / mp.erf(a) if a else mp.sqrt(mp.pi) / 2


if __name__ == "__main__":
    c = fit(exponent_of_erf, weight_of_erf, range(9), 0, 4)
    show("erf", c, error_of(exponent_of_erf, weight_of_erf, range(9), 0, 4, c))
