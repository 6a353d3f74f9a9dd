"""How a sum over entries is laid over the threads of a GPU: launches, and the workspace between them.

Rows are sorted by entry, 8 bits of it at a time from the lowest: a block takes a tile of rows, a thread the rows with
one digit, one after another. So equal digits keep their order with no atomic operation, on integers or floats.
"""

from __future__ import annotations

from .gpu import COLUMNS, MOST_THREADS, Step
from .scatter import ScatterPlan, windows

DIGITS = 256
TILE = 1024  # rows of which a block sorts
PASSES = 4  # at most: entries below 2**32
THREADS = 128  # of a block that works on one entry
GROUPS = 8  # blocks that share the trees of a long segment


def passes_of(entries: int) -> int:
    """Passes of the sort: digits of the largest entry."""
    return -(-max(entries - 1, 1).bit_length() // 8)


def scatter_steps(plan: ScatterPlan, rows: int, cols: int, entries: int) -> list[Step]:
    """The launches, in order."""
    tiles, steps = -(-rows // TILE), []
    if rows:
        for p in range(passes_of(entries)):
            steps.append(Step(f"count_{p}", tiles, DIGITS))
            steps.append(Step("scan", 1, MOST_THREADS))
            steps.append(Step(f"place_{p}", tiles, DIGITS))
    steps.append(Step("find", -(-(entries + 1) // DIGITS), DIGITS))
    if rows > plan.block:
        steps.append(Step("blocks", 2 * windows(rows), THREADS, in_turn=True))
    steps.append(Step("work", entries, THREADS, in_turn=True))
    if rows > plan.block:
        groups = min(GROUPS, -(-cols // COLUMNS))
        steps.append(Step("trees", windows(rows) * groups, MOST_THREADS, in_turn=True))
    return steps


def workspace_bytes(rows: int, cols: int, entries: int, element: int) -> int:
    """Where segments begin, two lists of rows with their entries, counts of digits, two sums for each window."""
    return 8 * (entries + 1 + 4 * rows + DIGITS * -(-rows // TILE)) + element * 2 * windows(rows) * cols
