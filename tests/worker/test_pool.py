"""One process at a time: requests, turns, errors with last words, and the end in every way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.worker import left
from tests.worker.misbehaving import RUBBISH
from tokitai.errors import (
    ArgumentError,
    WorkerBusyError,
    WorkerClosedError,
    WorkerCrashedError,
    WorkerError,
    WorkerFaultError,
    WorkerMemoryError,
    WorkerProtocolError,
    WorkerTaskError,
    WorkerTimeoutError,
)
from tokitai.worker import Limits, Pool
from tokitai.worker.pool import Counts

pytestmark = pytest.mark.slow  # each starts processes and waits for their end
THIS = "tests.worker.misbehaving"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(1, deadline=20, limits=Limits(memory=1 << 28)) as made:
        yield made


def process_of(pool: Pool) -> int:
    answer = pool.run(f"{THIS}:scale", {"by": 1, "number": 0}, [np.zeros(1, np.uint8)], [np.zeros(1, np.uint8)])
    return int(answer["process"])


def test_tensors_go_there_and_back(pool: Pool) -> None:
    x = np.arange(1000, dtype=np.uint16).reshape(10, 100)[::-1].copy()
    out = np.full_like(x, 77)
    answer = pool.run(f"{THIS}:scale", {"by": 3, "number": 5}, [x], [out])
    assert answer == {"number": 5, "process": process_of(pool)}
    assert (out.view(np.uint8) == x.view(np.uint8) * np.uint8(3)).all()
    shared, made = pool.empty(x.shape, x.dtype), pool.empty(x.nbytes, np.uint8)
    shared[...] = x
    pool.run(f"{THIS}:scale", {"by": 5, "number": 6}, [shared], [made])
    assert (made == x.reshape(-1).view(np.uint8) * np.uint8(5)).all()
    pool.run(f"{THIS}:scale", {"by": 7, "number": 6}, [x], [x])  # in place
    assert pool.counts.started == 1


def test_no_tensors_many_tensors_empty_tensors(pool: Pool) -> None:
    assert pool.run(f"{THIS}:echo", {"ä": [None, 1.5]}) == {"arguments": {"ä": [None, 1.5]}, "bytes": []}
    sizes = [i % 5 for i in range(400)]
    shared = [pool.empty(n, np.uint8) for n in sizes]  # more segments than the process may open files
    assert pool.run(f"{THIS}:echo", {}, shared)["bytes"] == sizes
    assert pool.run(f"{THIS}:echo", {}, [np.empty((0, 3)), np.ones(())])["bytes"] == [0, 8]
    assert pool.run(f"{THIS}:echo", {}, [np.empty((0, 3))])["bytes"] == [0]
    assert pool.counts.started == 1


@pytest.mark.parametrize(
    ("entry", "arguments", "kind", "said"),
    [
        (
            "killed",
            {"signal": "SIGKILL"},
            WorkerCrashedError,
            "ended by SIGKILL; the end of its output:\nabout to send",
        ),
        ("killed", {"signal": "SIGABRT"}, WorkerCrashedError, "ended by SIGABRT"),
        ("killed", {"signal": "SIGSEGV"}, WorkerFaultError, "ended by SIGSEGV"),
        ("killed", {"signal": "SIGSTOP"}, WorkerTimeoutError, "no answer before the deadline"),
        ("reads_nothing", {}, WorkerFaultError, "in reads_nothing"),
        ("hangs", {}, WorkerTimeoutError, "no answer before the deadline"),
        ("hoards", {}, WorkerMemoryError, "more memory than its limit of 268435456 bytes"),
        ("leaves", {"code": 3}, WorkerCrashedError, "left with exit code 3; the end of its output:\nleaving"),
        ("leaves", {"code": 0}, WorkerCrashedError, "left with exit code 0"),
        ("closes", {}, WorkerProtocolError, "closed its pipe, but did not end"),
        *(("writes_rubbish", {"kind": kind}, WorkerProtocolError, "the worker process wrote") for kind in RUBBISH),
    ],
)
def test_a_fault_is_told_and_the_process_replaced(
    pool: Pool, entry: str, arguments: dict[str, str], kind: type[WorkerError], said: str
) -> None:
    before = process_of(pool)
    with pytest.raises(kind) as caught:
        pool.run(f"{THIS}:{entry}", arguments, deadline=1.0)
    assert type(caught.value) is kind and said in str(caught.value) and f"{THIS}:{entry}" in str(caught.value)
    assert "\n" not in caught.value.reason
    assert process_of(pool) != before
    assert left.until(lambda: len(left.processes(os.getpid())) == 1)
    assert pool.counts == Counts(started=2, ended=1, answered=2, failed=1)


def test_an_exception_is_told_and_the_process_kept(pool: Pool) -> None:
    before = process_of(pool)
    with pytest.raises(WorkerTaskError, match="ZeroDivisionError: why"):
        pool.run(f"{THIS}:raises", {"text": "why"})
    with pytest.raises(WorkerTaskError, match="no attribute 'nothing'"):
        pool.run(f"{THIS}:nothing")
    with pytest.raises(WorkerTaskError, match="No module named 'nothing'"):
        pool.run("nothing:nothing")
    with pytest.raises(ArgumentError, match="C-contiguous"):
        pool.run(f"{THIS}:echo", {}, [np.zeros((4, 4))[:, 1:]])
    with pytest.raises(ArgumentError, match="ndarray of object"):
        pool.run(f"{THIS}:echo", {}, [np.array([{}])])
    with pytest.raises(ArgumentError, match="list of no dtype"):
        pool.run(f"{THIS}:echo", {}, [[1, 2]])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="deadline=-1"):
        pool.run(f"{THIS}:echo", deadline=-1)
    with pytest.raises(ArgumentError, match="accepted: JSON values"):
        pool.run(f"{THIS}:echo", {"x": {1}})
    assert process_of(pool) == before and pool.counts.started == 1


def test_what_it_prints_blocks_nothing_and_its_end_is_kept(pool: Pool) -> None:
    assert pool.run(f"{THIS}:say", {"lines": 20_000}) is None
    with pytest.raises(WorkerCrashedError) as caught:
        pool.run(f"{THIS}:leaves", {"code": 1})
    assert caught.value.last_words == "leaving", "what other requests printed is none of its words"


def test_a_process_that_dies_between_requests_is_replaced(pool: Pool) -> None:
    for how in (signal.SIGKILL, signal.SIGTERM):
        before = process_of(pool)
        os.kill(before, how)
        assert left.until(lambda before=before: left.ended(before)), "its end of the channel is closed by then"
        assert process_of(pool) != before
    assert pool.counts.failed == 0


def test_turns_are_taken_in_order_and_the_queue_has_an_end() -> None:
    order: list[int] = []
    with Pool(1, queue=3, deadline=20) as pool, ThreadPoolExecutor(8) as threads:
        process_of(pool)
        first = threads.submit(pool.run, f"{THIS}:nap", {"seconds": 0.5, "number": 0})
        assert left.until(lambda: pool._free == 0)

        def one(number: int) -> None:
            order.append(pool.run(f"{THIS}:nap", {"seconds": 0, "number": number}))

        waiting = []
        for number in (1, 2, 3):
            waiting.append(threads.submit(one, number))
            assert left.until(lambda number=number: len(pool._turns) == number)
        with pytest.raises(WorkerBusyError, match="3 requests wait already; accepted: 3"):
            pool.run(f"{THIS}:echo")
        assert first.result() == 0
        for future in waiting:
            future.result()
    assert order == [1, 2, 3]


def test_a_wait_for_a_turn_ends_at_its_deadline() -> None:
    with Pool(1, deadline=20) as pool, ThreadPoolExecutor(2) as threads:
        process_of(pool)
        first = threads.submit(pool.run, f"{THIS}:nap", {"seconds": 1.0, "number": 4})
        assert left.until(lambda: pool._free == 0)
        with pytest.raises(WorkerBusyError, match="the pool has 1"):
            pool.run(f"{THIS}:echo", deadline=0.1)
        assert first.result() == 4


def test_as_many_processes_as_allowed_and_no_more_than_needed() -> None:
    with Pool(3, deadline=20) as pool, ThreadPoolExecutor(6) as threads:
        for _ in range(4):
            process_of(pool)
        assert pool.counts.started == 1
        list(threads.map(lambda n: pool.run(f"{THIS}:nap", {"seconds": 0.3, "number": n}), range(6)))
        assert pool.counts.started == 3 == len(left.processes(os.getpid()))


def test_closing_ends_what_is_at_work() -> None:
    pool = Pool(1, deadline=20)
    with ThreadPoolExecutor(2) as threads:
        process_of(pool)
        busy = threads.submit(pool.run, f"{THIS}:hangs")
        waits = threads.submit(pool.run, f"{THIS}:echo")
        assert left.until(lambda: len(pool._turns) == 1)
        pool.close()
        pool.close()
        with pytest.raises(WorkerError):
            busy.result(timeout=10)
        with pytest.raises(WorkerClosedError):
            waits.result(timeout=10)
    with pytest.raises(WorkerClosedError):
        pool.run(f"{THIS}:echo")


@pytest.mark.parametrize("ends", ["closed", "killed", "late"])
def test_processes_that_a_process_started_end_with_it(pool: Pool, ends: str) -> None:
    child = pool.run(f"{THIS}:forks")
    assert child in left.processes(os.getpid())
    if ends == "closed":
        pool.close()
    else:
        with pytest.raises(WorkerError):
            entry, arguments = ("killed", {"signal": "SIGKILL"}) if ends == "killed" else ("hangs", {})
            pool.run(f"{THIS}:{entry}", arguments, deadline=0.5)
    assert left.until(lambda: child not in left.processes(os.getpid()))


def test_a_dropped_pool_closes_itself() -> None:
    pool = Pool(1, deadline=20)
    process_of(pool)
    del pool
    assert left.until(lambda: not left.processes(os.getpid()))


def test_a_process_outlives_the_thread_that_asked_for_it(pool: Pool) -> None:
    """The kernel's signal on a parent's death is for the thread that started a process."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(process_of(pool)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert process_of(pool) == found[0]


