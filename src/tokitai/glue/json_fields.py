"""JSON that others wrote: what it must hold, and where it does not."""

from __future__ import annotations

import json
import reprlib
from typing import Any

from ..errors import InputFileError

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80

BYTES_OF_JSON = 2**28  # of a header, an index or a cover file


def parsed(text: bytes | str, where: str) -> dict[str, Any]:
    """The JSON object in a text. Raises InputFileError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputFileError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputFileError(f"{where}: JSON of type {type(value).__name__}; accepted: an object")
    return value


def object_in(value: object, where: str) -> dict[str, Any]:
    """A JSON object. Raises InputFileError."""
    if not isinstance(value, dict):
        raise InputFileError(f"{where}: {shortened(value)}; accepted: an object")
    return value


def string_in(value: object, where: str) -> str:
    """A string that is not empty. Raises InputFileError."""
    if not isinstance(value, str) or not value:
        raise InputFileError(f"{where}: {shortened(value)}; accepted: a string")
    return value


def sizes_in(value: object, where: str) -> tuple[int, ...]:
    """Indices or extents: integers from 0 to 2^60. Raises InputFileError."""
    if isinstance(value, (list, tuple)) and len(value) <= 32 and all(type(n) is int and 0 <= n < 2**60 for n in value):
        return tuple(value)
    raise InputFileError(f"{where}: {shortened(value)}; accepted: at most 32 integers from 0 on")


def shortened(value: object) -> str:
    """The beginning of what was found."""
    return _REPR.repr(value)
