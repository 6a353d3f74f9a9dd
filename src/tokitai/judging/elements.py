"""Hold each element of a result against what rounding explains, and say which are wrong, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..formats import Format
from ..meaning.real import REAL
from ..verification.compare import patterns, show, spacing, ulp_errors

Array = np.ndarray[Any, Any]


@dataclass
class Finding:
    """What one result of one case showed. ``share``: the largest distance as a part of what is allowed, and where."""

    compared: int = 0
    judged: int = 0  # those for which something is required: all but where no bound can be given
    identical: bool = True
    wrong: int = 0
    max_ulp: float = 0.0
    max_ulp_of_row: float = 0.0
    share: float = 0.0
    first: str = ""  # the wrong element that is furthest beyond its allowance, in a sentence
    where: str = ""  # where all wrong elements lie
    positions: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))


def hold(name: str, got: Array, defined: Array, exact: Array, limit: Array | None, fmt: Format) -> Finding:
    """Compare a result with the definition's bits, with the real result, and with its allowance.

    Where the definition and the real result are NaN, or the same infinity, that is required. Otherwise the distance
    from the real result may be ``limit``; a value that close to the largest number of the format may be infinite. Where
    the limit is not finite, or the definition overflows and the real result does not, nothing is required. Whole
    numbers, and results without a limit, must have the definition's bits.
    """
    found = Finding(compared=got.size, identical=bool((patterns(got) == patterns(defined)).all()))
    if got.size == 0:
        return found
    if not fmt.is_float or limit is None:
        found.judged = got.size
        _tell(found, name, patterns(got) != patterns(defined), np.ones(got.shape), got, defined, None, fmt, None)
        return found
    exact = np.broadcast_to(np.asarray(exact, REAL), got.shape)
    limit = np.broadcast_to(np.asarray(limit, np.float64), got.shape)
    with np.errstate(all="ignore"):
        value, truth = (x.astype(np.float64).astype(REAL) for x in (got, defined))
        largest = REAL(2.0**fmt.emax) * (2 - REAL(2.0) ** -fmt.precision)
        nan = np.isnan(truth) & np.isnan(exact)
        infinite = np.isinf(truth) & (np.abs(exact) >= largest) & (np.sign(truth) == np.sign(exact))
        certain = infinite & (np.isinf(exact) | (np.abs(exact) - limit >= largest))
        near = np.isfinite(exact) & np.isfinite(limit) & ~certain & (np.isfinite(truth) | infinite)
        distance = np.where(near, np.abs(value - exact), 0)
        over = near & np.isinf(value) & (np.abs(exact) + limit >= largest) & (np.sign(value) == np.sign(exact))
        beyond = near & ~over & ~(distance <= limit)
        wrong = (nan & ~np.isnan(value)) | (certain & (value != truth)) | beyond
        share = np.where(near & ~over, np.where(distance == 0, 0, distance / np.maximum(limit, 5e-324)), 0)
        share = np.where(np.isnan(share) | (wrong & ~beyond), np.inf, share).astype(np.float64)
    found.judged = int((nan | certain | near).sum())
    errors = np.where(near & ~over, ulp_errors(got, exact, fmt), 0)
    row = np.where(near, np.abs(exact), 0).max(axis=-1, keepdims=True) if got.ndim else np.abs(exact)
    found.max_ulp = float(errors.max())
    scale = spacing(np.maximum(np.where(near, np.abs(exact), 0), row), fmt)
    found.max_ulp_of_row = float(np.where(near & ~over, distance / scale, 0).max())
    found.share = float(share.max())
    _tell(found, name, wrong, share, got, defined, exact, fmt, limit)
    return found


def _tell(
    found: Finding, name: str, wrong: Array, share: Array, got: Array, defined: Array, exact: Array | None, fmt: Format,
    limit: Array | None,
) -> None:  # fmt: skip
    """Put into words which elements are wrong."""
    found.wrong = int(wrong.sum())
    if not found.wrong:
        return
    at = np.unravel_index(int(np.argmax(np.where(wrong, share, -1))), got.shape)
    said = f"{name}[{','.join(map(str, at))}] is {show(got[at])}; the definition gives {show(defined[at])}"
    if exact is not None and limit is not None:
        real, most = float(exact[at]), float(limit[at])
        said += f", the real result is {real:.9g}"
        if np.isfinite(real) and np.isfinite(float(got[at])):
            ulp = float(spacing(np.abs(exact[at]), fmt))
            off = abs(float(got[at]) - real)
            said += f": off by {off / ulp:.4g} ulp, of which rounding explains {most / ulp:.4g}"
    found.first = said
    found.positions = np.argwhere(wrong)
    found.where = extent(found.positions, got.shape)


def extent(positions: Array, shape: tuple[int, ...]) -> str:
    """Where wrong elements lie: "5 of 1285 elements, all in column 256", "row 2, columns 0 to 31", ..."""
    total = int(np.prod(shape))
    said = f"{len(positions)} of {total} element{'s' * (total != 1)}"
    names = ("row", "column") if len(shape) == 2 else ("index",) * len(shape)
    parts = []
    for axis, (name, size) in enumerate(zip(names, shape, strict=True)):
        low, high = int(positions[:, axis].min()), int(positions[:, axis].max())
        if (low, high) == (0, size - 1):
            continue
        plural = {"row": "rows", "column": "columns", "index": "indices"}[name]
        parts.append(f"{name} {low}" if low == high else f"{plural} {low} to {high}")
    return f"{said}, all in {', '.join(parts)}" if parts else said
