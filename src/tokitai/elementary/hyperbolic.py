"""tanh."""

from __future__ import annotations

from ..lang import Value, function, where
from .exponential import at_most, moderate_expm1


@function
def tanh(x: Value) -> Value:
    """(e**2x - 1) / (e**2x + 1)."""
    a = at_most(abs(x), 10.0)  # tanh(10) rounds to 1
    m = moderate_expm1(a + a)
    y = m / (m + 2.0)
    y = where(x < 0.0, -y, y)
    return where(x == 0.0, x, y)
