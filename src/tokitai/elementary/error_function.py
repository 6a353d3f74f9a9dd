"""erf and erfc."""

from __future__ import annotations

import math

import numpy as np

from ..lang import Value, fma, where
from .common import at_most, horner
from .exact import ROOT_PI, by_elements, elementary, everywhere
from .exponential import moderate_expm1, scale_down, split_exp

exact_erf, exact_erfc = by_elements(math.erf), by_elements(math.erfc)
STEEPEST = everywhere(1.1284)  # 2/sqrt(pi), at 0


@elementary(exact_erf, derivative=lambda x, y: 2 / ROOT_PI * np.exp(-x * x), lipschitz=STEEPEST)
def erf(x: Value) -> Value:
    """The error function, as 1 - exp(-a (2/sqrt(pi) + q(a))) with a = |x|.

    q has an error of 2^-27.9 of erf on [0, 4] (derive_erf.py); erf(4) rounds to 1. Nothing cancels for small x.

    Largest error: 2.00 ulp.
    """
    a = at_most(abs(x), 4.0)
    q = horner(a, -9.263866e-06, 0.000117711184, -0.0006330938, 0.0016675116, -0.00016089455, -0.019152788,
               0.10277776, 0.6366194, -5.4119788e-08)  # fmt: skip
    y = -moderate_expm1(-fma(a, 1.1283792, a * q))  # 1.1283792 - 5.41e-08 is 2/sqrt(pi)
    y = where(x < 0.0, -y, y)
    return where(x == 0.0, x, y)


@elementary(exact_erfc, derivative=lambda x, y: -2 / ROOT_PI * np.exp(-x * x), lipschitz=STEEPEST)
def erfc(x: Value) -> Value:
    """1 - erf(x), as exp(-a**2) N(a)/D(a) with a = |x|, and 2 less that below zero.

    N/D has an error of 2^-26.6 relatively on [0, 10.1] (derive_normal.py); erfc(10.1) rounds to 0.

    Largest error: 5.90 ulp.
    """
    a = at_most(abs(x), 10.1)
    square = a * a
    n, t = split_exp(-square, fma(-a, a, square))
    top = horner(a, 0.0594469, 0.41547433, 1.3260643, 2.2446492, 1.8125)
    bottom = horner(a, 0.10536563, 0.7364569, 2.40229, 4.3541107, 4.2898374, 1.8125)
    ratio = top / bottom
    y = scale_down(fma(ratio, t, ratio), n)
    return where(x < 0.0, 2.0 - y, y)
