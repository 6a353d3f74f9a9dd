"""Replies: lines ``KEY=value`` of ASCII. Arrays are printed so that they read back exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Buffer = bytes | bytearray | memoryview

_AT_A_TIME = 1 << 18  # values that are text in memory twice
_LONGEST = 20  # characters of an f32: -1234567900000000.0


class Reply:
    """The lines of a reply, in the order in which they are put."""

    def __init__(self, separator: str) -> None:
        self.separator = separator
        self.parts: list[Buffer] = []

    def put(self, key: str, value: object) -> None:
        """A line with one value, whose own line breaks become spaces."""
        text = " ".join(str(value).split())
        self.parts.append(f"{key}={text}\n".encode("ascii", errors="backslashreplace"))

    def array(self, key: str, values: Array) -> None:
        """A line with an array: f16 as unsigned 16-bit patterns, f32 in the fewest digits that read back exactly."""
        flat = values.reshape(-1)
        words = pattern_words if flat.dtype == np.float16 else float_words
        self.parts += [f"{key}=".encode(), _joined(flat, words, self.separator.encode()), b"\n"]

    def encoded(self) -> bytes:
        """The whole reply."""
        return b"".join(self.parts)


def raw(array: Array) -> memoryview:
    """The bytes of a contiguous array, where they lie."""
    return array.reshape(-1).view(np.uint8).data


def pattern_words(values: Array) -> Array:
    """f16 values as the decimal words of their bits."""
    found: Array = _words()[values.view(np.uint16)]
    return found


@cache
def _words() -> Array:
    return np.arange(1 << 16).astype("S5")


def float_words(values: Array) -> Array:
    """f32 values in the fewest digits that read back exactly."""
    return values.astype(f"S{_LONGEST}")


def _joined(values: Array, words: Callable[[Array], Array], separator: bytes) -> bytes:
    parts = []
    for begin in range(0, len(values), _AT_A_TIME):
        found = words(values[begin : begin + _AT_A_TIME])
        width = found.dtype.itemsize
        room = np.empty((len(found), width + 1), np.uint8)
        room[:, :width] = found.view(np.uint8).reshape(-1, width)  # shorter words end in zeros
        room[:, width] = separator[0]
        flat = room.reshape(-1)
        parts.append(flat[flat != 0].tobytes())
    return b"".join(parts)[:-1]


def error_reply(message: str, code: int, field: str | None) -> bytes:
    """The reply to a request that is wrong, or that cannot be computed here (no field)."""
    reply = Reply(" ")
    reply.put("ERROR", message)
    if field is not None:
        reply.put("FIELD", field)
    reply.put("CODE", code)
    return reply.encoded()
