"""NumPy views of other libraries' arrays, and results in those libraries, without importing any."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ArgumentError
from ..formats import format_of
from .capsule import export, opened
from .libraries import (
    IMMUTABLE,
    array_at,
    dense,
    holds_its_elements,
    library_of,
    namespace_of,
    place_of_torch,
    refuse_traced,
)

Array = np.ndarray[Any, Any]
CPU = (1, 3)  # kDLCPU and kDLCUDAHost: memory that this process can read
SIMULATED = 12  # kDLExtDev, DLPack's word for a device to test with
GPU = (2, 13, SIMULATED)  # kDLCUDA, kDLCUDAManaged and the simulated device


def on_gpu(x: Any) -> bool | None:
    """Whether an argument (of a list the first element) lies in a GPU's memory; None for what is no array."""
    known = None if type(x) is np.ndarray else getattr(x, "is_cuda", None)  # torch: the calls whose time counts most
    if known is True or known is False:
        return known
    if isinstance(x, np.ndarray):
        return False
    if isinstance(x, (list, tuple)):
        return on_gpu(x[0]) if x else None
    if hasattr(x, "__dlpack_device__"):
        return x.__dlpack_device__()[0] in GPU
    return True if hasattr(x, "__cuda_array_interface__") else None


def as_numpy(name: str, x: Any) -> Array:
    """A view of `x` as a plain NumPy array: an array already, or anything that speaks DLPack. Nothing is exported that
    would keep the owner from resizing its memory later.

    Raises ArgumentError for memory on another device, for a masked array, and for what is no array at all.
    """
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise ArgumentError(f"{name}: a masked array; accepted: a plain one, such as x.filled(0)")
        return x.view(np.ndarray)
    if library_of(x) == "torch" and hasattr(x, "data_ptr"):
        if holds_its_elements(x) and x.device.type != "cpu":
            raise ArgumentError(f"{name}: lies on {x.device}; accepted on the cpu target: host memory")
        address, fmt = place_of_torch(name, x)
        return array_at(address, tuple(x.shape), x.stride(), fmt, False, x)
    refuse_traced(name, x)
    if hasattr(x, "__dlpack__"):
        kind, _ = x.__dlpack_device__()
        if kind not in CPU:
            raise ArgumentError(
                f"{name}: lies on a device of DLPack type {int(kind)}; accepted on the cpu target: host memory"
            )
        if getattr(x, "requires_grad", False):
            raise ArgumentError(f"{name}: requires a gradient, which this call would lose; accepted: x.detach()")
        wait = getattr(x, "block_until_ready", None)  # JAX computes meanwhile
        if wait is not None:
            wait()
        found = opened(name, x)
        strides = dense(found.shape) if found.strides is None else found.strides
        read_only = found.read_only or library_of(x) in IMMUTABLE
        return array_at(found.address, found.shape, strides, found.format, read_only, (x, found.capsule))
    raise ArgumentError(f"{name}: {type(x).__name__}; accepted: a NumPy array or an array that speaks DLPack")


class _Filled:
    """An array of NumPy's that is handed out by DLPack, bfloat16 among them, which NumPy does not hand out."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU[0], 0

    def __dlpack__(self, **wanted: Any) -> Any:
        return export(self.array.ctypes.data, self.array.shape, format_of(self.array.dtype), 0, self.array, CPU[0])


def like(result: Array, example: Any) -> Any:
    """`result`, which is contiguous and filled, as an array of the library that `example` comes from. It shares the
    memory, unless that library makes a copy."""
    if isinstance(example, np.ndarray) or not hasattr(example, "__dlpack__"):
        return result
    library = namespace_of("a result", example)
    if library_of(example) != "torch":
        return library.from_dlpack(_Filled(result))
    if result.dtype == ml_dtypes.bfloat16:  # NumPy cannot hand bfloat16 out: its bits travel as integers
        return library.from_numpy(result.view(np.int16)).view(library.bfloat16)
    return library.from_numpy(result)
