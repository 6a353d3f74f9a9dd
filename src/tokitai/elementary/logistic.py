"""sigmoid, silu and the slope of silu."""

from __future__ import annotations

from ..lang import Value, fma, function, power_of_two, where
from .common import at_least
from .exponential import LOWEST, scale_down, split_exp


@function
def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x), as e**x / (1 + e**x) below zero."""
    n, t = split_exp(at_least(-abs(x), LOWEST))
    e = scale_down(1.0 + t, n)
    return where(x < 0.0, e, 1.0) / (1.0 + e)


@function
def silu(x: Value) -> Value:
    """x sigmoid(x). The product with x is taken before e**x is scaled, so that a subnormal result is rounded once."""
    n, t = split_exp(at_least(-abs(x), -110.0))
    w = 1.0 + t
    return where(x < 0.0, scale_down(at_least(x, -110.0) * w, n), x) / (1.0 + scale_down(w, n))


@function
def silu_slope(x: Value) -> Value:
    """The derivative of silu: d = e (1 + e - a) / (1 + e)**2 at -a, with a = |x| and e = e**-a, and 1 - d at +a.

    The last factor has a zero near a = 1.278; (1 - a) + 2**n + 2**n t cancels there with an error of about 2^-29.
    """
    a = -at_least(-abs(x), -110.0)
    n, t = split_exp(-a)
    power = power_of_two(n + 48.0)
    s = power * 2.0**-48
    factor = fma(t, s, (1.0 - a) + s)
    w = 1.0 + t
    denominator = fma(w, s, 1.0)
    d = factor * w / (denominator * denominator) * power * 2.0**-48
    return where(x < 0.0, d, 1.0 - d)
