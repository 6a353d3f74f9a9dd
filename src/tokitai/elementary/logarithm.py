"""log, log1p and softplus: k ln 2 + log(1 + f) with whole k and 1 + f in [2/3, 4/3]."""

from __future__ import annotations

import math

import numpy as np

from ..lang import Array, Value, exponent, fma, power_of_two, significand, where
from .common import at_least, horner
from .exact import elementary, everywhere
from .exponential import LOWEST, scale_down, split_exp
from .logistic import exact_sigmoid

LN2_SHORT, LN2_REST = 0.69314575, 1.4286068e-06  # 16 bits of ln 2, so that k LN2_SHORT is exact, and what is left
SMALLEST_NORMAL = 2.0**-126
FOUR_THIRDS = 1.3333334


def log_of(k: Value, f: Value) -> Value:
    """k ln 2 + log(1 + f), for |f| <= 1/3.

    log(1 + f) = f - f**2/2 + f**3 q(f) with an error of 2^-29.6 relatively (derive_log.py). The sum k LN2_SHORT + f is
    carried as a pair (Fast2Sum; its first term is the larger one, or 0).
    """
    c = horner(f, -0.14768519, 0.12296883, -0.08981253, 0.10687036, -0.12536673, 0.14309599, -0.16668302,
               0.19999447, -0.2499992, 0.33333337, -0.5)  # fmt: skip
    whole = k * LN2_SHORT
    high = whole + f
    low = f - (high - whole)
    return high + (low + fma(f * f, c, k * LN2_REST))


def at_ends(x: Value, pole: float, y: Value) -> Value:
    """y for finite x above the pole, -inf at the pole, NaN below it, infinity and NaN for themselves."""
    inside = (x > pole) & (x < math.inf)
    ends = where(x == pole, -math.inf, fma(x - pole, math.inf, math.inf))  # inf - inf below the pole
    return where(inside, y, ends)


@elementary(np.log, derivative=lambda x, y: 1 / x, lipschitz=lambda x, e: 1 / np.maximum(x - e, 0))
def log(x: Value) -> Value:
    """The natural logarithm. Largest error: 0.82 ulp."""
    tiny = x < SMALLEST_NORMAL
    scaled = where(tiny, x * 2.0**23, x)
    m = significand(scaled)
    big = m > FOUR_THIRDS
    k = exponent(scaled) + where(big, 1.0, 0.0) - where(tiny, 23.0, 0.0)
    return at_ends(x, 0.0, log_of(k, where(big, 0.5 * m, m) - 1.0))


@elementary(np.log1p, derivative=lambda x, y: 1 / (1 + x), lipschitz=lambda x, e: 1 / np.maximum(1 + x - e, 0))
def log1p(x: Value) -> Value:
    """log(1 + x). The rounded sum gives k alone; f = 2**-k (1 + x) - 1 is taken from x itself, with one rounding.

    Largest error: 1.57 ulp.
    """
    u = 1.0 + x
    m = significand(u)
    big = m > FOUR_THIRDS
    k = exponent(u) + where(big, 1.0, 0.0)
    power = power_of_two(-k)
    f = where(k < 25.0, fma(x, power, power - 1.0), where(big, 0.5 * m, m) - 1.0)  # beyond 2^25 the 1 is not felt
    return at_ends(x, -1.0, where(x == 0.0, x, log_of(k, f)))


def exact_softplus(x: Array) -> Array:
    """log(1 + e**x), without overflow."""
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0))


@elementary(exact_softplus, derivative=lambda x, y: exact_sigmoid(x), lipschitz=everywhere(1.0))
def softplus(x: Value) -> Value:
    """log(1 + e**x), as max(x, 0) + log1p(e**-|x|). Largest error: 1.84 ulp."""
    n, t = split_exp(at_least(-abs(x), LOWEST))
    e = scale_down(1.0 + t, n)
    big = e > 0.33333334
    y = log_of(where(big, 1.0, 0.0), where(big, fma(0.5, e, -0.5), e))
    return where(x > 0.0, x + y, y)
