"""Buffers that tell on a kernel: guard zones round each, results poisoned with a NaN that no kernel stores."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

from ..errors import TokitaiError

Array = np.ndarray[Any, Any]

GUARD = 256  # bytes on either side
LEAST_GUARD, MOST_GUARD = 4096, 1 << 20  # bytes on either side of a workspace
CANARY = 0xA5
RESULT_CANARY = 0x5A  # round results: what is copied from behind an input to behind a result shows
# A quiet NaN with a payload: stored NaNs are canonical, so an element that still holds this was never written.
POISON = {2: 0x7FA5, 4: 0x7FC0A5A5, 8: 0xA5A5A5A5A5A5A5A5}


class GuardError(TokitaiError):
    """A kernel wrote outside its buffer, or changed an input."""


class Buffer:
    """An array inside guard zones, `offset` elements away from a 64-byte boundary, with `gap` elements between rows and
    as many (or `apart`) more between the matrices of a batch. Of a `turned` one the last row comes first in memory; of
    an `expanded` one all rows are the same memory. On either side there are `guard` bytes."""

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: Any, offset: int = 0, gap: int = 0, apart: int | None = None,
        turned: bool = False, expanded: bool = False, canary: int = CANARY, guard: int = GUARD,
    ) -> None:  # fmt: skip
        self.name, self.dtype, self.canary = name, np.dtype(dtype), canary
        self.shape = shape
        cols = shape[-1] if shape else 1
        batch, rows = math.prod(shape[:-2]), math.prod(shape[-2:-1])
        pitch = 0 if expanded else cols + gap
        one = (cols if expanded else rows * pitch) + (gap if apart is None else apart)  # to the next of a batch
        used = (batch * one + offset) * self.dtype.itemsize
        raw = np.full(used + 2 * guard + 64, canary, np.uint8)
        start = guard + (-(raw.ctypes.data + guard)) % 64 + offset * self.dtype.itemsize
        if turned and rows > 1 and len(shape) > 1:
            start, pitch = start + (rows - 1) * pitch * self.dtype.itemsize, -pitch
        self.raw = raw
        strides = tuple(step * self.dtype.itemsize for step in (one, pitch, 1)[3 - len(shape) :])
        self.array: Array = np.ndarray(shape, self.dtype, buffer=raw.data, offset=start, strides=strides)
        self._start = start if self.array.size else guard

    def poison(self) -> None:
        """Fill with a pattern that no kernel stores."""
        if self.dtype.itemsize in POISON and self.array.size:
            self._words(self.raw)[...] = POISON[self.dtype.itemsize]

    def start(self) -> int:
        """Bytes from the beginning of the memory to the first element."""
        return self._start

    def check_guards(self) -> None:
        """Raise GuardError where a byte outside the elements has changed."""
        if self.array.flags.c_contiguous or not self.array.size:
            end = self._start + self.array.nbytes
            zones = [(0, self.raw[: self._start]), (end, self.raw[end:])]
        else:
            round_rows = self.raw.copy()
            self._words(round_rows)[...] = int.from_bytes(bytes([self.canary]) * self.dtype.itemsize, "little")
            zones = [(0, round_rows)]
        for begin, zone in zones:
            if zone.tobytes() != bytes([self.canary]) * zone.size:
                where = (begin + int(np.flatnonzero(zone != self.canary)[0]) - self._start) // self.dtype.itemsize
                raise GuardError(f"{self.name}: wrote outside its elements, first at element offset {where}")

    def _words(self, memory: Array) -> Array:
        """The patterns of the elements, in this memory or in a copy of it."""
        word = f"u{self.dtype.itemsize}"
        return np.ndarray(self.array.shape, word, memory.data, self._start, self.array.strides)


def workspace_buffer(nbytes: int, dtype: Any) -> Buffer:
    """Poisoned workspace of so many bytes. A part of it that is misplaced lies as far away as it is large: so guard
    zones are as large as the workspace, within bounds."""
    need = -(-nbytes // np.dtype(dtype).itemsize)
    guard = min(max(LEAST_GUARD, -(-nbytes // 64) * 64), MOST_GUARD)
    made = Buffer("workspace", (need,), dtype, guard=guard)
    made.poison()
    return made


def digest(array: Array) -> str:
    """SHA-256 of an array's elements in row-major order, little-endian."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()
