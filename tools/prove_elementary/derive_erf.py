"""The polynomials of erf, erfc and normal_cdf."""

from __future__ import annotations

import mpmath as mp
import numpy as np

from .minimax import error_of, fit, show

LEADING = float(np.float32(2 / np.sqrt(np.pi)))


def exponent_of_erf(a: mp.mpf) -> mp.mpf:
    """q with erf(a) = 1 - exp(-a (LEADING + q))."""
    return (-mp.log(mp.erfc(a)) / a if a else 2 / mp.sqrt(mp.pi)) - mp.mpf(LEADING)


def weight_of_erf(a: mp.mpf) -> mp.mpf:
    """d ln erf / d q: the error relative to erf."""
    return a * mp.erfc(a) / mp.erf(a) if a else mp.sqrt(mp.pi) / 2


def scaled_erfc(t: mp.mpf, k: float) -> mp.mpf:
    """exp(a**2) erfc(a) / t with t = 1 / (1 + k a)."""
    a = (1 / t - 1) / mp.mpf(k)
    return mp.exp(a * a) * mp.erfc(a) / t


def scaled_tail(t: mp.mpf, k: float) -> mp.mpf:
    """exp(a**2 / 2) Phi(-a) / t with t = 1 / (1 + k a)."""
    a = (1 / t - 1) / mp.mpf(k)
    return mp.exp(a * a / 2) * mp.erfc(a / mp.sqrt(2)) / 2 / t


if __name__ == "__main__":
    c = fit(exponent_of_erf, weight_of_erf, range(9), 0, 4)
    show("erf", c, error_of(exponent_of_erf, weight_of_erf, range(9), 0, 4, c))
    for name, f, k, last in (("erfc", scaled_erfc, 0.425, 10.1), ("normal_cdf", scaled_tail, 0.3005, 14.3)):
        k = float(np.float32(k))
        low = 1 / (1 + k * last)
        g = lambda t, f=f, k=k: f(t, k)  # noqa: E731
        w = lambda t, g=g: 1 / g(t)  # noqa: E731
        c = fit(g, w, range(10), low, 1)
        show(f"{name}, k={k}", c, error_of(g, w, range(10), low, 1, c))
