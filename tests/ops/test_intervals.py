"""Softmax over intervals with sinks, and soft caps: against torch in f64 within derived bounds, and bits they share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bounded import hold
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError


def drawn(shape: tuple[int, int], dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(shape[1])
    rows, cols = shape
    start, limit = np.sort(rng.integers(0, cols + 1, (2, rows)), axis=0).astype(np.int32)
    sink = np.where(rng.random(rows) < 0.2, -np.inf, rng.standard_normal(rows) * 4).astype(np.float32)
    return dict(x=array(rng.standard_normal(shape) * 4, dtype), sink=sink, start=start, limit=limit)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("shape", [(1, 1), (9, 33), (40, 40), (5, 1000)])
def test_intervals_and_sinks_are_torchs(shape: tuple[int, int], dtype: Any) -> None:
    given = drawn(shape, dtype)
    columns = np.arange(shape[1])
    seen = (columns >= given["start"][:, None]) & (columns < given["limit"][:, None])
    shown = np.where(seen, given["x"].astype(np.float64), -np.inf)
    leaf = torch.tensor(np.concatenate([shown, given["sink"][:, None].astype(np.float64)], 1))
    p = torch.nan_to_num(torch.softmax(leaf, 1), 0).numpy()  # where nothing is seen, and there is no sink
    hold(ops.interval_softmax, given, dict(y=p[:, :-1], rest=p[:, -1]))
    made = run(ops.interval_softmax, **given)
    y, rest = made["y"].astype(np.float64), made["rest"].astype(np.float64)  # the gradient is that at what was stored
    dy = array(np.random.default_rng(1).standard_normal(shape), dtype)
    mean = np.where(seen, y * dy.astype(np.float64), 0).sum(1, keepdims=True)
    slopes = dict(dx=np.where(seen, y * (dy.astype(np.float64) - mean), 0), dsink=-rest * mean[:, 0])
    hold(ops.interval_softmax_backward, dict(dy=dy, **made, start=given["start"], limit=given["limit"]), slopes)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_without_sinks_and_starts_the_bits_are_those_of_the_masked_softmax(dtype: Any) -> None:
    given = drawn((20, 77), dtype)
    none = np.full(20, -np.inf, np.float32)
    want = ops.masked_softmax(given["x"], given["limit"])
    for start in (None, np.zeros(20, np.int32)):
        y, rest = ops.interval_softmax(given["x"], none, start, given["limit"])
        assert same_bits(y, want) and not rest.any()
    assert same_bits(ops.interval_softmax(given["x"], none)[0], ops.softmax(given["x"]))


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, 60000.0])
def test_what_lies_outside_is_not_looked_at(hidden: float) -> None:
    x = array([[hidden, 1.0, 1.0], [hidden, 5.0, hidden], [1.0, hidden, hidden]], F16)
    start, limit = np.array([1, 1, 2], np.int32), np.array([3, 2, 1], np.int32)
    y, rest = ops.interval_softmax(x, np.array([1.0, -np.inf, -7.0], np.float32), start, limit)
    third = np.float16(1 / 3)
    assert y.tolist() == [[0.0, third, third], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert rest.tolist() == [np.float32(1 / 3), 0.0, 1.0]


def test_an_interval_outside_of_the_row_is_refused() -> None:
    x, none = np.zeros((1, 3), np.float32), np.full(1, -np.inf, np.float32)
    for start, limit in ((4, 3), (-1, 3), (0, 4)):
        with pytest.raises(ArgumentError, match=r"accepted: .*0 to 3"):
            ops.interval_softmax(x, none, np.array([start], np.int32), np.array([limit], np.int32))


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("cap", [2.0**-3, 1.0, 30.0, 50.0])
def test_soft_caps_are_torchs(cap: float, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    x, dy = (array(rng.standard_normal((7, 99)) * scale, dtype) for scale in (3 * cap, 1))
    leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
    y = cap * torch.tanh(leaf / cap)
    y.backward(torch.tensor(dy.astype(np.float64)))
    assert leaf.grad is not None
    hold(ops.softcap, dict(x=x, cap=cap), dict(y=y.detach().numpy()))
    hold(ops.softcap_backward, dict(dy=dy, x=x, cap=cap), dict(dx=leaf.grad.numpy()))
