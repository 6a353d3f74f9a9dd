"""sin and cos for |x| <= 2^20, NaN beyond.

x = n pi/2 + r with |r| <= pi/4 and pi/2 in three pieces (Cody and Waite, with fma). fma(-n, PI_1, x) is exact: both
terms are multiples of 2^-23 (of 2^-24 where |n| is 1), and less than 1 is left. The pieces miss pi/2 by 1e-23, which
at |n| < 2^20 would be felt only if r came below 1e-10; for no f32 number in the domain it does.
"""

from __future__ import annotations

import math

import numpy as np

from ..lang import Value, fma, round_even, where
from .common import horner
from .exact import elementary, everywhere

TWO_OVER_PI = 0.63661975
PI_1, PI_2, PI_3 = 1.5707964, -4.371139e-08, -1.7151245e-15
LARGEST = 2.0**20


def _reduced(x: Value) -> tuple[Value, Value]:
    """(n, r); NaN beyond the domain."""
    inside = where(abs(x) <= LARGEST, x, math.inf)  # an infinity leaves inf - inf
    n = round_even(inside * TWO_OVER_PI)
    return n, fma(-n, PI_3, fma(-n, PI_2, fma(-n, PI_1, inside)))


def _turned(n: Value, r: Value) -> Value:
    """sin(n pi/2 + r): sin r, cos r, -sin r or -cos r as n = 0, 1, 2 or 3 modulo 4.

    The polynomials have errors of 2^-27.8 and 2^-32.8 relatively (derive_sin.py).
    """
    z = r * r
    sine = fma(r * z, horner(z, -0.00019507883, 0.008332106, -0.16666654), r)
    cosine = fma(z * z, horner(z, 2.443053e-05, -0.00138873, 0.041666646), fma(z, -0.5, 1.0))
    quadrant = n - 4.0 * round_even(0.25 * n)  # -2, -1, 0, 1 or 2
    odd = abs(quadrant) == 1.0
    y = where(odd, cosine, sine)
    negative = where(odd, quadrant, abs(quadrant) * -1.0) < 0.0
    return where(negative, -y, y)


@elementary(np.sin, derivative=lambda x, y: np.cos(x), lipschitz=everywhere(1.0))
def sin(x: Value) -> Value:
    """The sine of x radians, |x| <= 2^20; NaN beyond. Largest error: 1.81 ulp."""
    n, r = _reduced(x)
    return where(x == 0.0, x, _turned(n, r))


@elementary(np.cos, derivative=lambda x, y: -np.sin(x), lipschitz=everywhere(1.0))
def cos(x: Value) -> Value:
    """The cosine of x radians, |x| <= 2^20, as sin(x + pi/2); NaN beyond. Largest error: 1.81 ulp."""
    n, r = _reduced(x)
    return _turned(n + 1.0, r)
