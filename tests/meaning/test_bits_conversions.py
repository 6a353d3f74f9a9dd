"""Rounding to storage formats and back: every pattern, every boundary, every NaN."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import exact_rounding
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokitai import lang
from tokitai.formats import FORMATS, Format, bf16, canonical, f16, f32, f64, format_of
from tokitai.lang import Matrix, Rows, convert, operator, outputs
from tokitai.meaning import bits

HALVES = [f16, bf16]
Array = np.ndarray[Any, Any]


def every_value(fmt: Format) -> Array:
    return np.arange(65536, dtype=np.uint16).view(fmt.dtype)


def rounded(values: Any, fmt: Format) -> Array:
    """The patterns that values round to."""
    return bits.round_to(np.asarray(values), fmt.name).view(fmt.pattern)


@pytest.mark.parametrize("fmt", HALVES, ids=str)
def test_widening_all_65536_patterns_is_exact(fmt: Format) -> None:
    stored = every_value(fmt)
    wide = bits.widen(stored)
    for p, value in zip(range(65536), wide.tolist(), strict=True):
        want = exact_rounding.decode(p, fmt)
        assert (value != value and want != want) or Fraction(value) == want if abs(value) != np.inf else value == want
        assert np.signbit(np.float32(value)) == exact_rounding.is_negative(p, fmt) or value != value


@pytest.mark.parametrize("fmt", HALVES, ids=str)
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_all_65536_patterns_come_back(fmt: Format, wide: type) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    nan = np.isnan(every_value(fmt).astype(np.float32))
    assert nan.sum() == 2 * (2 ** (fmt.precision - 1) - 1)
    with np.errstate(invalid="ignore"):
        back = rounded(every_value(fmt).astype(wide), fmt)
    assert (back == np.where(nan, fmt.nan, patterns)).all()


@pytest.mark.parametrize("fmt", HALVES, ids=str)
@pytest.mark.parametrize("wide", [np.float32, np.float64])
@pytest.mark.parametrize("sign", [0, 0x8000])
def test_every_rounding_boundary(fmt: Format, wide: Any, sign: int) -> None:
    """Between neighbours p and p + 1: the midpoint goes to the even one, the next wide number on either side to its
    own neighbour. The last boundary is the one to infinity."""
    infinity = ((1 << (fmt.bits - fmt.precision)) - 1) << (fmt.precision - 1)
    below = np.arange(infinity, dtype=np.uint32)
    edges = [float(exact_rounding.decode(int(p), fmt)) for p in below] + [2.0 ** (fmt.emax + 1)]
    values = np.array(edges) * (-1 if sign else 1)
    middle = (values[:-1] / 2 + values[1:] / 2).astype(wide)
    assert (middle.astype(np.float64) == values[:-1] / 2 + values[1:] / 2).all(), "midpoints fit in the wide format"
    toward_zero, outward = np.nextafter(middle, wide(0)), np.nextafter(middle, wide(-np.inf if sign else np.inf))
    with np.errstate(over="ignore"):
        assert (rounded(middle, fmt) == (sign | (below + (below & 1)))).all()
        assert (rounded(toward_zero, fmt) == (sign | below)).all()
        assert (rounded(outward, fmt) == (sign | (below + 1))).all()


@pytest.mark.parametrize("fmt", HALVES, ids=str)
@settings(max_examples=600, deadline=None)
@given(pattern=st.integers(0, 2**64 - 1))
def test_f64_rounds_once(fmt: Format, pattern: int) -> None:
    """Any f64, its exponent brought into the format's neighbourhood."""
    e = (pattern >> 52) % (fmt.emax - fmt.emin + 40) + 1023 + fmt.emin - 20
    near = (pattern & 0x800FFFFFFFFFFFFF) | e << 52
    for p in (pattern, near):
        value = np.array([p], np.uint64).view(np.float64)
        want = exact_rounding.encode(exact_rounding.decode(p, f64), fmt, exact_rounding.is_negative(p, f64))
        with np.errstate(all="ignore"):
            assert rounded(value, fmt).tolist() == [want]


