"""How a row-wise plan is laid over the threads of a GPU: threads to a row, chunks to a thread, rows to a block.

A schedule decides speed, never a bit. It follows from the number of columns and from how tensors are aligned; the
number of rows decides only how many blocks there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...formats import FORMATS
from ...lang import Node, topological
from ...lower.gpu import CHUNK, MOST_THREADS, Step, registers_of
from .plan import REDUCTIONS, RowPlan

LONGEST_JOINED = 8192  # columns of a row whose threads also hold the column sums; longer ones are read again for those
LONGEST_KEPT = 32768  # columns of a row that threads keep in registers; longer ones are read again in each pass
COLUMNS = 32  # of a block that adds up partial column sums
COLUMN_THREADS = 128  # of a block that runs down rows on its own: a chunk of columns to each
LONGEST_UNSTAGED = 4096  # columns of a row with a kept value; longer ones come into shared memory ahead of their turn
STAGE_ROOM = 160 << 10  # bytes of staged rows on a multiprocessor
REGISTERS = 64 << 10  # of a multiprocessor
MOST_BLOCKS = 32  # at a time on a multiprocessor
# Columns of a slice, where rows are chosen from a table: blocks take all rows' first slices, then all second ones, so
# that what was read of an entry is still in L2 when it is chosen again. On an H200 256 columns were as fast, and 1,024
# a tenth slower.
SLICE = 512


@dataclass(frozen=True)
class Schedule:
    """One way to lay out a row-wise kernel."""

    threads: int  # to a row: a power of two up to a warp, then whole warps
    chunks: int  # to a thread: a power of two
    rows: int  # that a block of threads works on at a time
    width: int  # elements to an access at most: 8, 4, 2 or 1
    exact: bool  # rows are whole chunks
    full: bool  # rows are all chunks of their threads
    ahead: int  # rows that are fetched ahead, where a block of threads works through several
    kept: bool  # rows stay in registers; else they are read again in each pass
    hoisted: bool = False  # values of columns stay in registers from row to row
    per_sm: int = 1  # blocks that shall fit on a multiprocessor at least: fewer registers a thread
    apart: bool = False  # column sums have a kernel of their own
    staged: bool = False  # rows come into shared memory one ahead, instead of registers
    sliced: bool = False  # columns that a row's threads hold are a slice of it; slices are the outer loop over blocks

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows

    def with_fewer_registers(self, blocked: bool, room: bool) -> Schedule | None:
        """What to try where registers spill: more for each, or less to hold; None if nothing is left to try.

        ``blocked``: whether the plan is, as `blocked` has it; ``room``: whether its rows can be staged.
        """
        joined = blocked and not self.apart
        if self.per_sm > 1 and self.chunks < 8:
            return replace(self, per_sm=self.per_sm * 7 // 8)
        halves = self.chunks == 8 and self.threads * 2 <= MOST_THREADS and not self.staged and not joined
        if halves and self.per_sm >= 4:
            return replace(self, threads=self.threads * 2, chunks=4, per_sm=self.per_sm // 2)
        if halves and room:
            return replace(self, threads=self.threads * 2, chunks=4, per_sm=1, staged=True, ahead=0)
        if self.per_sm > 1:
            return replace(self, per_sm=self.per_sm - 1)
        return replace(self, ahead=0) if self.kept and self.ahead and not joined else None

    def __str__(self) -> str:
        how = "in shared memory" if self.staged else "in registers" if self.kept else "read in each pass"
        how = "a slice of each at a time" if self.sliced else how
        return (
            f"{self.threads} threads a row, {self.chunks} chunks a thread, {self.rows} rows a block, "
            f"{self.width} elements an access, {how}"
        )


def schedule_rows(plan: RowPlan, cols: int, width: int, warp: int = 32) -> Schedule:
    """The schedule for rows of so many columns whose tensors allow accesses of `width` elements."""
    chunks_of_row = max(1, -(-cols // CHUNK))
    exact = cols % CHUNK == 0 and cols > 0
    if cols > SLICE and sliced(plan):
        chunks, full = SLICE // (CHUNK * warp), cols % SLICE == 0
        return Schedule(warp, chunks, 128 // warp, width, exact, full, 0, kept=True, per_sm=10, sliced=True)
    apart = cols > LONGEST_JOINED and separable(plan)
    running = blocked(plan) and not apart
    if cols > LONGEST_KEPT:
        return Schedule(MOST_THREADS, 1, 1, width, exact, False, 1, kept=False, apart=apart)
    if chunks_of_row <= warp and not (running and chunks_of_row > warp // 2):
        threads = _power_of_two(chunks_of_row)
        full = cols == threads * CHUNK
        return Schedule(threads, 1, max(1, 128 // threads), width, exact, full, 2, kept=True)
    if running:
        return _joined(plan, chunks_of_row, cols, width, warp)
    narrow = _words_of_row(plan) == CHUNK // 2  # one matrix, of 16 bits
    if len(plan.kept) == 1 and plan.most_sums == 1 and narrow:
        return _with_kept(plan, chunks_of_row, cols, width, warp)
    if len(plan.kept) == 1 and cols > LONGEST_UNSTAGED:
        threads, chunks = _share(chunks_of_row, warp, 8, 8)
        full, per_sm = cols == threads * chunks * CHUNK, max(1, 16 * warp // threads)
        s = Schedule(threads, chunks, 1, width, exact, full, 0, kept=True, per_sm=per_sm, apart=apart, staged=True)
        if stage_bytes(plan, s) * per_sm <= STAGE_ROOM:
            return s
    # Measured on an H200: where a row is read three times, long ones are best by few threads, and each widens again.
    threads, chunks = _share(chunks_of_row, warp, 8 if narrow and len(plan.passes) > 2 and cols > 1024 else 4, 8)
    several = sum(t.space == "rc" for t in plan.graph.inputs) > 1
    if several and chunks == 8 and not plan.kept and (not apart or _words_of_row(plan) <= CHUNK):
        threads, chunks = threads * 2, 4
    if several and threads == warp and chunks == 4 and not plan.kept:
        threads, chunks = threads * 2, 2
    full = cols == threads * chunks * CHUNK
    # Registers for 32 warps on a multiprocessor, for 16 or 24 where two matrices or kept values need many.
    words = chunks * _words_of_row(plan)
    if apart and words > 64:  # two inputs of 32,768 columns in f32: all the registers that there are
        return Schedule(MOST_THREADS, 1, 1, width, exact, False, 1, kept=False, apart=True)
    if len(plan.kept) == 1 and chunks <= 4:
        warps, ahead = 36 if words <= 16 else 24, 0
    elif several and not plan.kept:
        warps, ahead = 24 if chunks == 2 else 32 if apart else 16, 0
    else:
        warps, ahead = 16 if plan.kept else 32 if words <= 32 else 16, int(len(plan.kept) == 1)
    per_sm = min(MOST_BLOCKS, max(1, warps * warp // threads, 2 * (several and threads <= 512)))
    return Schedule(
        threads, chunks, 1, width, exact, full, ahead, kept=True, per_sm=per_sm, apart=apart,
        staged=apart and words <= 32,
    )  # fmt: skip


def _with_kept(plan: RowPlan, chunks_of_row: int, cols: int, width: int, warp: int) -> Schedule:
    """Rows of 16-bit numbers of which a thread keeps one value each, with one sum, as softmax has it."""
    threads, chunks = _share(chunks_of_row, warp, 8 if cols > 1024 else 4, 8)
    warps, ahead = 24 if chunks == 8 else 32, 0
    if threads > 12 * warp:  # two blocks would not find room: one, with the next row on its way
        threads, chunks = -(-chunks_of_row // (4 * warp)) * warp, 4
        warps, ahead = 32, 1
    exact, full = cols % CHUNK == 0 and cols > 0, cols == threads * chunks * CHUNK
    return Schedule(threads, chunks, 1, width, exact, full, ahead, kept=True, per_sm=max(1, warps * warp // threads))


def _joined(plan: RowPlan, chunks_of_row: int, cols: int, width: int, warp: int) -> Schedule:
    """Rows whose threads hold column sums as well, in registers for 16 warps on a multiprocessor: two chunks a thread,
    or four in longer rows; staged where as many blocks find room."""
    exact = cols % CHUNK == 0 and cols > 0
    for wish in (4, 2) if chunks_of_row > 8 * warp else (2,):
        threads, chunks = _share(chunks_of_row, warp, wish, 4)
        rows, full = max(1, 128 // threads) if threads <= warp else 1, cols == threads * chunks * CHUNK
        per_sm = max(1, 16 * warp // (threads * rows))
        s = Schedule(threads, chunks, rows, width, exact, full, 1, kept=True, hoisted=True, per_sm=per_sm, staged=True)
        if stage_bytes(plan, s) * per_sm <= STAGE_ROOM:
            return s
    return replace(s, staged=False)


def held(plan: RowPlan, schedule: Schedule) -> bool:
    """Whether a row is in registers from its first pass to its last: also one that comes into shared memory, where that
    takes few enough, so that the next row can follow at once."""
    joined = blocked(plan) and not schedule.apart
    few = _words_of_row(plan) * schedule.chunks <= (16 if plan.kept else 32)
    return schedule.kept and (not schedule.staged or (few and not joined))


def widened_again(plan: RowPlan, schedule: Schedule) -> bool:
    """Whether each pass widens narrow numbers of a held row again: a thread has no registers for them."""
    narrow = [t for t in plan.graph.inputs if t.space == "rc" and FORMATS[str(t.format)].bits < 32]
    values = CHUNK * schedule.chunks * len(narrow) + schedule.ahead * schedule.chunks * _words_of_row(plan)
    room = REGISTERS // (schedule.block_threads * schedule.per_sm)
    return held(plan, schedule) and not plan.kept and values + 16 >= room


def stages(plan: RowPlan, schedule: Schedule) -> int:
    """Rows in shared memory where they are staged: one is worked on, the others are on their way."""
    return 1 if held(plan, schedule) else 2


def _words_of_row(plan: RowPlan) -> int:
    return sum(registers_of(t) for t in plan.graph.inputs if t.space == "rc")


def stage_bytes(plan: RowPlan, schedule: Schedule) -> int:
    """Shared memory for the rows of every matrix that is read."""
    each = 4 * _words_of_row(plan) * schedule.chunks * schedule.block_threads
    return stages(plan, schedule) * each if schedule.staged else 0


def _share(chunks_of_row: int, warp: int, wish: int, most: int) -> tuple[int, int]:
    """Threads and chunks a thread: at least `wish` chunks, at most 512 threads where `most` allows it."""
    chunks = wish
    while True:
        warps = -(-chunks_of_row // (warp * chunks))
        if warps * warp <= 512 or chunks >= most:
            return warps * warp, min(chunks, _power_of_two(-(-chunks_of_row // (warps * warp))))
        chunks *= 2


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 1 else 1


def row_steps(plan: RowPlan, schedule: Schedule, rows: int, cols: int) -> list[Step]:
    """The launches of a row-wise kernel, in order."""
    steps = []
    if plan.early:
        steps.append(Step("early", 1, MOST_THREADS))
    joined = blocked(plan) and not schedule.apart
    units = -(-rows // plan.block) if joined else rows
    if units and (cols or has_row_results(plan)):
        # Blocks that fetch nothing ahead gain nothing by taking rows in turn: a GPU's own order balances better.
        in_turn = not joined and schedule.kept and (schedule.ahead > 0 or schedule.staged)
        shared = stage_bytes(plan, schedule)
        slices = -(-cols // (schedule.threads * schedule.chunks * CHUNK)) if schedule.sliced else 1
        steps.append(Step("work", -(-units // schedule.rows) * slices, schedule.block_threads, in_turn, shared))
    if schedule.apart and rows and cols:
        across = -(-cols // (COLUMN_THREADS * CHUNK))
        steps.append(Step("columns", -(-rows // plan.block) * across, COLUMN_THREADS))
    if finishes(plan):
        steps.append(Step("finish", max(1, -(-cols // COLUMNS) if column_results(plan) else 1), MOST_THREADS))
    return steps


def blocked(plan: RowPlan) -> bool:
    """Whether rows are worked through in blocks, as chains of column sums."""
    return any(n.space == "c" for n in plan.running)


def sliced(plan: RowPlan) -> bool:
    """Whether rows are chosen from a table, with no other matrix beside it, and every column is computed on its own."""
    nodes = plan.graph.nodes
    joins = {*REDUCTIONS, "col_sum", "take_column", "column_index", "element_word"}
    alone = len(plan.passes) == 1 and not any(n.op in joins for n in nodes) and not has_row_results(plan)
    return alone and [n.op for n in nodes if n.op == "gather" or (n.op == "input" and n.space == "rc")] == ["gather"]


def under_sums(plan: RowPlan) -> list[Node]:
    """What column sums are made of, operands first."""
    return list(topological(n.args[0] for n in plan.running if n.space == "c"))


def separable(plan: RowPlan) -> bool:
    """Whether there are column sums, and none needs a pass over a row beforehand."""
    return blocked(plan) and not any(n.op in REDUCTIONS or n.op == "take_column" for n in under_sums(plan))


def has_row_results(plan: RowPlan) -> bool:
    """Whether something is to be done for rows without columns."""
    return any(o.space == "r" for o in plan.graph.outputs) or any(n.space == "s" for n in plan.running)


def column_results(plan: RowPlan) -> bool:
    """Whether there are results with one element a column."""
    return any(o.space == "c" for o in plan.graph.outputs)


def finishes(plan: RowPlan) -> bool:
    """Whether results are known only after the last row."""
    return any(o.space in ("c", "s") for o in plan.graph.outputs)


def workspace_elements(plan: RowPlan, rows: int, cols: int) -> int:
    """Elements of workspace: a cell for each early sum, partial sums of running ones."""
    blocks = -(-rows // plan.block)
    return len(plan.early) + sum(blocks * cols if n.space == "c" else rows for n in plan.running)
