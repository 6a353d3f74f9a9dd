"""Launch plans of row-wise kernels: every schedule that there is for some number of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import z3

from ..families.rowwise import schedule as rowwise
from ..families.rowwise.plan import RowPlan
from ..lang import Operator
from ..lower.gpu import CHUNK
from .choice import SHARED_BYTES, Choice, Planned
from .symbolic import whole

WARP = {"cuda": (32,), "hip": (32, 64)}


def choices(operator: Operator, plan: RowPlan, target: str, knows: Sequence[Any]) -> Iterator[Choice]:
    """A choice for each schedule."""
    rows, cols, most = z3.Int("rows"), z3.Int("cols"), operator.contract.max_cols
    for warp in WARP[target]:
        for s, low, high in row_schedules(plan, warp, most, target):
            yield Choice(str(s), [*knows, cols >= low, cols <= high], _rows(plan, s, rows, cols))


def row_schedules(
    plan: RowPlan, warp: int, most: int, target: str
) -> Iterator[tuple[rowwise.Schedule, int, int]]:  # fmt: skip
    """Every schedule, and what is tried in its place, with the least and the largest number of columns for which it is
    chosen. They differ by the number of chunks and by whether the last one is whole, so these are all tried; of those
    with the same launches one stands for all."""
    ends: dict[Any, tuple[rowwise.Schedule, int, int]] = {}
    for low, high in column_classes(most):
        wished = rowwise.schedule_rows(plan, low, 8, warp)
        fits = rowwise.stage_bytes(plan, wished) <= SHARED_BYTES[target]
        seen: rowwise.Schedule | None = wished if fits else replace(wished, staged=False)
        while seen is not None:
            shared = rowwise.stage_bytes(plan, seen)
            key = (
                seen.threads, seen.rows, seen.chunks * seen.sliced, seen.sliced, seen.apart, seen.kept, seen.staged,
                seen.ahead > 0, shared,
            )  # fmt: skip
            first, least, greatest = ends.get(key, (seen, low, high))
            ends[key] = first, min(least, low), max(greatest, high)
            room = rowwise.stage_bytes(plan, replace(seen, staged=True)) <= SHARED_BYTES[target]
            seen = seen.with_fewer_registers(rowwise.blocked(plan), room)
    yield from ends.values()


def column_classes(most: int) -> Iterator[tuple[int, int]]:
    """Numbers of columns, from and to, of which all have the same schedule: by chunks up to the longest row that
    threads keep, and all beyond by whether they are whole chunks or whole slices."""
    longest = min(most, rowwise.LONGEST_KEPT)
    for first in range(0, longest + 1, CHUNK):
        yield first, first
        if first < longest:
            yield first + 1, min(first + CHUNK - 1, longest)
    if most > longest:
        yield longest + 1, most
        yield longest + CHUNK, most
        yield longest + rowwise.SLICE, most


def _rows(plan: RowPlan, schedule: rowwise.Schedule, rows: Any, cols: Any) -> Callable[[], Planned]:
    def made() -> Planned:
        steps = rowwise.row_steps(plan, schedule, whole(rows), whole(cols))
        return Planned(steps, 4 * rowwise.workspace_elements(plan, whole(rows), whole(cols)))

    return made


__all__ = ["choices", "column_classes", "row_schedules"]
