"""exp, exp2 and expm1, and the range reduction that other functions share.

x = n ln 2 + r with whole n and e**r in [3/4, 3/2], then e**x = 2**n (1 + t) with t = e**r - 1 from a polynomial.
Keeping t apart from the 1 lets a function that goes on multiplying round once less. The range is not symmetric because
below 1 an ulp is half as long: |r| <= 0.29 there keeps the roundings of r and t within a quarter of it.
"""

from __future__ import annotations

import numpy as np

from ..lang import Value, fma, maximum, minimum, power_of_two, round_even, where
from .common import at_least, at_most, horner
from .exact import REAL, elementary

LOG2_E = 1.442695
LN2_HIGH, LN2_LOW = 0.6931472, -1.9046542e-09  # their sum is ln 2 within 2^-53
NEAREST = 12582912.0  # 1.5 2^23: a sum with it is rounded to a whole number
LOWEST = -104.0  # e**-104 < 2^-150, which rounds to 0


def split_exp(x: Value, low: Value | float = 0.0) -> tuple[Value, Value]:
    """(n, t) with e**(x + low) = 2**n (1 + t), for |x| < 120 and |low| of a few ulp of x.

    fma(-n, LN2_HIGH, x) is exact: both terms are multiples of 2^-25 (of 2^-24 where |x| >= 1/2), and less than 1/2 is
    left. The polynomial has an error of 2^-28.2 of e**r (tools/prove_elementary/derive_exp.py).
    """
    n = round_even(fma(x, LOG2_E, -0.085))
    r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, x))
    if isinstance(low, Value):
        r = r + low
    q = horner(r, 0.001456994, 0.008363317, 0.04165885, 0.16666551, 0.5000002)
    return n, fma(r * r, q, r)


def scale_down(y: Value, n: Value) -> Value:
    """y 2**n for n in [-174, 79], rounded once: the first product is normal, so exact, unless the result is 0."""
    return y * power_of_two(n + 48.0) * 2.0**-48


def scale(y: Value, n: Value) -> Value:
    """y 2**n for n in [-150, 128], rounded once: 64 of n is left to a second factor, as 2**n may be out of range."""
    up = n > 0.0
    return y * power_of_two(n - where(up, 64.0, -64.0)) * where(up, 2.0**64, 2.0**-64)


def moderate_expm1(x: Value) -> Value:
    """e**x - 1 for |x| < 87, as t 2**n + (2**n - 1); where n = 0 that is t itself. The sign of a zero is lost."""
    n, t = split_exp(x)
    power = power_of_two(n)
    return fma(t, power, power - 1.0)


@elementary(np.exp, derivative=lambda x, y: y, lipschitz=lambda x, e: np.exp(x + e))
def exp(x: Value) -> Value:
    """e**x. Largest error: 0.96 ulp."""
    n, t = split_exp(at_most(at_least(x, LOWEST), 89.0))
    return scale(1.0 + t, n)


@elementary(np.exp, derivative=lambda x, y: y, lipschitz=lambda x, e: np.exp(x + e))
def exp_down(x: Value) -> Value:
    """e**x for x <= 0 or NaN, with the bits of exp; above 0 the result is unspecified. Largest error: 0.92 ulp."""
    n, t = split_exp(at_least(x, LOWEST))
    return scale_down(1.0 + t, n)


@elementary(
    lambda x: np.exp(np.minimum(x, 0)), derivative=lambda x, y: np.where(x > 0, 0, y),
    lipschitz=lambda x, e: np.exp(np.minimum(x + e, 0)),
)  # fmt: skip
def exp_short(x: Value) -> Value:
    """e**min(x, 0) in half as many operations as `exp`, for what is then rounded to 16 bits. x log2(e) is taken in one
    product, to the nearest whole number n by adding 1.5 2^23; the polynomial has an error of 2^-18.4 of 2**r.

    Largest error: 60.40 ulp.
    """
    x = minimum(maximum(x, LOWEST), 0.0)
    n = fma(x, LOG2_E, NEAREST) - NEAREST
    r = fma(x, LOG2_E, -n)
    return scale_down(horner(r, 0.009582576, 0.05590683, 0.24024107, 0.6931241, 1.0), n)


@elementary(np.exp2, derivative=lambda x, y: y * np.log(REAL(2)), lipschitz=lambda x, e: 0.6932 * np.exp2(x + e))
def exp2(x: Value) -> Value:
    """2**x. The remainder x - n is exact; the polynomial has an error of 2^-27.3 of 2**r (derive_exp2.py).

    Largest error: 1.10 ulp.
    """
    x = at_most(at_least(x, -150.5), 128.5)
    n = round_even(x - 0.085)
    r = x - n
    q = horner(r, 0.0001711339, 0.0013354024, 0.0096133705, 0.055504147, 0.24022682, LN2_LOW)
    return scale(1.0 + fma(r, LN2_HIGH, r * q), n)


@elementary(np.expm1, derivative=lambda x, y: y + 1, lipschitz=lambda x, e: np.exp(x + e))
def expm1(x: Value) -> Value:
    """e**x - 1. Computed at half its size, as 2**128 is not a number of the format. Largest error: 1.32 ulp."""
    n, t = split_exp(at_most(at_least(x, -20.0), 89.0))
    half = power_of_two(n - 1.0)
    y = fma(t, half, half - 0.5) * 2.0
    return where(abs(x) < 2.0**-25, x, y)
