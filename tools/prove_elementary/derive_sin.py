"""The polynomials of sin and cos on [-pi/4, pi/4], in r**2."""

from __future__ import annotations

import mpmath as mp

from .minimax import error_of, fit, show

HIGH = float((mp.pi / 4) ** 2) + 0.01


def sine(z: mp.mpf) -> mp.mpf:
    """(sin r - r) / r**3 at r = sqrt(z)."""
    r = mp.sqrt(z)
    return (mp.sin(r) - r) / r**3 if z > mp.mpf(10) ** -12 else -mp.mpf(1) / 6 + z / 120


def cosine(z: mp.mpf) -> mp.mpf:
    """(cos r - 1 + z/2) / z**2 at r = sqrt(z)."""
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > mp.mpf(10) ** -12 else mp.mpf(1) / 24 - z / 720


if __name__ == "__main__":
    for name, f, weight in (
        ("sin", sine, lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)) if z else mp.mpf(0)),
        ("cos", cosine, lambda z: z**2 / mp.cos(mp.sqrt(z))),
    ):
        c = fit(f, weight, range(3), 0, HIGH)
        show(name, c, error_of(f, weight, range(3), 0, HIGH, c))
