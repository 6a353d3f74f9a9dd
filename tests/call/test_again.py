"""Calls of a kind that was seen before: the same bits, and the same refusals, as when everything is checked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.backends.cpu import device as cpu
from tokitai.errors import ArgumentError
from tokitai.lang import Operator
from tokitai.runtime import call as calls
from tokitai.runtime import launch_cache

X = np.random.default_rng(7).standard_normal((6, 40)).astype(np.float16)
ONES = np.ones(40, np.float16)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of operators whose calls were checked in full."""
    launch_cache.LAUNCHES.clear()
    names: list[str] = []
    real = calls.call_checked

    def counted(operator: Operator, *rest: Any) -> Any:
        names.append(operator.name)
        return real(operator, *rest)

    monkeypatch.setattr(calls, "call_checked", counted)
    return names


def bits(results: Any) -> list[tuple[Any, ...]]:
    return [(r.tobytes(), r.shape, r.dtype) for r in (results if isinstance(results, tuple) else (results,))]


def twice(checked: list[str], call: Callable[[], Any]) -> None:
    """The second call is not checked in full, and gives the bits of the first."""
    first = bits(call())
    assert bits(call()) == first and len(checked) == 1


@pytest.mark.parametrize("shape", [(6, 40), (2, 3, 40), (40,), (1, 40)])
@pytest.mark.parametrize("threads", [None, 1, 3])
def test_the_same_bits(checked: list[str], shape: tuple[int, ...], threads: int | None) -> None:
    x = X.reshape(-1)[: int(np.prod(shape))].reshape(shape)
    twice(checked, lambda: ops.layer_norm(x, ONES, beta=ONES, eps=1e-5, threads=threads))


def test_other_arrays_of_the_kind(checked: list[str]) -> None:
    made = [ops.softmax(X), ops.softmax(X[::-1].copy())]
    assert made[1].tobytes() == made[0][::-1].tobytes() and len(checked) == 1
    assert not np.shares_memory(*made)


def test_results_of_the_caller(checked: list[str]) -> None:
    out, wide = np.empty_like(X), np.empty((6, 80), np.float16)
    for target in (out, wide[:, :40], wide[:, 40:]):
        for _ in range(2):
            target[...] = 0
            assert ops.softmax(X, out=target) is target
            assert target.tobytes() == ops.softmax(X).tobytes()
    assert len(checked) == 3, "a new result, one of its own, one with a row stride"


def test_in_place(checked: list[str]) -> None:
    names = ("param", "grad", "exp_avg", "exp_avg_sq")
    state = {n: np.full((1, 9), 0.5, np.float16 if n in ("param", "grad") else np.float32) for n in names}
    for step in (1, 2):
        ops.adamw(**state, step=step, lr=1e-3)
    assert len(checked) == 2, "what takes lists is checked each time: see its prepared form"
    total = np.ones((4, 4), np.float32)
    assert ops.linear_accumulate_weight(total, X[:4, :4].copy(), X[:4, :4].copy()) is total


def test_scalars_and_options(checked: list[str]) -> None:
    def rows(**kwargs: Any) -> bytes:
        return bytes(ops.rms_norm(X, eps=kwargs["eps"])[0].tobytes())

    assert rows(eps=1e-5) == rows(eps=1e-5) != rows(eps=0.5) == rows(eps=0.5)
    assert len(checked) == 1, "another scalar needs no other recipe"
    for wrong in ("1", True, None):
        with pytest.raises(ArgumentError, match="eps"):
            rows(eps=wrong)
    with pytest.raises(ArgumentError, match="threads=0"):
        ops.rms_norm(X, eps=1e-5, threads=0)


def test_zeros_of_both_signs_are_two_scalars() -> None:
    x = np.zeros((1, 2), np.float32)
    assert [np.signbit(ops.scale(x, factor=f)).any() for f in (0.0, -0.0, 0.0)] == [False, True, False]


def test_refusals_stay() -> None:
    """Memory that overlaps, that is read-only, that has another format, a target out of range."""
    pool = np.zeros(480, np.float16)
    given, apart = pool[:240].reshape(6, 40), pool[240:].reshape(6, 40)
    for _ in range(2):
        ops.softmax(given, out=apart)
    with pytest.raises(ArgumentError, match="overlaps"):
        ops.softmax(given, out=pool[1:241].reshape(6, 40))
    apart.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        ops.softmax(given, out=apart)
    with pytest.raises(ArgumentError, match="float32"):
        ops.softmax(given, out=np.empty((6, 40), np.float32))
    target = np.arange(6)
    for _ in range(2):
        ops.cross_entropy(X, target)
    target[4] = 40
    with pytest.raises(ArgumentError, match=r"target\[4\]=40"):
        ops.cross_entropy(X, target)