# Inputs as f32 patterns, results as the reports give them (signs of NaN aside: a stored NaN is the canonical one).
REPORTED = {
    "C94: between half and one of the smallest f16": (
        f16, {0x33000000: 0x0000, 0x33000001: 0x0001, 0x33400000: 0x0001, 0x337FFFFF: 0x0001, 0x33800000: 0x0001,
              0xB3000000: 0x8000, 0xB3000001: 0x8001, 0xB3400000: 0x8001, 0xB37FFFFF: 0x8001, 0xB3800000: 0x8001},
    ),
    "C94: below half of the smallest": (
        f16, {sign << 16 | (127 + e) << 23: sign for e in range(-33, -25) for sign in (0, 0x8000)},
    ),
    "C95: f16 subnormals and the way up to normal numbers": (
        f16, {0x38000000: 0x0200, 0x33800000: 0x0001, 0x387FDFFF: 0x03FF, 0x387FE000: 0x0400},
    ),
    "C97: the overflow of f16": (f16, {0x477FEFFF: 0x7BFF, 0x477FF000: 0x7C00, 0x47800000: 0x7C00, 0xC77FF000: 0xFC00}),
    "C99: NaN with a payload that f16 drops": (f16, {0xFFFFFFFF: 0x7E00, 0x7F800001: 0x7E00, 0x7FC00000: 0x7E00}),
    "C100: a signalling NaN is no bf16 infinity": (bf16, {0x7F800001: 0x7FC0, 0xFF800001: 0x7FC0}),
    "C101: the rounding bias must not carry a NaN into zero": (
        bf16, {0x7FFF8C22: 0x7FC0, 0x7FFFFFFF: 0x7FC0, 0xFFFFFFFF: 0x7FC0, 0x7F800000: 0x7F80, 0xFF800000: 0xFF80},
    ),
    "the overflow of bf16": (bf16, {0x7F7F7FFF: 0x7F7F, 0x7F7F8000: 0x7F80, 0x7F7FFFFF: 0x7F80}),
    "f32 keeps its bits but for NaN": (
        f32, {0x00000001: 1, 0x80000000: 0x80000000, 0x7F800001: 0x7FC00000, 0xFFC12345: 0x7FC00000},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REPORTED)
def test_reported_conversions(case: str) -> None:
    fmt, expected = REPORTED[case]
    values = np.array(list(expected), np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        assert rounded(values, fmt).tolist() == list(expected.values())


def test_c97_a_round_trip_of_65536_is_infinite() -> None:
    with np.errstate(over="ignore"):
        assert np.isinf(bits.widen(bits.round_to(np.array([65536.0], np.float32), "f16")))


def test_c103_f64_does_not_go_through_f32() -> None:
    assert rounded([1.00048828125000022204], f16).tolist() == [0x3C01]
    assert rounded([1 + 2.0**-8 + 2.0**-40], bf16).tolist() == [0x3F81]
    assert rounded([-1 - 2.0**-8 - 2.0**-40, 1 + 2.0**-8 - 2.0**-40], bf16).tolist() == [0xBF81, 0x3F80]


@pytest.mark.parametrize("fmt", [f16, bf16, f32, f64], ids=str)
def test_the_canonical_nan_is_quiet_positive_and_alone(fmt: Format) -> None:
    assert fmt.nan == exact_rounding.encode(float("nan"), fmt)
    values = np.array([fmt.nan | 1, fmt.nan, 0, fmt.nan | 1 << (fmt.bits - 1)], fmt.pattern).view(fmt.dtype)
    assert canonical(values, fmt).view(fmt.pattern).tolist() == [fmt.nan, fmt.nan, 0, fmt.nan]
    assert values.view(fmt.pattern)[0] == fmt.nan | 1, "the caller's array is left alone"
    field = fmt.precision - 1
    assert fmt.nan == ((1 << (fmt.bits - fmt.precision)) - 1) << field | 1 << (field - 1)


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.is_float], ids=str)
def test_the_table_of_formats_agrees_with_the_dtypes(fmt: Format) -> None:
    import ml_dtypes

    info = ml_dtypes.finfo(fmt.dtype)
    assert (info.bits, info.nmant + 1, info.minexp, info.maxexp - 1) == (fmt.bits, fmt.precision, fmt.emin, fmt.emax)
    assert format_of(fmt.dtype) is fmt and fmt.bytes * 8 == fmt.bits == fmt.pattern.itemsize * 8


def test_integers_round_once_to_f32() -> None:
    def converted(a: Matrix[lang.i32], b: Matrix[lang.u32], c: Rows[lang.i64]):  # type: ignore[no-untyped-def]
        return outputs(x=convert(a, lang.f32), y=convert(b, lang.f32), z=convert(c, lang.f32))

    a = np.array([[2**24 + 1, -(2**24) - 3, 2**31 - 1]], np.int32)
    b = np.array([[2**32 - 1, 2**24 + 1, 2**31 + 129]], np.uint32)
    c = np.array([2**40 + 2**16 + 1])
    got = bits.evaluate(operator(converted).trace("f32"), dict(a=a, b=b, c=c), (1, 3), {})
    for values, result in ((a, got["x"]), (b, got["y"]), (c, got["z"])):
        want = [exact_rounding.encode(Fraction(int(v)), FORMATS["f32"]) for v in values.ravel()]
        assert result.view(np.uint32).ravel().tolist() == want
