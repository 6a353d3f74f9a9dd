"""Exact matrix products of integers: of int8 into int32 and int64, and modulo any m up to 2^32.

    matmul_int8(a, b)                     # int32; an element that int32 does not hold is an error, or wraps
    matmul_mod(a, b, 2**32)               # what an accumulator of 32 bits that wraps holds, in any order of the sum
    matmul_mod(a, b, 5**8)                # 5-adic arithmetic to 8 digits

Products are computed by the floating-point matrix product of NumPy on integers so small that nothing is rounded: every
product and every partial sum, in whichever order, is an integer of at most 2^53 in float64, or 2^24 in float32. Factors
are reduced to the residues nearest to 0. Where two of them are too large, the first is cut into digits, and K into
blocks that are added in int64. So the bits are the same on all machines, for any number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .errors import ArgumentError, IntegerRangeError

Array = np.ndarray[Any, Any]

LARGEST_MODULUS = 2**32
DOUBLE, SINGLE = 2**53, 2**24  # up to these all integers are numbers of the format
SMALLEST_BLOCK = 100  # of K: adding up more blocks takes longer than one digit more
BLOCKS_ADDED = 2**8  # of at most 2^53 each, in int64, before a reduction
PANEL = 256  # rows, so few that what is computed of them stays in the cache


@dataclass(frozen=True)
class Digits:
    """How factors modulo m are cut: the first into `count` digits of `width` bits, K into blocks of `block`."""

    count: int
    width: int
    block: int

    @classmethod
    def of(cls, modulus: int) -> Digits:
        """The fewest digits with which blocks are not too short."""
        half = modulus // 2  # the largest residue
        for count in range(1, 8):
            width = max(1, -(-half.bit_length() // count))
            digit = half if count == 1 else max(2 ** (width - 1), (half >> (width * (count - 1))) + 1)
            block = DOUBLE // max(1, digit * half)
            if block >= SMALLEST_BLOCK:
                return cls(count, width, block)
        raise AssertionError(f"no digits for {modulus}")

    def cut(self, residues: Array) -> list[Array]:
        """The digits of residues nearest to 0, as float64, the most significant ones first."""
        low = []
        for _ in range(self.count - 1):
            shift = 1 << (self.width - 1)
            low.append(((residues + shift) & (2 * shift - 1)) - shift)
            residues = (residues - low[-1]) >> self.width
        return [part.astype(np.float64) for part in (residues, *reversed(low))]

    def joined(self, products: Iterable[Array], modulus: int) -> Array:
        """The residues from 0 to m - 1 of the product whose parts are those by each digit, in the order of `cut`: int64
        below 2^62 + 2^53 in magnitude."""
        total: Array | None = None
        for product in products:
            total = product if total is None else (reduced(total, modulus) << self.width) + product
        assert total is not None
        return reduced(total, modulus)


def matmul_mod(a: Any, b: Any, modulus: int, *, offsets: Sequence[int] | None = None, threads: int = 1) -> Array:
    """The matrix product modulo m, as int64 from 0 to m - 1. Any integers, of any layout; batches as in NumPy's matmul.

    With `offsets`, a grouped product: rows offsets[g] to offsets[g + 1] of `a` are multiplied by b[g]. `threads`
    compute rows, beside the threads that NumPy's product has of its own. Raises ArgumentError.
    """
    check_threads(threads)
    if type(modulus) is not int or not 1 <= modulus <= LARGEST_MODULUS:
        raise ArgumentError(f"modulus={modulus!r}; accepted: an integer from 1 to {LARGEST_MODULUS}")
    x, y = _operands(a, b, offsets, "iu")
    digits = Digits.of(modulus)

    def product(left: Array, right: Array) -> Array:
        columns = nearest(right, modulus).astype(np.float64)
        total = np.empty((*_batches(left, right), left.shape[-2], right.shape[-1]), np.int64)

        def compute(start: int) -> None:
            panel = slice(start, start + PANEL)
            total[..., panel, :] = _panel(left[..., panel, :], columns, modulus, digits)

        starts = range(0, left.shape[-2], PANEL)
        if threads == 1 or len(starts) < 2:
            for start in starts:
                compute(start)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(compute, starts))
        return total

    return _product(product, x, y, offsets, np.dtype(np.int64))


def matmul_int8(
    a: Any,
    b: Any,
    *,
    dtype: type[np.int32] | type[np.int64] = np.int32,
    overflow: Literal["raise", "wrap"] = "raise",
    offsets: Sequence[int] | None = None,
) -> Array:
    """The matrix product of int8 arrays, as int32 or int64; batches and `offsets` as for `matmul_mod`.

    An element that does not fit into int32 raises IntegerRangeError, or wraps. That needs a K above 2^17. Raises
    ArgumentError.
    """
    if dtype not in (np.int32, np.int64):
        raise ArgumentError(f"dtype={dtype!r}; accepted: numpy.int32, numpy.int64")
    if overflow not in ("raise", "wrap"):
        raise ArgumentError(f"overflow={overflow!r}; accepted: 'raise', 'wrap'")
    x, y = _operands(a, b, offsets, "i")
    for name, array in (("a", x), ("b", y)):
        if array.dtype != np.int8:
            raise ArgumentError(f"{name} has type {array.dtype}; accepted: int8")

    def product(left: Array, right: Array) -> Array:
        inner = left.shape[-1]
        wide = np.int64 if dtype is np.int64 or inner > 2**31 // 2**14 - 1 else np.int32
        rows, columns = left.astype(np.float32), right.astype(np.float32)
        total = np.zeros((*_batches(left, right), left.shape[-2], right.shape[-1]), wide)
        block = SINGLE // 2**14
        for start in range(0, inner, block):
            total += (rows[..., start : start + block] @ columns[..., start : start + block, :]).astype(wide)
        if total.dtype == dtype:
            return total
        if overflow == "raise" and ((total < -(2**31)) | (total >= 2**31)).any():
            at = tuple(map(int, np.argwhere((total < -(2**31)) | (total >= 2**31))[0]))
            raise IntegerRangeError(f"element {list(at)} of the product is {total[at]}; accepted: what int32 holds")
        return total.astype(np.int32)

    return _product(product, x, y, offsets, np.dtype(dtype))


def check_threads(threads: object) -> None:
    """Raises ArgumentError for what is no number of threads."""
    if type(threads) is not int or threads < 1:
        raise ArgumentError(f"threads={threads!r}; accepted: an integer from 1 on")


def _panel(a: Array, b: Array, modulus: int, digits: Digits) -> Array:
    """The product of integers and float64 residues modulo m: by the digits of `a`, the most significant one first."""
    parts = digits.cut(nearest(a, modulus))
    return digits.joined((_in_blocks(part, b, digits.block, modulus) for part in parts), modulus)


def _in_blocks(a: Array, b: Array, block: int, modulus: int) -> Array:
    """The product of float64 arrays of integers, exact in blocks of K, congruent modulo m and below 2^62 + 2^53."""
    inner = a.shape[-1]
    total = (a[..., :block] @ b[..., :block, :]).astype(np.int64)
    for number, start in enumerate(range(block, inner, block), start=1):
        total += (a[..., start : start + block] @ b[..., start : start + block, :]).astype(np.int64)
        if number % BLOCKS_ADDED == 0:
            total = reduced(total, modulus)
    return np.asarray(total)


def reduced(array: Array, modulus: int) -> Array:
    """The residues from 0 to m - 1 of int64."""
    if modulus & (modulus - 1) == 0:
        return np.asarray(array & (modulus - 1))
    return np.asarray(array - array // modulus * modulus)  # faster than %


def nearest(array: Array, modulus: int) -> Array:
    """The residues nearest to 0, as int64."""
    half = modulus // 2
    if modulus & (modulus - 1) == 0:  # of uint64 too: 2^64 is 0
        return np.asarray(((array.astype(np.int64) + half) & (modulus - 1)) - half)
    if array.dtype == np.uint64:
        array = array % np.uint64(modulus)
    residues = reduced(array.astype(np.int64), modulus)
    return np.asarray(residues - (residues > half) * modulus)


def _operands(a: Any, b: Any, offsets: Sequence[int] | None, kinds: str) -> tuple[Array, Array]:
    """Both factors, of shapes that fit. Raises ArgumentError."""
    x, y = np.asarray(a), np.asarray(b)
    for name, array in (("a", x), ("b", y)):
        if array.dtype.kind not in kinds:
            raise ArgumentError(f"{name} has type {array.dtype}; accepted: integers")
    if offsets is None:
        fit = x.ndim >= 2 and y.ndim >= 2 and x.shape[-1] == y.shape[-2]
        try:
            np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        except ValueError:
            fit = False
        accepted = "(..., m, k) @ (..., k, n)"
    else:
        fit = x.ndim == 2 and y.ndim == 3 and x.shape[1] == y.shape[1] and len(offsets) == len(y) + 1
        accepted = "(m, k) @ (groups, k, n), and one more of offsets than of groups"
        steps = [*offsets]
        if fit and (steps[0] != 0 or steps[-1] != len(x) or steps != sorted(steps)):
            raise ArgumentError(f"offsets={steps}; accepted: from 0 to {len(x)}, none below the one before")
    if not fit:
        raise ArgumentError(f"shapes {x.shape} @ {y.shape}; accepted: {accepted}")
    return x, y


def _product(
    product: Callable[[Array, Array], Array], a: Array, b: Array, offsets: Sequence[int] | None, dtype: np.dtype[Any]
) -> Array:
    """One product, or one for each group."""
    if offsets is None:
        return product(a, b)
    result = np.zeros((len(a), b.shape[-1]), dtype)
    for group, (start, stop) in enumerate(itertools.pairwise(offsets)):
        if start < stop:
            result[start:stop] = product(a[start:stop], b[group])
    return result


def _batches(a: Array, b: Array) -> tuple[int, ...]:
    return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