def test_what_needs_a_copy_is_replayed_with_the_copy(checked: list[str]) -> None:
    for factor in (1, 2):
        x = X * np.float16(factor)
        assert ops.softmax(x.T).tobytes() == ops.softmax(np.ascontiguousarray(x.T)).tobytes()
        with pytest.raises(ArgumentError, match="copy=False"):
            ops.softmax(x.T, copy=False)
    assert len(checked) == 4, "the view once, the copy once, and each call that refuses copies"


def test_a_broadcast_argument_is_replayed(checked: list[str]) -> None:
    q, k, v = (np.ones((1, 2, 5, 8), np.float32) * n for n in (1, 2, 3))
    k *= np.arange(5, dtype=np.float32)[:, None]
    v *= np.arange(8, dtype=np.float32)
    for limit in (np.arange(1, 6, dtype=np.int32), np.full(5, 3, np.int32)):
        each = np.broadcast_to(limit, (1, 2, 5)).copy()
        given = [ops.attention(q, k, v, m, scale=0.1)[0].tobytes() for m in (limit, each)]
        assert given[0] == given[1]
    assert len(checked) == 2
    with pytest.raises(ArgumentError, match="limit"):
        ops.attention(q, k, v, np.full(5, 6, np.int32), scale=0.1)


def test_halves_between_each_other_are_replayed_where_they_lay_so_before(checked: list[str]) -> None:
    whole = [np.zeros((6, 80), np.float32) for _ in range(2)]
    gated = np.random.default_rng(3).standard_normal((6, 80), np.float32)
    dy = np.ones((6, 40), np.float32)
    for made in whole:
        ops.swiglu_backward(dy, gated[:, :40], gated[:, 40:], out=(made[:, :40], made[:, 40:]))
    assert whole[0].tobytes() == whole[1].tobytes() and len(checked) == 1
    with pytest.raises(ArgumentError, match="overlaps"):
        ops.swiglu_backward(dy, gated[:, :40], gated[:, 40:], out=(whole[0][:, :40], whole[0][:, 36:76]))


def test_many_threads_at_once(checked: list[str]) -> None:
    want, wrong = ops.layer_norm(X, ONES, ONES)[0].tobytes(), []

    def work() -> None:
        wrong.extend(i for i in range(50) if ops.layer_norm(X, ONES, ONES)[0].tobytes() != want)

    running = [threading.Thread(target=work) for _ in range(8)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert wrong == [] and len(checked) == 1


def test_addresses() -> None:
    for array in (X, X[1:, 3:], X.T, np.zeros(0), np.array(1.0)):
        assert cpu.address_of(array) == array.ctypes.data
    made, address = cpu.placed_empty((3, 5), np.dtype(np.float32))
    assert made.ctypes.data == address and address % 64 == 0 and made.flags.c_contiguous


# ------------------------------------------------------------------ products
PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda x: ops.linear(x, X[:5]),
    "linear, rows with gaps": lambda x: ops.linear(np.repeat(x, 2, axis=0)[::2], X[:5]),
    "matmul, a batch beside one": lambda x: ops.matmul(np.stack([x, -x]), X.T.copy()),
    "attention": lambda x: ops.attention(x, X, X, scale=0.5),
    "attention, causal limits": lambda x: ops.attention(x, X, X, np.arange(1, 7, dtype=np.int32), scale=0.5),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_replayed(checked: list[str], name: str) -> None:
    call, other = PRODUCTS[name], X[::-1].copy()
    first = [bits(call(x)) for x in (X, other)]
    assert len(checked) == 1
    launch_cache.LAUNCHES.clear()
    assert [bits(call(x)) for x in (other, X)] == first[::-1], "what was replayed is what a full check gives"


def test_offsets_of_groups_are_checked_each_time(checked: list[str]) -> None:
    weight = np.stack([X[:, :40], -X[:, :40]])
    for ends in ([0, 2, 6], [0, 6, 6]):
        ops.grouped_linear(X, weight, np.array(ends, np.int64))
    with pytest.raises(ArgumentError, match="offsets"):
        ops.grouped_linear(X, weight, np.array([0, 2, 7], np.int64))
    assert len(checked) == 3
