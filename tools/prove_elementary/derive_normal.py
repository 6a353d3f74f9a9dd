"""The rational functions of erfc, normal_cdf and gelu_slope: what is left of a Gaussian tail without exp(-a**2)."""

from __future__ import annotations

import mpmath as mp
import numpy as np

from .minimax import fit_rational, show, tail_points

ROOT_2PI = mp.sqrt(2 * mp.pi)


def scaled_erfc(a: mp.mpf) -> mp.mpf:
    """exp(a**2) erfc(a)"""
    return mp.exp(a * a) * mp.erfc(a)


def scaled_tail(a: mp.mpf) -> mp.mpf:
    """exp(a**2 / 2) Phi(-a)"""
    return mp.exp(a * a / 2) * mp.erfc(a / mp.sqrt(2)) / 2


def slope(a: mp.mpf) -> mp.mpf:
    """exp(a**2 / 2) times the derivative of x Phi(x) at x = -a."""
    return scaled_tail(a) - a / ROOT_2PI


ROOT = mp.findroot(slope, 0.75)


def slope_over_root(a: mp.mpf) -> mp.mpf:
    """slope(a) / (ROOT - a), a positive function."""
    return slope(a) / (ROOT - a)


if __name__ == "__main__":
    for name, f, degrees, points in (
        ("erfc", scaled_erfc, (4, 5), tail_points(10.1, 2)),
        ("normal_cdf", scaled_tail, (4, 5), tail_points(14.42, 3)),
        ("gelu_slope", slope_over_root, (4, 4), tail_points(14.42, 3)),
    ):
        top, bottom, error = fit_rational(f, degrees, points)
        show(f"{name} numerator", top, error)
        show(f"{name} denominator", bottom, error)
    high = np.float32(float(ROOT))
    print(f"gelu_slope: zero {mp.nstr(ROOT, 20)} = {high} + {np.float32(float(ROOT - mp.mpf(float(high))))}")
