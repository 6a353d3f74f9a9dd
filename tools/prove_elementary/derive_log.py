"""The polynomial of log and log1p: (log(1 + f) - f + f**2 / 2) / f**3 for 1 + f in [2/3, 4/3]."""

from __future__ import annotations

import mpmath as mp

from .minimax import error_of, fit, show

LOW, HIGH = -1 / 3, 1 / 3


def third_order(f: mp.mpf) -> mp.mpf:
    """(log(1 + f) - f + f**2 / 2) / f**3"""
    return (mp.log1p(f) - f + f * f / 2) / f**3 if abs(f) > mp.mpf(10) ** -9 else mp.mpf(1) / 3 - f / 4


def weight(f: mp.mpf) -> mp.mpf:
    """Relative to log(1 + f)."""
    return f**3 / mp.log1p(f) if f else mp.mpf(0)


if __name__ == "__main__":
    c = fit(third_order, weight, range(10), LOW, HIGH)
    show("log", c, error_of(third_order, weight, range(10), LOW, HIGH, c))
