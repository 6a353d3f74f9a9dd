"""Grouped products and layers of experts on arrays of a GPU: everything but the driver, on the simulated device."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from fake_gpu import STREAM, OnGpu, SimGpu, checked_on_gpu, installed, on_gpu

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.experts import Experts, expert_layer, expert_layer_backward
from tokitai.routing import permutation

OFFSETS = torch.tensor([0, 3, 3, 11, 16])


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> SimGpu:
    return installed(monkeypatch)


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def equal(got: Any, want: Any) -> bool:
    """Both have the same dtype, shape and bits; the first says that it lies on a GPU."""
    plain, want = got.as_subclass(torch.Tensor).contiguous(), want.contiguous()
    same = plain.shape == want.shape and plain.dtype == want.dtype
    return isinstance(got, OnGpu) and same and plain.view(torch.uint8).equal(want.view(torch.uint8))


X, DY, W, V = noise(1, 16, 10), noise(2, 16, 6), noise(3, 4, 6, 10), noise(4, 4, 6, 10)
TOTAL = noise(5, 4, 6, 10, dtype=torch.float32)
CALLS: dict[str, tuple[torch.Tensor, ...]] = {
    "grouped_linear": (X, W),
    "grouped_linear_swiglu": (X, W, V),
    "grouped_linear_backward_input": (DY, W),
    "grouped_linear_backward_weight": (DY, X),
}


@pytest.mark.slow
def test_the_bits_of_the_cpu_whatever_the_groups_are(fake: SimGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other groups are no other kind of call, and without checks nothing is copied to the host or waited for."""
    checked = checked_on_gpu(monkeypatch)
    for offsets in (OFFSETS, torch.tensor([0, 0, 16, 16, 16])):
        for name, tensors in CALLS.items():
            got = ops.get(name)(*map(on_gpu, tensors), on_gpu(offsets), check=False)
            assert equal(got, ops.get(name)(*tensors, offsets)), name
        here, there = TOTAL.clone(), on_gpu(TOTAL.clone())
        assert ops.grouped_linear_accumulate_weight(there, on_gpu(DY), on_gpu(X), on_gpu(offsets), check=False) is there
        ops.grouped_linear_accumulate_weight(here, DY, X, offsets)
        assert equal(there, here)
    assert checked == [*CALLS, "grouped_linear_accumulate_weight"] and fake.said == []


def test_views_leading_dimensions_and_narrow_offsets() -> None:
    wide, high = on_gpu(torch.zeros(2, 8, 13, dtype=torch.float16)), on_gpu(torch.zeros(4, 8, 12, dtype=torch.float16))
    x, w = wide[:, :, 3:], high[:, 1:-1, 2:]
    x.copy_(X.reshape(2, 8, 10)), w.copy_(W)
    got = ops.grouped_linear(x, w, on_gpu(OFFSETS.int()))
    assert got.shape == (2, 8, 6) and equal(got.reshape(16, 6), ops.grouped_linear(X, W, OFFSETS))


def test_empty_groups_and_sides() -> None:
    zeros = torch.zeros(3, dtype=torch.int64)
    for rows, inner, cols in ((0, 10, 6), (5, 0, 6), (5, 10, 0)):
        offsets = torch.tensor([0, rows, rows])
        given = torch.ones(rows, inner), torch.ones(2, cols, inner), offsets
        assert equal(ops.grouped_linear(*map(on_gpu, given)), ops.grouped_linear(*given))
    nothing = torch.ones(0, 6), torch.ones(0, 10), zeros
    got = ops.grouped_linear_backward_weight(*map(on_gpu, nothing))
    assert equal(got, torch.zeros(2, 6, 10))


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([1, 3, 3, 11, 16], r"offsets\[0\]=1; accepted: 0, as groups partition 0 to 16 in order"),
        ([0, 3, 3, 11, 15], r"offsets\[4\]=15; accepted: 16"),
        ([0, 3, 2, 11, 16], r"offsets\[2\]=2; accepted: 3 to 16"),
        ([0, -1, 3, 11, 16], r"offsets\[1\]=-1; accepted: 0 to 16"),
        ([0, 3, 17, 11, 16], r"offsets\[2\]=17; accepted: 3 to 16"),
    ],
)
def test_groups_that_do_not_share_out_a_side_are_refused_as_on_the_cpu(
    fake: SimGpu, offsets: list[int], words: str
) -> None:
    good, bad = on_gpu(OFFSETS), torch.tensor(offsets)
    for name, tensors in CALLS.items():
        there = tuple(map(on_gpu, tensors))
        want = ops.get(name)(*there, good)
        out = on_gpu(torch.full_like(want.as_subclass(torch.Tensor), 7))
        for _ in range(2):  # cold, then where the recipe is known
            with pytest.raises(ArgumentError, match=words):
                ops.get(name)(*tensors, bad)
            fake.said.clear()
            with pytest.raises(ArgumentError, match=words):
                ops.get(name)(*there, on_gpu(bad), out=out)
            assert bool((out == 7).all()) and fake.said == [("read", STREAM)], "only its groups are read"
            assert equal(ops.get(name)(*there, good, out=out), want.as_subclass(torch.Tensor))
            out.fill_(7)


