"""Calls in turns, by the clock on the wall and by that of the processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


def least(calls: Mapping[str, Callable[[], Any]], repeats: int, rest: float = 0.0) -> dict[str, dict[str, float]]:
    """The smallest time of each call in seconds, by both clocks. ``rest``: seconds without a call before each."""
    clocks = {"wall": time.perf_counter, "cpu": time.process_time}
    best = {clock: dict.fromkeys(calls, float("inf")) for clock in clocks}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(rest)
            starts = {clock: now() for clock, now in clocks.items()}
            call()
            for clock, now in clocks.items():
                best[clock][name] = min(best[clock][name], now() - starts[clock])
    return best
