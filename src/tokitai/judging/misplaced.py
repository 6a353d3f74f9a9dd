"""Wrong answers that are no arithmetic: right numbers in the wrong place, none at all, or those of another call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..verification.compare import patterns

Array = np.ndarray[Any, Any]
WIDTHS = (256, 128, 64, 32, 16, 8, 4, 2)
LEAST = 4  # wrong finite elements, or anything would be said of a NaN
NAMES = ("stale", "constant", "rows:exchanged", "rows:shifted-up", "rows:shifted-down", "rows:reversed",
         "columns:shifted", "columns:reversed", "columns:exchanged", "rows:last-missing",
         *(f"tail:{w}" for w in WIDTHS))  # fmt: skip
MOST = 0.95  # share of elements that must be as said


@dataclass(frozen=True)
class Answer:
    """A wrong result: what was given and what the definition gives, which elements are wrong, which columns of how many
    they are of, earlier answers of this size, and the inputs."""

    got: Array
    defined: Array
    mask: Array
    columns: tuple[Array, int]
    stale: tuple[Array, ...]
    inputs: Mapping[str, Array]


def find(every: Sequence[Answer]) -> tuple[str, str] | None:
    """The name of what is wrong, and a sentence, where it is so in every answer."""
    if sum(int((a.mask & np.isfinite(a.got.astype(np.float64))).sum()) for a in every) < LEAST:
        return None
    for check in (_stale, _constant, _input, _rows, _columns_turned, _tail, _last_row):
        found = check(every)
        if found is not None:
            return found
    return None


def _same(a: Array, b: Array) -> Array:
    return np.asarray((patterns(a) == patterns(b)) | ((a != a) & (b != b)) | ((a == 0) & (b == 0)))


def _nearly(got: Array, other: Array) -> bool:
    """Whether results agree but for the last bits of some elements, and are not all alike."""
    if got.shape != other.shape or got.size == 0:
        return False
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), other.astype(np.float64)
        near = _same(got, other) | (np.abs(a - b) <= 2.0**-6 * np.abs(b))
    return bool(near.mean() >= MOST)


def _stale(every: Sequence[Answer]) -> tuple[str, str] | None:
    if all(any(np.array_equal(patterns(a.got), patterns(s)) for s in a.stale) for a in every):
        return "stale", "the answer is that of an earlier call"
    return None


def _constant(every: Sequence[Answer]) -> tuple[str, str] | None:
    def alike(a: Answer) -> bool:
        return a.got.size > 1 and bool(_same(a.got, np.broadcast_to(a.got.flat[0], a.got.shape)).all())

    some = [a for a in every if a.got.size > 1]
    if some and all(map(alike, some)):
        value = float(some[0].got.flat[0])
        return "constant", f"every element is {value:g}" if value == 0 else "every element of an answer is the same"
    return None


def _input(every: Sequence[Answer]) -> tuple[str, str] | None:
    for name in every[0].inputs:
        given = [(a, a.inputs.get(name)) for a in every]
        if all(x is not None and x.dtype == a.got.dtype and x.size == a.got.size and a.got.size > 1
               and np.array_equal(patterns(x).reshape(-1), patterns(a.got).reshape(-1)) for a, x in given):  # fmt: skip
            return f"input:{name}", f"the answer is the input {name}"
    return None


def _rows(every: Sequence[Answer]) -> tuple[str, str] | None:
    """Whether each row of an answer is another row of the definition's."""
    some = [a for a in every if a.got.ndim == 2 and a.got.shape[0] > 1 and a.got.shape[1] > 1]
    if not some:
        return None
    for name, said, order in (
        ("rows:exchanged", "neighbouring rows are exchanged", lambda n: np.minimum(np.arange(n) ^ 1, n - 1)),
        ("rows:shifted-up", "each row holds the result of the next", lambda n: (np.arange(n) + 1) % n),
        ("rows:shifted-down", "each row holds the result of the one before", lambda n: (np.arange(n) - 1) % n),
        ("rows:reversed", "the order of rows is reversed", lambda n: np.arange(n)[::-1]),
    ):
        if all(_nearly(a.got, a.defined[order(len(a.got))]) for a in some) and not all(
            _nearly(a.got, a.defined) for a in some
        ):
            return name, said
    return None


def _columns_turned(every: Sequence[Answer]) -> tuple[str, str] | None:
    some = [a for a in every if a.got.ndim == 2 and a.got.shape[1] > 1]
    for name, said, order in (
        ("columns:shifted", "each column holds the result of the next", lambda n: (np.arange(n) + 1) % n),
        ("columns:reversed", "the order of columns is reversed", lambda n: np.arange(n)[::-1]),
        ("columns:exchanged", "neighbouring columns are exchanged", lambda n: np.minimum(np.arange(n) ^ 1, n - 1)),
    ):
        if some and all(_nearly(a.got, a.defined[:, order(a.got.shape[1])]) for a in some):
            return name, said
    return None


def _tail(every: Sequence[Answer]) -> tuple[str, str] | None:
    """Whether nothing but the columns behind the last multiple of a width is wrong, and nearly all of those are."""
    for width in WIDTHS:
        wrong = behind = 0
        inside = True
        for a in every:
            if a.got.ndim != 2 or a.got.shape[1] != len(a.columns[0]):
                return None
            tail = a.columns[0] >= a.columns[1] // width * width
            inside &= not a.mask[:, ~tail].any()
            wrong += int(a.mask[:, tail].sum())
            behind += int(tail.sum()) * len(a.got)
        sizes = {a.columns[1] for a in every}
        if inside and wrong > 0.8 * behind and len(sizes) > 1 and any(s > width for s in sizes):
            return f"tail:{width}", f"columns behind the last multiple of {width} are not computed"
    return None


def _last_row(every: Sequence[Answer]) -> tuple[str, str] | None:
    some = [a for a in every if a.got.ndim == 2]
    if len(some) == len(every) and all(a.mask[-1].any() and not a.mask[:-1].any() for a in every) and (
        max(len(a.got) for a in every) > 2
    ):  # fmt: skip
        return "rows:last-missing", "the last row is not computed"
    return None