def test_shapes_that_do_not_fit_are_refused() -> None:
    for given, words in (
        ((X, W[:3], OFFSETS), r"weight: shape \(3, 6, 10\); accepted beside offsets: \(4, \.\., \.\.\)"),
        ((X, W, OFFSETS[:1]), r"offsets: shape \(1,\); accepted: \(groups \+ 1,\)"),
        ((X[:, 1:], W, OFFSETS), r"weight: shape .*, 10 along inner; accepted beside x: 9"),
    ):
        with pytest.raises(ArgumentError, match=words):
            ops.grouped_linear(*map(on_gpu, given))


# ------------------------------------------------------------------ a layer of experts
def layer_of(experts: int, features: int, hidden: int) -> Experts:
    return Experts(
        noise(6, experts, features), noise(7, experts, 2 * hidden, features), noise(8, experts, features, hidden)
    )


@pytest.mark.slow
def test_a_layer_of_experts_has_the_bits_of_the_cpu(fake: SimGpu) -> None:
    here = layer_of(5, 12, 8)
    there = Experts(*(on_gpu(getattr(here, f.name)) for f in fields(Experts)))
    x, dy = noise(9, 2, 9, 12), noise(10, 2, 9, 12)
    for words in (dict(k=2), dict(k=4, renormalise=True, capacity=5)):
        as_numpy = Experts(*(getattr(here, f.name).numpy() for f in fields(Experts)))
        want, saved = expert_layer(x.numpy(), as_numpy, **words)
        got, kept = expert_layer(on_gpu(x), there, **words)
        assert equal(got, torch.from_numpy(want))
        fake.said.clear()
        dx, gradients = expert_layer_backward(on_gpu(dy), there, kept)
        assert not any(what == "read" for what, _ in fake.said), "a backward pass waits for nothing"
        want_dx, wanted = expert_layer_backward(dy.numpy(), as_numpy, saved)
        assert equal(dx, torch.from_numpy(want_dx))
        for f in fields(Experts):
            assert equal(getattr(gradients, f.name), torch.from_numpy(getattr(wanted, f.name))), f.name


@pytest.mark.slow
def test_a_layer_of_torch_in_host_memory() -> None:
    layer, x = layer_of(3, 12, 8), noise(9, 7, 12)
    y, saved = expert_layer(x, layer)
    want, _ = expert_layer(x.numpy(), Experts(*(getattr(layer, f.name).numpy() for f in fields(Experts))))
    assert isinstance(y, torch.Tensor) and y.numpy().tobytes() == want.tobytes()
    dx, gradients = expert_layer_backward(noise(10, 7, 12), layer, saved)
    assert dx.shape == x.shape and gradients.down.shape == layer.down.shape


def test_offsets_lie_beside_counts() -> None:
    chosen = torch.tensor([[2, 0], [2, 3]], dtype=torch.int32)
    there = permutation(on_gpu(chosen), 4)
    assert isinstance(there.offsets, OnGpu) and there.offsets.tolist() == [0, 1, 1, 3, 4]
    assert isinstance(there.counts, OnGpu) and there.counts.tolist() == [1, 0, 2, 1]
