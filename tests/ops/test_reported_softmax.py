"""Softmax: small inputs that have broken other libraries' kernels, run through ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from running import BF16, F16, F32, U, array, run, same_bits

from tokitai import ops

INF = np.inf


def softmax(rows: Any, dtype: Any = F32) -> Any:
    return run(ops.softmax, x=array(rows, dtype))["y"]


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_c26_a_row_of_minus_infinity_is_nan_and_its_neighbour_is_not(dtype: Any) -> None:
    y = softmax([[0.0, 0.0], [-INF, -INF]], dtype)
    assert y[0].tolist() == [0.5, 0.5] and np.isnan(y[1].astype(float)).all()
    dx = run(ops.softmax_backward, dy=array([[1.0, 2.0], [1.0, 2.0]], dtype), y=y)["dx"]
    assert dx[0].tolist() == [-0.25, 0.25] and np.isnan(dx[1].astype(float)).all()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_c27_parts_of_a_row_that_see_only_minus_infinity(dtype: Any) -> None:
    columns = np.arange(2048)
    for masked in (columns < 1024, columns >= 1024, columns // 128 % 2 == 0, columns % 2 == 0):
        y = softmax([np.where(masked, -INF, 0.0)], dtype)
        assert y[0].tolist() == np.where(masked, 0.0, 2.0**-10).tolist()
    third = softmax([[0.0, 0.0, 0.0]])
    assert third.tolist() == [[float(np.float32(1) / np.float32(3))] * 3]


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("row", [[-INF, np.nan, -INF], [1.0, np.nan, 2.0], [np.nan, 1.0, INF], [1.0, INF, 2.0]])
def test_c29_nan_is_not_lost_in_the_maximum(row: list[float], dtype: Any) -> None:
    for length in (3, 40):
        wide = [*row, *[0.0] * (length - 3)]
        assert np.isnan(softmax([wide], dtype).astype(float)).all()


def test_c32_a_width_beyond_a_tile_with_negative_logits() -> None:
    y = softmax(np.full((1, 129), -10.0))
    assert y.tolist() == [[float(np.float32(1) / np.float32(129))] * 129]


@pytest.mark.parametrize("dtype", [F16, F32])
def test_c41_a_sum_that_overflows_f16(dtype: Any) -> None:
    n = 65536
    y = softmax(np.zeros((1, n)), dtype)
    assert (y == 2.0**-16).all()
    dx = run(ops.softmax_backward, dy=array(np.ones((1, n)), dtype), y=y)["dx"]
    assert (dx == 0).all()


def test_tiny_results_are_not_zero() -> None:
    """C124: an absolute tolerance passes a kernel of zeros here."""
    y = softmax(np.zeros((1, 393216)))
    assert y.min() == y.max() == float(np.float32(1) / np.float32(393216))


# ------------------------------------------------------------------ laws
@pytest.mark.parametrize("cols", [1, 2, 3, 17, 128, 1000])
def test_rows_sum_to_one(cols: int) -> None:
    """Each result has an error of an exponential, a sum, a quotient and a product: under 2^-20 of itself with the
    tree's roundings; so does their sum."""
    x = array(np.random.default_rng(cols).standard_normal((20, cols)) * 4)
    y = run(ops.softmax, x=x)["y"]
    roundings = 4 + 2 + np.log2(cols) + 3
    assert np.abs(y.astype(np.float64).sum(axis=1) - 1).max() <= roundings * U


def test_an_exact_shift_changes_nothing() -> None:
    x = array(np.random.default_rng(1).integers(-64, 64, (10, 77)) / 8)
    y = run(ops.softmax, x=x)["y"]
    for shift in (1.0, -3.5, 1000.0):
        assert same_bits(run(ops.softmax, x=x + np.float32(shift))["y"], y)


def test_the_gradient_of_a_row_sums_to_zero() -> None:
    """sum y (dy - s) with s = sum(dy y): what is left is the rounding of each product and of s, and 1 - sum(y)."""
    rng = np.random.default_rng(2)
    x, dy = array(rng.standard_normal((30, 200)) * 3), array(rng.standard_normal((30, 200)))
    y = run(ops.softmax, x=x)["y"]
    dx = run(ops.softmax_backward, dy=dy, y=y)["dx"].astype(np.float64)
    largest = np.abs(dy).max(axis=1)
    assert (np.abs(dx.sum(axis=1)) <= (2 * 17 + 3) * U * largest).all()
    constant = run(ops.softmax_backward, dy=array(np.full((30, 200), 3.0)), y=y)["dx"]
    assert (np.abs(constant) <= y * 3 * 17 * U).all(), "a constant dy has no gradient"


def test_columns_do_not_see_each_others_rows() -> None:
    rng = np.random.default_rng(3)
    x = array(rng.standard_normal((9, 50)))
    whole = run(ops.softmax, x=x)["y"]
    for r in range(9):
        assert same_bits(whole[r : r + 1], run(ops.softmax, x=x[r : r + 1])["y"])
