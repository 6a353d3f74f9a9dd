"""sigmoid."""

from __future__ import annotations

from ..lang import Value, function, where
from .exponential import LOWEST, at_least, scale_down, split_exp


@function
def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x), as e**x / (1 + e**x) below zero."""
    n, t = split_exp(at_least(-abs(x), LOWEST))
    e = scale_down(1.0 + t, n)
    return where(x < 0.0, e, 1.0) / (1.0 + e)
