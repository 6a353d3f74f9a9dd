"""The oracle's operations against whole-number arithmetic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import exact_rounding
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokitai.formats import f32
from tokitai.lang.graph import Node
from tokitai.meaning import bits

F32 = np.float32
PATTERN = st.integers(0, 2**32 - 1)


def floats(*patterns: int) -> np.ndarray:
    return np.array(patterns, np.uint32).view(F32)


def pattern(x: float) -> int:
    return int(np.array(x, F32).view(np.uint32))


def as_pattern(values: np.ndarray) -> list[int]:
    return [f32.nan if math.isnan(v) else int(p) for v, p in zip(values, values.view(np.uint32), strict=True)]


def check_fma(triples: list[tuple[int, int, int]]) -> None:
    a, b, c = (floats(*column) for column in zip(*triples, strict=True))
    got = as_pattern(bits.fma(a, b, c))
    for triple, found in zip(triples, got, strict=True):
        want = exact_rounding.fma(*triple, f32)
        assert found == want, f"fma{tuple(map(hex, triple))}: {found:#x}, exactly {want:#x}"


E = 2.0**-23  # an ulp of 1
HARD = {
    "halfway, to even below": (1 + 2.0**-12, 1 + 2.0**-12, 0.0),
    "halfway, to even above": (1 + 2.0**-12, 1 + 2.0**-12, E),
    "above halfway by what f64 cannot hold": (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-80),
    "below halfway by what f64 cannot hold": ((1 - E) * 2.0**-24, 1 + E, 1 + E),
    "the same, negative": ((1 - E) * 2.0**-24, -1 - E, -1 - E),
    "above halfway at the edge of a binade": (2.0**-25, -1 + E, 1.0),
    "just below a power of two": (2.0**-80, -1.0, 1.0),
    "a subnormal by a quarter": (2.0**-75, 2.0**-76, 2.0**-149),
    "a subnormal, halfway to even": (2.0**-75, 2.0**-75, 2.0**-149),
    "a subnormal, just above halfway": (2.0**-75, 2.0**-75 * (1 + E), 2.0**-149),
    "half of the smallest": (2.0**-75, 2.0**-75, 0.0),
    "just above half of the smallest": (2.0**-75 * (1 + E), 2.0**-75, 0.0),
    "into the smallest normal number": (2.0**-75, 2.0**-75 * (1 - E / 2), 2.0**-126 * (1 - E)),
    "cancels exactly to +0": (1 + E, 1 - E / 2, -1 - E / 2 + 0.0),
    "cancels to +0": (3.0, 5.0, -15.0),
    "cancels to what rounding would hide": (1 + E, 1 + E, -1 - 2 * E),
    "-0 + -0": (-0.0, 1.0, -0.0),
    "-0 + +0": (-0.0, 1.0, 0.0),
    "product below half of the smallest, negative": (-(2.0**-100), 2.0**-100, 0.0),
    "product below half of the smallest, beside -0": (2.0**-100, 2.0**-100, -0.0),
    "just below the overflow": (2.0**64, 2.0**63 * (2 - E), 2.0**102),
    "halfway to infinity": (2.0**64, 2.0**63 * (2 - E), 2.0**103),
    "below halfway to infinity": (2.0**64, 2.0**63 * (2 - E), 2.0**103 * (1 - E)),
    "product overflows, sum does not": (2.0**127, 2.0, -(2.0**127)),
    "product beyond f32, cancelled in part": (2.0**127, 1 + E, -(2.0**127)),
    "inf * 0": (math.inf, 0.0, 1.0),
    "inf * 1 - inf": (math.inf, 1.0, -math.inf),
    "inf * -1 - inf": (math.inf, -1.0, -math.inf),
    "NaN in the sum": (1.0, 1.0, math.nan),
    "inf * 0 + NaN": (math.inf, 0.0, math.nan),
    "finite + inf": (3e38, 3e38, -math.inf),
}


@pytest.mark.parametrize("name", HARD)
def test_fma_hard_triples(name: str) -> None:
    a, b, c = map(pattern, HARD[name])
    check_fma(
        [(a, b, c), (b, a, c), (a ^ 0x80000000, b, c), (a, b, c ^ 0x80000000), (b, a ^ 0x80000000, c ^ 0x80000000)]
    )


def test_the_hard_triples_are_hard() -> None:
    """Plain f64 arithmetic, rounded once more, gets several of them wrong: the test can fail."""
    wrong = 0
    for a, b, c in HARD.values():
        with np.errstate(all="ignore"):
            twice = np.array(F32(np.float64(F32(a)) * np.float64(F32(b)) + np.float64(F32(c))))
        wrong += as_pattern(twice.reshape(1)) != [exact_rounding.fma(pattern(a), pattern(b), pattern(c), f32)]
    assert wrong >= 3


@settings(max_examples=500, deadline=None)
@given(PATTERN, PATTERN, PATTERN)
@example(0x00000001, 0x3F000000, 0x80000001)
def test_fma_of_any_patterns(a: int, b: int, c: int) -> None:
    check_fma([(a, b, c)])


@settings(max_examples=500, deadline=None)
@given(PATTERN, PATTERN, st.integers(-3, 3), st.sampled_from([0, -24, -25, -30, 24, 30]))
def test_fma_where_the_sum_cancels_or_is_far_away(a: int, b: int, steps: int, scale: int) -> None:
    """c is the rounded product but for a few ulp, its sign turned, or that far away in scale."""
    with np.errstate(all="ignore"):
        c = np.ldexp(-(floats(a) * floats(b)), scale)
    shifted = (int(c.view(np.uint32)[0]) + steps) % 2**32
    check_fma([(a, b, shifted), (a, b, shifted ^ 0x80000000)])


def test_fma_on_a_grid_of_halves() -> None:
    """Significands with few bits over neighbouring exponents: half of all sums are ties."""
    values = [s * m * 2.0**e for s in (1, -1) for m in (1, 1 + 2.0**-12, 1 + E, 2 - E) for e in (-75, -13, 0, 11, 12)]
    patterns = [pattern(v) for v in values]
    check_fma(list(itertools.product(patterns, patterns[::3], patterns[::2])))


# ------------------------------------------------------------------ maximum and minimum
SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF,
           0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FC0A5A5]  # fmt: skip


def order(p: int) -> int:
    """A whole number for each pattern, in the order of values with -0 below +0."""
    return p if p < 0x80000000 else 0x7FFFFFFF - p


@pytest.mark.parametrize(("operation", "choose"), [(bits.maximum, max), (bits.minimum, min)])
def test_extremes_of_all_special_pairs(operation: Callable[..., np.ndarray], choose: Callable[..., int]) -> None:
    for a, b in itertools.product(SPECIAL, repeat=2):
        x, y = floats(a), floats(b)
        want = f32.nan if np.isnan(x[0]) or np.isnan(y[0]) else choose(a, b, key=order)
        assert as_pattern(operation(x, y)) == [want], f"{operation.__name__} of {a:#x} and {b:#x}"


def test_row_max_agrees_with_maximum_in_any_order() -> None:
    for row in itertools.product([0x80000000, 0x00000000, 0xFF800000, 0xBF800000], repeat=3):
        want = max(row, key=order)
        assert as_pattern(bits.Bits.row_max(floats(*row)[None, :])[0]) == [want]
    for place in range(5):
        row_with_nan = floats(0xFF800000, 0x3F800000, 0x7F800000, 0x80000000, 0)
        row_with_nan[place] = np.nan
        assert np.isnan(bits.Bits.row_max(row_with_nan[None, :])).all()
    assert bits.Bits.row_max(np.zeros((2, 0), F32)).tolist() == [[-np.inf], [-np.inf]]


# ------------------------------------------------------------------ exponents and significands
def test_power_of_two_for_every_exponent() -> None:
    k = np.arange(-126, 128, dtype=F32)
    assert [Fraction(float(v)) for v in bits.power_of_two(k)] == [Fraction(2) ** int(e) for e in k]


def test_exponent_and_significand_for_every_exponent() -> None:
    exponents = np.arange(1, 255, dtype=np.uint32)
    for fraction in (0, 1, 0x2AAAAA, 0x7FFFFF):
        for sign in (0, 0x80000000):
            x = ((exponents << 23) | np.uint32(fraction) | np.uint32(sign)).view(F32)
            e, m = bits.exponent(x), bits.significand(x)
            assert e.tolist() == (exponents.astype(int) - 127).tolist()
            assert set(m.tolist()) == {1 + fraction * E}
            assert (np.ldexp(m.astype(np.float64), e.astype(int)) == np.abs(x.astype(np.float64))).all()


# ------------------------------------------------------------------ host scalars
def host(op: str, *args: float) -> float:
    return bits.Bits({"p": 0.25}).host(Node(op, (), "s", "host", ("p",)), args, (3, 7))


@settings(max_examples=300, deadline=None)
@given(st.floats(-4, 4, allow_subnormal=False), st.integers(0, 1100))
def test_host_power_is_square_and_multiply_from_the_lowest_bit(base: float, n: int) -> None:
    result, square = 1.0, base
    for digit in reversed(bin(n)[2:]):
        result = result * square if digit == "1" else result
        square = square * square
    with np.errstate(over="ignore"):
        got = host("host_power", base, float(n))
    assert got == result or (math.isnan(got) and math.isnan(result))


def test_host_power_ends_and_is_near_the_power() -> None:
    """Each squaring doubles the error before it: (1 + 2^-53) to the power n - 1 bounds what they come to."""
    assert host("host_power", 0.0, 0.0) == 1.0
    assert math.isnan(host("host_power", 2.0, -1.0)), "a negative exponent has no product"
    for n in (2, 3, 1000, 12345):
        error = Fraction(host("host_power", 0.999, float(n))) / Fraction(0.999) ** n - 1
        assert abs(float(error)) <= n * 2.0**-53


def test_host_scalars() -> None:
    assert host("param") == 0.25
    assert (host("rows"), host("columns")) == (3.0, 7.0)
    assert host("host_sub", 1.0, 3.0) == -2.0
    assert host("host_sqrt", 2.0) == math.sqrt(2)
    with np.errstate(all="ignore"):
        assert host("host_div", 1.0, -0.0) == -math.inf
        assert math.isnan(host("host_div", 0.0, 0.0)) and math.isnan(host("host_sqrt", -1.0))
