"""Memory of large arrays is used again when the last view of it is gone, and never before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tokitai import ops
from tokitai.backends.cpu import device as cpu
from tokitai.backends.cpu import kept
from tokitai.backends.cpu.kept import LEAST, Kept, most_kept
from tokitai.errors import ArgumentError


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """A store of this test's own, of four times the least size."""
    made = Kept(4 * LEAST)
    monkeypatch.setattr(kept, "_kept", made)
    yield made


def large(size: int = LEAST) -> np.ndarray:
    return cpu.aligned_empty((size // 4,), np.float32)


def test_memory_is_used_again(own: Kept) -> None:
    one = large()
    place = one.ctypes.data
    assert place % 64 == 0 and own.total == 0
    del one
    assert LEAST <= own.total < LEAST + 4096
    two = large()
    assert two.ctypes.data == place and own.total == 0
    three = large()
    assert three.ctypes.data != place


@pytest.mark.parametrize("view", [
    lambda a: a[5:7], lambda a: a.reshape(2, -1)[1, ::3], lambda a: memoryview(a), lambda a: np.asarray(a.data)[1:][:1],
    lambda a: a.view(np.uint8)[3:4],
])  # fmt: skip
def test_a_view_keeps_it(own: Kept, view: object) -> None:
    one = large()
    seen = view(one)  # type: ignore[operator]
    del one
    gc.collect()
    assert own.total == 0
    del seen
    gc.collect()
    assert own.total >= LEAST


def test_pytorchs_tensors_keep_it(own: Kept) -> None:
    torch = pytest.importorskip("torch")
    one = large()
    there = torch.from_dlpack(one)
    part = there[3:]
    del one, there
    gc.collect()
    assert own.total == 0
    del part
    gc.collect()
    assert own.total >= LEAST


def test_small_arrays_are_left_to_the_c_library(own: Kept) -> None:
    one = large(LEAST // 2)
    del one
    assert own.total == 0


def test_what_was_freed_first_goes_first() -> None:
    some = Kept(10)
    parts = [np.empty(n, np.uint8) for n in (4, 5, 3)]
    for part in parts:
        some.give(part)
    assert some.total == 8
    assert some.take(3) is parts[2] and some.take(5) is parts[1] and some.total == 0
    some.give(np.empty(11, np.uint8))
    assert some.total == 0


def test_memory_that_is_much_too_large_is_not_taken() -> None:
    some = Kept(1000)
    part = np.empty(100, np.uint8)
    some.give(part)
    assert some.take(88).size == 88 and some.take(101).size == 101 and some.take(89) is part


def test_threads_never_share_it(own: Kept) -> None:
    wrong = []

    def work(number: int) -> None:
        for turn in range(40):
            mine = large(LEAST + 4096 * (turn % 3))
            mine[::100_000] = number
            if not (mine[::100_000] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == [] and own.total <= own.most


def test_a_call_leaves_its_result_alone_and_takes_what_is_free(own: Kept) -> None:
    x = np.ones((1024, LEAST // 2048), np.float16)
    first = ops.scale(x, factor=2.0)
    second = ops.scale(x, factor=3.0)
    assert (first == 2).all() and (second == 3).all() and not np.shares_memory(first, second)
    place = first.ctypes.data
    del first
    third = ops.scale(x, factor=4.0)
    assert third.ctypes.data == place and (third == 4).all() and (second == 3).all()


def test_a_forked_process_begins_with_nothing(own: Kept) -> None:
    one = large()
    del one
    child = os.fork()
    if child == 0:
        os._exit(0 if kept._kept is None and large().size else 1)
    assert os.waitpid(child, 0)[1] == 0 and own.total >= LEAST


def test_how_much_is_kept() -> None:
    assert most_kept("0") == 0 and most_kept("123") == 123
    assert 1 << 26 <= most_kept("") <= 1 << 50
    for wrong in ("1G", "-1", "1.5", "٣"):
        with pytest.raises(ArgumentError, match="accepted: a whole number of bytes"):
            most_kept(wrong)
    for text, total in (("0", 0), ("", 1)):
        code = (
            "from tokitai.backends.cpu import device as cpu, kept\n"
            "a = cpu.aligned_empty(1 << 25, 'u1'); del a\n"
            f"assert bool(kept._kept.total) == bool({total})"
        )
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "TOKITAI_KEEP_BYTES": text})
