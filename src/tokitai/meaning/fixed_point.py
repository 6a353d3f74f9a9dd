"""Products of operands in fixed point, as a function: the accumulators ``fixed8``, ``fixed16`` and ``fixed24``.

In each aligned block of 4096 along k, of b bits:

1. a line (a row of the left operand, a column of the right one) has the unit 2**(e - (b - 2)), where e is the exponent
   of its largest magnitude in the block, subnormal numbers included: 2**e <= largest < 2**(e + 1);
2. its elements, in units, are rounded to whole numbers, to nearest even. What rounds to 2**(b - 1), which only elements
   next to 2**(e + 1) do, becomes 2**(b - 1) - 1, with its sign: integers are those of b bits, and symmetric;
3. products of integers are added exactly: at most 4096 * (2**(b - 1) - 1)**2 < 2**58;
4. the sum is rounded to f32, to nearest even, and times both units, which is exact unless it is subnormal (then it is
   rounded once more, to nearest even) or beyond f32 (then it is an infinity). A sum of zero is +0.

A line of zeros has integers of zero, whatever its unit. A unit is an exponent, no number of f32, and neither overflows
nor underflows. A line with an infinity or NaN in the block has no unit: every sum of the block that it takes part in is
NaN, also beside zeros. Operands of f16, bf16 and f32 are all taken: each is a number of f32 first, and rounded once.
"""

from __future__ import annotations

import numpy as np

from .interpret import Array


def integers(lines: Array, bits: int) -> tuple[Array, Array, Array]:
    """Of lines x n f32 numbers: the integers, the exponent of each line's unit, and whether the line has one."""
    whole: Array = np.asarray(np.isfinite(lines).all(axis=1))
    x = np.where(whole[:, None], lines, 0).astype(np.float64)
    largest = np.abs(x).max(axis=1, initial=0)
    unit = np.frexp(largest)[1] - 1 - (bits - 2)
    top = 2 ** (bits - 1) - 1
    rounded = np.rint(np.ldexp(x, -unit[:, None]))  # exact in f64 but for the rounding
    return np.clip(rounded, -top, top).astype(np.int64), unit, whole


def block(a: Array, b: Array, bits: int) -> Array:
    """The sums of one block in f32: of a, rows x n, and b, n x cols, with n at most 4096."""
    (left, left_unit, left_whole), (right, right_unit, right_whole) = integers(a, bits), integers(b.T, bits)
    exact = left @ right.T
    scaled = np.ldexp(exact.astype(np.float32).astype(np.float64), left_unit[:, None] + right_unit[None, :])
    with np.errstate(over="ignore"):
        return np.where(left_whole[:, None] & right_whole[None, :], scaled, np.nan).astype(np.float32)
