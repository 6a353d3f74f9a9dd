"""A step of a matrix unit on 16-bit operands, as a function: what the accumulator ``fused16`` adds up by.

One step takes the accumulator and 16 products along k:

1. products are exact; each has the exponent e(a) + e(b) of its operands, not normalised, where a subnormal operand has
   the smallest exponent of its format;
2. E is the largest exponent of the nonzero products and of the accumulator, and `FLOOR` at least;
3. every product and the accumulator are cut toward zero to multiples of 2**(E - FRACTION), and added exactly;
4. the sum is cut toward zero to f32: subnormals are kept, a zero is +0, from 2**128 on it is an infinity.

Where an operand or the accumulator is an infinity or NaN, the result is that of IEEE 754: NaN where there is one, where
an infinity meets a zero, or infinities of both signs; else the infinity.

That is the arithmetic of Hopper's tensor cores, found by experiment: see "MMA-Sim: Bit-Accurate Reference Model of
Tensor Cores and Matrix Cores" (2025), and Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
cores" (2021). `STEP`, `FRACTION` and `FLOOR` are what other architectures have differently.
"""

from __future__ import annotations

import numpy as np

from ..formats import FORMATS
from .interpret import Array

F32, I64 = np.float32, np.int64
STEP, FRACTION, FLOOR = 16, 25, -133
ABSENT = -(1 << 20)  # the exponent of a zero: below every other
ROWS_AT_ONCE = 1 << 22  # products held at a time


def parts(x: Array, emin: int, precision: int) -> tuple[Array, Array]:
    """Finite x as ``significand * 2**(exponent - (precision - 1))``, in integers; subnormals have the exponent emin."""
    exponent = np.maximum(np.frexp(x)[1] - 1, emin).astype(I64)
    significand = np.ldexp(x.astype(np.float64), precision - 1 - exponent).astype(I64)
    return significand, np.where(x == 0, ABSENT, exponent)


def cut(significand: Array, shift: Array) -> Array:
    """significand * 2**shift, cut toward zero to an integer."""
    left = np.abs(significand) << np.clip(shift, 0, 40)
    made = left >> np.clip(-shift, 0, 62)
    return np.asarray(np.where(significand < 0, -made, made))


def toward_zero(x: Array) -> Array:
    """f64 cut toward zero to f32; a zero is +0."""
    with np.errstate(over="ignore"):
        nearest = x.astype(F32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(x)
    kept = np.where(beyond & (np.abs(x) < 2.0**128), np.nextafter(nearest, F32(0)), nearest)
    return np.asarray(kept + F32(0))


def step(c: Array, a: Array, b: Array, left: str, right: str) -> Array:
    """The accumulator c of rows x cols after the products of a, rows x n, and b, n x cols, with n at most `STEP`;
    ``left`` and ``right`` are the formats of a and b, whose values are given in f32."""
    assert a.shape[1] <= STEP
    finite = np.isfinite(a).all(axis=1, keepdims=True) & np.isfinite(b).all(axis=0, keepdims=True) & np.isfinite(c)
    with np.errstate(all="ignore"):
        special = ((a[:, :, None].astype(np.float64) * b[None, :, :]).sum(axis=1) + c).astype(F32)
    clean = [np.where(np.isfinite(x), x, 0) for x in (a, b, c)]
    fa, fb = FORMATS[left], FORMATS[right]
    (ma, ea), (mb, eb) = parts(clean[0], fa.emin, fa.precision), parts(clean[1], fb.emin, fb.precision)
    mc, ec = parts(clean[2], -126, 24)
    products, exponents = ma[:, :, None] * mb[None, :, :], ea[:, :, None] + eb[None, :, :]
    top = np.maximum(np.maximum(exponents.max(axis=1, initial=ABSENT), ec), FLOOR)
    places = fa.precision - 1 + (fb.precision - 1)
    total = cut(products, exponents - places - (top[:, None, :] - FRACTION)).sum(axis=1)
    total = total + cut(mc, ec - 23 - (top - FRACTION))
    exact = np.ldexp(total.astype(np.float64), (top - FRACTION).astype(np.int32))
    return np.where(finite, toward_zero(exact), special)


def chain(a: Array, b: Array, left: str, right: str) -> Array:
    """The chain of steps from +0 along all of k, in order: of a, rows x inner, and b, inner x cols."""
    at_once = max(1, ROWS_AT_ONCE // (STEP * max(b.shape[1], 1)))
    made = []
    for r in range(0, max(len(a), 1), at_once):
        some = a[r : r + at_once]
        c = np.zeros((len(some), b.shape[1]), F32)
        for k in range(0, a.shape[1], STEP):
            c = step(c, some[:, k : k + STEP], b[k : k + STEP], left, right)
        made.append(c)
    return np.concatenate(made)


def chain_of_met(a: Array, met: Array, b: Array, left: str, right: str) -> Array:
    """The same, where of the products of row r those at k count for which ``met[r, k]`` holds: what else there is does
    not matter, NaN or not, and changes no step's place."""
    made = np.zeros((len(a), b.shape[1]), F32)
    for pattern in np.unique(met, axis=0):
        some = (met == pattern).all(axis=1)
        made[some] = chain(np.where(pattern, a[some], 0), np.where(pattern[:, None], b, 0), left, right)
    return made
