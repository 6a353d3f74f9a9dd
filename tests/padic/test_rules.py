"""The rules of precision, against sets of members.

A number stands for the set of all x with x = unit * p^valuation modulo p^precision. The oracle knows nothing else: it
takes members of the operands, as exact fractions, works out the results, and demands of the stated ball that it holds
every one of them (precision is not overstated), and that two of them differ at its first unknown digit (it is not
understated: no smaller ball holds both).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import reduce
from random import Random
from typing import Any

import numpy as np
import pytest

from tokitai.padic import Padic, PadicArray

PRIMES = (2, 3, 5, 2**31 - 1, 2**127 - 1)
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def order(x: Fraction, p: int) -> float:
    """The exponent of p in x; infinite for 0."""
    if x == 0:
        return float("inf")
    count, top, bottom = 0, x.numerator, x.denominator
    while top % p == 0:
        count, top = count + 1, top // p
    while bottom % p == 0:
        count, bottom = count - 1, bottom // p
    return count


def centre(x: Padic) -> Fraction:
    return x.unit * Fraction(x.prime) ** x.valuation


def members(x: Padic, random: Random) -> list[Fraction]:
    """Members of a ball: its centre first, those next to it at the first unknown digit, and others far away."""
    p = x.prime
    drawn = Fraction(random.randrange(-(p**3), p**3), random.randrange(10**6) * p + 1)
    return [centre(x) + t * Fraction(p) ** x.precision for t in (0, 1, -1, p, drawn)]


def assert_smallest_ball(result: Padic, values: Sequence[Fraction]) -> None:
    """That the ball holds all values, and that the first and another one differ at its first unknown digit."""
    p, n = result.prime, result.precision
    assert all(order(value - centre(result), p) >= n for value in values), f"{result} does not hold all results"
    assert min(order(value - values[0], p) for value in values) == n, f"a smaller ball than {result} holds all results"


def balls(p: int) -> Iterator[Padic]:
    """Numbers known to one digit and to several, zeros, negative valuations, units at the ends of their range."""
    for valuation, digits in itertools.product((-3, 0, 2), (1, 2, 5)):
        for unit in sorted({1, p - 1, p + 1, p**digits - 1} - {0}):
            yield Padic(p, unit, valuation, valuation + digits)
    for precision in (-2, 0, 3):
        yield Padic(p, 0, 0, precision)


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_the_smallest_balls(name: str, p: int) -> None:
    random, done, operation = Random(p), 0, OPERATIONS[name]
    pairs = list(itertools.product(list(balls(p)), repeat=2))
    for a, b in random.sample(pairs, min(150, len(pairs))):
        if name == "/" and b.is_zero:
            continue
        values = [operation(x, y) for x, y in itertools.product(members(a, random), members(b, random))]
        assert_smallest_ball(operation(a, b), values)
        done += 1
    assert done > 100


@pytest.mark.parametrize("p", PRIMES)
def test_powers_are_the_smallest_balls(p: int) -> None:
    """A power is of one number: every member is raised, and is no factor of another one's product."""
    exponents = {1, 2, 3, 4, 6, 8, -1, -2, -4} | ({p, p * p, -p, 2 * p} if p < 10 else set())
    random = Random(p)
    for a, k in itertools.product(balls(p), sorted(exponents)):
        if k > 0 or not a.is_zero:
            assert_smallest_ball(a**k, [x**k for x in members(a, random)])


@pytest.mark.parametrize("p", PRIMES)
@pytest.mark.parametrize("exact", [1, -1, 6, Fraction(1, 2), Fraction(-9, 25), Fraction(12, 7)])
def test_exact_operands_cost_nothing(exact: Fraction | int, p: int) -> None:
    random = Random(p)
    for a in balls(p):
        xs = members(a, random)
        assert_smallest_ball(a + exact, [x + exact for x in xs])
        assert_smallest_ball(exact - a, [exact - x for x in xs])
        assert_smallest_ball(a * exact, [x * exact for x in xs])
        assert_smallest_ball(a / exact, [x / Fraction(exact) for x in xs])
        if not a.is_zero:
            assert_smallest_ball(exact / a, [exact / x for x in xs])


def drawn_array(p: int, shape: tuple[int, ...], random: Random) -> PadicArray:
    pool = list(balls(p))
    elements = [random.choice(pool) for _ in range(int(np.prod(shape)))]
    return PadicArray.from_elements(np.array(elements, dtype=object).reshape(shape))


@pytest.mark.parametrize("p", PRIMES)
def test_matrix_products_are_the_smallest_balls(p: int) -> None:
    random = Random(p)
    a, b = drawn_array(p, (3, 4), random), drawn_array(p, (4, 2), random)
    for i, j in itertools.product(range(3), range(2)):
        rows, columns = [members(x, random) for x in a[i]], [members(x, random) for x in b[:, j]]
        centres = [x[0] for x in rows], [x[0] for x in columns]
        values = [sum(map(operator.mul, *centres))]
        for k, x, y in itertools.product(range(4), range(5), range(5)):  # one pair of elements moves, the others stay
            moved = values[0] - rows[k][0] * columns[k][0] + rows[k][x] * columns[k][y]
            values.append(moved)
        assert_smallest_ball((a @ b)[i, j], values)


@pytest.mark.parametrize("p", PRIMES)
def test_arrays_are_arrays_of_numbers(p: int) -> None:
    """Whatever an array computes, its elements are what the numbers give, to the precision."""
    random = Random(p)
    a, b = drawn_array(p, (6, 5), random), drawn_array(p, (6, 5), random)

    def each(function: Callable[..., Padic], *arrays: PadicArray) -> PadicArray:
        return PadicArray.from_elements(
            [[function(*xs) for xs in zip(*rows, strict=True)] for rows in zip(*arrays, strict=True)]
        )

    units = PadicArray(p, np.where(b.is_zero, 1, b.units), b.valuation, b.precision + 1)
    for operation in (operator.add, operator.sub, operator.mul):
        assert operation(a, b) == each(operation, a, b)
    assert a / units == each(operator.truediv, a, units)
    assert -a == each(operator.neg, a)
    assert a**3 == each(lambda x: x**3, a)
    assert a * Fraction(3, 10) == each(lambda x: x * Fraction(3, 10), a)
    assert 2 - a == each(lambda x: 2 - x, a)
    assert 7 / units == each(lambda x: 7 / x, units)
    one = a[0, 0]
    assert one + b == each(lambda x: one + x, b)
    assert a + b[0] == each(operator.add, a, PadicArray.from_elements([list(b[0])] * 6))
    assert a.sum() == reduce(operator.add, [x for row in a for x in row])
    assert a.reduced(a.precision - 1) == each(lambda x: x.reduced(x.precision - 1), a)
    assert a.lifted(9) == each(lambda x: x.lifted(9), a)
    assert (a.agrees(b) == [[x.agrees(y) for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]).all()
    product = a @ b.T
    for i, j in itertools.product(range(6), repeat=2):
        assert product[i, j] == a[i] @ b[j] == reduce(operator.add, map(operator.mul, a[i], b[j]))
    assert a @ b[2] == product[:, 2]
    assert a[3] @ b.T == product[3]


def test_the_oracle_finds_what_is_wrong() -> None:
    x = Padic(5, 7, 0, 3)
    values: list[Any] = [y * y for y in members(x, Random(0))]
    assert_smallest_ball(x * x, values)
    with pytest.raises(AssertionError, match="does not hold all results"):
        assert_smallest_ball((x * x).lifted(4), values)
    with pytest.raises(AssertionError, match="a smaller ball"):
        assert_smallest_ball((x * x).reduced(2), values)
