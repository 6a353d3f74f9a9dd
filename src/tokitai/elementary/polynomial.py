"""Polynomials."""

from __future__ import annotations

from ..lang import Value, fma


def horner(x: Value, *coefficients: float) -> Value:
    """The polynomial with these coefficients, highest power first: one fma for each power."""
    total: Value | float = coefficients[0]
    for c in coefficients[1:]:
        total = fma(total, x, c)
    assert isinstance(total, Value)
    return total
