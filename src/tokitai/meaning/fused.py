"""The f32 fused multiply-add of the oracle, which NumPy lacks, built from exact arithmetic in f64."""

from __future__ import annotations

import numpy as np

from .interpret import Array

F32 = np.float32


def fma(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in f32, rounded once."""
    with np.errstate(invalid="ignore", over="ignore"):
        return fused(exact_product(a, b), c)


def exact_product(a: Array, b: Array) -> Array:
    """a * b of numbers in f32, in f64: exact, 24 + 24 bits."""
    return np.multiply(a, b, dtype=np.float64)


def fused(p: Array, c: Array) -> Array:
    """p + c in f32, rounded once, for a product in f64 and a number in f32.

    The sum in f64 has the error `err` (Knuth's TwoSum). Rounding it to odd before the final rounding makes that one
    correct, as 53 >= 24 + 2 (Boldo and Melquiond, 2008).
    """
    s = p + c
    t = s - p
    err = (p - (s - t)) + (c - t)
    if not err.any():
        return s.astype(F32)  # exact sums are rounded once as they are
    bits = s.view(np.int64)
    inexact = (err != 0) & np.isfinite(s) & ((bits & 1) == 0)
    outward = (err > 0) == (s > 0)  # the exact sum is further from zero than s
    odd = np.where(inexact, bits + np.where(outward, 1, -1), bits)
    return np.asarray(odd).view(np.float64).astype(F32)
