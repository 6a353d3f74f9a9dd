"""How an element-wise plan is laid over the threads of a GPU: tiles of all tensors, launches, workspace.

A schedule decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...lower.gpu import CHUNK, Step, registers_of
from .plan import FlatPlan

TILE = 4096  # elements that a block takes in an element-wise kernel: a node of the tree along a tensor
MOST_RUN = 16  # neighbouring tiles whose total a block finds: a power of two
MANY_UNITS = 4096  # runs of tiles that keep a GPU busy: fewer, longer ones only beyond
SIM_UNITS = 1  # the same of the simulated device, so that it has runs of several tiles
COUNTERS = 8  # bytes at the beginning of a workspace, by which blocks synchronize


def tiles_of(rows: int, cols: int) -> int:
    """Tiles of one tensor."""
    return rows * -(-cols // TILE)


@dataclass(frozen=True)
class FlatSchedule:
    """One way to lay out an element-wise kernel."""

    threads: int  # that share a tile
    at_once: bool  # all chunks of a thread are fetched before the first is computed
    per_sm: int  # blocks that shall fit on a multiprocessor
    joined: bool  # totals and elements in one launch

    def with_fewer_blocks(self) -> FlatSchedule | None:
        """What to try where registers spill."""
        return replace(self, per_sm=self.per_sm * 7 // 8) if self.per_sm > 1 else None


def schedule_flat(plan: FlatPlan) -> FlatSchedule:
    """By the registers that a chunk of all inputs takes: several chunks in flight, on 512 to 1,024 threads.

    One launch gives AdamW 1.3 % on an H200; scaling by a total became a seventh slower, whose blocks are done in 5 us.
    """
    words = sum(registers_of(t) for t in plan.graph.inputs if t.space == "rc")
    if words <= CHUNK:
        return FlatSchedule(TILE // CHUNK // 4, True, 10 if words <= CHUNK // 2 else 7, False)
    joined = bool(plan.totals and plan.compute)
    if words <= 2 * CHUNK:
        return FlatSchedule(TILE // CHUNK // 2, False, 4, joined)
    return FlatSchedule(TILE // CHUNK // 4, False, 5 if joined else 4, joined)


def run_of(tiles: int, many: int = MANY_UNITS) -> int:
    """Neighbouring tiles whose total one block finds, where a call has so many tiles: a power of two. A device is busy
    with ``many`` runs."""
    run = 1
    while run < MOST_RUN and tiles >= 2 * run * many:
        run *= 2
    return run


def units_of(shapes: Sequence[tuple[int, int]], many: int = MANY_UNITS) -> int:
    """Runs of tiles of all tensors: no run goes on in the next row, so each is a node of the tree along a tensor."""
    run = run_of(sum(tiles_of(r, c) for r, c in shapes), many)
    return sum(r * -(-c // (TILE * run)) for r, c in shapes)


def flat_steps(plan: FlatPlan, shapes: Sequence[tuple[int, int]], many: int = MANY_UNITS) -> list[Step]:
    """The launches of an element-wise kernel. Blocks of one find totals: of runs of tiles, of tensors, of all."""
    tiles = sum(tiles_of(r, c) for r, c in shapes) if plan.compute else 0
    turns = units_of(shapes, many) + sum(r * c > 0 for r, c in shapes) + 1
    schedule, steps = schedule_flat(plan), []
    if schedule.joined:
        return [Step("work", turns + tiles, schedule.threads, cleared=COUNTERS)]
    if plan.of_all:
        steps.append(Step("totals", turns, schedule.threads, cleared=COUNTERS))
    if tiles:
        steps.append(Step("work", tiles, schedule.threads))
    return steps


def flat_workspace_elements(plan: FlatPlan, shapes: Sequence[tuple[int, int]], many: int = MANY_UNITS) -> int:
    """Two for the counters; one value a run of tiles and one a tensor for each total, and the total."""
    if not plan.of_all:
        return 0
    filled = sum(r * c > 0 for r, c in shapes)
    return 2 + len(plan.totals) * (units_of(shapes, many) + filled + 1)
