"""Compare results: bits first, then the distance from the exact value in units in the last place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..formats import Format

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Mismatch:
    """The first element whose bits differ."""

    result: str
    position: tuple[int, ...]
    got: str
    want: str
    count: int

    def __str__(self) -> str:
        at = ",".join(map(str, self.position))
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.result}[{at}]: got {self.got}, want {self.want}{more}"


def patterns(values: Array) -> Array:
    """The bits of an array as unsigned integers."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def first_mismatch(result: str, got: Array, want: Array) -> Mismatch | None:
    """The first differing element, by bits: a NaN equals a NaN of the same pattern, -0 differs from +0."""
    a, b = patterns(got), patterns(want)
    different = a != b
    if not different.any():
        return None
    position = tuple(int(i) for i in np.argwhere(different)[0])
    return Mismatch(result, position, show(got[position]), show(want[position]), int(different.sum()))


def show(value: Any) -> str:
    """A value with its bits: ``0x3c00 (1.0)``; a hash by its bits alone."""
    array = np.asarray(value)
    bits = f"{int(patterns(array.reshape(1))[0]):#0{2 + 2 * array.dtype.itemsize}x}"
    return bits if array.dtype == np.uint64 else f"{bits} ({float(array):.9g})"


def spacing(size: Array, fmt: Format) -> Array:
    """The unit in the last place of `fmt` at values of this size (at least 0, finite)."""
    _, e = np.frexp(np.where(size > 0, size, 1).astype(REAL))
    power = np.maximum(np.where(size == 0, fmt.emin, e - 1), fmt.emin) - (fmt.precision - 1)
    return np.asarray(np.ldexp(REAL(1), power))


def ulp_errors(got: Array, exact: Array, fmt: Format, scale: Array | None = None) -> Array:
    """|got - exact| in units in the last place of `fmt` at the exact value (or at `scale`, where that is larger).

    An exact value that rounds to infinity wants that infinity. Where one is NaN and the other is not, or infinities do
    not agree, the error is infinite.
    """
    exact = np.broadcast_to(exact.astype(REAL), got.shape)
    value = got.astype(np.float64).astype(REAL)
    size = np.abs(exact) if scale is None else np.maximum(np.abs(exact), scale)
    with np.errstate(all="ignore"):
        error = np.abs(value - exact) / spacing(np.where(np.isfinite(size), size, 1), fmt)
        largest = REAL(2.0**fmt.emax) * (2 - REAL(2.0) ** -fmt.precision)  # from here on the nearest value is infinity
        want = np.where(np.abs(exact) >= largest, np.copysign(REAL(np.inf), exact), exact)
        special = ~np.isfinite(value) | ~np.isfinite(want)
        same = (np.isnan(value) & np.isnan(want)) | (value == want)
    return np.where(special, np.where(same, 0, np.inf), error).astype(np.float64)
