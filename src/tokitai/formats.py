"""The only table of number formats.

A format says how a value is *stored*. Arithmetic is f32, or f64 where a definition says so: a load widens exactly,
a store rounds once, to nearest even, and a stored NaN is the one canonical quiet NaN of its format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from .errors import UnknownNameError


@dataclass(frozen=True)
class Format:
    """A number format.

    ``precision`` counts the significand's bits with the hidden one; ``emin`` and ``emax`` are the exponents of the
    smallest and largest normal numbers, so the spacing of subnormals is ``2**(emin - precision + 1)``.
    """

    name: str
    kind: Literal["float", "int", "bool"]
    bits: int
    precision: int = 0
    emin: int = 0
    emax: int = 0
    nan: int = 0  # bit pattern of the canonical quiet NaN

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of stored values."""
        kind: np.dtype[Any] = np.dtype(_DTYPES[self.name])
        return kind

    @property
    def pattern(self) -> np.dtype[Any]:
        """The unsigned integer dtype of a stored value's bits."""
        return np.dtype(f"u{self.bytes}")

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    def __str__(self) -> str:
        return self.name


_DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "i32": np.int32, "i64": np.int64, "u32": np.uint32, "bool": np.bool_,
}  # fmt: skip

f16 = Format("f16", "float", 16, 11, -14, 15, 0x7E00)
bf16 = Format("bf16", "float", 16, 8, -126, 127, 0x7FC0)
f32 = Format("f32", "float", 32, 24, -126, 127, 0x7FC00000)
f64 = Format("f64", "float", 64, 53, -1022, 1023, 0x7FF8000000000000)
i32 = Format("i32", "int", 32)
i64 = Format("i64", "int", 64)
u32 = Format("u32", "int", 32)
boolean = Format("bool", "bool", 8)

FORMATS: dict[str, Format] = {f.name: f for f in (f16, bf16, f32, f64, i32, i64, u32, boolean)}
STORAGE: tuple[Format, ...] = (f16, bf16, f32)  # what `dtype=` may select

_ALIASES = {
    "float16": "f16", "half": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int32": "i32",
    "int64": "i64",
}  # fmt: skip


def format_of(name: object) -> Format:
    """The format with this name (``f16`` or ``float16``), NumPy dtype or Format.

    Raises UnknownNameError.
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, str):
        key = _ALIASES.get(name, name)
        if key in FORMATS:
            return FORMATS[key]
    else:
        try:
            dtype = np.dtype(name)  # type: ignore[call-overload]
        except TypeError:
            dtype = None
        for fmt in FORMATS.values():
            if dtype == fmt.dtype:
                return fmt
    raise UnknownNameError("format", name if isinstance(name, str) else str(name), FORMATS)


def canonical(values: np.ndarray[Any, Any], fmt: Format) -> np.ndarray[Any, Any]:
    """`values` (stored in `fmt`) with every NaN replaced by the canonical one. Copies only where there is a NaN."""
    if not fmt.is_float:
        return values
    nan = np.isnan(values)
    if not nan.any():
        return values
    out = values.copy()
    out.view(fmt.pattern)[nan] = fmt.nan
    return out
