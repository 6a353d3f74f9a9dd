"""The polynomial of tanh near zero: (tanh x - x) / x**3 in x**2."""

from __future__ import annotations

import mpmath as mp

from .minimax import error_of, fit, show

LIMIT = 0.55


def third_order(z: mp.mpf) -> mp.mpf:
    """(tanh x - x) / x**3 at x = sqrt(z)."""
    if z < mp.mpf(10) ** -12:
        return mp.mpf(-1) / 3
    x = mp.sqrt(z)
    return (mp.tanh(x) - x) / x**3


def weight(z: mp.mpf) -> mp.mpf:
    """Relative to tanh x."""
    x = mp.sqrt(z)
    return x**3 / mp.tanh(x) if z else mp.mpf(0)


if __name__ == "__main__":
    c = fit(third_order, weight, range(5), 0, LIMIT**2)
    show("tanh", c, error_of(third_order, weight, range(5), 0, LIMIT**2, c))
