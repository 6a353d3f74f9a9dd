"""Times of calls that take turns, block by block, so that a busy moment of the machine meets all of them."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK_SECONDS = 0.05
ALONE = 1 << 19  # bytes: to hand out less takes longer than to copy it


@dataclass(frozen=True)
class Times:
    """Seconds a call, one figure for each block; ``calls`` in a block."""

    blocks: tuple[float, ...]
    calls: int

    @property
    def least(self) -> float:
        """The fastest block."""
        return min(self.blocks)

    @property
    def median(self) -> float:
        """The block in the middle."""
        return statistics.median(self.blocks)

    def as_json(self) -> dict[str, Any]:
        """Milliseconds."""
        milliseconds = [round(s * 1e3, 4) for s in self.blocks]
        median = round(self.median * 1e3, 4)
        return {"min_ms": min(milliseconds), "median_ms": median, "calls": self.calls, "blocks": milliseconds}


def _block(call: Callable[[], object], count: int) -> tuple[float, object]:
    """Seconds a call, and what the last one returned."""
    found: object = None
    start = time.perf_counter()
    for _ in range(count):
        found = call()
    return (time.perf_counter() - start) / count, found


def alternate(
    calls: Mapping[str, Callable[[], object]], blocks: int, last: dict[str, object] | None = None
) -> dict[str, Times]:
    """Time each call in `blocks` blocks, taking turns. Each is called twice before, untimed. ``last`` gets what the
    last timed call of each returned."""
    last = {} if last is None else last
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(1, int(BLOCK_SECONDS / max(_block(call, 1)[0], 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            took, last[name] = _block(call, counts[name])
            seconds[name].append(took)
    return {name: Times(tuple(s), counts[name]) for name, s in seconds.items()}


class Copy:
    """A copy by NumPy in a few threads that reads and writes so many bytes together: what memory allows here."""

    def __init__(self, bytes_moved: int, threads: int) -> None:
        half = bytes_moved // 2
        self.source, self.target = np.ones(half, np.uint8), np.empty(half, np.uint8)
        threads = threads if half >= ALONE else 1
        cuts = [half * i // threads for i in range(threads + 1)]
        self.parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        if len(self.parts) == 1:
            return self._part(self.parts[0])
        list(self.pool.map(self._part, self.parts))

    def _part(self, part: slice) -> None:
        np.copyto(self.target[part], self.source[part])
