"""Elements of a section that lie in a file."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import InputFileError
from .dtypes import ITEM_BYTES, pattern
from .files import Files
from .section import Array


@dataclass(frozen=True)
class Stored:
    """Elements that lie in row-major order in a file, from byte `position` on."""

    path: Path
    position: int
    dtype: str
    shape: tuple[int, ...]

    def part(self, start: int, count: int, scratch: Array, files: Files) -> Array:
        wanted = scratch.data
        position = self.position + start * (len(scratch) // count)
        try:
            file = files.descriptor(self.path)
            while wanted:
                got = os.preadv(file, [wanted], position)
                if not got:
                    raise InputFileError(f"{self.path}: became shorter while it was read: ends at {position}")
                wanted, position = wanted[got:], position + got
        except OSError as error:
            raise InputFileError(f"{self.path}: cannot be read: {error}") from error
        return scratch


@dataclass(frozen=True)
class Strided:
    """Elements that lie in another order, as those of a transposed tensor: `strides` in elements."""

    path: Path
    position: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def part(self, start: int, count: int, scratch: Array, files: Files) -> Array:
        item_bytes = ITEM_BYTES[self.dtype]
        extent = 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        before = self.position % mmap.ALLOCATIONGRANULARITY
        try:
            with open(self.path, "rb") as file:
                length = before + extent * item_bytes
                mapped = mmap.mmap(file.fileno(), length, offset=self.position - before, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise InputFileError(f"{self.path}: cannot be read: {error}") from error
        flat = np.frombuffer(mapped, np.uint8)[before:].view(pattern(item_bytes))
        values = np.lib.stride_tricks.as_strided(
            flat, self.shape, [stride * item_bytes for stride in self.strides], writeable=False
        )
        at = np.unravel_index(np.arange(start, start + count), self.shape)
        scratch.view(pattern(item_bytes))[...] = values[at]
        return scratch


def size_of(path: Path) -> int:
    """How many bytes a regular file has. Raises InputFileError."""
    try:
        if not path.is_file():
            there = "a folder" if path.is_dir() else "no regular file"
            raise InputFileError(f"{path}: {there}; accepted: a file that holds tensors")
        return path.stat().st_size
    except (OSError, ValueError) as error:
        raise InputFileError(f"{path}: cannot be read: {error}") from error


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements in row-major order."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
