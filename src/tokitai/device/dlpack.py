"""NumPy views of other libraries' arrays, without importing those libraries.

NumPy's own ``from_dlpack`` knows no bfloat16, so the capsule is read here: the layout is that of dlpack.h, version 0.8.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ArgumentError

Array = np.ndarray[Any, Any]
CPU = (1, 3)  # kDLCPU and kDLCUDAHost: memory that this process can read
SIMULATED = 12  # kDLExtDev, DLPack's word for a device to test with
GPU = (2, 13, SIMULATED)  # kDLCUDA, kDLCUDAManaged and the simulated device


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """The struct of the same name in dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_KINDS = {0: "i", 1: "u", 2: "f"}


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
    """A view of `x` as a NumPy array: an array already, or anything that speaks DLPack.

    Raises ArgumentError for memory on another device, and for what is no array at all.
    """
    if isinstance(x, np.ndarray):
        return x
    if getattr(x, "is_cuda", None) is False and (view := _of_torch(x)) is not None:
        return view
    if hasattr(x, "__dlpack__"):
        kind, _ = x.__dlpack_device__()
        if kind not in CPU:
            raise ArgumentError(
                f"{name}: lies on a device of DLPack type {kind}; accepted on the cpu target: host memory"
            )
        if getattr(x, "requires_grad", False):
            raise ArgumentError(f"{name}: requires a gradient, which this call would lose; accepted: x.detach()")
        if hasattr(x, "is_neg") and x.is_neg():  # a bit that DLPack does not carry: every sign would be wrong
            raise ArgumentError(f"{name}: a view whose signs are turned; accepted: x.resolve_neg()")
        return _view(name, x)
    raise ArgumentError(f"{name}: {type(x).__name__}; accepted: a NumPy array or an array that speaks DLPack")


@functools.cache
def _plain_of_torch() -> dict[Any, Any]:
    """The dtypes of torch that NumPy has as well, and bfloat16, whose bits travel as integers."""
    torch = sys.modules["torch"]
    plain = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
    return {**dict.fromkeys(plain), torch.bfloat16: torch.int16}


def _of_torch(x: Any) -> Array | None:
    """What DLPack would give of a tensor of torch, in a tenth of the time; None for what is not plain."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    known, strided = _plain_of_torch(), x.layout is torch.strided
    if x.device.type != "cpu" or x.requires_grad or x.dtype not in known or not strided or x.is_neg():
        return None
    bits = known[x.dtype]
    array: Array = x.numpy() if bits is None else x.view(bits).numpy().view(ml_dtypes.bfloat16)
    return array


def _view(name: str, x: Any) -> Array:
    capsule = x.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    t = DLTensor.from_address(pointer(capsule, b"dltensor"))
    if t.dtype.lanes != 1 or (t.dtype.code not in _KINDS and (t.dtype.code, t.dtype.bits) != (4, 16)):
        raise ArgumentError(
            f"{name}: DLPack type code {t.dtype.code} with {t.dtype.bits} bits is not a format of this package"
        )
    dtype = (
        np.dtype(ml_dtypes.bfloat16) if t.dtype.code == 4 else np.dtype(f"{_KINDS[t.dtype.code]}{t.dtype.bits // 8}")
    )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    contiguous = not t.strides
    strides = None if contiguous else tuple(t.strides[i] * dtype.itemsize for i in range(t.ndim))
    if 0 in shape:
        return np.empty(shape, dtype)
    reach = (
        sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))
        if strides
        else (int(np.prod(shape)) - 1) * dtype.itemsize
    )
    raw: Any = (ctypes.c_uint8 * (reach + dtype.itemsize)).from_address(t.data + t.byte_offset)
    raw._owner = (x, capsule)  # the memory lives as long as the view
    return np.ndarray(shape, dtype, buffer=raw, strides=strides)


def like(result: Array, example: Any) -> Any:
    """`result` as an array of the library that `example` comes from, sharing its memory."""
    if isinstance(example, np.ndarray) or not hasattr(example, "__dlpack__"):
        return result
    library = sys.modules[type(example).__module__.partition(".")[0]]
    if result.dtype == ml_dtypes.bfloat16:  # NumPy cannot hand bfloat16 out: its bits travel as integers
        return library.from_dlpack(result.view(np.int16)).view(library.bfloat16)
    return library.from_dlpack(result)
