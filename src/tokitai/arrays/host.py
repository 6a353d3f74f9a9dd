"""Arrays in host memory, as a call asks for them: NumPy, torch, JAX, and whatever speaks DLPack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ..backends.cpu import device as cpu
from ..formats import FORMATS
from .adapter import Array, Made, check_integers
from .dlpack import as_numpy, like
from .results import new_array


class HostArrays:
    """`Arrays` of the host. There are no streams: what is asked for is done."""

    readable = True
    stream = 0

    def __init__(self, example: Any) -> None:
        self.example = example
        self.copies: list[Any] = []

    def beside_example(self, example: Any) -> HostArrays:
        """Those of another first tensor."""
        return HostArrays(example)

    def current(self) -> AbstractContextManager[Any]:
        """There is nothing to choose."""
        return nullcontext()

    def view(self, name: str, x: Any) -> Array:
        """Raises ArgumentError for memory of a device, a masked array, and what is no array at all."""
        return as_numpy(name, x)

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Made:
        """In the caller's library where that makes arrays that can be written, else one of NumPy's for it to take over.
        Raises ArgumentError where it does neither."""
        new = new_array(self.example, shape, dtype)
        if new is None:
            return Made(None, cpu.aligned_empty(shape, dtype))
        value = new()
        return Made(value, as_numpy(name, value))

    def stand_in(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Zeros."""
        self.copies.append(np.zeros(shape, dtype))
        return self.copies[-1]  # type: ignore[no-any-return]

    def copied(self, name: str, x: Any, array: Array, shape: tuple[int, ...] | None = None) -> Array:
        """Aligned, by NumPy."""
        made = np.require(array if shape is None else np.broadcast_to(array, shape), requirements=["C", "A"])
        self.copies.append(made)
        return made

    def as_integers(self, name: str, x: Any, array: Array, dtype: np.dtype[Any], check: bool) -> tuple[Any, Array]:
        """By NumPy, always checked."""
        check_integers(name, array, dtype)
        made = array.astype(dtype)
        self.copies.append(made)
        return x, made

    def returned(self, made: Made) -> Any:
        """An array without a value of the library is taken over by it."""
        return like(made.array, self.example) if made.value is None else made.value

    def separate(self, made: Made) -> Any:
        """By NumPy."""
        copy = self.empty("a result", made.array.shape, made.array.dtype)
        copy.array[...] = made.array
        return self.returned(copy)

    def as_columns(self, made: Made, into: Any) -> Any:
        """By NumPy."""
        if into is not None:
            as_numpy("out", into)[...] = made.array
            return into
        columns = self.empty("columns", made.array.shape, FORMATS["i32"].dtype)
        columns.array[...] = made.array
        return self.returned(columns)

    def check_columns(self, operator: str) -> None:
        """NumPy converts them."""

    def after_others(self, given: Mapping[str, Any], wait: Callable[[int], None]) -> None:
        """`view` has waited."""
