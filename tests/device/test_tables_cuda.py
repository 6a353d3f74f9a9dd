"""Embedding, routing and what chooses among tokens, on torch's tensors of a GPU."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.routing import permutation

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.call.tables import CASES, DTYPES, drawn, numbers  # noqa: E402

pytestmark = pytest.mark.gpu


def bits(x: Any) -> bytes:
    return bytes(x.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def equal(got: Any, want: Any) -> bool:
    got, want = (r if isinstance(r, (tuple, list)) else (r,) for r in (got, want))
    return len(got) == len(want) and all(
        a.is_cuda and a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)
        for a, b in zip(got, want, strict=True)
    )


def there(given: dict[str, Any]) -> dict[str, Any]:
    return {n: x.cuda() if isinstance(x, torch.Tensor) else x for n, x in given.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_the_bits_of_the_cpu_cold_and_warm(case: str, dtype: Any) -> None:
    name, make = CASES[case]
    op = ops.get(name)
    want = op(**{n: x.clone() if isinstance(x, torch.Tensor) else x for n, x in make(dtype).items()})
    for check in (True, True, False):
        assert equal(op(**there(make(dtype)), check=check), want)


@pytest.mark.parametrize("ids", ["uniform", "one", "few"])
def test_a_gradient_of_many_rows(ids: str) -> None:
    chosen = {"uniform": numbers(5000, 8192), "one": torch.full((8192,), 7), "few": numbers(3, 8192)}[ids]
    dy = drawn(8192, 256, dtype=torch.float16)
    want = ops.embedding_backward(dy, chosen, entries=5000)
    for _ in range(2):
        assert equal(ops.embedding_backward(dy.cuda(), chosen.cuda(), entries=5000), want)


def test_what_is_wrong_names_the_row() -> None:
    table, ids = drawn(50, 24), numbers(50, 7, 5)
    logits = drawn(40, 16)
    ops.embedding(table.cuda(), ids.cuda())
    ids[2, 1] = 50
    logits[27, 3] = float("nan")
    for op, given in ((ops.embedding, dict(table=table, ids=ids)), (ops.router, dict(logits=logits, k=2))):
        for _ in range(2):
            with pytest.raises(ArgumentError) as here:
                op(**given)
            with pytest.raises(ArgumentError) as on_the_gpu:
                op(**there(given))
            assert str(on_the_gpu.value) == str(here.value)
    assert equal(ops.embedding(table.cuda(), (ids % 50).int().cuda()), ops.embedding(table, ids % 50))


def test_a_layer_of_experts() -> None:
    x, logits = drawn(300, 64, dtype=torch.float16), drawn(300, 8)

    def layer(x: Any, logits: Any) -> tuple[Any, ...]:
        weights, experts = ops.router(logits, k=2)
        to = permutation(experts, 8, capacity=70, weights=weights)
        y = ops.combine(ops.dispatch(x, to.order), weights, to.place, k=2)
        return y, to.order, to.choice, to.place, to.counts

    got = layer(x.cuda(), logits.cuda())
    assert equal(got, layer(x, logits))


def test_a_thread_without_a_context_repeats_a_call() -> None:
    """Its first launch finds no current context, and is made in the kernel's own."""
    x, y = drawn(40, 64).cuda(), torch.empty(40, 64, device="cuda")
    want = ops.softmax(x.cpu())
    ops.softmax(x, out=y)
    torch.cuda.synchronize()
    y.zero_()
    torch.cuda.synchronize()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            ops.softmax(x, out=y)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert failed == [] and bits(y) == bits(want)


def test_threads_that_repeat_one_call_at_once() -> None:
    """Each has a parameter of its own: results never mix."""
    inputs = [drawn(33, 500, seed=i) for i in range(4)]
    wants = [bits(ops.layer_norm(x, x[0], x[1])[0]) for x in inputs]
    gpu = [(x.cuda(), x[0].cuda(), x[1].cuda()) for x in inputs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            made = [ops.layer_norm(*gpu[i])[0] for _ in range(300)]
            torch.cuda.current_stream().synchronize()
        wrong.extend([i] * sum(bits(y) != wants[i] for y in made))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_indices_of_numpy_are_no_neighbours_of_a_gpu() -> None:
    with pytest.raises(ArgumentError, match=r"^ids: lies on a device of DLPack type 1"):
        ops.embedding(drawn(5, 8).cuda(), np.zeros(3, np.int64))
