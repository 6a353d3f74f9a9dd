"""Exact products against FLINT's, and against Python's integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokitai import exact
from tokitai.errors import ArgumentError, IntegerRangeError
from tokitai.exact import LARGEST_MODULUS, Digits, matmul_int8, matmul_mod

Array = np.ndarray[Any, Any]
MODULI = (1, 2, 3, 2**16, 5**8, 65537, 3**20, 2**31 - 1, 2**31, 2**32 - 5, 2**32)


def by_flint(a: Array, b: Array, modulus: int) -> Array:
    left = flint.fmpz_mat(*a.shape, [int(x) for x in a.ravel()])
    right = flint.fmpz_mat(*b.shape, [int(x) for x in b.ravel()])
    entries = [int(x) % modulus for x in (left * right).entries()]
    return np.array(entries, np.int64).reshape(a.shape[0], b.shape[1])


def by_integers(a: Array, b: Array) -> Array:
    return np.asarray(np.matmul(a.astype(object), b.astype(object)))


@pytest.mark.parametrize("modulus", MODULI)
def test_products_are_flints(modulus: int) -> None:
    rng = np.random.default_rng(modulus)
    for rows, inner, columns in ((1, 1, 1), (3, 700, 2), (300, 130, 5)):
        a = rng.integers(-(2**63), 2**63 - 1, (rows, inner))
        b = rng.integers(0, 2**64 - 1, (inner, columns), np.uint64)
        for threads in (1, 2):
            assert (matmul_mod(a, b, modulus, threads=threads) == by_flint(a, b, modulus)).all()


@pytest.mark.parametrize("modulus", MODULI)
def test_the_largest_sums(modulus: int) -> None:
    """Factors as far from 0 as residues go, of both signs, whose digits are the largest ones, over several blocks."""
    digits = Digits.of(modulus)
    half = modulus // 2
    inner = min(3 * digits.block + 1, 2000)
    low = 2 ** (digits.width - 1)
    for x in (half, -((modulus - 1) // 2), half - low, -low, half - 1):
        for y in (half, -((modulus - 1) // 2), half - 1):
            a, b = np.full((1, inner), x), np.full((inner, 1), y)
            assert matmul_mod(a, b, modulus)[0, 0] == x * y * inner % modulus


def test_no_sum_of_a_block_is_rounded() -> None:
    """The bound that makes a block exact, from the digits themselves."""
    for modulus in (*MODULI, *range(2, 300), *(2**n + d for n in range(9, 32) for d in (-1, 0, 1))):
        digits, half = Digits.of(modulus), modulus // 2
        top = half
        for _ in range(digits.count - 1):
            top = (top + 2 ** (digits.width - 1)) >> digits.width
        low = 2 ** (digits.width - 1) if digits.count > 1 else 0
        assert max(top, low) * half * digits.block <= 2**53
        assert digits.block >= exact.SMALLEST_BLOCK


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_batches_and_layouts(data: st.DataObject) -> None:
    modulus = data.draw(st.integers(1, LARGEST_MODULUS))
    m, k, n, batch = (data.draw(st.integers(0, 5)) for _ in range(4))
    lead = data.draw(
        st.sampled_from([((), ()), ((batch,), (batch,)), ((batch,), ()), ((batch, 1), (2,)), ((1,), (3,))])
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b = rng.integers(-(2**40), 2**40, (*lead[0], k, m)), rng.integers(-99, 99, (*lead[1], k, 2 * n)).astype(np.int16)
    a, b = a.swapaxes(-1, -2), b[..., ::2]
    assert (matmul_mod(a, b, modulus) == by_integers(a, b) % modulus).all()


def test_groups_are_products_of_their_own() -> None:
    rng = np.random.default_rng(0)
    a, b, offsets = (
        rng.integers(-128, 128, (9, 4), np.int8),
        rng.integers(-128, 128, (4, 4, 3), np.int8),
        [0, 2, 2, 8, 9],
    )
    for product in (lambda x, y, **o: matmul_mod(x, y, 97, **o), matmul_int8):
        whole = product(a, b, offsets=offsets)
        for group, (start, stop) in enumerate(itertools.pairwise(offsets)):
            assert (whole[start:stop] == product(a[start:stop], b[group])).all()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("inner", [0, 1, 1023, 1024, 1025, 5000])
def test_int8_products(dtype: type[np.int32] | type[np.int64], inner: int) -> None:
    rng = np.random.default_rng(inner)
    a, b = rng.integers(-128, 128, (3, 7, inner), np.int8), rng.integers(-128, 128, (inner, 4), np.int8)
    a[0, 0], b[:, 0] = -128, -128
    a[1, 1], b[:, 1] = rng.integers(100, 128, (2, inner))  # sums beyond 2^24 of which no low bits are zeros
    found = matmul_int8(a, b, dtype=dtype)
    assert found.dtype == dtype and (found == a.astype(np.int64) @ b.astype(np.int64)).all()


def test_what_int32_does_not_hold() -> None:
    inner = 2**17
    a, b = np.full((2, inner), -128, np.int8), np.full((inner, 1), -128, np.int8)
    a[0, 0] = 0
    assert matmul_int8(a[:1], b).item() == 2**31 - 2**14
    with pytest.raises(IntegerRangeError, match=r"element \[1, 0\] of the product is 2147483648; accepted"):
        matmul_int8(a, b)
    assert matmul_int8(a, b, overflow="wrap")[1, 0] == -(2**31)
    assert matmul_int8(a, b, dtype=np.int64)[1, 0] == 2**31


def test_an_accumulator_that_wraps_is_arithmetic_modulo_two_to_the_32() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-(2**31), 2**31, s).astype(np.int32) for s in ((20, 300), (300, 10)))
    assert (matmul_mod(a, b, 2**32).astype(np.uint32).view(np.int32) == a @ b).all()


ONE = np.ones((2, 2), np.int8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: matmul_mod(ONE, ONE, 0), "modulus=0; accepted: an integer from 1"),
        (lambda: matmul_mod(ONE, ONE, 2**32 + 1), "accepted: an integer from 1 to 4294967296"),
        (lambda: matmul_mod(ONE, ONE, 2.0), "modulus=2.0"),  # type: ignore[arg-type]
        (lambda: matmul_mod(ONE, ONE, 5, threads=0), "threads=0"),
        (lambda: matmul_mod(ONE * 1.0, ONE, 5), "a has type float64; accepted: integers"),
        (lambda: matmul_mod(ONE, ONE[:1], 5), "shapes (2, 2) @ (1, 2)"),
        (lambda: matmul_mod(ONE[0], ONE, 5), "shapes (2,) @ (2, 2)"),
        (lambda: matmul_mod(np.ones((2, 2, 2), int), np.ones((3, 2, 2), int), 5), "shapes (2, 2, 2) @ (3, 2, 2)"),
        (lambda: matmul_mod(ONE, ONE[None], 5, offsets=[0, 1]), "accepted: from 0 to 2"),
        (lambda: matmul_mod(ONE, ONE[None], 5, offsets=[0, 1, 2]), "one more of offsets than of groups"),
        (lambda: matmul_int8(ONE, ONE.astype(np.int16)), "b has type int16; accepted: int8"),
        (lambda: matmul_int8(ONE, ONE, dtype=np.int16), "accepted: numpy.int32"),  # type: ignore[arg-type]
        (lambda: matmul_int8(ONE, ONE, overflow="saturate"), "accepted: 'raise', 'wrap'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        wrong()
    assert said in str(caught.value)
