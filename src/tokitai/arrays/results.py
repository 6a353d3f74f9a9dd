"""Memory for new results, in the caller's library where that makes arrays that can be written."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends.cpu import device as cpu
from ..backends.cpu.kept import LEAST
from .dlpack import like
from .libraries import library_of, namespace_of

New = Callable[[], tuple[Any, int]]
"""Makes an array to be written, and says where it begins."""


def maker(example: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> New | None:
    """What makes results of this shape and dtype beside `example`; None where its library takes arrays over once they
    are filled, by `like`. Raises ArgumentError where it does not."""
    if isinstance(example, np.ndarray) or not hasattr(example, "__dlpack__"):
        return functools.partial(cpu.placed_empty, shape, dtype)
    if library_of(example) != "torch":
        namespace_of("the first tensor", example)
        return None
    if np.prod(shape, dtype=np.int64) * dtype.itemsize >= LEAST:  # torch gives such memory back to the system each time
        return functools.partial(_large, shape, dtype, example.new_empty(0))
    pattern = example.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype.name))
    pattern.untyped_storage().resize_(0)  # `empty_like` takes half the time of `new_empty`
    return functools.partial(_small, pattern, sys.modules["torch"].empty_like)


def _small(pattern: Any, empty_like: Callable[[Any], Any]) -> tuple[Any, int]:
    made = empty_like(pattern)
    return made, made.data_ptr()


def _large(shape: tuple[int, ...], dtype: np.dtype[Any], example: Any) -> tuple[Any, int]:
    array, address = cpu.placed_empty(shape, dtype)
    return like(array, example).as_subclass(type(example)), address
