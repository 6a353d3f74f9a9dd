"""One worker process as its host sees it: started, asked, listened to, ended."""

from __future__ import annotations

import itertools
import math
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .. import errors
from ..errors import (
    ArgumentError,
    TokitaiError,
    WireError,
    WorkerCrashedError,
    WorkerError,
    WorkerFaultError,
    WorkerMemoryError,
    WorkerProtocolError,
    WorkerStartError,
    WorkerTaskError,
    WorkerTimeoutError,
    rebuilt,
)
from .channel import Channel, Closed
from .descriptors import pipe, socket_pair
from .limits import Limits
from .memory import Array, Memory, Segment
from .messages import MAX_REPLY, Attach, MalformedMessageError, Message, Reply, Request, Start, Status, encode

START_SECONDS = 10.0
END_SECONDS = 5.0  # a killed process is gone within this
LEAVE_SECONDS = 2.0  # one whose socket is closed is gone within this, or did not end
ALIGN = 256  # bytes: every tensor begins at a multiple, so that its alignment is the caller's
DESCRIPTORS = 128  # sent with one message; the kernel takes at most 253
FAULTS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL")

_numbers = itertools.count(1)


class _Starter:
    """The thread that starts processes: it lives as long as the host, for they are killed with the thread that started
    them."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="tokitai-worker-starter", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.tasks.get()()

    def popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """``subprocess.Popen`` on that thread. Raises OSError."""
        made: list[subprocess.Popen[bytes] | BaseException] = []
        done = threading.Event()

        def start() -> None:
            try:
                made.append(subprocess.Popen(words, **options))
            except BaseException as error:
                made.append(error)
            finally:
                done.set()

        self.tasks.put(start)
        if not done.wait(START_SECONDS):
            raise OSError("the thread that starts processes does not answer")
        if isinstance(made[0], BaseException):
            raise made[0]
        return made[0]


_starter: _Starter | None = None
_starting = threading.Lock()


def _the_starter() -> _Starter:
    global _starter
    with _starting:
        if _starter is None:
            _starter = _Starter()
        return _starter


def _forget_starter() -> None:
    global _starter, _starting
    _starter, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_starter)  # threads do not survive a fork


class Worker:
    """A worker process. One request at a time; the first error but `WorkerTaskError` ends it (see `alive`).

    Raises WorkerStartError.
    """

    def __init__(self, memory: Memory, limits: Limits, until: float, keep: int = 0) -> None:
        self.memory, self.limits, self.keep = memory, limits, keep
        self.known: set[int] = set()  # segments that the process has mapped
        self.scratch: tuple[Segment, Array] | None = None
        self.alive = True
        mine, its = socket_pair()
        read_end, write_end = pipe()
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("__main__.py"))]
        self.channel = Channel(mine, read_end)
        try:
            self.process = _the_starter().popen(
                [*command, str(its.fileno()), str(os.getpid())], stdin=subprocess.DEVNULL, stdout=write_end,
                stderr=write_end, pass_fds=[its.fileno()], start_new_session=True, env=limits.environment(),
            )  # fmt: skip
        except OSError as error:
            self.channel.close()
            raise WorkerStartError(f"{command[0]}: {error}") from error
        finally:
            its.close()
            os.close(write_end)
        until = min(until, time.monotonic() + START_SECONDS)
        boxed = limits.sandbox, limits.scratch, list(limits.reads)
        start = Start(sys.path, limits.memory, limits.open_files, *boxed)
        try:
            self.channel.send(start, until=until)
            reply = self.channel.receive(MAX_REPLY, until)
            if not isinstance(reply, Reply) or reply.status != Status.READY:
                raise MalformedMessageError(f"{reply} where it should say that it has started")
        except (Closed, TimeoutError, MalformedMessageError) as error:
            self.end()
            raise WorkerStartError(f"a worker process did not start: {error}", self.last_words) from error
        except BaseException:
            self.end()
            raise
        self.applied: list[str] = reply.value  # limits in words

    @property
    def last_words(self) -> str:
        """The end of what the process printed."""
        return self.channel.words.decode(errors="replace").strip()

    def idle(self) -> bool:
        """Whether the process is there and has said nothing that nobody asked for."""
        return self.alive and self.channel.quiet()

    def ask(
        self, entry: str, arguments: dict[str, Any], inputs: Sequence[Array], outputs: Sequence[Array], until: float
    ) -> Any:
        """Run an entry on tensors and return what it returned. Raises WorkerError, or an error of this package that the
        entry raised."""
        unique = list({id(a): a for a in (*inputs, *outputs)}.values())
        read, written = {id(a) for a in inputs}, {id(a) for a in outputs}
        spans, copies = self._place(unique)
        for array, copy in copies:
            if id(array) in read:
                np.copyto(copy, array)
        where = {id(a): span for a, span in zip(unique, spans, strict=True)}
        request = Request(next(_numbers), entry, arguments, [where[id(a)][1] for a in (*inputs, *outputs)])
        try:
            frame = encode(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{entry}: arguments: {error}; accepted: JSON values") from error
        segments = {segment.number: segment for segment, _ in spans}
        self.channel.forget_words()
        try:
            self._attach([s for n, s in segments.items() if n not in self.known], until)
            self._limit_time()
            self.channel.send_frame(frame, until=until)
            reply = self.channel.receive(MAX_REPLY, until)
            if not isinstance(reply, Reply) or reply.number != request.number or reply.status == Status.READY:
                raise MalformedMessageError(
                    f"{str(reply)[:200]} where the answer to request {request.number} should be"
                )
        except (Closed, TimeoutError, MalformedMessageError) as error:
            raise self._ended(entry, error) from error
        except BaseException:
            self.end()
            raise
        if reply.status != Status.DONE:
            raise self._refused(entry, reply)
        for array, copy in copies:
            if id(array) in written:
                np.copyto(array, copy)
        return reply.value

    def tidy(self) -> None:
        """Keep no more memory for copies of tensors than a warm process may."""
        if self.scratch is not None and self.scratch[0].size > self.keep:
            self.scratch = None

    def end(self) -> None:
        """Kill the process with everything that it started in its session, and wait until it is gone."""
        if not self.alive:
            return
        self.alive = False
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # before it is waited for: until then the number is its own
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        self.channel.listen(0.1)
        self.channel.close()
        self.scratch = None

    # ------------------------------------------------------------------ tensors
    def _place(self, arrays: Sequence[Array]) -> tuple[list[tuple[Segment, list[int]]], list[tuple[Array, Array]]]:
        """For each array its segment and [segment, first byte, bytes]; and the arrays that lie elsewhere with their
        copies. Raises SharedMemoryError."""
        found = [self.memory.find(a.ctypes.data, a.nbytes) if a.nbytes else None for a in arrays]
        offsets, end = [], 0
        for array, place in zip(arrays, found, strict=True):
            offsets.append(end + (array.ctypes.data % ALIGN if array.nbytes else 0))
            if place is None:
                end = -(-(offsets[-1] + array.nbytes) // ALIGN) * ALIGN
        if end and (self.scratch is None or self.scratch[0].size < end):
            self.scratch = None
            room = 1 << (max(end, 1 << 20) - 1).bit_length()  # so that the next one, a little larger, fits as well
            self.scratch = self.memory.new(room if room <= self.keep else end)
        spans: list[tuple[Segment, list[int]]] = []
        copies = []
        for array, place, offset in zip(arrays, found, offsets, strict=True):
            if place is not None:
                segment, first = place
            elif self.scratch is not None:
                segment, whole = self.scratch
                first = offset
                copies.append((array, whole[first : first + array.nbytes].view(array.dtype).reshape(array.shape)))
            else:
                segment, first = Segment(0, -1, 0, 0), 0  # no bytes at all
            spans.append((segment, [segment.number, first, array.nbytes]))
        return spans, copies

    def _attach(self, new: Sequence[Segment], until: float) -> None:
        gone = self.memory.gone(self.known)
        new = [s for s in new if s.number]
        for i in range(0, max(len(new), bool(gone)), DESCRIPTORS):
            some = new[i : i + DESCRIPTORS]
            message: Message = Attach([[s.number, s.size] for s in some], gone if i == 0 else [])
            self.channel.send(message, [s.descriptor for s in some], until)
            self.known |= {s.number for s in some}
        self.known -= set(gone)

    # ------------------------------------------------------------------ limits and errors
    def _limit_time(self) -> None:
        """Let the kernel end the process (SIGXCPU) when it has used so much more processor time than now."""
        if self.limits.cpu_seconds is not None:
            with suppress(OSError):  # it is gone, which the request will tell
                used = time.clock_gettime(~self.process.pid << 3 | 2)  # the clock of a process, as clock_getcpuclockid
                most = math.ceil(used + self.limits.cpu_seconds)
                hard = resource.prlimit(self.process.pid, resource.RLIMIT_CPU)[1]
                resource.prlimit(self.process.pid, resource.RLIMIT_CPU, (most, hard))

    def _ended(self, entry: str, error: Exception) -> WorkerError:
        """End the process, and say why it gave no answer."""
        left = self._left() if isinstance(error, Closed) else None
        self.end()
        words = self.last_words
        if isinstance(error, TimeoutError):
            return WorkerTimeoutError(f"{entry}: no answer before the deadline; the worker process was killed", words)
        if isinstance(error, MalformedMessageError):
            return WorkerProtocolError(f"{entry}: the worker process wrote {error}", words)
        if left is None:
            return WorkerProtocolError(f"{entry}: the worker process closed its pipe, but did not end", words)
        if left >= 0:
            return WorkerCrashedError(f"{entry}: the worker process left with exit code {left}", words)
        name = signal.Signals(-left).name if -left in list(signal.Signals) else f"signal {-left}"
        more = f" (it may use {self.limits.cpu_seconds:g} s of processor time)" if name == "SIGXCPU" else ""
        kind = WorkerFaultError if name in FAULTS else WorkerCrashedError
        return kind(f"{entry}: the worker process was ended by {name}{more}", words, -left)

    def _left(self) -> int | None:
        """How the process ended (a signal is negative), or None where it is still there."""
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self.process.pid)
            try:
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                if not poller.poll(LEAVE_SECONDS * 1000):
                    return None
            finally:
                os.close(descriptor)
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _refused(self, entry: str, reply: Reply) -> TokitaiError:
        if reply.status == Status.MEMORY:
            self.end()
            limit = "this machine has" if self.limits.memory is None else f"its limit of {self.limits.memory} bytes"
            return WorkerMemoryError(f"{entry}: the worker process needs more memory than {limit}", self.last_words)
        if reply.status == Status.RAISED:
            kind = getattr(errors, reply.kind, None)
            others = (WireError, WorkerError)  # they are made of more than a message
            if isinstance(kind, type) and issubclass(kind, TokitaiError) and not issubclass(kind, others):
                return rebuilt(kind, (reply.message,), {"message": reply.message})
        return WorkerTaskError(f"{entry}: {reply.message or reply.kind}", self.last_words)
