"""Memory of large arrays that is kept when they are gone, for those that come next.

The C library gives memory of 32 MiB and more back to the system at once. The next array of that size then costs a page
fault for every page that is written first, and the system fills each with zeros: that takes two or three times as long
as a row-wise kernel. Smaller arrays the C library keeps itself.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError

ENV_KEEP = "TOKITAI_KEEP_BYTES"
LEAST = 1 << 24  # bytes of an array: below, the C library does it
PART = 32  # of the machine's memory is kept, where nothing else is said
Memory = NDArray[np.uint8]


class Kept:
    """Memory that no array uses any more: at most ``most`` bytes in all, those that were freed last."""

    def __init__(self, most: int) -> None:
        self.most, self.total = most, 0
        self._memory: list[Memory] = []
        self._lock = threading.RLock()  # an array may be freed, by the garbage collector, while it is held

    def take(self, size: int) -> Memory:
        """Memory of ``size`` bytes or an eighth more: what was freed last and fits, or new."""
        with self._lock:
            for i in range(len(self._memory) - 1, -1, -1):
                if size <= self._memory[i].size <= size + size // 8:
                    found = self._memory.pop(i)
                    self.total -= found.size
                    return found
        return np.empty(size, np.uint8)

    def give(self, memory: Memory) -> None:
        """Keep memory that nobody uses, and let go of what was kept longest where that is too much."""
        if memory.size > self.most:
            return
        with self._lock:
            self._memory.append(memory)
            self.total += memory.size
            while self.total > self.most:
                self.total -= self._memory.pop(0).size


class _Lent:
    """Memory in use. Arrays in it keep it alive; with the last of them it is kept for the next."""

    def __init__(self, memory: Memory, kept: Kept) -> None:
        self.memory, self.kept = memory, kept
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.kept.give(self.memory)


def most_kept(environment: str | None = None) -> int:
    """``$TOKITAI_KEEP_BYTES``, or a 32nd of the machine's memory. Raises ArgumentError."""
    text = os.environ.get(ENV_KEEP) if environment is None else environment
    if text:
        if not re.fullmatch(r"\d{1,18}", text, flags=re.ASCII):
            raise ArgumentError(f"{ENV_KEEP}={text!r}; accepted: a whole number of bytes, 0 to keep none")
        return int(text)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // PART
    except (OSError, ValueError):  # it does not tell
        return 1 << 28


_kept: Kept | None = None


def room(size: int) -> Memory:
    """Uninitialised memory of at least ``size`` bytes. Raises ArgumentError for a wrong ``$TOKITAI_KEEP_BYTES``."""
    global _kept
    if size < LEAST:
        return np.empty(size, np.uint8)
    if _kept is None:
        _kept = Kept(most_kept())
    return np.asarray(_Lent(_kept.take(size), _kept))


def _after_fork() -> None:
    """What is kept stays the parent's, and so does its lock, which a thread may hold that is not here."""
    global _kept
    _kept = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
