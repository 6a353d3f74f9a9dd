"""Arrays on an NVIDIA GPU, as torch, CuPy and JAX have them: read in place, and results in the caller's own library.

None of these libraries is imported: a tensor of one means that it is there already. `DeviceArray` is for callers
without any, on a GPU or on the simulated device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from copy import copy as copy_of
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.cuda.device import Device, open_device
from ..backends.cuda.driver import attribute_of_pointer, call
from ..backends.sim.device import SIM, SimDevice, open_sim
from ..errors import ArgumentError, UnknownNameError
from ..formats import FORMATS, Format, format_of
from .capsule import CUDA, export, opened
from .dlpack import SIMULATED
from .libraries import IMMUTABLE, dense, holds_its_elements, library_of, place_of_torch

_MANAGED = 13  # DLPack's kDLCUDAManaged: memory that a GPU can read, wherever it lies now


@dataclass(frozen=True, slots=True)
class DeviceView:
    """Where an array lies: strides count elements, `format` is a name of formats.py, `owner` keeps the memory."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: str
    device: int
    read_only: bool
    owner: Any

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after another, the last dimension fastest."""
        return lies_densely(self.shape, self.strides)


def lies_densely(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether these are the strides of a C-contiguous array, wherever they matter."""
    return 0 in shape or all(n == 1 or s == want for n, s, want in zip(shape, strides, dense(shape), strict=True))


def name_of(index: int) -> str:
    """A device by its number, as a user names it."""
    return "sim" if index == SIM else f"cuda:{index}"


def device_named(name: str) -> Device | SimDevice:
    """The device ``cuda`` (the first GPU), ``cuda:N`` or ``sim``, for a `DeviceArray`. Raises UnknownNameError, and
    DeviceMissingError where there is no such GPU."""
    if name == "sim":
        return open_sim()
    target, colon, number = name.partition(":")
    if target != "cuda" or (colon and not (number.isascii() and number.isdigit())):
        raise UnknownNameError("device", name, ("cuda", "cuda:N", "sim"))
    return open_device(int(number or 0))


