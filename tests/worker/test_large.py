"""Tensors of more than 4 GiB through a worker process: in shared memory as they are, and copied there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.worker import Pool, call
from tokitai.worker.memory import available

pytestmark = pytest.mark.slow

COLS, PERIOD = 1024, 1021  # a prime number of rows: an offset that lost its upper half finds other values
ROWS = (9 << 29) // (2 * COLS) + 5  # a little over 4.5 GiB of f16
TWICE = 2 * ROWS * COLS * 2  # bytes of two such tensors, in and out or here and there
SPARE = 4 << 30


def needs(nbytes: int) -> None:
    if (available() or 0) < nbytes + SPARE:
        pytest.skip(f"needs {nbytes + SPARE} bytes of memory, there are {available()}")


def pattern() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((PERIOD, COLS)).astype(np.float16)


def repeated(part: np.ndarray[Any, Any], into: np.ndarray[Any, Any]) -> None:
    for first in range(0, len(into), len(part)):
        into[first : first + len(part)] = part[: len(into) - first]


def digest_of(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.data).hexdigest()


def digest_of_repeated(part: np.ndarray[Any, Any], rows: int) -> str:
    made = hashlib.sha256()
    for first in range(0, rows, len(part)):
        made.update(part[: rows - first].data)
    return made.hexdigest()


def test_in_shared_memory_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """Every element of input and result by digest, and the time against a plain copy of the same bytes."""
    needs(TWICE)
    part = pattern()
    want = ops.scale(part, factor=0.7)
    with Pool(1, deadline=600) as pool:
        x, y = pool.empty((ROWS, COLS), np.float16), pool.empty((ROWS, COLS), np.float16)
        repeated(part, x)
        turns: dict[str, Callable[[], object]] = {
            "copy": lambda: np.copyto(y, x),
            "the same kernel here": lambda: ops.scale(x, factor=0.7, out=y),
            "worker": lambda: call(pool, ops.scale, x, out=y, factor=0.7),
        }
        seconds = dict.fromkeys(turns, np.inf)
        for _ in range(3):
            for name, run in turns.items():
                y.fill(np.nan)  # nothing is left of the turn before
                start = time.perf_counter()
                run()
                seconds[name] = min(seconds[name], time.perf_counter() - start)
        for row in (0, PERIOD, (1 << 32) // (2 * COLS) - 1, (1 << 32) // (2 * COLS), ROWS - 1):
            assert y[row].tobytes() == want[row % PERIOD].tobytes(), f"row {row}"
        assert digest_of(y) == digest_of_repeated(want, ROWS)
        assert digest_of(x) == digest_of_repeated(part, ROWS), "the input has changed"
    with capsys.disabled():
        rates = ", ".join(f"{name} {TWICE / s / 1e9:.2f} GB/s" for name, s in seconds.items())
        ratio = seconds["copy"] / seconds["worker"]
        print(f"\n{x.nbytes} bytes of f16 there, as many back: {rates}, {ratio:.2f} of the copy")


def test_copied_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A tensor of this process's own memory: one result of each row, so that memory holds it twice and no more."""
    needs(TWICE)
    part = pattern()
    want = ops.router_z_loss(part)
    x = np.empty((ROWS, COLS), np.float16)
    repeated(part, x)
    start = time.perf_counter()
    x.copy()
    copy = time.perf_counter() - start
    with Pool(1, deadline=600) as pool:
        start = time.perf_counter()
        loss = call(pool, ops.router_z_loss, x)
        seconds = time.perf_counter() - start
    assert loss.shape == (ROWS,) and digest_of(loss) == digest_of_repeated(want, ROWS)
    with capsys.disabled():
        print(f"\n{x.nbytes} bytes of f16 copied there and reduced: {seconds:.2f} s; a copy in new memory {copy:.2f} s")
