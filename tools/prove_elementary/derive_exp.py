"""The polynomial of tokitai.elementary.exponential.split_exp: (e**r - 1 - r) / r**2 on the reduced range."""

from __future__ import annotations

import mpmath as mp

from .minimax import error_of, fit, show

LOW, HIGH = float(mp.log(0.75)) - 1e-3, float(mp.log(1.5)) + 1e-3  # e**r from 3/4 to 3/2


def second_order(r: mp.mpf) -> mp.mpf:
    """(e**r - 1 - r) / r**2"""
    return (mp.expm1(r) - r) / r**2 if r else mp.mpf(1) / 2


def weight(r: mp.mpf) -> mp.mpf:
    """Relative to e**r."""
    return r**2 / mp.exp(r)


if __name__ == "__main__":
    c = fit(second_order, weight, range(5), LOW, HIGH)
    show("split_exp", c, error_of(second_order, weight, range(5), LOW, HIGH, c))
