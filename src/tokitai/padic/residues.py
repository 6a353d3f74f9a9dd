"""What p-adic numbers are computed with: primes, and exact residues modulo p^n as integers and as arrays of them.

An array of residues is int64 where p^n allows it: where the product of two residues, and one more, is below 2^63.
Beyond, it is an object array of Python's integers.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from random import SystemRandom
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..exact import matmul_mod

Array = np.ndarray[Any, Any]

BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
PROVED_BELOW = 3_317_044_064_679_887_385_961_981  # no composite number below passes for all BASES (Sorenson, Webster)
DRAWN_BASES = 64  # beyond: a composite number passes for one drawn base with probability 1/4 at most


def whole(name: str, value: object) -> int:
    """An integer argument, as Python's int. Raises ArgumentError for anything else, bool among it."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ArgumentError(f"{name}={value!r}; accepted: an integer")


@lru_cache(maxsize=1024)
def is_prime(n: int) -> bool:
    """Whether n is prime, by Miller and Rabin's test: proved below 3.3e24; beyond, a composite number passes with
    probability 2^-128 at most."""
    if n < 2 or any(n % base == 0 for base in BASES):
        return n in BASES
    drawn = () if n < PROVED_BELOW else [SystemRandom().randrange(2, n - 1) for _ in range(DRAWN_BASES)]
    twos = valuation_of(n - 1, 2)
    odd = (n - 1) >> twos
    for base in (*BASES, *drawn):
        x = pow(base, odd, n)
        if x != 1 and all(pow(x, 2**i, n) != n - 1 for i in range(twos)):
            return False
    return True


def checked_prime(value: object) -> int:
    """A prime argument. Raises ArgumentError for what is not prime."""
    prime = whole("prime", value)
    if not is_prime(prime):
        raise ArgumentError(f"prime={prime}; accepted: a prime number, such as 2, 3, 5 or 7")
    return prime


def valuation_of(n: int, prime: int) -> int:
    """How often a prime divides n, which is not 0."""
    count = 0
    while n % prime == 0:
        n, count = n // prime, count + 1
    return count


def inverse_of_unit(unit: int, prime: int, digits: int) -> int:
    """The inverse modulo prime^digits of an integer that the prime does not divide.

    Newton's iteration for 1/y - unit: if y is the inverse modulo p^k, then y (2 - unit y) is the inverse modulo p^2k,
    since 1 - unit y (2 - unit y) = (1 - unit y)^2.
    """
    y, known = pow(unit, -1, prime), 1
    while known < digits:
        known = min(2 * known, digits)
        modulus = prime**known
        y = y * (2 - unit * y) % modulus
    return y


def fits(prime: int, digits: int) -> bool:
    """Whether residues modulo prime^digits are stored as int64."""
    modulus = prime ** max(digits, 1)  # the prime itself is stored too
    return bool(modulus * (modulus - 1) < 2**63)


def integers(name: str, value: object) -> Array:
    """An array of integers, int64 or object. Raises ArgumentError where an element is something else."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "i":
        return value.astype(np.int64)
    try:
        array = np.asarray(value, dtype=object)
    except ValueError as wrong:
        raise ArgumentError(f"{name}: parts of different shapes; accepted: an array of integers") from wrong
    return np.asarray([whole(name, x) for x in array.flat], dtype=object).reshape(array.shape)


def powers(prime: int, exponents: Array, dtype: Any) -> Array:
    """prime^exponents, the exponents not negative, in a dtype that holds them."""
    return np.asarray(np.power(np.full(exponents.shape, prime, dtype), exponents.astype(dtype)))


def scaled(units: Array, exponents: Array, prime: int, digits: int) -> Array:
    """units * prime^exponents modulo prime^digits, the exponents not negative, broadcast together."""
    modulus = prime**digits
    dtype: Any = np.int64 if fits(prime, digits) else object
    residues = (units if dtype is np.int64 else units.astype(object)) % modulus
    return np.asarray(residues.astype(dtype) * powers(prime, np.minimum(exponents, digits), dtype) % modulus)


def product_modulo(a: Array, b: Array, prime: int, digits: int) -> Array:
    """The matrix product modulo q = prime^digits of residues, (rows, inner) by (inner, columns).

    Of int64 it is that of `tokitai.exact`, which takes all q for which residues are int64; beyond, one of Python's
    integers.
    """
    modulus = prime**digits
    if not fits(prime, digits):
        return np.asarray((a.astype(object) @ b.astype(object)) % modulus)
    return matmul_mod(a, b, modulus)
