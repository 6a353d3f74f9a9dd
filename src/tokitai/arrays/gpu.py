"""Arrays in a GPU's memory, as a call asks for them: streams, views, new arrays and copies of torch, CuPy, JAX and
whatever speaks DLPack or ``__cuda_array_interface__``.

Shapes, formats, strides and overlaps of device memory are judged by the same code as those of host memory: a
*metadata-only array* is a NumPy array over an address that is never read.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy as copy_of
from typing import Any

import numpy as np

from ..backends.cuda.device import current_stream
from ..errors import ArgumentError
from ..formats import format_of
from .adapter import Array, Made, check_integers
from .device_array import DeviceArray, DeviceView, as_device, empty_like, handed_out, name_of
from .libraries import array_at, library_of


class DeviceArrays:
    """`Arrays` of one GPU, in the current stream of the first tensor's library or in another. Raises
    ArgumentError where the first tensor, named ``beside``, lies on none."""

    readable = False

    def __init__(self, beside: str, example: Any, stream: Any = None) -> None:
        self.beside, self.example = beside, example
        self._stream = None if stream is None else handle_of(stream)
        known = (
            library_of(example) == "torch"
        )  # which says where a tensor lies without a stream, as one of a host has none
        self.device = as_device(beside, example, 0 if known else self.stream).device
        self.copies: list[Any] = []

    @property
    def stream(self) -> int:
        """The one into which the call's work is put."""
        return stream_of(self.example) if self._stream is None else self._stream

    def current(self) -> AbstractContextManager[Any]:
        """Nothing is done where it is the current one already."""
        if self._stream is None:
            return nullcontext()
        return within(self.example, self._stream, stream_of(self.example), self.device)

    def view(self, name: str, x: Any) -> Array:
        """Metadata alone. An array that is known by DLPack alone is asked to be ready for the stream."""
        view = as_device(name, x, self.stream)
        if view.device != self.device:
            accepted = f"accepted beside {self.beside}: {name_of(self.device)}"
            raise ArgumentError(f"{name}: lies on {name_of(view.device)}; {accepted}")
        return metadata_array(view)

    def empty(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Made:
        """In the caller's library (torch, CuPy), else a `DeviceArray` for it to take over."""
        value = empty_like(self.example, shape, format_of(dtype), self.stream)
        return Made(value, metadata_array(as_device(name, value, self.stream)))

    def stand_in(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """In the caller's library."""
        made = self.empty(name, shape, dtype)
        self.copies.append(made.value)
        return made.array

    def copied(self, name: str, x: Any, array: Array, shape: tuple[int, ...] | None = None) -> Array:
        """By the caller's library."""
        self.copies.append(copied(name, x, shape))
        return metadata_array(as_device(name, self.copies[-1], self.stream))

    def as_integers(self, name: str, x: Any, array: Array, dtype: np.dtype[Any], check: bool) -> tuple[Any, Array]:
        """By torch and CuPy; arrays of others are as they are. The check waits for the stream."""
        self.copies.append(_as_integers(name, x, dtype, check))
        return self.copies[-1], self.view(name, self.copies[-1])

    def returned(self, made: Made) -> Any:
        """JAX takes a `DeviceArray` over."""
        return handed_out(made.value, self.example)

    def separate(self, made: Made) -> Any:
        """By torch and CuPy."""
        return copied("a result", made.value) if library_of(self.example) in ("torch", "cupy") else None

    def beside_example(self, example: Any) -> DeviceArrays:
        """Those of another first tensor of the same device."""
        other = copy_of(self)
        other.example, other.copies = example, []
        return other

    def as_columns(self, made: Made, into: Any) -> Any:
        """By the caller's library."""
        return as_columns(made.value, self.example, into)

    def check_columns(self, operator: str) -> None:
        """Libraries other than torch, CuPy and JAX cannot."""
        if library_of(self.example) not in ("torch", "cupy", "jax", "jaxlib"):
            raise ArgumentError(
                f"{operator} on {type(self.example).__name__} of a GPU: gives columns, which the caller's library turns"
                f" to i32; accepted: arrays of torch, CuPy or JAX, and arrays in host memory"
            )

    def after_others(self, given: Mapping[str, Any], wait: Callable[[int], None]) -> None:
        """Arrays of a second library may still be written by work in its own current stream."""
        own = library_of(self.example)
        for x in given.values():
            if library_of(x) != own and library_of(x) in ("torch", "cupy") and stream_of(x) != self.stream:
                wait(stream_of(x))


# ------------------------------------------------------------------ arrays
def metadata_array(view: DeviceView) -> Array:
    """A NumPy array that says where device memory lies. Its elements must not be touched."""
    return array_at(view.address, view.shape, view.strides, view.format, view.read_only, view.owner)


def copied(name: str, x: Any, shape: tuple[int, ...] | None = None) -> Any:
    """A copy in the caller's library, in the order of its current stream, of a shape to which it broadcasts. Raises
    ArgumentError where it has none."""
    library = library_of(x)
    if shape is not None and library in ("torch", "cupy"):
        x = x.expand(shape) if library == "torch" else sys.modules["cupy"].broadcast_to(x, shape)
    if library == "torch":
        return x.contiguous().clone() if x.is_contiguous() else x.contiguous()
    if library == "cupy":
        return x.copy(order="C")
    if isinstance(x, DeviceArray):
        made = (x if shape is None else x.broadcast_to(shape)).copy()
        x.device.wait(x.stream)  # the caller's stream may be another
        return made
    raise ArgumentError(
        f"{name}: needs a copy, which is made for torch and CuPy alone; accepted of {type(x).__name__}: contiguous "
        f"arrays and views with a row stride"
    )


def _as_integers(name: str, x: Any, dtype: np.dtype[Any], check: bool) -> Any:
    library = library_of(x)
    if library not in ("torch", "cupy"):
        return x
    if dtype == np.int32:
        if check:
            check_integers(name, x.detach().cpu().numpy() if library == "torch" else x.get(), dtype)
        x = x.clip(-(2**31), 2**31 - 1)
    return x.to(getattr(sys.modules["torch"], dtype.name)) if library == "torch" else x.astype(dtype)


def as_columns(made: Any, example: Any, into: Any = None) -> Any:
    """Columns, which kernels give as f32 whole numbers, as i32: new, or where the caller wants them."""
    library = library_of(example)
    if library == "torch":
        return made.to(sys.modules["torch"].int32) if into is None else into.copy_(made)
    if into is not None:
        into[...] = made
        return into
    return handed_out(made, example).astype("int32")


# ------------------------------------------------------------------ streams
@functools.cache
def torch_streams() -> Callable[[int], int]:
    """What gives the handle of torch's current stream of a device."""
    torch = sys.modules["torch"]
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # makes no object of a stream
    return quick or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def stream_of(example: Any) -> int:
    """The handle of the stream into which the library of `example` puts its work now; 0 is CUDA's default stream."""
    if library_of(example) == "torch":
        return torch_streams()(example.get_device())
    return current_stream(example)


def handle_of(stream: Any) -> int:
    """The handle of a stream: an integer, or an object of cuda.core, torch or CuPy. Raises ArgumentError."""
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for name in ("__cuda_stream__", "cuda_stream", "ptr"):
        found = getattr(stream, name, None)
        found = found() if callable(found) else found
        if isinstance(found, tuple) and len(found) == 2:  # (version of the protocol, handle)
            found = found[1]
        if isinstance(found, int):
            return found
    raise ArgumentError(f"cuda_stream={stream!r}; accepted: a stream of torch, CuPy or cuda.core, or its handle")


def within(example: Any, stream: int, now: int, device: int) -> AbstractContextManager[Any]:
    """Make `stream` the current one of the library of `example`, so that what it allocates belongs there."""
    library = library_of(example)
    if stream == now or library not in ("torch", "cupy"):
        return nullcontext()
    cuda = sys.modules[library].cuda
    made: AbstractContextManager[Any]
    if library == "torch":
        made = cuda.stream(cuda.ExternalStream(stream, device=example.device))
    else:
        made = cuda.ExternalStream(stream, device)
    return made
