"""exp, exp2 and expm1, and the range reduction that the other functions share.

x = n ln 2 + r with whole n and |r| <= 0.3466, then e**x = 2**n (1 + t) with t = e**r - 1 from a polynomial. Keeping
t apart from the 1 lets a function that multiplies by e**x round once less.
"""

from __future__ import annotations

from ..lang import Value, fma, function, power_of_two, round_even, where

LOG2_E = 1.442695
LN2_HIGH, LN2_LOW = 0.6931472, -1.9046542e-09  # their sum is ln 2 within 2^-53
LOWEST = -104.0  # e**-104 < 2^-150, which rounds to 0


def at_least(x: Value, low: float) -> Value:
    """x, or low where x is below it; NaN stays NaN."""
    return where(x < low, low, x)


def at_most(x: Value, high: float) -> Value:
    """x, or high where x is above it; NaN stays NaN."""
    return where(x > high, high, x)


def fraction_of_exp(r: Value) -> Value:
    """e**r - 1 for |r| <= 0.347; the polynomial errs by 2^-27.8 of e**r (derive_exp.py)."""
    q = fma(0.001456994, r, 0.008363317)
    q = fma(q, r, 0.04165885)
    q = fma(q, r, 0.16666551)
    q = fma(q, r, 0.5000002)
    return fma(r * r, q, r)


def split_exp(x: Value, low: Value | float = 0.0) -> tuple[Value, Value]:
    """(n, t) with e**(x + low) = 2**n (1 + t), for |x| <= 104 and |low| below an ulp or two of x.

    fma(-n, LN2_HIGH, x) is exact: both terms are multiples of 2^-25 (of 2^-24 where |x| >= 1/2), and less than 1/2 is left.
    """
    n = round_even(fma(x, LOG2_E, -0.085))
    r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, x))
    return n, fraction_of_exp(r + low if isinstance(low, Value) else r)


def scale_down(y: Value, n: Value) -> Value:
    """y 2**n for n in [-150, 103], rounded once: the first product is exact for y in [1/2, 2], the second one scales."""
    return y * power_of_two(n + 24.0) * 2.0**-24


def scale(y: Value, n: Value) -> Value:
    """y 2**n for n in [-150, 128], rounded once, subnormal results included: 64 of n are left to a second factor."""
    up = n > 0.0
    return y * power_of_two(n - where(up, 64.0, -64.0)) * where(up, 2.0**64, 2.0**-64)


@function
def exp(x: Value) -> Value:
    """e**x."""
    n, t = split_exp(at_most(at_least(x, LOWEST), 89.0))
    return scale(1.0 + t, n)


def moderate_expm1(x: Value) -> Value:
    """e**x - 1 for |x| < 87, with a small error relative to the result: t 2**n + (2**n - 1)."""
    n, t = split_exp(x)
    power = power_of_two(n)
    return fma(t, power, power - 1.0)
