"""What the definitions share: Horner's rule and one-sided clamps. Plain Python, so they leave no call in a graph."""

from __future__ import annotations

from ..lang import Value, fma, where


def horner(x: Value, *coefficients: float) -> Value:
    """The polynomial with these coefficients, the highest power first: one fma a power."""
    total = fma(coefficients[0], x, coefficients[1])
    for c in coefficients[2:]:
        total = fma(total, x, c)
    return total


def at_least(x: Value, low: float) -> Value:
    """x, or low where x is below it; NaN stays NaN."""
    return where(x < low, low, x)


def at_most(x: Value, high: float) -> Value:
    """x, or high where x is above it; NaN stays NaN."""
    return where(x > high, high, x)
