"""sigmoid, silu and the slope of silu."""

from __future__ import annotations

import numpy as np

from ..lang import Array, Value, fma, where
from .common import at_least, horner
from .exact import elementary, everywhere, gated
from .exponential import LOWEST, scale_down, split_exp


def exact_sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def exact_silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return gated(x, exact_sigmoid(x))


def exact_silu_slope(x: Array) -> Array:
    """The derivative of x sigmoid(x)."""
    s = exact_sigmoid(x)
    return np.asarray(s + np.where(np.isinf(x), 0, x * s * exact_sigmoid(-x)))


@elementary(exact_sigmoid, derivative=lambda x, y: y * (1 - y), lipschitz=everywhere(0.25))
def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x), as q = e / (1 + e) with e = e**x below zero. Below -1 it is e - e q, where e keeps what its
    rounding drops: in the quotient that would count twice just below a power of two.

    Largest error: 1.67 ulp.
    """
    n, t = split_exp(at_least(-abs(x), LOWEST))
    w = 1.0 + t
    e, low = scale_down(w, n), scale_down(t - (w - 1.0), n)
    q = where(x < 0.0, e, 1.0) / (1.0 + e)
    return where(x < -1.0, e + fma(-e, q, low), q)


@elementary(exact_silu, derivative=lambda x, y: exact_silu_slope(x), lipschitz=everywhere(1.1))  # at 2.4
def silu(x: Value) -> Value:
    """x sigmoid(x). The product with x is taken before e**x is scaled, so that a subnormal result is rounded once.

    Largest error: 3.35 ulp.
    """
    n, t = split_exp(at_least(-abs(x), -110.0))
    w = 1.0 + t
    return where(x < 0.0, scale_down(at_least(x, -110.0) * w, n), x) / (1.0 + scale_down(w, n))


@elementary(exact_silu_slope, lipschitz=everywhere(0.5))
def silu_slope(x: Value) -> Value:
    """The derivative of silu: d = e (1 + e - a) / (1 + e)**2 at -a, with a = |x| and e = e**-a, and 1 - d at +a.

    Within 1/2 of its zero the second factor is (zero - a) times a polynomial, with an error of 2^-25.3
    (derive_slope.py), so that d is accurate relatively.

    Largest error: 6.02 ulp.
    """
    a = -at_least(-abs(x), -110.0)
    n, t = split_exp(-a)
    w = 1.0 + t
    e = scale_down(w, n)
    delta = (a - 1.2784646) - -1.2979283e-08
    near = horner(delta, -0.0003887827, 0.002340604, -0.011602627, 0.046409033, -0.13923226, 1.2784646)
    factor = where(abs(delta) < 0.5, near * -delta, (1.0 - a) + e)
    denominator = 1.0 + e
    d = scale_down(factor * w / (denominator * denominator), n)
    return where(x < 0.0, d, 1.0 - d)
