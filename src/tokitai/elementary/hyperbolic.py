"""tanh."""

from __future__ import annotations

import numpy as np

from ..lang import Value, fma, power_of_two, where
from .common import at_most, horner
from .exact import elementary, everywhere
from .exponential import split_exp


@elementary(np.tanh, derivative=lambda x, y: 1 - y * y, lipschitz=everywhere(1.0))
def tanh(x: Value) -> Value:
    """The hyperbolic tangent: x + x**3 p(x**2) for |x| < 0.55, else 1 - 2 / (e**2|x| + 1).

    p has an error of 2^-29.7 of tanh (derive_tanh.py). Two pieces as in CUDA's tanhf.

    Largest error: 1.35 ulp.
    """
    a = at_most(abs(x), 10.0)  # tanh(10) rounds to 1
    n, t = split_exp(a + a)
    power = power_of_two(n)
    large = 1.0 - 2.0 / fma(t, power, power + 1.0)
    square = x * x
    small = fma(x * square, horner(square, -0.006242849, 0.021050714, -0.053847548, 0.13332544, -0.33333316), x)
    y = where(a < 0.55, small, where(x < 0.0, -large, large))
    return where(x == 0.0, x, y)  # x + x**3 p loses the sign of a zero
