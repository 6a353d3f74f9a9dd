"""Tables, values side by side and routing on arrays of a GPU: everything but the driver, on the simulated device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import OnGpu, SimGpu, checked_on_gpu, installed, on_gpu

from tests.call.tables import CASES, DTYPES, Given, drawn, numbers
from tokitai import ops
from tokitai.arrays import gpu as arrays
from tokitai.errors import ArgumentError
from tokitai.routing import Permutation, permutation


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> SimGpu:
    return installed(monkeypatch)


def there(given: Given) -> Given:
    return {n: on_gpu(x.clone()) if isinstance(x, torch.Tensor) else x for n, x in given.items()}


def here(given: Given) -> Given:
    return {n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in given.items()}


def bits(x: Any) -> bytes:
    made = x.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8)
    return bytes(made.numpy())


def equal(got: Any, want: Any) -> bool:
    got, want = (r if isinstance(r, (tuple, list)) else (r,) for r in (got, want))
    return len(got) == len(want) and all(
        isinstance(a, OnGpu) and a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_the_bits_of_the_cpu_cold_and_warm(case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    name, make = CASES[case]
    op, given, checked = ops.get(name), make(dtype), checked_on_gpu(monkeypatch)
    want = op(**here(given))
    for check in (True, True, False):
        assert equal(op(**there(given), check=check), want)
    assert len(checked) == 1


def test_new_values_of_the_same_kind_are_looked_at_again() -> None:
    """What a recipe keeps is of sizes: ids, weights and the number of entries are those of the call."""
    for seed in range(3):
        table, ids = drawn(50, 24, seed=seed), numbers(50, 35, seed=seed)
        assert equal(ops.embedding(on_gpu(table), on_gpu(ids)), ops.embedding(table, ids))
        for entries in (50, 300, 50):
            dy = drawn(35, 24, seed=seed)
            got = ops.embedding_backward(on_gpu(dy), on_gpu(ids), entries=entries)
            assert equal(got, ops.embedding_backward(dy, ids, entries=entries))


def test_ids_of_32_bits_are_widened() -> None:
    table, ids = drawn(50, 24), numbers(50, 35)
    for _ in range(2):
        assert equal(ops.embedding(on_gpu(table), on_gpu(ids.int())), ops.embedding(table, ids))
    with pytest.raises(ArgumentError, match=r"^ids: format i32; accepted: i64"):
        ops.embedding(on_gpu(table), on_gpu(ids.int()), copy=False)


def test_ids_are_checked_as_on_the_cpu(fake: SimGpu) -> None:
    table = drawn(50, 24)
    good, bad = numbers(50, 7, 5), numbers(50, 7, 5)
    bad[2, 1], bad[4, 4] = 50, -3
    ops.embedding(on_gpu(table), on_gpu(good))
    for ids in (bad, bad.int(), bad):
        with pytest.raises(ArgumentError) as on_the_cpu:
            ops.embedding(table, ids)
        with pytest.raises(ArgumentError) as on_the_gpu:
            ops.embedding(on_gpu(table), on_gpu(ids))
        assert str(on_the_gpu.value) == str(on_the_cpu.value) and "ids[11]=50 (2 such rows)" in str(on_the_cpu.value)
    with pytest.raises(ArgumentError, match=r"^ids: 2 indices of a table without entries; accepted: none"):
        ops.embedding(on_gpu(torch.zeros(0, 24)), on_gpu(torch.zeros(2, dtype=torch.int64)))
    fake.said.clear()
    ops.embedding(on_gpu(table), on_gpu(good), check=False)
    assert fake.said == []


def test_nan_is_an_error_that_names_the_row() -> None:
    x = drawn(4, 10, 16, dtype=torch.float16)
    for op in (ops.top_k, ops.router):
        op(on_gpu(x), k=2)
    x[2, 7, 3] = x[3, 0, 0] = float("nan")
    for op in (ops.top_k, ops.router):
        for _ in range(2):
            with pytest.raises(ArgumentError) as on_the_cpu:
                op(x, k=2)
            with pytest.raises(ArgumentError) as on_the_gpu:
                op(on_gpu(x), k=2)
            assert str(on_the_gpu.value) == str(on_the_cpu.value) and "[27] holds NaN (2 such rows)" in str(
                on_the_cpu.value
            )
    with pytest.raises(ArgumentError, match=r"^top_k: k=4 of 3 columns"):
        ops.top_k(on_gpu(drawn(2, 3)), k=4)


def test_columns_go_where_the_caller_wants_them() -> None:
    x = drawn(40, 16)
    want = ops.top_k(x, k=2)
    for _ in range(2):
        columns = on_gpu(torch.full((40, 2), -7, dtype=torch.int32))
        got = ops.top_k(on_gpu(x), k=2, out=(None, columns))
        assert got[1] is columns and equal(got, want)
    with pytest.raises(ArgumentError, match=r"^out \(columns\): .*; accepted: \(40, 2\) of i32"):
        ops.top_k(on_gpu(x), k=2, out=(None, on_gpu(torch.zeros(40, 2))))


def test_numbers_of_64_bits_are_taken_where_32_are_declared() -> None:
    x, logits = drawn(6, 9), drawn(6, 9, seed=4)
    limit, position, experts = numbers(10, 6), numbers(2000, 6), numbers(9, 6, 2)
    frequency = drawn(9, seed=3).abs()
    calls: list[Callable[..., Any]] = [
        lambda to, kind, **more: ops.masked_softmax(to(x), to(limit.to(kind)), **more),
        lambda to, kind, **more: ops.rotary(to(x), to(x), to(position.to(kind)), to(frequency), **more),
        lambda to, kind, **more: ops.expert_load(to(logits), to(experts.to(kind)), k=2, **more),
    ]
    for call in calls:
        want, got = (call(lambda t: t, kind) for kind in (torch.int32, torch.int64))
        assert all(bits(a) == bits(b) for a, b in zip(_all(got), _all(want), strict=True))
        for check in (True, False, True):
            assert equal(call(on_gpu, torch.int64, check=check), want)
    far = position + 2**31
    for to in (lambda t: t, on_gpu):
        with pytest.raises(ArgumentError, match=r"^position\[0\]=\d+ \(6 such\); accepted: -2147483648 to 2147483647"):
            ops.rotary(to(x), to(x), to(far), to(drawn(9)))
        with pytest.raises(ArgumentError, match=r"^position: format i64; accepted: i32"):
            ops.rotary(to(x), to(x), to(position), to(drawn(9)), copy=False)


def _all(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_without_entries_of_which_nothing_is_chosen(dtype: torch.dtype) -> None:
    """No token was routed: what comes back is zero, and so are the gradients of weights."""
    bare, weights, none = torch.zeros(0, 8, dtype=dtype), torch.full((5, 2), float("nan")), torch.full((5, 2), -1)
    for to in (lambda t: t, on_gpu):
        for _ in range(2):
            x = ops.combine(to(bare), to(weights), to(none), k=2)
            assert x.shape == (5, 8) and x.dtype == dtype and bits(x) == bytes(5 * 8 * dtype.itemsize)
            slopes = ops.combine_backward(to(drawn(5, 8, dtype=dtype)), to(bare), to(none), k=2)
            assert bits(slopes) == bytes(5 * 2 * 4)
        one = none.clone()
        one[3, 1] = 0
        with pytest.raises(ArgumentError, match=r"^place: 1 indices of a table without entries; accepted: dropped=-1"):
            ops.combine(to(bare), to(weights), to(one), k=2)


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_to_look_up(rows: int) -> None:
    table, ids = drawn(5, 8), torch.zeros(0, dtype=torch.int64)
    for _ in range(2):
        assert equal(ops.embedding(on_gpu(table), on_gpu(ids)), ops.embedding(table, ids))
        dy = torch.zeros(0, 8)
        got = ops.embedding_backward(on_gpu(dy), on_gpu(ids), entries=rows)
        assert equal(got, ops.embedding_backward(dy, ids, entries=rows))


def test_a_gradient_lies_apart_from_what_is_added() -> None:
    memory = on_gpu(drawn(40, 8))
    ids = on_gpu(numbers(10, 20))
    ops.embedding_backward(memory[:20], ids, memory[20:30], entries=10)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"^dtable: overlaps dy"):
            ops.embedding_backward(memory[:20], ids, memory[16:26], entries=10)


def test_what_waits_is_refused_during_a_capture(fake: SimGpu) -> None:
    table, ids = on_gpu(drawn(50, 24)), on_gpu(numbers(50, 35))
    want = ops.embedding(table, ids)
    fake.recording = True
    with pytest.raises(ArgumentError, match=r"^embedding: a stream that is being captured; accepted: .*check=False"):
        ops.embedding(table, ids)
    assert torch.equal(ops.embedding(table, ids, check=False), want)


def test_columns_need_a_library_that_turns_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "library_of", lambda x: "mine")
    with pytest.raises(
        ArgumentError, match=r"^top_k on OnGpu of a GPU: gives columns, .*; accepted: arrays of torch, CuPy"
    ):
        ops.top_k(on_gpu(drawn(4, 8)), k=2)


# ------------------------------------------------------------------ scalars
def test_zeros_of_both_signs_are_two_scalars() -> None:
    x = drawn(3, 8)
    for factor in (0.0, -0.0, 0.0):
        assert equal(ops.scale(on_gpu(x), factor=factor), ops.scale(x, factor=factor))


# ------------------------------------------------------------------ routing
@pytest.mark.parametrize("place", ["host", "gpu"])
def test_a_layer_of_experts(place: str) -> None:
    """Router, places, dispatch and combine: each array goes on as the last step gave it."""
    put = on_gpu if place == "gpu" else torch.Tensor.clone
    x, logits = drawn(30, 8, dtype=torch.float16), drawn(30, 4)
    padding = torch.arange(30) % 7 == 0

    def layer(put: Callable[[Any], Any]) -> tuple[Permutation, Any]:
        weights, experts = ops.router(put(logits), k=2)
        to = permutation(experts, 4, capacity=9, weights=weights, padding=put(padding))
        return to, ops.combine(ops.dispatch(put(x), to.order), weights, to.place, k=2)

    to, y = layer(put)
    want, want_y = layer(lambda x: x.numpy())
    assert all(type(getattr(to, n)) is type(put(x)) for n in ("order", "choice", "place", "counts"))
    for name in ("order", "choice", "place", "counts"):
        assert np.array_equal(np.asarray(getattr(to, name).as_subclass(torch.Tensor)), getattr(want, name))
    assert bits(y) == np.asarray(want_y).tobytes()
    with pytest.raises(ArgumentError, match=r"^experts: shape \(3,\) of .*; accepted: \(tokens, k\) of int"):
        permutation(put(torch.tensor([0, 1, 2])), 4)
    with pytest.raises(ArgumentError, match=r"^experts\[1,0\]=4 \(1 such choices\); accepted: 0 to 3"):
        permutation(put(torch.tensor([[0, 1], [4, 2]])), 4)
    with pytest.raises(ArgumentError, match=r"^experts: list; accepted: a NumPy array or an array that speaks DLPack"):
        permutation([[0, 1]], 4)


@pytest.mark.parametrize(
    ("tokens", "count", "k"), [(50, 8, 2), (7, 16, 4), (1, 2, 1), (0, 4, 2), (300, 3, 2), (9, 0, 0)]
)
def test_torch_sorts_choices_as_the_host_does(tokens: int, count: int, k: int) -> None:
    """Where nothing is dropped; empty experts, and many choices of one, among them."""
    chosen = torch.randint(0, max(count, 1), (tokens, k), generator=torch.Generator().manual_seed(tokens))
    chosen = torch.where(chosen == 1, 0, chosen).to(torch.int32)
    want, to = permutation(chosen.numpy(), count), permutation(on_gpu(chosen), count, check=False)
    for name in ("order", "choice", "place", "counts", "offsets"):
        found = getattr(to, name).as_subclass(torch.Tensor)
        assert found.dtype == torch.int64 and np.array_equal(np.asarray(found), getattr(want, name)), name
