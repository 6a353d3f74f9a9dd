"""The types of elements that are glued, by the names that safetensors gives them. Only their sizes matter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import UnknownNameError

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

_NUMPY: dict[np.dtype[Any], str] = {
    np.dtype(kind): name
    for kind, name in (
        (np.bool_, "BOOL"), (np.uint8, "U8"), (np.int8, "I8"), (np.int16, "I16"), (np.uint16, "U16"),
        (np.float16, "F16"), (np.int32, "I32"), (np.uint32, "U32"), (np.float32, "F32"), (np.int64, "I64"),
        (np.uint64, "U64"), (np.float64, "F64"), (np.complex64, "C64"), (ml_dtypes.bfloat16, "BF16"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3"), (ml_dtypes.float8_e5m2, "F8_E5M2"),
        (ml_dtypes.float8_e4m3fnuz, "F8_E4M3FNUZ"), (ml_dtypes.float8_e5m2fnuz, "F8_E5M2FNUZ"),
        (ml_dtypes.float8_e8m0fnu, "F8_E8M0"),
    )
}  # fmt: skip

TORCH = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "float16": "F16", "int32": "I32",
    "uint32": "U32", "float32": "F32", "int64": "I64", "uint64": "U64", "float64": "F64", "complex64": "C64",
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def dtype_of(array: np.ndarray[Any, Any]) -> str:
    """The name of an array's type. Raises UnknownNameError."""
    if array.dtype not in _NUMPY:
        raise UnknownNameError("type of elements", str(array.dtype), map(str, _NUMPY))
    return _NUMPY[array.dtype]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of this name."""
    return next(kind for kind, known in _NUMPY.items() if known == name)


def pattern(item_bytes: int) -> np.dtype[Any]:
    """The unsigned integers that are as wide as an element."""
    return np.dtype(f"u{item_bytes}")
