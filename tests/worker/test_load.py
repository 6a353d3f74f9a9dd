"""Many requests from many threads: none lost, none mixed up, memory flat."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.worker import left
from tokitai import ops
from tokitai.worker import Pool, call

THIS = "tests.worker.misbehaving"
CLIENTS = 16
GROWTH = 4 << 20  # bytes by which a process may grow after its first requests: less than what leaks would add up to


def resident(process: int) -> int:
    """Bytes of memory that a process uses, shared memory included."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("requests", [pytest.param(800, id="800"), pytest.param(10_000, marks=pytest.mark.slow)])
def test_requests_from_sixteen_threads(requests: int) -> None:
    numbers: Counter[int] = Counter()
    lock = threading.Lock()
    with Pool(2, queue=CLIENTS, deadline=60) as pool, ThreadPoolExecutor(CLIENTS) as threads:
        shared = threading.local()

        def one(number: int) -> None:
            rng = np.random.default_rng(number)
            x = rng.integers(0, 256, 1 + number * 7919 % 50_000, dtype=np.uint8)
            by = 1 + number % 255
            if number % 3 == 0:  # in shared memory of this thread's own
                if not hasattr(shared, "arrays"):
                    shared.arrays = [pool.empty(50_000, np.uint8) for _ in range(2)]
                given, out = (a[: x.size] for a in shared.arrays)
                given[:] = x
            elif number % 3 == 1:  # in new shared memory
                given, out = x, pool.empty(x.size, np.uint8)
            else:
                given, out = x, np.empty_like(x)
            answer = pool.run(f"{THIS}:scale", {"by": by, "number": number}, [given], [out])
            assert answer["number"] == number and (out == x * np.uint8(by)).all(), f"request {number}"
            with lock:
                numbers[number] += 1

        def memory() -> list[int]:
            return [resident(process) for process in (os.getpid(), *sorted(left.processes(os.getpid())))]

        def some(numbers: range) -> None:
            """Each thread takes the next one when it is done: what waits is not kept anywhere."""
            line = iter(numbers)

            def client(_: int) -> None:
                while (number := next(line, None)) is not None:
                    one(number)

            list(threads.map(client, range(CLIENTS)))

        first = requests // 5
        some(range(first))
        before, segments = memory(), left.segments(os.getpid())
        some(range(first, requests))
        after = memory()
        assert numbers == Counter(range(requests))
        assert pool.counts.answered == requests and pool.counts.failed == 0 and pool.counts.started == 2
        assert len(before) == len(after) and left.segments(os.getpid()) <= segments + 4 * CLIENTS
        grown = [b - a for a, b in zip(before, after, strict=True)]
        assert max(grown) < GROWTH, f"bytes grown: {grown}"


def test_operators_from_sixteen_threads() -> None:
    rng = np.random.default_rng(16)
    inputs = [rng.standard_normal((1 + i, 33 * i + 1)).astype(np.float16) for i in range(CLIENTS)]
    want = [[a.tobytes() for a in ops.layer_norm(x, eps=1e-5)] for x in inputs]
    with Pool(2, deadline=60) as pool, ThreadPoolExecutor(CLIENTS) as threads:

        def one(i: int) -> bool:
            made = call(pool, ops.layer_norm, inputs[i % CLIENTS], eps=1e-5, threads=1)
            return [a.tobytes() for a in made] == want[i % CLIENTS]

        assert all(threads.map(one, range(20 * CLIENTS)))
