"""What a call asks of array libraries, whichever they are: views of the caller's arrays, new ones, copies, streams.

`HostArrays` (``arrays.host``) answers for NumPy, torch, JAX and whatever speaks DLPack in host memory, `DeviceArrays`
(``arrays.gpu``) for torch, CuPy, JAX, DLPack and ``__cuda_array_interface__`` in the memory of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from ..errors import ArgumentError

Array = np.ndarray[Any, Any]


class Made(NamedTuple):
    """A new array: what the caller's library calls it (None where that only takes over arrays that are filled), and
    where it lies, as NumPy sees it."""

    value: Any
    array: Array


class Arrays(Protocol):
    """The arrays of one call, and the libraries that they come from.

    An `Array` of NumPy says where memory lies, whatever memory that is. Elements may be touched only where the memory
    is the host's (``readable``); a *metadata-only array* describes memory of a device.
    """

    readable: bool
    example: Any  # the caller's first tensor: new arrays are of its library and device
    copies: list[Any]  # what was made in place of the caller's arrays: alive until the call has been launched

    @property
    def stream(self) -> int:
        """The stream of the call; 0 in host memory."""

    def beside_example(self, example: Any) -> Self:
        """Those of another first tensor of the same library and device."""

    def current(self) -> AbstractContextManager[Any]:
        """Make the call's stream the current one of the caller's library, so that what it allocates belongs there."""

    def view(self, name: str, x: Any) -> Array:
        """The caller's array where it lies, kept alive by the view. Raises ArgumentError for what is no array, for
        one that lies elsewhere than the call's first, and for one whose elements cannot be read there."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Made:
        """A new array in the caller's library."""

    def stand_in(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for kernels to read in place of an array without elements, whatever it holds."""

    def copied(self, name: str, x: Any, array: Array, shape: tuple[int, ...] | None = None) -> Array:
        """A contiguous copy of ``x``, whose view is ``array``, of a shape to which it broadcasts, in the order of the
        stream. Raises ArgumentError where the library makes none."""

    def as_integers(self, name: str, x: Any, array: Array, dtype: np.dtype[Any], check: bool) -> tuple[Any, Array]:
        """``x`` and its view with integers of i32 or i64 in ``dtype``, the other of both. Raises ArgumentError for one
        out of range; without ``check``, on a GPU, those become the range's ends."""

    def returned(self, made: Made) -> Any:
        """A new array that has been filled, as the caller gets it."""

    def separate(self, made: Made) -> Any:
        """A copy of a filled array, as the caller gets it. None where the library makes none: then the array itself
        has to be handed out, and a new one to take its place."""

    def as_columns(self, made: Made, into: Any) -> Any:
        """Column indices, which kernels store as f32, in i32: new, or in the caller's array ``into``."""

    def check_columns(self, operator: str) -> None:
        """Raises ArgumentError where the library cannot convert column indices to i32."""

    def after_others(self, given: Mapping[str, Any], wait: Callable[[int], None]) -> None:
        """``wait`` for streams of other libraries, in which work on the arrays ``given`` may be."""


def check_integers(name: str, values: Array, wanted: np.dtype[Any]) -> None:
    """Integers fit in a format. Raises ArgumentError for the first that does not."""
    limits = np.iinfo(wanted)
    flat = values.reshape(-1)
    bad = (flat < limits.min) | (flat > limits.max)
    if bad.any():
        at = int(bad.argmax())
        found = f"{name}[{at}]={flat[at]} ({int(bad.sum())} such)"
        raise ArgumentError(f"{found}; accepted: {limits.min} to {limits.max}")
