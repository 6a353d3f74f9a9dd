"""Builds as they happen, for those who wait: each is logged, and told to whoever watches.

A first call compiles its kernel, which takes a second or more; a training step calls dozens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

logger = logging.getLogger("tokitai")


@dataclass(frozen=True)
class Build:
    """A kernel that is being compiled, or has been: then with the seconds that it took."""

    name: str
    target: str  # "cpu", or an architecture of GPUs
    seconds: float | None = None


Watcher = Callable[[Build], None]
_watchers: list[Watcher] = []


def watch(watcher: Watcher) -> None:
    """Tell the watcher of every build of this process, at its beginning and at its end, from the thread that builds."""
    _watchers.append(watcher)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """The same for as long as the context lasts."""
    watch(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def building(name: str, target: str) -> Iterator[None]:
    """What is inside compiles a kernel."""
    begun = time.perf_counter()
    _tell(Build(name, target))
    try:
        yield
    finally:
        seconds = time.perf_counter() - begun
        logger.info("compiled %s for %s in %.1f s", name, target, seconds)
        _tell(Build(name, target, seconds))


def _tell(build: Build) -> None:
    for watcher in list(_watchers):
        watcher(build)
