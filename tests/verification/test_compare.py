"""The comparator: bits first, non-finite values by position, then units in the last place."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai.elementary.exact import REAL
from tokitai.formats import FORMATS, bf16, f16, f32
from tokitai.verification.compare import first_mismatch, patterns, show, ulp_errors

NAN, INF = np.nan, np.inf


def f32s(*patterns: int) -> Any:
    return np.array([patterns], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (0x7FC00000, 0x3F800000),  # NaN where a number is due
        (0x3F800000, 0x7FC00000),
        (0x7F800000, 0xFF800000),  # the other infinity
        (0x7F7FFFFF, 0x7F800000),
        (0x80000000, 0x00000000),  # -0
        (0x7FC00001, 0x7FC00000),  # another NaN
        (0xFFC00000, 0x7FC00000),
        (0x00000001, 0x00000000),  # the smallest number there is
        (0x3F800001, 0x3F800000),
    ],
)
def test_c134_any_other_bits_are_a_mismatch(got: int, want: int) -> None:
    mismatch = first_mismatch("y", f32s(0, got), f32s(0, want))
    assert mismatch is not None and mismatch.position == (0, 1) and mismatch.count == 1
    assert f"{got:#010x}" in mismatch.got and f"{want:#010x}" in mismatch.want


@pytest.mark.parametrize("same", [0x7FC00000, 0x7FC0A5A5, 0x80000000, 0xFF800000, 1])
def test_equal_bits_are_equal_nan_too(same: int) -> None:
    assert first_mismatch("y", f32s(same), f32s(same)) is None


def test_a_mismatch_names_the_first_element_and_counts_the_others() -> None:
    got, want = np.zeros((3, 4), np.float16), np.zeros((3, 4), np.float16)
    got[1, 2], got[2, 0] = 1, np.nan
    assert str(first_mismatch("dx", got, want)) == "dx[1,2]: got 0x3c00 (1), want 0x0000 (0) (and 1 more)"


def test_strided_results_are_compared_element_by_element() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert first_mismatch("y", base[:, :3], np.ascontiguousarray(base[:, :3])) is None
    assert patterns(base[::2, 1:3]).shape == (2, 2)


def test_values_are_shown_with_their_bits() -> None:
    assert show(np.float32(1)) == "0x3f800000 (1)"
    assert show(ml_dtypes.bfloat16(-2)) == "0xc000 (-2)"
    assert show(np.uint64(255)) == "0x00000000000000ff"
    assert show(np.int32(-1)) == "0xffffffff (-1)"


def test_c124_a_kernel_of_zeros_fails_where_results_are_tiny() -> None:
    want = np.full((1, 4), 1 / 393216, np.float32)
    zeros = np.zeros((1, 4), np.float32)
    assert np.abs(want - zeros).max() < 1e-2, "a tolerance of 1e-2 passes it"
    assert first_mismatch("y", zeros, want) is not None
    assert ulp_errors(zeros, want.astype(REAL), f32).min() > 2**23


# ------------------------------------------------------------------ units in the last place
def ulps(got: Any, exact: Any, fmt: Any = f32) -> list[float]:
    return list(ulp_errors(np.array(got, FORMATS[fmt.name].dtype), np.array(exact, REAL), fmt))


def test_ulps_are_measured_at_the_exact_value() -> None:
    assert ulps([1.0], [1 + 2.0**-24]) == [0.5]
    assert ulps([1.0], [1 - REAL(2.0) ** -25]) == [0.5], "below 1 an ulp is half as long"
    assert ulps([2.0, -2.0], [REAL(2.0) + 2.0**-22, -2.0]) == [1.0, 0.0]
    assert ulps([1.0], [1 + 2.0**-12], f16) == [0.25]
    assert ulps([1.0], [1 + 2.0**-9], bf16) == [0.25]


def test_subnormal_numbers_have_one_spacing() -> None:
    assert ulps([0.0, 2.0**-149], [2.0**-150, 0.0]) == [0.5, 1.0]
    assert ulps([0.0], [2.0**-25], f16) == [0.5]


def test_special_values_agree_or_err_without_bound() -> None:
    got = [NAN, NAN, 1.0, INF, INF, -INF, 0.0, 3.4028235e38]
    exact = [NAN, 1.0, NAN, INF, -INF, 1.0, -INF, INF]
    assert ulps(got, exact) == [0, INF, INF, 0, INF, INF, INF, INF]


def test_what_rounds_to_infinity_wants_infinity() -> None:
    top = REAL(2.0) ** 128 - REAL(2.0) ** 103  # halfway from the largest number to 2^128
    assert ulps([INF, -INF, 3.4028235e38], [top, -top, top]) == [0, 0, INF]
    assert ulps([3.4028235e38], [top * (1 - REAL(2.0) ** -40)])[0] < 0.5
    assert ulps([INF, 65504.0], [65520.0, 65519.99], f16)[0] == 0
    assert ulps([INF], [65519.99], f16) == [INF]


def test_the_scale_of_a_row() -> None:
    got, exact = np.array([[1.0, 2.0**-20]], np.float32), np.array([[1.0, 0.0]], REAL)
    assert ulp_errors(got, exact, f32)[0, 1] > 2**100
    assert ulp_errors(got, exact, f32, scale=np.array([[1.0]]))[0, 1] == 8
