"""DLPack capsules, read and made by the layouts of dlpack.h (0.8, and 1.0 with its flags).

They are read here and not by NumPy's ``from_dlpack``, which knows neither bfloat16 nor the memory of a device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from ..formats import FORMATS, Format

CUDA = 2  # kDLCUDA
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY

CODES = {
    "f16": (2, 16), "bf16": (4, 16), "f32": (2, 32), "f64": (2, 64), "i32": (0, 32), "i64": (0, 64), "u32": (1, 32),
    "bool": (6, 8),
}  # fmt: skip
_NAMES = {code: name for name, code in CODES.items()}

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


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


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


@dataclass(frozen=True)
class Opened:
    """What a capsule says. The memory stays for as long as `capsule`, which nobody has consumed, is kept."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    format: str
    read_only: bool
    capsule: Any


def _capsule_function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's C interface, typed apart from other users of `ctypes.pythonapi`."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_new = _capsule_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# In a destructor the capsule has no references left: it goes by its address, or it would be destroyed again.
_is_valid_at = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_at = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


def opened(name: str, x: Any, stream: int | None = None) -> Opened:
    """What `x` says about itself by DLPack, once its values are ready for work in `stream` (None: nothing is said).

    Raises ArgumentError for a format that this package does not have."""
    ready = {} if stream is None else {"stream": stream}
    try:
        capsule = x.__dlpack__(max_version=(1, 0), **ready)
    except TypeError:  # a producer of the time before versions
        capsule = x.__dlpack__(**ready)
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ArgumentError(f"{name}: DLPack version {versioned.major}.{versioned.minor} (accepted: 0.8 and 1)")
        t, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        t, read_only = DLTensor.from_address(_pointer(capsule, b"dltensor")), False
    fmt = _NAMES.get((t.dtype.code, t.dtype.bits)) if t.dtype.lanes == 1 else None
    if fmt is None:
        raise ArgumentError(
            f"{name}: DLPack type code {t.dtype.code} with {t.dtype.bits} bits is not a format of this package "
            f"(accepted: {', '.join(FORMATS)})"
        )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    return Opened((t.data or 0) + t.byte_offset, shape, strides, fmt, read_only, capsule)


_handed_out: dict[int, tuple[Any, ...]] = {}  # address of a struct -> what must live until its deleter is called


def _forget(address: int) -> None:
    _handed_out.pop(address, None)


def _forget_unused(capsule: int) -> None:
    if _is_valid_at(capsule, b"dltensor"):  # nobody consumed it
        _handed_out.pop(_pointer_at(capsule, b"dltensor"), None)


_delete = _Deleter(_forget)
_destroy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget_unused)


def export(address: int, shape: Sequence[int], fmt: Format, device: int, owner: Any, kind: int = CUDA) -> Any:
    """A capsule over contiguous memory of a device of this kind, which `owner` keeps until the consumer lets go."""
    rank = len(shape)
    sizes = (ctypes.c_int64 * max(rank, 1))(*shape)
    steps = (ctypes.c_int64 * max(rank, 1))(*(_product(shape[i + 1 :]) for i in range(rank)))
    managed = _Managed()
    t = managed.tensor
    t.data, t.byte_offset, t.ndim = address, 0, rank
    t.device.type, t.device.id = kind, device
    t.dtype.code, t.dtype.bits, t.dtype.lanes = (*CODES[fmt.name], 1)
    t.shape, t.strides = sizes, steps
    managed.context, managed.deleter = None, _delete
    where = ctypes.addressof(managed)
    _handed_out[where] = (managed, sizes, steps, owner)
    return _new(where, b"dltensor", ctypes.cast(_destroy, ctypes.c_void_p))


def _product(sizes: Sequence[int]) -> int:
    count = 1
    for n in sizes:
        count *= n
    return count
