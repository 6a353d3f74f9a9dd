"""How new results are made again and again, in the caller's library where that makes arrays that can be written."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..backends.cpu import device as cpu
from ..backends.cpu.kept import LEAST
from .dlpack import like
from .libraries import library_of, namespace_of

Make = Callable[[], tuple[Any, int]]
"""Makes an array to be written, and says where it begins."""


class NewArray(NamedTuple):
    """How an array is made: by torch's ``empty_like`` of a tensor without memory, or by a function."""

    pattern: Any
    make: Make | None

    def __call__(self) -> Any:
        """A new one."""
        return self.make()[0] if self.make is not None else sys.modules["torch"].empty_like(self.pattern)


def new_array(example: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NewArray | None:
    """What makes arrays of this shape and dtype in host memory beside `example`; None where its library takes arrays
    over once they are filled, by `like`. Raises ArgumentError where it does not."""
    if isinstance(example, np.ndarray) or not hasattr(example, "__dlpack__"):
        return NewArray(None, functools.partial(cpu.placed_empty, shape, dtype))
    if library_of(example) != "torch":
        namespace_of("the first tensor", example)
        return None
    if np.prod(shape, dtype=np.int64) * dtype.itemsize >= LEAST:  # torch gives such memory back to the system each time
        return NewArray(None, functools.partial(_large, shape, dtype, example.new_empty(0)))
    return NewArray(torch_pattern(example, shape, dtype), None)


def torch_pattern(example: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A tensor without memory, on the device of `example`: torch's ``empty_like`` takes half the time of its
    ``new_empty``."""
    pattern = example.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype.name))
    pattern.untyped_storage().resize_(0)
    return pattern


def contiguous_copy(x: Any, shape: tuple[int, ...] | None) -> tuple[Any, int]:
    """A contiguous, aligned copy of an array of NumPy or a tensor of torch, of a shape to which it broadcasts where one
    is named, and where it begins; on a GPU in the order of torch's current stream."""
    if isinstance(x, np.ndarray):
        made, address = cpu.placed_empty(x.shape if shape is None else shape, x.dtype)
        made[...] = x
        return made, address
    x = x if shape is None else x.expand(shape)
    copy = x.clone(memory_format=sys.modules["torch"].contiguous_format)
    return copy, copy.data_ptr()


def _large(shape: tuple[int, ...], dtype: np.dtype[Any], example: Any) -> tuple[Any, int]:
    array, address = cpu.placed_empty(shape, dtype)
    return like(array, example).as_subclass(type(example)), address
