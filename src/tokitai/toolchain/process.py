"""Run a compiler: bounded in time and in what it prints, and gone together with everything that it started.

A compiler gets a session of its own, because ending the driver alone leaves the compiler proper running. So an
interrupt from the keyboard does not reach it: whoever runs it ends it (by a `Stop`, those that other threads run). And
where this process is killed, a guard ends it: a shell that waits for this process to close a pipe.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST = 1 << 20  # bytes of messages that are kept: the first half and the last half
_SHOWN_LINES, _SHOWN_COLUMNS = 20, 400
_TICK = 0.05  # seconds between two looks where the system does not say when a process ends
_GUARD = 'read line || kill -9 "-$0"'

_local = threading.local()


@dataclass(frozen=True)
class Ran:
    """How it ended: the exit status, or None where it was ended at the time limit; what it wrote to standard output
    (where that was asked for); and all else that it printed."""

    status: int | None
    output: str
    messages: str


class Stop:
    """Ends the compilers that threads run inside ``with stop:``, and keeps these threads from running others."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._lock = threading.Lock()
        self.asked = False

    def __enter__(self) -> None:
        _local.stop = self

    def __exit__(self, *_: object) -> None:
        _local.stop = None

    def now(self) -> None:
        """End them."""
        with self._lock:
            self.asked = True
            for group in self._groups:
                _kill(group)

    def begin(self, group: int) -> None:
        """A process group of such a thread."""
        with self._lock:
            self._groups.add(group)
            if self.asked:
                _kill(group)

    def end(self, group: int) -> None:
        """It is over."""
        with self._lock:
            self._groups.discard(group)


def asked_to_stop() -> bool:
    """Whether this thread should begin nothing that takes long."""
    stop: Stop | None = getattr(_local, "stop", None)
    return stop is not None and stop.asked


def run(
    command: Sequence[str], folder: Path | None, seconds: float, environment: Mapping[str, str], output: bool = False
) -> Ran:
    """Run a program in `folder`. ``output``: standard output is no message. Raises OSError where it cannot be run."""
    stop: Stop = getattr(_local, "stop", None) or Stop()
    if threading.current_thread() is not threading.main_thread():
        return _run(command, folder, seconds, environment, output, stop)
    found: list[Ran | BaseException] = []

    def attempt() -> None:
        try:
            found.append(_run(command, folder, seconds, environment, output, stop))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=attempt, name="tokitai-compiler")
    thread.start()
    try:
        thread.join()
    except BaseException:  # an interrupt: raised in the main thread alone, so here and not between a start and its end
        stop.now()
        thread.join()
        raise
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def _run(
    command: Sequence[str], folder: Path | None, seconds: float, environment: Mapping[str, str], output: bool,
    stop: Stop,
) -> Ran:  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if output else subprocess.STDOUT, start_new_session=True, bufsize=0,
    )  # fmt: skip
    pipes = {pipe.fileno(): _Kept() for pipe in (process.stdout, process.stderr) if pipe is not None}
    stop.begin(process.pid)
    guard = _guard(process.pid)
    ended = False
    try:
        ended = _wait(process.pid, pipes, time.monotonic() + seconds)
    finally:
        # What it started and did not wait for ends with it. Its number is its own until it is waited for.
        _kill(process.pid)
        stop.end(process.pid)
        process.wait()
        for descriptor, kept in pipes.items():
            _drain(descriptor, kept)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        if guard is not None:
            with suppress(OSError):
                guard.communicate(b"over\n")
    texts = [kept.text() for kept in pipes.values()]
    return Ran(process.returncode if ended else None, texts[0] if output else "", texts[-1])


def shown(messages: str, first: bool = False) -> str:
    """The last lines of messages, or the ``first``, as they may be printed: short ones, without control characters."""
    every = messages.strip().splitlines()
    lines = every[:_SHOWN_LINES] if first else every[-_SHOWN_LINES:]
    cut = (line if len(line) <= _SHOWN_COLUMNS else f"{line[:_SHOWN_COLUMNS]} ..." for line in lines)
    plain = "\n".join(cut).replace("\t", "    ")
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in plain) or "(it printed nothing)"


class _Kept:
    """The first and the last bytes of a stream."""

    def __init__(self) -> None:
        self.head, self.tail, self.seen = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        self.seen += len(data)
        room = MOST // 2 - len(self.head)
        self.head += data[:room]
        self.tail += data[max(room, 0) :]
        del self.tail[: -MOST // 2]

    def text(self) -> str:
        left_out = self.seen - len(self.head) - len(self.tail)
        between = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        return bytes(self.head + between + self.tail).decode(errors="replace")


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _guard(group: int) -> subprocess.Popen[bytes] | None:
    """Ends the process group when this process is gone without having said a word."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(group)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:  # no shell: whoever kills this process ends its compilers
        return None


def _wait(pid: int, pipes: dict[int, _Kept], until: float) -> bool:
    """Read until the process has ended. False where it has not by then."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        handle = -1
    poller = select.poll()  # not select.select, which takes no handle above 1023
    for descriptor in (*pipes, *((handle,) if handle >= 0 else ())):
        poller.register(descriptor, select.POLLIN)
    try:
        while (left := until - time.monotonic()) > 0:
            ready = [d for d, _ in poller.poll((left if handle >= 0 else min(left, _TICK)) * 1000)]
            for descriptor in ready:
                if descriptor in pipes and not _read(descriptor, pipes[descriptor]):
                    poller.unregister(descriptor)
            over = handle in ready if handle >= 0 else _ended(pid)
            if over:
                return True
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _read(descriptor: int, kept: _Kept) -> bool:
    """Read what there is. False at the end of the stream."""
    data = os.read(descriptor, 1 << 16)
    kept.add(data)
    return bool(data)


def _drain(descriptor: int, kept: _Kept) -> None:
    """Read what is in the pipe still; a stranger that holds its other end is not waited for."""
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):
        for _ in range(MOST >> 12):
            if not _read(descriptor, kept):
                return
