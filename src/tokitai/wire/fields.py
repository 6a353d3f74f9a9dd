"""The fields of a text payload: decimals separated by white space, read into numbers and arrays.

Arrays are parsed by NumPy, and what it parsed is held against the words of the payload, which are counted first: no
array is made before the payload is known to hold its values. Floats are read as f32, to the nearest.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from ..errors import WireError

Array = np.ndarray[Any, Any]

FIRST_CODE = 3
MOST_RESULTS = 1 << 27  # values of a reply: as text they stay within a frame, whose length is a u32

_WHITE = np.zeros(256, bool)
_WHITE[list(b" \t\n\r\v\f")] = True
_OF_WHOLE = _WHITE.copy()
_OF_WHOLE[list(b"+-0123456789")] = True
_OF_FLOAT = _OF_WHOLE.copy()
_OF_FLOAT[list(b".eEinfatyINFATY")] = True  # of decimals, inf, infinity and nan

WHOLE = re.compile(rb"[+-]?\d+")
FLOAT = re.compile(rb"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE)
_INFINITY = re.compile(rb"[+-]?inf(?:inity)?", re.IGNORECASE)
_LARGEST = float(np.finfo(np.float32).max)
_OVERFLOWS = _LARGEST + 2.0**103  # half a step beyond the largest f32: rounds to infinity
_SHOWN = 40


class Wrong:
    """The errors of a family: the code of a field is 3 for the first of its names, and so on."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def fail(self, name: str, message: str) -> NoReturn:
        """Raise the WireError of a field."""
        raise WireError(name, FIRST_CODE + self.names.index(name), message)

    def check_results(self, name: str, count: int) -> None:
        """A reply holds so many values. Raises WireError, before any of them has a place in memory."""
        if count > MOST_RESULTS:
            self.fail(name, f"a reply of {count} values; accepted: at most {MOST_RESULTS}")


