"""Results of earlier calls, kept alive: no later call may lie in their memory, or write there."""

from __future__ import annotations

import sys
import zlib
from collections import deque
from typing import Any

import numpy as np

KEPT = 1 << 26  # bytes that are kept alive
READ = 1 << 23  # bytes of them that are read again after each call, the newest first


def span(x: Any) -> tuple[int, int]:
    """The first byte of an array that has elements, and the byte behind the last."""
    if hasattr(x, "data_ptr"):
        first, size, strides = x.data_ptr(), x.element_size(), [s * x.element_size() for s in x.stride()]
    else:
        first, size, strides = x.__array_interface__["data"][0], x.dtype.itemsize, x.strides
    reach = [(n - 1) * s for n, s in zip(x.shape, strides, strict=True)]
    return first + sum(min(0, r) for r in reach), first + sum(max(0, r) for r in reach) + size


def _bytes(x: Any) -> Any:
    """What it holds; nothing of a tensor on a GPU, which is not fetched again for this."""
    if hasattr(x, "data_ptr"):
        if x.device.type != "cpu":
            return b""
        x = x.detach().contiguous().view(sys.modules["torch"].uint8).numpy()
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


class Kept:
    """The results of earlier calls, as many as there is room for."""

    def __init__(self) -> None:
        self._every: deque[tuple[str, Any, int, int, int]] = deque()  # name, array, first and last byte, checksum
        self._size = 0

    def add(self, results: list[tuple[str, Any]]) -> str | None:
        """Look at those that are kept, and keep these as well. Returns what is wrong."""
        read = 0
        for name, x, low, high, was in reversed(self._every):
            if read + high - low > READ and read:
                break
            read += high - low
            if zlib.crc32(_bytes(x)) != was:
                self._every.clear()
                return f"wrote to {name}, which an earlier call had returned"
        new: list[tuple[str, Any, int, int, int]] = []
        for name, x in results:
            low, high = span(x)
            for other, y, begin, end, _ in (*new, *self._every):
                if low < end and begin < high and _meet(x, y):
                    earlier = "" if any(y is n[1] for n in new) else " of an earlier call"
                    return f"{name}: lies in the memory of its result {other}{earlier}"
            new.append((name, x, low, high, zlib.crc32(_bytes(x))))
        for entry in new:
            self._every.append(entry)
            self._size += entry[3] - entry[2]
        while self._size > KEPT and len(self._every) > len(new):
            gone = self._every.popleft()
            self._size -= gone[3] - gone[2]
        return None


class _At:
    """Memory by its address, as NumPy takes it; on a GPU it is not inspected."""

    def __init__(self, x: Any) -> None:
        on_torch = hasattr(x, "data_ptr")
        first = x.data_ptr() if on_torch else x.__array_interface__["data"][0]
        size = x.element_size() if on_torch else x.dtype.itemsize
        strides = tuple(s * size for s in x.stride()) if on_torch else x.strides
        self.__array_interface__ = dict(
            data=(first, False), shape=tuple(x.shape), strides=strides, typestr=f"<u{size}", version=3
        )


def _meet(x: Any, y: Any) -> bool:
    """Whether arrays whose memory overlaps have an element in common; taken for granted where it is hard to say."""
    try:
        return bool(np.shares_memory(np.asarray(_At(x)), np.asarray(_At(y)), max_work=100_000))  # type: ignore[arg-type]
    except Exception:
        return True