class DeviceArray:
    """An array on a device, for callers whose library is neither torch nor CuPy. A new one is C-contiguous; `reshape`,
    `swapaxes` and rows ``a[i:j]`` share its memory where they can.

    It speaks DLPack and (but for bf16, which that has no name for) ``__cuda_array_interface__``, but not on the
    simulated device, whose memory only this package takes for a device's. `stream` is the one whose work fills it;
    whoever takes the array over waits for it. Strides count elements.
    """

    def __init__(self, shape: Sequence[int], fmt: Format | str, device: Device | SimDevice, stream: int = 0) -> None:
        self.shape, self.format, self.device, self.stream = tuple(shape), format_of(fmt), device, stream
        if any(n < 0 for n in self.shape):
            raise ArgumentError(f"shape={self.shape}; accepted: sizes of at least 0")
        self.strides = dense(self.shape)
        self.nbytes = math.prod(self.shape) * self.format.bytes
        self._memory = device.allocate(self.nbytes)
        self.address = self._memory.address

    @classmethod
    def of(cls, values: NDArray[Any], device: Device | SimDevice) -> DeviceArray:
        """A copy of a NumPy array."""
        made = cls(values.shape, format_of(values.dtype), device)
        device.upload(np.ascontiguousarray(values), made.address)
        return made

    def __repr__(self) -> str:
        return f"<DeviceArray {self.format} {list(self.shape)} on {name_of(self.device.index)}>"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after another, the last dimension fastest."""
        return lies_densely(self.shape, self.strides)

    def numpy(self) -> NDArray[Any]:
        """A copy in host memory."""
        values: NDArray[Any] = np.empty(self.shape, self.format.dtype)
        source = self if self.contiguous else self.copy()  # lives until it has been read
        self.device.download(source.address, values)
        return values

    def _view(self, shape: Sequence[int], strides: Sequence[int], first: int = 0) -> DeviceArray:
        """The same memory, from the element `first` on."""
        view = copy_of(self)
        view.shape, view.strides = tuple(shape), tuple(strides)
        view.nbytes, view.address = math.prod(shape) * self.format.bytes, self.address + first * self.format.bytes
        return view

    def __getitem__(self, rows: slice) -> DeviceArray:
        """Some of the first dimension, in the same memory."""
        if not isinstance(rows, slice) or not self.shape or (rows.step or 1) < 1:
            raise ArgumentError(f"[{rows}] of shape {self.shape}; accepted: a slice of the first dimension, forwards")
        chosen = range(*rows.indices(len(self)))
        shape, strides = (len(chosen), *self.shape[1:]), (self.strides[0] * chosen.step, *self.strides[1:])
        return self._view(shape, strides, chosen.start * self.strides[0] if len(chosen) else 0)

    def swapaxes(self, one: int, other: int) -> DeviceArray:
        """Two dimensions exchanged, in the same memory."""
        order = list(range(len(self.shape)))
        order[one], order[other] = order[other], order[one]
        return self._view([self.shape[i] for i in order], [self.strides[i] for i in order])

    def broadcast_to(self, shape: Sequence[int]) -> DeviceArray:
        """New dimensions ahead, and those of size 1 repeated, in the same memory."""
        ahead = len(shape) - len(self.shape)
        if ahead < 0 or any(n not in (1, want) for n, want in zip(self.shape, shape[ahead:], strict=True)):
            raise ArgumentError(f"shape {self.shape}; accepted: what broadcasts to {tuple(shape)}")
        own = (0 if n == 1 else step for n, step in zip(self.shape, self.strides, strict=True))
        return self._view(shape, (*[0] * ahead, *own))

    def reshape(self, *sizes: int) -> DeviceArray:
        """Other sizes, one of which may be -1: in the same memory where it lies densely, else a copy."""
        known = math.prod(n for n in sizes if n != -1)
        shape = tuple(math.prod(self.shape) // max(known, 1) if n == -1 else n for n in sizes)
        if min(sizes, default=0) < -1 or sizes.count(-1) > 1 or math.prod(shape) != math.prod(self.shape):
            raise ArgumentError(f"sizes {sizes} of shape {self.shape}; accepted: as many elements, at most one -1")
        return (self if self.contiguous else self.copy())._view(shape, dense(shape))

    def copy(self) -> DeviceArray:
        """A C-contiguous copy, made in the order of `stream`."""
        made = DeviceArray(self.shape, self.format, self.device, self.stream)
        shape, strides, size = self.shape, self.strides, self.format.bytes
        if not shape or strides[-1] != 1:  # elements that lie apart are rows of one
            shape, strides = (*shape, 1), (*strides, 1)
        if len(shape) < 2 or not shape[-1] <= strides[-2]:  # rows that overlap are copied one by one
            shape, strides = (*shape[:-1], 1, shape[-1]), (*strides[:-1], shape[-1], 1)
        if made.nbytes:
            *lead, rows, cols = shape
            for i, at in enumerate(np.ndindex(*lead)):
                first = self.address + size * sum(n * step for n, step in zip(at, strides, strict=False))
                to = made.address + size * i * rows * cols
                self.device.copy_rows(first, strides[-2] * size, to, cols * size, rows, self.stream)
        return made

    def __dlpack_device__(self) -> tuple[int, int]:
        return (SIMULATED, 0) if self.device.index == SIM else (CUDA, self.device.index)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self!r} is handed out where it lies, without a copy")
        if self.device.index == SIM or not self.contiguous:
            raise BufferError(f"{self!r}, strides {self.strides}; accepted: a contiguous array on a GPU, or numpy()")
        if stream != -1:  # -1: the caller takes care of the order itself
            self.device.wait(self.stream)
        return export(self.address, self.shape, self.format, self.device.index, self._memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.format.name == "bf16":
            raise AttributeError("__cuda_array_interface__ has no bf16; accepted: DLPack")
        if self.device.index == SIM:
            raise AttributeError("__cuda_array_interface__ is for GPUs; accepted on the simulated device: numpy()")
        self.device.wait(self.stream)
        strides = None if self.contiguous else tuple(s * self.format.bytes for s in self.strides)
        return {
            "shape": self.shape, "typestr": self.format.dtype.str, "data": (self.address, False), "strides": strides,
            "version": 3, "stream": None,
        }  # fmt: skip


def as_device(name: str, x: Any, stream: int = 0) -> DeviceView:
    """Where `x` lies: a tensor of torch, CuPy or JAX, or whatever speaks DLPack or ``__cuda_array_interface__``.

    An array that is known by DLPack alone is asked to be ready for work in `stream`.

    Raises ArgumentError for host memory, for a format that this package does not have, and for a tensor that requires a
    gradient.
    """
    library = library_of(x)
    if library == "torch":
        return _of_torch(name, x)
    if isinstance(x, DeviceArray):
        return DeviceView(x.address, x.shape, x.strides, x.format.name, x.device.index, False, x)
    if library == "cupy" or not hasattr(x, "__dlpack__"):
        interface = getattr(x, "__cuda_array_interface__", None)
        if interface is not None:
            return _of_interface(name, x, interface)
        raise ArgumentError(
            f"{name}: {type(x).__name__}; accepted on the cuda target: an array in device memory that speaks DLPack or "
            f"__cuda_array_interface__"
        )
    return _of_dlpack(name, x, stream)


def _of_torch(name: str, x: Any) -> DeviceView:
    if holds_its_elements(x) and x.device.type != "cuda":
        raise _elsewhere(name, str(x.device))
    address, fmt = place_of_torch(name, x)
    return DeviceView(address, tuple(x.shape), x.stride(), fmt, x.device.index, False, x)


def _of_interface(name: str, x: Any, interface: dict[str, Any]) -> DeviceView:
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    if interface.get("mask") is not None:
        raise ArgumentError(f"{name}: has a mask; accepted: an array without")
    fmt = next((f for f in FORMATS.values() if f.dtype.str == interface["typestr"] and f.dtype.kind != "V"), None)
    if fmt is None:
        raise ArgumentError(
            f"{name}: type {interface['typestr']!r} is not a format of this package (accepted: {', '.join(FORMATS)})"
        )
    strides = interface.get("strides")
    if strides is not None and any(s % fmt.bytes for s in strides):
        raise ArgumentError(f"{name}: strides of {strides} bytes (accepted: multiples of {fmt.bytes})")
    stream = interface.get("stream")
    if stream is not None and library_of(x) != "cupy":  # work of CuPy lies in its current stream, which the call uses
        index = _device_of(name, address)
        with open_device(index).entered():
            call("cuStreamSynchronize", int(stream), about=name)
    counted = dense(shape) if strides is None else tuple(s // fmt.bytes for s in strides)
    index = _device_of(name, address) if address else 0
    return DeviceView(address, shape, counted, fmt.name, index, bool(read_only), x)


def _device_of(name: str, address: int) -> int:
    open_device(0)  # the driver answers only once there is a context
    with open_device(0).entered():
        return attribute_of_pointer(address, "DEVICE_ORDINAL", name)


def _of_dlpack(name: str, x: Any, stream: int) -> DeviceView:
    kind, index = x.__dlpack_device__()
    if kind not in (CUDA, _MANAGED):
        raise _elsewhere(name, f"a device of DLPack type {int(kind)}")
    if getattr(x, "requires_grad", False):
        raise ArgumentError(f"{name}: requires a gradient, which this call would lose; accepted: x.detach()")
    wait = getattr(x, "block_until_ready", None)  # JAX computes in streams of its own
    if wait is not None:
        wait()
    found = opened(name, x, None if wait is not None else stream or 1)  # 1: DLPack's word for the default stream
    immutable = library_of(x) in IMMUTABLE
    return DeviceView(
        found.address, found.shape, found.strides or dense(found.shape), found.format, index,
        found.read_only or immutable, (x, found.capsule),
    )  # fmt: skip


def _elsewhere(name: str, where: str) -> ArgumentError:
    return ArgumentError(f"{name}: lies on {where}; accepted on the cuda target: memory of a CUDA device")


def empty_like(example: Any, shape: Sequence[int], fmt: Format | str, stream: int = 0) -> Any:
    """A new array on `example`'s device, in its library where that makes arrays to be written (torch, CuPy), else a
    DeviceArray; `handed_out` makes that one of the caller's library once it is filled."""
    kind, library = format_of(fmt), library_of(example)
    module = sys.modules.get(library)
    if library == "torch" and module is not None:
        return example.new_empty(tuple(shape), dtype=getattr(module, kind.dtype.name))
    if library == "cupy" and module is not None and kind.name != "bf16":
        with example.device:
            return module.empty(tuple(shape), dtype=kind.dtype)
    device = example.device if isinstance(example, DeviceArray) else open_device(as_device("example", example).device)
    return DeviceArray(shape, kind, device, stream)


def handed_out(array: Any, example: Any) -> Any:
    """A filled result of `empty_like` as an array of `example`'s library: JAX takes a DeviceArray over, uncopied."""
    if isinstance(array, DeviceArray) and library_of(example) in IMMUTABLE:
        jax = sys.modules.get("jax.dlpack")
        if jax is not None:
            return jax.from_dlpack(array)
    return array
