"""Tensors in shared memory that has no name, so that nothing of it remains when its processes end.

A segment is a memfd, sealed against any change of its size: a process that shrank it would take the host down with
SIGBUS. Its pages are allocated when it is made, so that want of memory is an error there and not a signal later.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import re
import threading
import weakref
from bisect import bisect_right, insort
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SharedMemoryError
from .descriptors import above_standard
from .maps import free_pages, map_shared, unmap

Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
SPARE = 1 << 28  # bytes of the machine's memory that are left alone
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL if hasattr(fcntl, "F_SEAL_SEAL") else 0

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Segment:
    """Shared memory: its number, which is never used twice in this process, descriptor, size, and address here."""

    number: int
    descriptor: int
    size: int
    address: int


class _Mapping:
    """A segment's memory in this process, as NumPy takes it. Arrays in it keep it alive."""

    def __init__(self, segment: Segment) -> None:
        data = (segment.address, False)
        self.__array_interface__ = dict(data=data, shape=(segment.size,), typestr="|u1", version=3)


class Memory:
    """The segments of a pool. A segment lives as long as an array in it.

    ``limit``: bytes of all segments together; ``folder``: a folder of a memory file system (such as /dev/shm) in which
    segments are made as files without a name, in place of memfds. Those cannot be sealed: not for foreign code.
    """

    def __init__(self, limit: int | None = None, folder: Path | str | None = None) -> None:
        self.limit, self.folder = limit, folder
        self.used = 0
        self._process = os.getpid()
        self._lock = threading.RLock()  # a finalizer may run while it is held
        self._segments: dict[int, Segment] = {}
        self._order: list[tuple[int, int]] = []  # address and number

    def new(self, size: int) -> tuple[Segment, Array]:
        """A segment of at least so many bytes, zeroed, and all of it as an array. Raises SharedMemoryError."""
        size = max(-(-size // PAGE), 1) * PAGE
        with self._lock:
            if self.limit is not None and self.used + size > self.limit:
                raise SharedMemoryError(
                    f"{size} bytes of shared memory beside {self.used} in use; accepted: {self.limit} in all"
                )
            self.used += size
        try:
            segment = self._make(size)
        except BaseException:
            with self._lock:
                self.used -= size
            raise
        with self._lock:
            self._segments[segment.number] = segment
            insort(self._order, (segment.address, segment.number))
        mapping = _Mapping(segment)
        weakref.finalize(mapping, self._release, segment).atexit = False
        return segment, np.asarray(mapping)

    def after_fork(self) -> None:
        """In a fork of the process: a lock that another thread held there is free here."""
        self._lock = threading.RLock()

    def find(self, address: int, nbytes: int) -> tuple[Segment, int] | None:
        """The segment in which these bytes of this process lie, and where in it they begin."""
        with self._lock:
            i = bisect_right(self._order, (address, 1 << 62)) - 1
            if i < 0:
                return None
            segment = self._segments[self._order[i][1]]
        first = address - segment.address
        return (segment, first) if first + nbytes <= segment.size else None

    def gone(self, known: set[int]) -> list[int]:
        """Which of these segments are no more."""
        with self._lock:
            return sorted(known - self._segments.keys())

    def _make(self, size: int) -> Segment:
        free = available()
        if free is not None and size + SPARE > free:
            raise SharedMemoryError(f"{size} bytes of shared memory; this machine has {free} left, less {SPARE} spare")
        descriptor = -1
        try:
            if self.folder is None:
                descriptor = above_standard(os.memfd_create("tokitai", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            else:
                flags = os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC  # EXCL: nobody can give it a name
                descriptor = above_standard(os.open(self.folder, flags, 0o600))
            os.posix_fallocate(descriptor, 0, size)
            if self.folder is None:
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            return Segment(next(_numbers), descriptor, size, map_shared(descriptor, size))
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            where = f" in {self.folder}" if self.folder is not None else ""
            raise SharedMemoryError(f"{size} bytes of shared memory{where}: {error.strerror}") from error

    def _release(self, segment: Segment) -> None:
        """Give the pages back now: processes that still map the segment keep nothing of it."""
        with self._lock:
            del self._segments[segment.number]
            self._order.remove((segment.address, segment.number))
            self.used -= segment.size
        if os.getpid() == self._process:  # a fork of the host has the segment as well, but it is not its own
            free_pages(segment.descriptor, segment.size)
        os.close(segment.descriptor)
        unmap(segment.address, segment.size)


def available() -> int | None:
    """Bytes that can be allocated without taking them from other processes, or None where the kernel does not say."""
    free: int | None = None
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        free = int(found[1]) * 1024 if found else None
        group = Path("/sys/fs/cgroup")
        most, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if most != "max":
            left = int(most) - int(used)
            free = left if free is None else min(free, left)
        return free
    except (OSError, ValueError):
        return free  # no control group, or one without a limit
