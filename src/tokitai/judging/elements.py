"""Hold each element of a result against its rounding-error bound, and say which are wrong, and where they lie."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..formats import Format
from ..verification.compare import patterns, show, spacing, ulp_errors

Array = np.ndarray[Any, Any]
Place = Callable[[tuple[int, ...]], tuple[int, ...]]


@dataclass
class Finding:
    """What one result of one call showed. ``share``: the largest distance as a part of the bound; ``wrong``: how many
    elements are beyond it."""

    compared: int = 0
    judged: int = 0  # those for which something is required: all but where no bound can be given
    identical: bool = True
    wrong: int = 0
    max_ulp: float = 0.0
    max_ulp_of_row: float = 0.0
    share: float = 0.0
    first: str = ""  # the wrong element that is furthest beyond its bound, in a sentence
    where: str = ""  # where all wrong elements lie
    mask: Array = field(default_factory=lambda: np.zeros(0, bool))  # which are wrong
    wrong_of: dict[int, int] = field(default_factory=dict)  # how many by kind, as `special.KINDS` counts them
    judged_of: dict[int, int] = field(default_factory=dict)
    zeros: int = 0  # zeros of another sign than the definition's, which is not wrong


def hold(
    name: str, got: Array, defined: Array, exact: Array, limit: Array | None, fmt: Format, place: Place | None = None,
    kinds: Array | None = None, forgiven: Collection[int] = (),
) -> Finding:  # fmt: skip
    """Compare a result with the definition's bits, with the exact value, and with its bound. ``place``: where in the
    whole result an element lies, where ``got`` is a part of it; ``kinds``: which elements have to do with special
    values (`special`), ``forgiven``: those of which nothing is required.

    Where the definition and the exact value are NaN, or the same infinity, that is required. Otherwise the distance
    from the exact value may be ``limit``; a value that close to the largest number of the format may be infinite. Where
    the limit is not finite, or the definition overflows and the exact value does not, nothing is required. Whole
    numbers, and results without a limit, must have the definition's bits.
    """
    found = Finding(compared=got.size, identical=bool((patterns(got) == patterns(defined)).all()))
    found.mask = np.zeros(got.shape, bool)
    kinds = np.zeros(got.shape, np.int8) if kinds is None else kinds
    if got.size == 0:
        return found
    if not fmt.is_float or limit is None:
        found.judged = got.size
        found.mask = patterns(got) != patterns(defined)
        found.judged_of = {0: got.size}
        _describe(found, name, np.ones(got.shape), got, defined, None, fmt, None, place, kinds)
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
    wrong &= ~np.isin(kinds, list(forgiven))
    share = np.where(np.isin(kinds, list(forgiven)), 0, share)
    found.judged = int((nan | certain | near).sum())
    found.judged_of = _counted(kinds, nan | certain | near)
    found.zeros = int(((got == 0) & (defined == 0) & (np.signbit(value) != np.signbit(truth))).sum())
    errors = np.where(near & ~over, ulp_errors(got, exact, fmt), 0)
    row = np.where(near, np.abs(exact), 0).max(axis=-1, keepdims=True) if got.ndim else np.abs(exact)
    found.max_ulp = float(errors.max())
    with np.errstate(all="ignore"):
        scale = spacing(np.maximum(np.where(near, np.abs(exact), 0), row), fmt)
        found.max_ulp_of_row = float(np.where(near & ~over, distance / scale, 0).max())
    found.share = float(share.max())
    found.mask = wrong
    _describe(found, name, share, got, defined, exact, fmt, limit, place, kinds)
    return found


def _describe(
    found: Finding, name: str, share: Array, got: Array, defined: Array, exact: Array | None, fmt: Format,
    limit: Array | None, place: Place | None, kinds: Array,
) -> None:  # fmt: skip
    """Put into words which elements are wrong: of those of ordinary values, if any, the one with the largest error."""
    found.wrong = int(found.mask.sum())
    found.wrong_of = _counted(kinds, found.mask)
    if not found.wrong:
        return
    shown_of = found.mask & (kinds == min(found.wrong_of))
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(shown_of, share, -1))), got.shape))
    shown = ",".join(map(str, place(at) if place else at))
    said = f"{name}[{shown}] is {show(got[at])}; the definition gives {show(defined[at])}"
    if exact is not None and limit is not None:
        value, most = float(exact[at]), float(limit[at])
        said += f", the exact value is {value:.9g}"
        if np.isfinite(value) and np.isfinite(float(got[at])):
            ulp = float(spacing(np.abs(exact[at]), fmt))
            off = abs(float(got[at]) - value)
            said += f": it differs by {off / ulp:.4g} ulp, the rounding-error bound is {most / ulp:.4g} ulp"
    found.first = said
    found.where = extent(np.argwhere(found.mask), got.shape)


def _counted(kinds: Array, which: Array) -> dict[int, int]:
    """How many elements there are of each kind."""
    found, counts = np.unique(np.broadcast_to(kinds, which.shape)[which], return_counts=True)
    return {int(k): int(n) for k, n in zip(found, counts, strict=True)}


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
