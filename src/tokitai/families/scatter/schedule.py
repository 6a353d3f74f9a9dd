"""How a sum over entries is laid over the threads of a GPU: launches, and the workspace between them.

Rows are sorted by entry, 8 bits of it at a time from the lowest: blocks count the digits of their tiles, then each adds
up what the others counted and puts its rows in their places. Then one kernel does all that is independent, in units:
chains of long segments, the short segments that begin in a window of sorted rows, entries that no row chose. So each
unit has a few dozen rows, however the entries are chosen. Long segments are found on the way, and their trees are last.

Rows and places are 32 bits wide, or 64 where there are nearly 2**31 rows or more.
"""

from __future__ import annotations

from ...lower.gpu import CHUNK, MOST_THREADS, Step
from .plan import ScatterPlan, windows

DIGITS = 256
PIECE, MOST_TILES = 1024, 256  # rows that a block sorts at a time; a tile is as many pieces as it takes
PASSES = 4  # at most: entries below 2**32
THREADS = 128  # of a block that works on units
WINDOW, ENTRIES = 16, 32  # sorted rows, and entries, of a unit
BROAD = 128  # columns of a block that adds up the blocks of a long segment


def passes_of(entries: int) -> int:
    """Passes of the sort: digits of the largest entry."""
    return -(-max(entries - 1, 1).bit_length() // 8)


def is_wide(rows: int) -> bool:
    """Whether rows need 64 bits: with room for what is counted past the last."""
    return rows > 2**31 - PIECE


def tiles_of(rows: int) -> int:
    """Tiles of the sort."""
    pieces = -(-rows // PIECE)
    return -(-pieces // -(-pieces // MOST_TILES)) if rows else 0


def work_blocks(plan: ScatterPlan, rows: int, cols: int, entries: int) -> int:
    """Blocks of the kernel that works on units: as many units to a block as there are columns for its threads."""
    threads = THREADS
    while threads > 1 and threads // 2 * CHUNK >= cols:
        threads //= 2
    units = (2 * windows(rows) if rows > plan.block else 0) + -(-rows // WINDOW) + -(-entries // ENTRIES)
    return -(-units * -(-cols // (threads * CHUNK)) // (THREADS // threads))


def scatter_steps(plan: ScatterPlan, rows: int, cols: int, entries: int) -> list[Step]:
    """The launches, in order."""
    steps = []
    if rows:
        for p in range(passes_of(entries)):
            steps += [Step(f"count_{p}", tiles_of(rows), DIGITS), Step(f"place_{p}", tiles_of(rows), DIGITS)]
    steps.append(Step("find", -(-(entries + 1) // DIGITS), DIGITS))
    blocks = work_blocks(plan, rows, cols, entries)
    if blocks:
        steps.append(Step("work", blocks, THREADS))
    if blocks and rows > plan.block:
        steps.append(Step("trees", windows(rows) * -(-cols // BROAD), MOST_THREADS, in_turn=True))
    return steps


def workspace_bytes(rows: int, cols: int, entries: int, element: int) -> int:
    """Where segments begin, two lists of rows and two of their entries, counts of digits, long segments, two sums for
    each window; each a multiple of 16 bytes."""
    place = 8 if is_wide(rows) else 4
    parts = [
        place * (entries + 1), place * rows, place * rows, 4 * rows, 4 * rows, 4 * DIGITS * tiles_of(rows),
        4 * (1 + windows(rows)), element * 2 * windows(rows) * CHUNK * -(-cols // CHUNK),
    ]  # fmt: skip
    return sum(-(-n // 16) * 16 for n in parts)
