"""Softmax behind a mask, and log-softmax: against torch in f64 within derived bounds, and cases of public reports."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bounded import hold, limits
from hypothesis import given, settings
from hypothesis import strategies as st
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError

LAST = {F16: 60000.0, BF16: 3e38, F32: 3e38}


def causal(rows: int, cols: int) -> Any:
    return np.minimum(np.arange(1, rows + 1), cols).astype(np.int32)


def masked_by_torch(x: Any, limit: Any, dy: Any) -> tuple[Any, Any]:
    """torch in f64, by -inf; rows of which nothing is seen are zero."""
    seen = torch.arange(x.shape[1])[None, :] < torch.tensor(limit)[:, None]
    leaf = torch.tensor(np.where(seen.numpy(), x, 0).astype(np.float64), requires_grad=True)
    y = torch.softmax(leaf.masked_fill(~seen, -math.inf), 1)
    y = torch.where(seen.any(1, keepdim=True), y, 0)
    (torch.where(seen, y, 0) * torch.tensor(np.where(seen.numpy(), dy, 0).astype(np.float64))).sum().backward()
    assert leaf.grad is not None
    return y.detach().numpy(), torch.where(seen, leaf.grad, 0).numpy()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (40, 40), (3, 1000)])
def test_masked_softmax_is_torchs(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(shape[1])
    x, dy = (array(rng.standard_normal(shape) * 4, dtype) for _ in "xy")
    for limit in (rng.integers(0, shape[1] + 1, shape[0]).astype(np.int32), causal(*shape)):
        y, _ = masked_by_torch(x, limit, dy)
        hold(ops.masked_softmax, dict(x=x, limit=limit), dict(y=y))
        stored = run(ops.masked_softmax, x=x, limit=limit)["y"]
        exact = stored.astype(np.float64)  # the gradient is that at the y which was stored
        seen = np.arange(shape[1])[None, :] < limit[:, None]
        slope = exact * (dy.astype(np.float64) - np.where(seen, exact * dy.astype(np.float64), 0).sum(1, keepdims=True))
        hold(ops.masked_softmax_backward, dict(dy=dy, y=stored, limit=limit), dict(dx=np.where(seen, slope, 0)))


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, None])
def test_what_is_masked_is_not_looked_at(dtype: Any, hidden: float | None) -> None:
    """C44: a large value would overflow if only the maximum were masked; 0 times infinity and NaN would spread."""
    hidden = LAST[dtype] if hidden is None else hidden
    x = array([[1.0, 1.0, hidden], [hidden, 5.0, 5.0], [1.0, hidden, hidden]], dtype)
    limit = np.array([2, 0, 1], np.int32)
    y = ops.masked_softmax(x, limit)
    assert y.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert not np.signbit(y).any()
    dy = array([[1.0, 3.0, hidden], [hidden] * 3, [2.0, hidden, hidden]], dtype)
    for behind in (np.where(y == 0, hidden, y.astype(float)), y):
        dx = ops.masked_softmax_backward(dy, array(behind, dtype), limit)
        assert dx.tolist() == [[-0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [F16, F32])
def test_a_row_that_sees_all_is_the_plain_softmax(dtype: Any) -> None:
    x = array(np.random.default_rng(2).standard_normal((20, 77)) * 5, dtype)
    assert same_bits(ops.masked_softmax(x, np.full(20, 77, np.int32)), ops.softmax(x))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 150), st.integers(0, 999))
def test_a_masked_row_is_the_row_cut_off(rows: int, cols: int, seed: int) -> None:
    """Bit for bit: zeros behind a row change no sum of the balanced tree of what is seen."""
    rng = np.random.default_rng(seed)
    x, limit = array(rng.standard_normal((rows, cols)) * 3), rng.integers(0, cols + 1, rows).astype(np.int32)
    y = ops.masked_softmax(x, limit)
    for r in range(rows):
        if limit[r]:
            assert same_bits(y[r : r + 1, : limit[r]], ops.softmax(x[r : r + 1, : limit[r]].copy()))
        assert not y[r, limit[r] :].any()


@pytest.mark.parametrize(("limit", "message"), [
    ([0, 4], r"limit\[1\]=4 \(1 such rows\); accepted: 0 to 3"), ([-1, 3], r"limit\[0\]=-1 \(1 such rows\)"),
])  # fmt: skip
def test_limits_out_of_range_are_refused(limit: list[int], message: str) -> None:
    out = np.full((2, 3), 7, np.float32)
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.masked_softmax(np.zeros((2, 3), np.float32), np.array(limit, np.int32), out=out)
    assert (out == 7).all()


# ------------------------------------------------------------------ rows that are all -inf
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_row_all_minus_infinity(dtype: Any) -> None:
    """C26: NaN for the plain softmax and log-softmax, by the contract; zeros for a masked one of which nothing is seen.
    The row beside is untouched, in both passes."""
    x = array([[0.0, 0.0], [-math.inf, -math.inf]], dtype)
    y = ops.softmax(x)
    assert y[0].tolist() == [0.5, 0.5] and np.isnan(y[1].astype(np.float32)).all()
    dx = ops.softmax_backward(array([[1.0, 0.0], [1.0, 0.0]], dtype), y)
    assert dx[0].tolist() == [0.25, -0.25] and np.isnan(dx[1].astype(np.float32)).all()
    log = ops.log_softmax(x)
    assert log[0].tolist() == array([-math.log(2)] * 2, dtype).tolist() and np.isnan(log[1].astype(np.float32)).all()


# ------------------------------------------------------------------ log-softmax
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (3, 1000)])
def test_log_softmax_is_torchs(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(shape[1])
    x, dy = (array(rng.standard_normal(shape) * 4, dtype) for _ in "xy")
    y = torch.log_softmax(torch.tensor(x.astype(np.float64)), 1).numpy()
    hold(ops.log_softmax, dict(x=x), dict(y=y))
    stored = run(ops.log_softmax, x=x)["y"]
    wide = dy.astype(np.float64)
    slope = wide - np.exp(stored.astype(np.float64)) * wide.sum(1, keepdims=True)
    hold(ops.log_softmax_backward, dict(dy=dy, y=stored), dict(dx=slope))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 150), st.integers(0, 999), st.sampled_from([-4096.0, -8.0, 1024.0, 2.0**19]))
def test_an_exact_shift_is_not_seen(rows: int, cols: int, seed: int, shift: float) -> None:
    """Law: bit for bit, as the maximum is taken away first, and exactly."""
    rng = np.random.default_rng(seed)
    x = array(rng.integers(-64, 65, (rows, cols)) / 8)
    assert same_bits(ops.log_softmax(x), ops.log_softmax(x + np.float32(shift)))
    limit = rng.integers(0, cols + 1, rows).astype(np.int32)
    assert same_bits(ops.masked_softmax(x, limit), ops.masked_softmax(x + np.float32(shift), limit))


@pytest.mark.parametrize(("dtype", "far"), [(F16, -20.0), (F32, -20.0), (F32, -200.0), (BF16, -200.0), (F16, -60000.0)])
def test_far_below_the_maximum(dtype: Any, far: float) -> None:
    """C42: log(softmax) would be -inf there: e**-20 is 0 in f16, e**-200 in f32."""
    y = ops.log_softmax(array([[0.0, far]], dtype))
    assert y[0, 1] == array(far, dtype)
    want = array(-math.log1p(math.exp(far)), np.float64).astype(dtype)
    assert abs(float(y[0, 0]) - float(want)) <= float(np.spacing(np.abs(want)))
    assert np.isfinite(ops.log_softmax_backward(array([[1.0, 1.0]], dtype), y).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_sum_of_gradients_that_f16_cannot_hold(dtype: Any) -> None:
    """C41: dy = 1 over 65,536 columns: dx = 1 - (1/n) n = 0, where a sum in f16 is infinite."""
    x = np.zeros((1, 65536), dtype)
    y = ops.log_softmax(x)
    given = dict(dy=np.ones_like(x), y=y)
    dx = ops.log_softmax_backward(**given)
    want = 1 - np.exp(y.astype(np.float64)) * 65536
    assert (np.abs(dx.astype(np.float64) - want) <= limits(ops.log_softmax_backward, given)["dx"]).all()
    if dtype == F32:
        assert np.abs(dx).max() <= 2e-6