HOST = """
import os, signal, sys, threading, time
import numpy as np
from tokitai.worker import Pool
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in a shell's background inherits that it is ignored
pool = Pool(4, deadline=60)
shared = pool.empty(1 << 20, np.uint8)
this = "tests.worker.misbehaving"
ask = lambda entry, arguments: threading.Thread(target=pool.run, args=(f"{this}:{entry}", arguments, [shared]),
                                                daemon=True).start()
pool.run(f"{this}:echo", {}, [shared])
ask("hangs", {}); ask("nap", {"seconds": 60, "number": 1}); ask("killed", {"signal": "SIGSTOP"})
while pool.counts.started < 3: time.sleep(0.01)
time.sleep(0.3)
print("ready", flush=True)
"""
# Python notices a signal between two steps, so one that comes just before a sleep is noticed only after it.
SLEEPS = "\nfor _ in range(600): time.sleep(0.1)"
ENDS = {
    "SIGKILL": SLEEPS,
    "SIGTERM": SLEEPS,
    "SIGINT": SLEEPS,
    "exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
    "an exception": "raise ValueError",
    "abort": "os.abort()",
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_remains_when_the_host_ends(end: str) -> None:
    """With processes that are idle, busy, asleep and stopped."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST + ENDS[end]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert host.stdout is not None
    with host:
        line = host.stdout.readline()
        assert line == b"ready\n"
        if end.startswith("SIG"):
            assert len(left.processes(host.pid)) >= 3
            host.send_signal(signal.Signals[end])
        host.wait(20)
    assert left.until(lambda: not left.processes(host.pid), 5)
