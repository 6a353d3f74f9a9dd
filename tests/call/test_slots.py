"""Tensors with several values a row, in views with a row stride: read and written as their copies, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch import functional

X = np.array([[0.3, 1.0, -1.0, 0.5], [2.0, 0.1, 0.2, 0.4]], np.float32)
WIDE = np.array([[1, 2, 90, 91], [3, 4, 92, 93]], np.float32)
EXPERTS = ops.router(X, k=2)[1]


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy])
def test_inputs_with_a_row_stride(of: Any) -> None:
    want = ops.router_backward(WIDE[:, :2].copy(), X, EXPERTS, k=2)
    chosen = np.full((2, 5), 99, np.int32)
    chosen[:, 1:3] = EXPERTS
    for _ in range(2):
        made = ops.router_backward(of(WIDE)[:, :2], of(X), of(chosen)[:, 1:3], k=2)
        assert (np.asarray(made) == want).all()
        with pytest.raises(ArgumentError, match=r"^dweights: strides \(16, 4\) .* with copy=False: contiguous"):
            ops.router_backward(of(WIDE)[:, :2], of(X), of(EXPERTS), k=2, copy=False)


def test_indices_are_checked_as_they_are_read() -> None:
    place = np.full((2, 4), 10**12)
    place[:, :2] = [[0, 1], [2, 3]]
    y, weights = np.arange(12, dtype=np.float32).reshape(4, 3), np.ones((2, 2), np.float32)
    want = ops.combine(y, weights, np.array([[0, 1], [2, 3]]), k=2)
    for view in (place[:, :2], np.asfortranarray(place[:, :2])):
        assert (ops.combine(y, weights, view, k=2) == want).all()
    with pytest.raises(ArgumentError, match=r"^place\[1\]=1000000000000 "):
        ops.combine(y, weights, place[:, 1:3][::-1], k=2)


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy])
def test_results_with_a_row_stride_are_refused_and_nothing_is_written(of: Any) -> None:
    rows = of(np.arange(8, dtype=np.float32).reshape(2, 4))
    memory, columns = of(np.full((2, 4), 77, np.float32)), of(np.full((2, 4), 77, np.int32))
    for call in (ops.top_k, ops.router):
        with pytest.raises(ArgumentError, match=r"^out \(\w+\): strides \(16, 4\) .* for a result: contiguous arrays"):
            call(rows, k=2, out=(memory[:, :2], None))
        assert (np.asarray(memory) == 77).all()
        call(rows, k=2, out=(None, columns[:, 1:3]))  # columns come as i32, and are put anywhere
        assert np.asarray(columns).tolist() == [[77, 3, 2, 77]] * 2


def test_gradients_behind_cat() -> None:
    """Its backward pass hands out views of one wide tensor."""

    def gradient(joined: bool) -> torch.Tensor:
        logits = torch.from_numpy(X).clone().requires_grad_()
        weights, _ = functional.router(logits, k=2)
        if joined:
            (torch.cat([weights, torch.zeros(2, 2)], 1) * torch.from_numpy(WIDE)).sum().backward()
        else:
            (weights * torch.from_numpy(WIDE[:, :2].copy())).sum().backward()
        assert logits.grad is not None
        return logits.grad

    assert torch.equal(gradient(True), gradient(False))
