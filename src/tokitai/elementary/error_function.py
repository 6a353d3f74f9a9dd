"""erf, erfc."""

from __future__ import annotations

from ..lang import Value, fma, function, where
from .exponential import at_most, moderate_expm1, scale_down, split_exp
from .polynomial import horner


@function
def erf(x: Value) -> Value:
    """erf."""
    a = at_most(abs(x), 4.0)
    q = horner(a, -9.263866e-06, 0.000117711184, -0.0006330938, 0.0016675116, -0.00016089455, -0.019152788, 0.10277776, 0.6366194, -5.4119788e-08)
    y = -moderate_expm1(-fma(a, 1.1283792, a * q))
    y = where(x < 0.0, -y, y)
    return where(x == 0.0, x, y)


@function
def erfc(x: Value) -> Value:
    """erfc."""
    a = at_most(abs(x), 10.1)
    square = a * a
    n, t = split_exp(-square, -fma(a, a, -square))
    u = 1.0 / fma(0.425, a, 1.0)
    p = u * horner(u, -0.04124022, 0.22373481, -0.45101494, 0.37429965, -0.15235107, 0.18874317, 0.15787847, 0.2205838, 0.2395786, 0.23978771)
    y = scale_down(fma(p, t, p), n)
    return where(x < 0.0, 2.0 - y, y)
