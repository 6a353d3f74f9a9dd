"""The polynomials of silu_slope and gelu_tanh_slope next to the zero of the derivative."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

from .minimax import show, squares, value

C1 = 2 * mp.sqrt(2 / mp.pi)
C3 = C1 * mp.mpf("0.044715")


def silu_factor(a: mp.mpf) -> mp.mpf:
    """1 + e**-a - a"""
    return 1 + mp.exp(-a) - a


def gelu_tanh_factor(a: mp.mpf) -> mp.mpf:
    """1 + e**-v - a v' with v = C1 a + C3 a**3"""
    return 1 + mp.exp(-a * (C1 + C3 * a * a)) - a * (C1 + 3 * C3 * a * a)


def over_root(factor: Callable[[mp.mpf], mp.mpf], root: mp.mpf, d: mp.mpf) -> mp.mpf:
    """factor(root + d) / -d"""
    return factor(root + d) / -d if abs(d) > mp.mpf(10) ** -9 else -mp.diff(factor, root)


if __name__ == "__main__":
    for name, factor, start, width, count in (
        ("silu_slope", silu_factor, 1.28, 0.5, 6),
        ("gelu_tanh_slope", gelu_tanh_factor, 0.75, 0.5, 8),
    ):
        root = mp.findroot(factor, start, tol=1e-60)
        high = np.float32(float(root))
        low = np.float32(float(root - mp.mpf(float(high))))
        print(f"{name}: zero {mp.nstr(root, 20)} = {high} + {low}")
        points = [width * mp.cos(mp.pi * (i + 0.5) / 400) for i in range(400)]
        goal = [over_root(factor, root, d) for d in points]
        c = squares(goal, points, count)
        show(name, c, max(float(abs(value(c, d) / g - 1)) for d, g in zip(points, goal, strict=True)))
