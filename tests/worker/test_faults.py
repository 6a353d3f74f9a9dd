"""Faults, injected under load: every request ends in its right result or in a typed error, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker import left
from tests.worker.misbehaving import RUBBISH
from tokitai.errors import (
    SharedMemoryError,
    WorkerBusyError,
    WorkerCrashedError,
    WorkerError,
    WorkerFaultError,
    WorkerMemoryError,
    WorkerProtocolError,
    WorkerStartError,
    WorkerTimeoutError,
)
from tokitai.worker import Limits, Pool

pytestmark = pytest.mark.slow

THIS = "tests.worker.misbehaving"
SEED = 20240607
CLIENTS, PROCESSES = 16, 8
SHARED = 1 << 27  # the pool's shared memory; a request for more finds it full
SHORT, LONG = 0.6, 5.0  # seconds: until a request that never ends is given up, and any other

# A fault: its entry, its arguments, and the error that it must end in.
FAULTS: dict[str, tuple[str, dict[str, Any], type[WorkerError]]] = {
    "SIGKILL": ("killed", {"signal": "SIGKILL"}, WorkerCrashedError),
    "SIGSEGV": ("reads_nothing", {}, WorkerFaultError),
    "SIGSTOP": ("killed", {"signal": "SIGSTOP"}, WorkerTimeoutError),
    "hang": ("hangs", {}, WorkerTimeoutError),
    "memory exhausted": ("hoards", {}, WorkerMemoryError),
    "rubbish on the pipe": ("writes_rubbish", {}, WorkerProtocolError),
    "shared memory full": ("echo", {}, SharedMemoryError),
}
OUTSIDE = ("SIGKILL from outside", "SIGSTOP from outside")  # they hit whatever request is under way, or none


class Clients:
    """Threads that send right requests and faults, as a seeded plan says, and hold every outcome against it."""

    def __init__(self, pool: Pool, faults: int) -> None:
        self.pool = pool
        self.seen: Counter[str] = Counter()  # faults that were injected, by kind
        self.exact: Counter[str] = Counter()  # those that ended in the very error of their kind
        self.right = self.hit = 0  # requests without a fault: answered, or hit by a signal from outside
        self.wrong: list[str] = []
        self.lock = threading.Lock()
        rng = random.Random(SEED)
        kinds = (*FAULTS, *FAULTS, *OUTSIDE)
        plan: list[str | None] = [kinds[i % len(kinds)] for i in range(faults)]
        plan += [None] * 2 * faults
        rng.shuffle(plan)
        self.plan = [(number, fault, rng.randrange(1 << 30)) for number, fault in enumerate(plan)]

    def run(self) -> None:
        with ThreadPoolExecutor(CLIENTS) as threads:
            list(threads.map(self.one, self.plan))

    def one(self, step: tuple[int, str | None, int]) -> None:
        number, fault, seed = step
        if fault in OUTSIDE:
            self.strike(signal.SIGKILL if "KILL" in fault else signal.SIGSTOP, seed)
        elif fault is not None:
            self.provoke(fault, seed)
        else:
            self.ask(number, seed)
            return
        with self.lock:
            self.seen[fault] += 1

    def ask(self, number: int, seed: int) -> None:
        """A right request: its result must be its own, to the last byte."""
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 256, rng.integers(0, 200_000), dtype=np.uint8)
        by = int(rng.integers(1, 256))
        out = np.empty_like(x) if seed % 2 else self.pool.empty(x.shape, np.uint8)
        try:
            answer = self.pool.run(f"{THIS}:scale", {"by": by, "number": number}, [x], [out], deadline=LONG)
        except (WorkerCrashedError, WorkerTimeoutError, WorkerStartError) as error:
            with self.lock:
                self.hit += 1
                if isinstance(error, WorkerCrashedError) and error.signal != signal.SIGKILL:
                    self.wrong.append(f"request {number}: {error}")
            return
        except Exception as error:
            with self.lock:
                self.wrong.append(f"request {number}: {error!r}")
            return
        right = answer["number"] == number and (out == x * np.uint8(by)).all()
        with self.lock:
            self.right += 1
            if not right:
                self.wrong.append(f"request {number}: another's result")

    def provoke(self, fault: str, seed: int) -> None:
        entry, arguments, expected = FAULTS[fault]
        inputs = [np.zeros(seed % 1000, np.uint8)]
        if fault == "shared memory full":
            inputs = [np.empty(SHARED, np.uint8)]
        if fault == "rubbish on the pipe":
            arguments = {"kind": sorted(RUBBISH)[seed % len(RUBBISH)]}
        deadline = SHORT if expected is WorkerTimeoutError else LONG
        try:
            self.pool.run(f"{THIS}:{entry}", arguments, inputs, deadline=deadline)
            problem = "an answer"
        except WorkerError as error:
            # The process may be hit from outside, or be late, before its own fault happens.
            others = (WorkerTimeoutError, WorkerCrashedError, WorkerStartError)
            others += (WorkerBusyError,) if deadline == SHORT else ()
            problem = "" if isinstance(error, (expected, *others)) else repr(error)
            self.exact[fault] += type(error) is expected
        except Exception as error:
            problem = repr(error)
        if problem:
            with self.lock:
                self.wrong.append(f"{fault}: {problem}")

    def strike(self, how: signal.Signals, seed: int) -> None:
        found = sorted(left.processes(os.getpid()))
        if found:
            with suppress(ProcessLookupError):
                os.kill(found[seed % len(found)], how)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("faults", [pytest.param(45, id="few"), pytest.param(1000, marks=pytest.mark.slow, id="1000")])
def test_faults_under_load(faults: int, capsys: pytest.CaptureFixture[str]) -> None:
    open_before = descriptors()
    started = time.monotonic()
    limits = Limits(memory=1 << 27)
    with Pool(PROCESSES, queue=CLIENTS, deadline=20, limits=limits, shared=SHARED) as pool:
        clients = Clients(pool, faults)
        clients.run()
        counts = pool.counts
        # Afterwards the pool works as before.
        out = np.empty(3, np.uint8)
        pool.run(f"{THIS}:scale", {"by": 2, "number": 0}, [np.array([1, 2, 3], np.uint8)], [out])
        assert out.tolist() == [2, 4, 6]
    assert clients.wrong == []
    assert sum(clients.seen.values()) == faults and set(clients.seen) == {*FAULTS, *OUTSIDE}
    # What a signal from outside hits ends in that signal's error; every kind must show its own all the same.
    assert all(clients.exact[kind] for kind in FAULTS), clients.exact
    assert 2 * sum(clients.exact[kind] for kind in FAULTS) > sum(clients.seen[kind] for kind in FAULTS), clients.exact
    outside = sum(clients.seen[kind] for kind in OUTSIDE)
    assert clients.right + clients.hit == 2 * faults and clients.hit <= outside
    assert left.until(lambda: not left.processes(os.getpid()))
    assert left.segments(os.getpid()) == 0 and descriptors() <= open_before
    with capsys.disabled():
        print(
            f"\n{faults} faults injected, seed {SEED}: {dict(sorted(clients.seen.items()))}; "
            f"{clients.right} other requests right, {clients.hit} hit by a signal from outside, none lost; "
            f"{counts.started} processes started; no process and no segment left; {time.monotonic() - started:.0f} s"
        )


def test_a_file_system_that_is_really_full(small_filesystem: Path) -> None:
    """The same for a pool whose segments lie on a file system of 16 MiB, filled by somebody else."""
    with Pool(1, deadline=20, folder=small_filesystem) as pool:
        x, out = np.arange(200, dtype=np.uint8), np.empty(200, np.uint8)
        (small_filesystem / "full").write_bytes(bytes(15 << 20))
        for number in range(20):
            with pytest.raises(SharedMemoryError, match="No space left"):
                pool.run(f"{THIS}:echo", {}, [np.zeros(1 << 21, np.uint8)])
            assert pool.run(f"{THIS}:scale", {"by": 3, "number": number}, [x], [out])["number"] == number
            assert (out == x * np.uint8(3)).all()
        assert pool.counts.started == 1
        (small_filesystem / "full").unlink()
        assert pool.run(f"{THIS}:echo", {}, [np.zeros(1 << 21, np.uint8)])["bytes"] == [1 << 21]
    assert left.segments(os.getpid()) == 0
