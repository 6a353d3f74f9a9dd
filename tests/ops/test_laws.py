"""Laws of norms that need no reference implementation: exact, or with a bound that is derived."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import F16, F32, U, array, run, same_bits

from tokitai import ops

SHAPES = st.tuples(st.integers(1, 9), st.integers(2, 70))


def draw(seed: int, *shape: int) -> Any:
    return array(np.random.default_rng(seed).standard_normal(shape))


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1000), st.sampled_from([-4096.0, -1.5, 2.0, 1024.0]))
def test_layer_norm_does_not_see_an_exact_shift(shape: tuple[int, int], seed: int, shift: float) -> None:
    """Whole numbers with an even sum and a power of two of columns: sums and means are exact, so all bits agree."""
    rows, cols = shape[0], 1 << (shape[1] % 6 + 1)
    x = array(np.random.default_rng(seed).integers(-32, 32, (rows, cols)) * 1.0)
    plain = run(ops.layer_norm, x=x, eps=1e-5)["y"]
    assert same_bits(plain, run(ops.layer_norm, x=x + np.float32(shift), eps=1e-5)["y"])


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1000), st.sampled_from([8.0, 100.0, 3000.0]))
def test_layer_norm_hardly_sees_a_shift(shape: tuple[int, int], seed: int, shift: float) -> None:
    """x + c rounds to half an ulp of c + |x|, which is all that may be seen: in units of the spread, and in the mean
    and the variance once more each."""
    x = draw(seed, *shape)
    shifted = x + np.float32(shift)
    plain, moved = (run(ops.layer_norm, x=v, eps=1e-3) for v in (x, shifted))
    rounding = U * (shift + np.abs(x).max())
    bound = plain["rstd"][:, None] * rounding * (2 + np.abs(plain["y"]) * 2) + 32 * U * (1 + np.abs(plain["y"]))
    assert (np.abs(plain["y"] - moved["y"]) <= bound).all()


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1000), st.integers(-30, 30))
def test_rms_norm_does_not_see_a_power_of_two(shape: tuple[int, int], seed: int, power: int) -> None:
    x, gamma = draw(seed, *shape), draw(seed + 1, shape[1])
    plain = run(ops.rms_norm, x=x, gamma=gamma, eps=0.0)["y"]
    # 1/sqrt is not exact, and an odd power would change its rounding: even powers keep every bit.
    scaled = run(ops.rms_norm, x=x * np.float32(4.0**power), gamma=gamma, eps=0.0)["y"]
    assert same_bits(plain, scaled)


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_the_gradient_of_layer_norm_sums_to_zero(shape: tuple[int, int], seed: int) -> None:
    cols = shape[1]
    x, dy, gamma = draw(seed, *shape), draw(seed + 1, *shape), draw(seed + 2, cols)
    saved = run(ops.layer_norm, x=x, gamma=gamma, beta=gamma, eps=1e-5)
    mean, rstd = saved["mean"][:, None].astype(float), saved["rstd"][:, None].astype(float)
    dx = run(ops.layer_norm_backward, dy=dy, x=x, gamma=gamma, mean=saved["mean"], rstd=saved["rstd"])["dx"]
    g = dy.astype(float) * gamma
    xhat = (x.astype(float) - mean) * rstd
    slope = (g * xhat).mean(axis=1, keepdims=True)
    # Roundings of one element: of g, its mean (a tree), slope, fma, product; xhat's own mean is that of the mean.
    depth = 8 + 2 * np.ceil(np.log2(cols))
    size = rstd * (
        np.abs(g) + np.abs(g).mean(axis=1, keepdims=True) + np.abs(slope) * (np.abs(xhat) + np.abs(mean) * rstd + 1)
    )
    assert (np.abs(dx.astype(float).sum(axis=1)) <= depth * U * size.sum(axis=1)).all()


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_the_gradient_of_rms_norm_is_orthogonal_to_its_input(shape: tuple[int, int], seed: int) -> None:
    x, dy, gamma = draw(seed, *shape), draw(seed + 1, *shape), draw(seed + 2, shape[1])
    rstd = run(ops.rms_norm, x=x, gamma=gamma, eps=0.0)["rstd"]
    dx = run(ops.rms_norm_backward, dy=dy, x=x, gamma=gamma, rstd=rstd)["dx"].astype(float)
    r, g = rstd[:, None].astype(float), dy.astype(float) * gamma
    xhat = x * r
    slope = np.abs(g * xhat).mean(axis=1, keepdims=True)
    depth = 10 + 2 * np.ceil(np.log2(shape[1]))
    size = np.abs(x) * r * (np.abs(g) + slope * np.abs(xhat))
    assert (np.abs((x * dx).sum(axis=1)) <= depth * U * size.sum(axis=1)).all()


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100, 2049, 4096])
@pytest.mark.parametrize("dtype", [F16, F32])
def test_dbeta_of_ones_is_the_number_of_rows(rows: int, dtype: Any) -> None:
    x = array(np.random.default_rng(rows).standard_normal((rows, 9)), dtype)
    saved = run(ops.layer_norm, x=x, eps=1e-5)
    got = run(ops.layer_norm_backward, dy=np.ones_like(x), x=x, mean=saved["mean"], rstd=saved["rstd"])
    assert got["dbeta"].tolist() == array([rows] * 9, dtype).tolist()
    bound = 16 * U * (1 + np.abs(saved["mean"] * saved["rstd"])) * saved["rstd"] * 9
    assert (np.abs(got["dx"].astype(float)).max(axis=1) <= bound).all()


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.integers(0, 1000))
def test_rows_do_not_see_each_other(shape: tuple[int, int], seed: int) -> None:
    x, gamma, beta = draw(seed, *shape), draw(seed + 1, shape[1]), draw(seed + 2, shape[1])
    whole = run(ops.layer_norm, x=x, gamma=gamma, beta=beta, eps=1e-5)["y"]
    order = np.random.default_rng(seed).permutation(shape[0])
    assert same_bits(whole[order], run(ops.layer_norm, x=x[order], gamma=gamma, beta=beta, eps=1e-5)["y"])
