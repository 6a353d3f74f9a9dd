"""A pool of worker processes: started on demand, kept warm, replaced when they end."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from ..errors import ArgumentError, WorkerBusyError, WorkerClosedError, WorkerStartError
from .limits import Limits
from .memory import Array, Memory
from .process import Worker

DEADLINE = 60.0
QUEUE = 256
ATTEMPTS = 3  # to start a process
KEEP = 1 << 28


@dataclass(frozen=True)
class Counts:
    """What a pool has done: processes started and ended, requests answered and failed."""

    started: int = 0
    ended: int = 0
    answered: int = 0
    failed: int = 0


class _Turn:
    """A request that waits for its turn. ``worker`` is what it gets: a warm one, or None for room to start one."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.worker: Worker | None = None


class Pool:
    """Up to ``size`` worker processes. Requests may come from any number of threads; they wait in order of arrival.

    ``queue``: how many may wait; a further one is refused. ``deadline``: seconds within which a request must end, its
    wait included, where it names none itself. ``limits``: of each process. ``shared``: bytes of shared memory in all.
    ``folder``: see `memory.Memory`. ``keep``: bytes of shared memory that a process keeps for the copies of the next
    request's tensors: new memory is much slower than memory that is there.

    Close a pool, or use it as a context manager; a pool that is dropped closes itself. Nothing remains of its processes
    and memory when this process ends, in whatever way.
    """

    def __init__(
        self, size: int = 1, *, queue: int = QUEUE, deadline: float = DEADLINE, limits: Limits | None = None,
        shared: int | None = None, folder: Path | str | None = None, keep: int = KEEP,
    ) -> None:  # fmt: skip
        for name, value, least in (("size", size, 1), ("queue", queue, 0), ("keep", keep, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(f"{name}={value!r}; accepted: a whole number of at least {least}")
        self.size, self.queue, self.keep, self.deadline = size, queue, keep, _seconds(deadline)
        self.limits = limits or Limits()
        self.memory = Memory(shared, folder)
        self.kernels: dict[Any, Any] = {}  # those that `isolated.call` made for this pool
        self._closed = False
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._counts = Counts()
        self._free = self.size  # slots that no request holds
        self._warm: list[Worker] = []  # the last one used is taken first
        self._held: set[Worker] = set()
        self._dead: list[Worker] = []  # to be ended when the lock is not held
        self._turns: deque[_Turn] = deque()

    # ------------------------------------------------------------------ requests
    def run(
        self, entry: str, arguments: Mapping[str, Any] | None = None, inputs: Sequence[Array] = (),
        outputs: Sequence[Array] = (), *, deadline: float | None = None,
    ) -> Any:  # fmt: skip
        """Call ``entry`` (``module:function``) in a worker process as ``function(arguments, tensors)``, and return what
        it returns: a JSON value.

        ``tensors`` are memoryviews of bytes in shared memory, writable: the inputs, then the outputs. An array that is
        both is one tensor. Arrays are C-contiguous; those from `empty` are handed over as they are, others are copied
        there, and outputs back when the entry has returned. Outputs hold whatever they like after an error.

        Raises ArgumentError, an error of this package that the entry raised, or an error of the WorkerError family.
        """
        for array in (*inputs, *outputs):
            if not isinstance(array, np.ndarray) or array.dtype.hasobject or not array.flags.c_contiguous:
                kind = f"{type(array).__name__} of {getattr(array, 'dtype', 'no dtype')}"
                raise ArgumentError(f"{entry}: {kind}; accepted: C-contiguous arrays of numbers")
        if not all(a.flags.writeable for a in outputs):
            raise ArgumentError(f"{entry}: a read-only output; accepted: arrays that may be written")
        until = time.monotonic() + (self.deadline if deadline is None else _seconds(deadline))
        worker = self._take(until)
        try:
            if worker is None:
                worker = self._start(until)
            result = worker.ask(entry, dict(arguments or {}), inputs, outputs, until)
        except BaseException:
            self._give(worker, failed=1)
            raise
        self._give(worker, answered=1)
        return result

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float32) -> Array:
        """A new array of zeros in shared memory: worker processes read and write it in place. Its memory is freed with
        the last array that lies in it. Raises SharedMemoryError."""
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(size < 0 for size in sizes):
            raise ArgumentError(f"shape={sizes}; accepted: sizes of at least 0")
        nbytes = int(np.prod([kind.itemsize, *sizes], dtype=object))
        _, whole = self.memory.new(nbytes)
        made: Array = whole[:nbytes].view(kind).reshape(sizes)
        return made

    @property
    def counts(self) -> Counts:
        """What the pool has done so far."""
        with self._lock:
            return self._counts

    @property
    def applied(self) -> list[str]:
        """The limits that a process has put on itself, and what the kernel does not offer, in words. Starts a process
        where none is warm. Raises WorkerError."""
        until = time.monotonic() + self.deadline
        worker = self._take(until)
        try:
            worker = worker or self._start(until)
            return list(worker.applied)
        finally:
            self._give(worker)

    # ------------------------------------------------------------------ turns
    def _take(self, until: float) -> Worker | None:
        """Wait for a slot. Returns a warm worker, or None where one is to be started. Raises WorkerBusyError,
        WorkerClosedError."""
        with self._lock:
            self._open()
            turn = _Turn()
            if self._free and not self._turns:
                self._free -= 1
                turn.worker = self._next()
                turn.come.set()
            elif len(self._turns) < self.queue:
                self._turns.append(turn)
            else:
                raise WorkerBusyError(f"{len(self._turns)} requests wait already; accepted: {self.queue}")
        self._bury()
        turn.come.wait(max(0.0, until - time.monotonic()))
        with self._lock:
            if turn.come.is_set():
                if turn.worker is None:
                    self._open()
                return turn.worker
            self._turns.remove(turn)
        raise WorkerBusyError(f"no worker was free before the deadline; the pool has {self.size}")

    def _next(self) -> Worker | None:
        """A warm worker for a request, which holds it from here on."""
        while self._warm:
            worker = self._warm.pop()
            if worker.idle():
                self._held.add(worker)
                return worker
            self._dead.append(worker)  # it was killed, or spoke, while nobody asked: a new one takes its place
        return None

    def _bury(self) -> None:
        while self._dead:
            with self._lock:
                dead, self._dead = self._dead, []
                self._count(ended=len(dead))
            for worker in dead:
                worker.end()

    def _start(self, until: float) -> Worker:
        """A new process. One that dies, or is stopped, before it has seen the request costs nobody his answer."""
        for attempt in itertools.count(1):
            try:
                worker = Worker(self.memory, self.limits, until, self.keep)
                break
            except WorkerStartError:
                if attempt == ATTEMPTS or time.monotonic() >= until:
                    raise
        with self._lock:
            self._count(started=1)
            self._held.add(worker)
        return worker

    def _give(self, worker: Worker | None, answered: int = 0, failed: int = 0) -> None:
        if worker is not None:
            worker.tidy()
        with self._lock:
            self._count(answered=answered, failed=failed)
            if worker is not None:
                self._held.discard(worker)
                if worker.alive and not self._closed:
                    self._warm.append(worker)
                else:
                    self._dead.append(worker)
            if self._turns and not self._closed:
                turn = self._turns.popleft()
                turn.worker = self._next()
                turn.come.set()
            else:
                self._free += 1
        self._bury()

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{n: getattr(self._counts, n) + k for n, k in more.items()})

    def _open(self) -> None:
        if self._closed:
            raise WorkerClosedError("the pool is closed")

    # ------------------------------------------------------------------ the end
    def close(self) -> None:
        """End all processes, those that are at work included: their requests end in WorkerClosedError or another error
        of its family. Further requests are refused."""
        with self._lock:
            self._closed = True
            warm, self._warm = self._warm, []
            self._count(ended=len(warm))
            turns, self._turns = self._turns, deque()
            held = list(self._held)
        for turn in turns:
            turn.come.set()
        self._bury()
        for worker in warm:
            worker.end()
        for worker in held:
            worker.process.kill()  # whoever waits for it reads the end, and clears up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not self._closed and self._process == os.getpid():
            self.close()


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ArgumentError(f"deadline={value!r}; accepted: a number of seconds above 0")
    return float(value)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    """The processes are the parent's: this process starts its own."""
    for pool in list(_pools):
        pool.memory.after_fork()
        pool._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
