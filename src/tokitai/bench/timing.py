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


def _block(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def alternate(calls: Mapping[str, Callable[[], object]], blocks: int) -> dict[str, Times]:
    """Time each call in `blocks` blocks, taking turns. Each is called twice before, untimed."""
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(1, int(BLOCK_SECONDS / max(_block(call, 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            seconds[name].append(_block(call, counts[name]))
    return {name: Times(tuple(s), counts[name]) for name, s in seconds.items()}


class Copy:
    """A copy by NumPy in a few threads that reads and writes so many bytes together: what memory allows here."""

    def __init__(self, bytes_moved: int, threads: int) -> None:
        half = bytes_moved // 2
        self.source, self.target = np.ones(half, np.uint8), np.empty(half, np.uint8)
        cuts = [half * i // threads for i in range(threads + 1)]
        self.parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        self.pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        list(self.pool.map(self._part, self.parts))

    def _part(self, part: slice) -> None:
        np.copyto(self.target[part], self.source[part])
