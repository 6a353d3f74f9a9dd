"""Norms: small inputs that have broken other libraries' kernels, run through ours. The letters are those of the list of
cases that the project keeps; results are as worked out there."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from running import BF16, F16, F32, U, array, run, same_bits

from tokitai import ops

EXACT = np.longdouble


def norm64(x: Any, eps: float) -> Any:
    """Layer norm of the rounded inputs, in extended precision."""
    wide = x.astype(EXACT)
    d = wide - wide.mean(axis=1, keepdims=True)
    return d / np.sqrt((d * d).mean(axis=1, keepdims=True) + EXACT(eps))


@pytest.mark.parametrize(("mean", "first"), [(1e4, -1.33133), (1e3, -1.34151), (1e2, -1.34153), (0.0, -1.34164)])
def test_c01_one_pass_variance(mean: float, first: float) -> None:
    x = array([[mean + i * 1e-3 for i in range(16)]])
    y = run(ops.layer_norm, x=x, eps=1e-5)["y"]
    assert y[0, 0] == pytest.approx(first, abs=5.1e-6)  # the last digit that is given
    assert np.abs(y - norm64(x, 1e-5)).max() <= 2e-6


def test_c02_noise_shifted_by_2000() -> None:
    x = array([[2000.5, 2000.25, 1999.75, 2001.125]])
    y = run(ops.layer_norm, x=x, eps=1e-5)["y"]
    np.testing.assert_allclose(y, [[0.189354, -0.315591, -1.325481, 1.451718]], atol=5.1e-7, rtol=0)
    assert same_bits(y, run(ops.layer_norm, x=x - np.float32(2000), eps=1e-5)["y"])


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_c04_constant_rows(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    for value, shape, eps in [(1234.0, (2, 256), 1e-5), (14.0, (2, 2), 1e-6), (0.1, (1, 1000), 1e-5)]:
        gamma, beta = (array(rng.standard_normal(shape[1]), dtype) for _ in range(2))
        x = array(np.full(shape, value), dtype)
        got = run(ops.layer_norm, x=x, gamma=gamma, beta=beta, eps=eps)
        assert same_bits(got["y"], np.broadcast_to(beta, shape).copy())
        dy = array(rng.standard_normal(shape), dtype)
        back = run(ops.layer_norm_backward, dy=dy, x=x, gamma=gamma, mean=got["mean"], rstd=got["rstd"])
        assert all(np.isfinite(a.astype(float)).all() for a in back.values())


@pytest.mark.parametrize("cols", [3, 17, 1536])
def test_c06_padded_lanes(cols: int) -> None:
    x = array(np.arange(10, 10 + cols))[None, :]
    got = run(ops.layer_norm, x=x, eps=1e-5)
    assert np.abs(got["y"] - norm64(x, 1e-5)).max() <= 2e-6
    if cols == 3:
        np.testing.assert_allclose(got["y"], [[-1.224736, 0, 1.224736]], atol=5.1e-7, rtol=0)
        assert got["mean"][0] == 11 and got["y"][0, 1] == 0


@pytest.mark.parametrize("cols", [1, 3, 7, 3420, 3584, 3585])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_c07_odd_widths_and_misaligned_views(cols: int, eps: float) -> None:
    flat = array(np.where(np.arange(2 * cols + 1) % 2, -1.0, 1.0), BF16)
    x = flat[1:].reshape(2, cols)
    y = run(ops.rms_norm, x=x, eps=eps)["y"]
    want = (x.astype(np.float64) / math.sqrt(1 + eps)).astype(ml_dtypes.bfloat16)
    assert same_bits(y, want)
    assert same_bits(y, run(ops.rms_norm, x=x.copy(), eps=eps)["y"])


@pytest.mark.parametrize("op", [ops.rms_norm, ops.layer_norm])
def test_c08_squares_that_overflow_f16(op: Any) -> None:
    x = array([[300.0] * 8], F16) if op is ops.rms_norm else array([[300.0, -300.0] * 4], F16)
    y = run(op, x=x, eps=1e-6)["y"]
    assert y.tolist() == np.sign(x).tolist()


def test_c09_squares_that_overflow_f32_are_outside_the_stated_domain() -> None:
    """The operator says so, and its kernel returns what IEEE arithmetic gives for the definition: 1e25 * (1/inf)."""
    assert "do not overflow f32" in ops.rms_norm.contract.domain
    x = array(np.full((1, 4), 1e25))
    got = run(ops.rms_norm, x=x, eps=1e-6)
    assert got["rstd"][0] == 0 and (got["y"] == 0).all()
    inside = run(ops.rms_norm, x=array(np.full((1, 4), 1.0e18)), eps=1e-6)
    assert np.abs(inside["y"] - 1).max() <= 4 * U


def test_c11_eps_belongs_to_the_variance() -> None:
    y = run(ops.layer_norm, x=array([[1e-3, -1e-3], [0.0, 0.0]]), eps=1e-5)["y"]
    np.testing.assert_allclose(y[0], [0.301511, -0.301511], atol=5.1e-7, rtol=0)
    assert y[1].tolist() == [0, 0]


def test_c14_norms_round_once() -> None:
    x, gamma = array([[0.546875, 0.890625]], BF16), array([2.015625, 1.0], BF16)
    y = run(ops.rms_norm, x=x, gamma=gamma, eps=1e-6)["y"]
    assert float(y[0, 0]) == 1.4921875 != 1.484375


@pytest.mark.parametrize("weighted", [True, False])
def test_c15_many_rows(weighted: bool) -> None:
    """65,537 rows: dbeta is their number, exactly; dx of a constant dy vanishes but for rounding."""
    rows, cols = 65537, 6
    x = array(np.random.default_rng(15).standard_normal((rows, cols)))
    saved = run(ops.layer_norm, x=x, eps=1e-5)
    arguments = dict(dy=np.ones((rows, cols), np.float32), x=x, mean=saved["mean"], rstd=saved["rstd"])
    if weighted:
        arguments["gamma"] = np.ones(cols, np.float32)
    got = run(ops.layer_norm_backward, **arguments)
    assert (got["dbeta"] == 65537).all() and got["dbeta"].shape == (cols,)
    # xhat has a mean of a few roundings of |mean| rstd, which the slope multiplies by at most sqrt(cols) rstd.
    bound = 16 * U * (1 + np.abs(saved["mean"] * saved["rstd"])) * saved["rstd"] * cols
    assert (np.abs(got["dx"]).max(axis=1) <= bound).all()
    assert ("dgamma" in got) == weighted and (not weighted or got["dgamma"].shape == (cols,))


def test_c17_the_weight_is_applied_once() -> None:
    x, gamma, dy = array([[1.0, 2.0]]), array([2.0, 3.0]), array([[1.0, 1.0]])
    rstd = run(ops.rms_norm, x=x, gamma=gamma, eps=0.0)["rstd"]
    dx = run(ops.rms_norm_backward, dy=dy, x=x, gamma=gamma, rstd=rstd)["dx"]
    np.testing.assert_allclose(dx, [[0.252982, -0.126491]], atol=5.1e-7, rtol=0)
    assert abs(float((x * dx).sum())) <= 8 * U


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("rows", [1000, 1024])
def test_c18_a_narrow_accumulator_stalls(dtype: Any, rows: int) -> None:
    ones = array(np.ones((rows, 4)), dtype)
    got = run(ops.rms_norm_backward, dy=ones, x=ones, gamma=array(np.ones(4), dtype), rstd=np.ones(rows, np.float32))
    assert got["dgamma"].astype(float).tolist() == [rows] * 4
    spiked = ones.copy()
    spiked[rows // 2] = 2048 if dtype != BF16 else 256  # one large value and many ones
    big = float(spiked[rows // 2, 0])
    got = run(
        ops.layer_norm_backward, dy=spiked, x=ones, mean=np.zeros(rows, np.float32), rstd=np.ones(rows, np.float32)
    )
    assert got["dbeta"].tolist() == array([rows - 1 + big] * 4, dtype).tolist()


def test_c19_runs_are_equal_and_no_column_is_dropped() -> None:
    rng = np.random.default_rng(19)
    rows, cols = 4096, 1600
    x, dy = (array(rng.standard_normal((rows, cols)), F16) for _ in range(2))
    gamma = array(rng.standard_normal(cols), F16)
    saved = run(ops.layer_norm, x=x, eps=1e-5)
    arguments = dict(x=x, gamma=gamma, mean=saved["mean"], rstd=saved["rstd"])
    first = run(ops.layer_norm_backward, dy=dy, **arguments)
    for threads in [1, 2, 3, 5, 8] * 4:
        again = run(ops.layer_norm_backward, dy=dy, **arguments, threads=threads)
        assert all(same_bits(first[n], again[n]) for n in first)
    ones = run(ops.layer_norm_backward, dy=np.ones_like(dy), **arguments)
    assert (ones["dbeta"] == 4096).all()


@pytest.mark.parametrize("shape", [(3, 0, 2520), (0, 7)])
def test_c20_zero_rows(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, ml_dtypes.bfloat16)
    cols = shape[-1]
    gamma = array(np.ones(cols), BF16)
    got = run(ops.layer_norm, x=x, gamma=gamma, beta=gamma, eps=1e-5)
    assert got["y"].shape == shape and got["mean"].shape == shape[:-1]
    back = run(ops.layer_norm_backward, dy=x, x=x, gamma=gamma, mean=got["mean"], rstd=got["rstd"])
    for name in ("dgamma", "dbeta"):
        assert back[name].tobytes() == bytes(2 * cols), "plus zero, exactly"
    assert run(ops.rms_norm, x=array([[3.0, 4.0]], BF16), eps=0.0)["y"].shape == (1, 2), "the next call works"


def test_c20_zero_columns() -> None:
    x = np.zeros((4, 0), np.float32)
    got = run(ops.layer_norm, x=x, eps=1e-5)
    assert got["y"].shape == (4, 0) and got["mean"].shape == (4,)


@pytest.mark.parametrize("op", [ops.layer_norm, ops.rms_norm, ops.softmax])
def test_c21_strides_forward(op: Any) -> None:
    base = np.arange(64, dtype=np.float32).reshape(8, 8)
    before = base.copy()
    params = {} if op is ops.softmax else dict(eps=1e-5)
    for view in (
        base[:, ::2],
        base.T,
        base[::2],
        base[::-1],
        base[:, ::-1],
        base[1:7, 2:5],
        np.broadcast_to(base[0], (5, 8)),
    ):
        assert same_bits(run(op, x=view, **params)["y"], run(op, x=np.ascontiguousarray(view), **params)["y"])
    assert same_bits(base, before)


def test_c21_strides_backward() -> None:
    base = np.arange(64, dtype=np.float32).reshape(8, 8) / 7
    saved = run(ops.layer_norm, x=base, eps=1e-5)
    rest = dict(x=base, mean=saved["mean"], rstd=saved["rstd"])
    for dy in (np.broadcast_to(base[0], (8, 8)), base.T, np.broadcast_to(np.float32(2), (8, 8))):
        views = run(ops.layer_norm_backward, dy=dy, **rest)
        copies = run(ops.layer_norm_backward, dy=np.ascontiguousarray(dy), **rest)
        assert all(same_bits(views[n], copies[n]) for n in views)


def test_c24_a_neighbouring_rows_partial_sum_is_unmistakable() -> None:
    rng = np.random.default_rng(24)
    rows, cols = 512, 1024
    x = array(rng.standard_normal((rows, cols)) * 2.0 ** (np.arange(rows) % 20)[:, None])
    first = run(ops.layer_norm, x=x, eps=1e-5)
    assert np.abs(first["y"] - norm64(x, 1e-5)).max() <= 4e-6
    for threads in [1, 2, 4, 7] * 10:
        again = run(ops.layer_norm, x=x, eps=1e-5, threads=threads)
        assert all(same_bits(first[n], again[n]) for n in first)


@pytest.mark.slow
def test_c24_a_thousand_repeats() -> None:
    rng = np.random.default_rng(24)
    x = array(rng.standard_normal((4096, 1024)) * 2.0 ** (np.arange(4096) % 20)[:, None])
    first = run(ops.layer_norm, x=x, eps=1e-5)
    for repeat in range(1000):
        again = run(ops.layer_norm, x=x, eps=1e-5, threads=repeat % 8 + 1)
        assert all(same_bits(first[n], again[n]) for n in first), f"repeat {repeat}"


def test_c23_row_offsets_beyond_32_bits() -> None:
    """Three rows that lie 2^30 + 5 elements apart: the last one begins beyond 2^31. Only their pages exist."""
    import mmap

    apart, cols = 2**30 + 5, 256
    size = (2 * apart + cols) * 2
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    far = [np.ndarray((3, cols), BF16, mmap.mmap(-1, size, flags=flags), strides=(2 * apart, 2)) for _ in range(2)]
    x, out = far
    x[2] = 1
    rstd = np.empty(3, np.float32)
    y, _ = ops.rms_norm(x, eps=1e-6, out=(out, rstd), copy=False)
    assert y is out
    assert (y[:2] == 0).all() and (y[2] == 1).all()