class Fields(Wrong):
    """A payload, of which each call reads the next field. Raises WireError."""

    def __init__(self, payload: bytearray, names: Sequence[str]) -> None:
        super().__init__(names)
        self.payload = payload
        white = _WHITE[np.frombuffer(payload, np.uint8)]
        begins = ~white
        begins[1:] &= white[:-1]
        self.starts = np.flatnonzero(begins)
        self.at = 0  # the next word

    def word(self, index: int) -> bytes:
        """One word of the payload."""
        begin = int(self.starts[index])
        return bytes(self.payload[begin : self._begin(index + 1)].split(None, 1)[0])

    def _begin(self, index: int) -> int:
        return int(self.starts[index]) if index < len(self.starts) else len(self.payload)

    def _scalar(self, name: str, pattern: re.Pattern[bytes], accepted: str) -> bytes:
        if self.at >= len(self.starts):
            self.fail(name, f"is missing; accepted: {accepted}")
        found = self.word(self.at)
        if len(found) > _SHOWN or not pattern.fullmatch(found):
            self.fail(name, f"{shown(found)}; accepted: {accepted}")
        self.at += 1
        return found

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        accepted = f"a whole number from {low} to {high}"
        found = self._scalar(name, WHOLE, accepted)
        if not low <= int(found) <= high:
            self.fail(name, f"{shown(found)}; accepted: {accepted}")
        return int(found)

    def real(self, name: str, accepts: Callable[[float], bool], accepted: str) -> float:
        """A finite number, rounded to f32."""
        found = self._scalar(name, FLOAT, accepted)
        value = nearest_f32(found)
        if not (math.isfinite(value) and accepts(value)):
            self.fail(name, f"{shown(found)}; accepted: {accepted}")
        return value

    # ------------------------------------------------------------------ arrays
    def patterns(self, name: str, *shape: int) -> Array:
        """f16 values of this shape, each written as the unsigned number that its 16 bits are."""
        found = self._wholes(name, math.prod(shape), 1 << 16, "an f16 pattern, 0 to 65535")
        return found.astype(np.uint16).view(np.float16).reshape(shape)

    def indices(self, name: str, count: int, below: int) -> Array:
        """So many whole numbers from 0 to `below` - 1, as i64."""
        return self._wholes(name, count, below, f"0 to {below - 1}" if below else "none, as there are no entries")

    def floats(self, name: str, count: int) -> Array:
        """So many f32 values: the nearest to each decimal."""
        first = self.at
        text = self._take(name, count, _OF_FLOAT, FLOAT, "a decimal")
        wide = self._parsed(name, text, first, count, np.float64, FLOAT, "a decimal")
        with np.errstate(over="ignore"):
            values = wide.astype(np.float32)
        for i in np.flatnonzero(_on_a_boundary(wide, values)):  # rounded twice: the decimal itself has to decide
            values[i] = nearest_f32(self.word(first + int(i)))
        for i in np.flatnonzero(np.isinf(values)):
            found = self.word(first + int(i))
            if not _INFINITY.fullmatch(found):
                self.fail(name, f"[{i}] is {shown(found)}; accepted: within the range of f32")
        return values

    def end(self, name: str) -> None:
        """Nothing may come after the field `name`, the last one."""
        more = len(self.starts) - self.at
        if more:
            self.fail(name, f"{more} values more than there are places for, first {shown(self.word(self.at))}")

    def _wholes(self, name: str, count: int, below: int, accepted: str) -> Array:
        first = self.at
        text = self._take(name, count, _OF_WHOLE, WHOLE, accepted)
        values = self._parsed(name, text, first, count, np.int64, WHOLE, accepted)
        # One that overflows i64 is parsed as the largest i64, which no field accepts.
        outside = np.flatnonzero((values < 0) | (values >= below))
        if outside.size:
            i = int(outside[0])
            self.fail(name, f"[{i}] is {shown(self.word(first + i))}; accepted: {accepted}")
        return values

    def _take(self, name: str, count: int, alphabet: Array, pattern: re.Pattern[bytes], accepted: str) -> bytes:
        """The text of the next `count` words, all of whose characters are of the alphabet."""
        left = len(self.starts) - self.at
        if left < count:
            self.fail(name, f"{left} values; accepted: {count}, each {accepted}")
        begin, end = self._begin(self.at), self._begin(self.at + count)
        text = bytes(self.payload[begin:end])
        if not alphabet[np.frombuffer(text, np.uint8)].all():
            self._blame(name, self.at, count, pattern, accepted)
        self.at += count
        return text

    def _parsed(
        self, name: str, text: bytes, first: int, count: int, dtype: Any, pattern: re.Pattern[bytes], accepted: str
    ) -> Array:
        if count == 0:
            return np.empty(0, dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # how NumPy before 2.3 says that it stopped early
                values = np.fromstring(text, dtype, sep=" ")
        except ValueError:
            self._blame(name, first, count, pattern, accepted)
        if len(values) != count:
            self._blame(name, first, count, pattern, accepted)
        return values

    def _blame(self, name: str, first: int, count: int, pattern: re.Pattern[bytes], accepted: str) -> NoReturn:
        """Fail with the first word that is none of its kind."""
        for i in range(count):
            found = self.word(first + i)
            if not pattern.fullmatch(found):
                self.fail(name, f"[{i}] is {shown(found)}; accepted: {accepted}")
        raise AssertionError(f"{name}: NumPy does not read what is well formed")


def shown(word: bytes) -> str:
    """A word of a payload as messages show it: quoted, in ASCII, and not longer than a line."""
    text = word[:_SHOWN].decode("ascii", errors="backslashreplace")
    return repr(text) + ("..." if len(word) > _SHOWN else "")


def _on_a_boundary(wide: Array, values: Array) -> Array:
    """Where an f64 lies exactly between two neighbouring f32: there the decimal may lie on either side of it."""
    with np.errstate(over="ignore", invalid="ignore"):
        toward = np.where(wide > values, np.float32(np.inf), np.float32(-np.inf))
        other = np.nextafter(values, toward).astype(np.float64)
        between = (values.astype(np.float64) + other) * 0.5 == wide
    found: Array = (between & (wide != values)) | (np.abs(wide) == _OVERFLOWS)
    return found


def nearest_f32(word: bytes) -> float:
    """The f32 nearest to a decimal, the even one of two; infinity beyond the largest."""
    wide = float(word)
    with np.errstate(over="ignore"):
        value = float(np.float32(wide))
    if not _on_a_boundary(np.array([wide]), np.array([value], np.float32))[0]:
        return value
    exact = Fraction(word.decode())
    if exact == Fraction(wide):
        return value  # a tie indeed
    away = math.copysign(math.inf, wide)
    outer = abs(exact) > abs(Fraction(wide))
    if abs(value) > abs(wide):  # rounded outward, perhaps to infinity
        inner = float(np.nextafter(np.float32(value), np.float32(0)))
        return value if outer else inner
    return float(np.nextafter(np.float32(value), np.float32(away))) if outer else value
