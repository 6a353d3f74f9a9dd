"""Values against FLINT's exact arithmetic.

python-flint has no p-adic type, so a result's unit is checked against FLINT's rationals (fmpq), reduced modulo p^n,
and matrix products against its matrices modulo n (nmod_mat) and of integers (fmpz_mat). The precision of each result
is that of the textbook's rule; that no other is right is for the sets of members to show, in test_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import flint
import numpy as np
import pytest

from tokitai.padic import Padic, PadicArray
from tokitai.padic.residues import fits, is_prime

PRIMES = (2, 3, 5, 2**61 - 1, 2**127 - 1)


def exact(x: Padic) -> Any:
    return x.unit * flint.fmpq(x.prime) ** x.valuation


def ball(value: Any, p: int, n: int) -> tuple[int, int, int]:
    """The unit, valuation and precision of a rational of FLINT's to an absolute precision."""
    top, bottom, valuation = value.p, value.q, 0
    if top == 0:
        return 0, n, n
    while top % p == 0:
        top, valuation = top // p, valuation + 1
    while bottom % p == 0:
        bottom, valuation = bottom // p, valuation - 1
    if valuation >= n:
        return 0, n, n
    modulus = flint.fmpz_mod_ctx(flint.fmpz(p) ** (n - valuation))
    return int(modulus(top) / modulus(bottom)), valuation, n


def drawn(p: int, random: Random) -> Padic:
    valuation, digits = random.randint(-4, 4), random.choice((0, 1, 1, 2, 3, 8, 40))
    return Padic(p, random.randrange(p**digits), valuation, valuation + digits)


def near(x: Padic, random: Random) -> Padic:
    """A number that has the first digits of another one: their difference cancels."""
    return x + Padic(x.prime, 1, x.precision - random.randint(0, 2), x.precision + random.randint(0, 3))


def check(p: int, count: int, random: Random) -> int:
    """Draws pairs, and checks their sums, differences, products, quotients and powers. Returns how many it checked."""
    checked = 0

    def same(result: Padic, value: Any, n: int) -> None:
        nonlocal checked
        assert (result.unit, result.valuation, result.precision) == ball(value, p, n)
        checked += 1

    while checked < count:
        a = drawn(p, random)
        b = near(a, random) if random.random() < 0.3 else drawn(p, random)
        x, y = exact(a), exact(b)
        same(a + b, x + y, min(a.precision, b.precision))
        same(a - b, x - y, min(a.precision, b.precision))
        same(a * b, x * y, min(a.valuation + b.precision, b.valuation + a.precision))
        if not b.is_zero:
            same(a / b, x / y, min(a.precision - b.valuation, a.valuation + b.precision - 2 * b.valuation))
        if not a.is_zero:
            k = random.choice((-3, -1, 5, 7))
            same((a**k).reduced(k * a.valuation + a.relative_precision), x**k, k * a.valuation + a.relative_precision)
    return checked


@pytest.mark.parametrize("p", PRIMES)
def test_numbers_have_flints_values(p: int) -> None:
    assert check(p, 300, Random(p)) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("p", PRIMES)
def test_many_numbers_have_flints_values(p: int, say: Callable[[str], None]) -> None:
    seed = Random().randrange(2**32)
    say(f"seed {seed}: {check(p, 20_000, Random(seed))} results modulo powers of {p}")


LARGEST = 3037000493  # the largest prime whose residues are int64: a block of the inner dimension is one product


def test_the_largest_prime_in_int64() -> None:
    assert is_prime(LARGEST) and fits(LARGEST, 1)
    assert not any(is_prime(n) for n in range(LARGEST + 1, 3037000501)) and not fits(3037000501, 1)


@pytest.mark.parametrize("inner", [1, 2, 3, 7, 300])
@pytest.mark.parametrize(("p", "n"), [(2, 1), (2, 31), (2, 32), (3, 19), (5, 8), (2**31 - 1, 1), (LARGEST, 1), (7, 22)])
def test_matrix_products_are_flints(p: int, n: int, inner: int) -> None:
    """Random residues, and the largest ones, whose sums are the first to overflow."""
    random, q = Random(inner), p**n
    for draw in (lambda: random.randrange(q), lambda: q - 1):
        a = [[draw() for _ in range(inner)] for _ in range(3)]
        b = [[draw() for _ in range(2)] for _ in range(inner)]
        product = PadicArray(p, a, 0, n) @ PadicArray(p, b, 0, n)
        if q < 2**63:
            expected = flint.nmod_mat(a, q) * flint.nmod_mat(b, q)
        else:
            expected = flint.fmpz_mat(a) * flint.fmpz_mat(b)
        whole = np.array([[int(x) for x in row] for row in expected.tolist()], dtype=object)
        assert product.reduced(n) == PadicArray(p, whole, 0, n)  # p may divide all factors, and more be known


def test_dtypes() -> None:
    assert PadicArray(LARGEST, [1], 0, 1).units.dtype == np.int64
    assert PadicArray(3037000507, [1], 0, 1).units.dtype == object
    assert PadicArray(5, [2**80], 0, 3).units.dtype == np.int64
    assert PadicArray(2, [1, 2**40], 0, [3, 60]).units.dtype == np.int64  # 2^40 modulo 2^60 has 20 digits
