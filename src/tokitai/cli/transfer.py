"""A progress bar of bytes on standard error, for reading that takes long enough to wonder about it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .progress import DELAY

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL = 0.1  # seconds between two updates


class Transfer:
    """Shows how many bytes are done, of how many, where standard error is a terminal."""

    def __init__(self) -> None:
        self._begun = self._updated = time.monotonic()
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def progress(self, done: int, total: int) -> None:
        """So many bytes are done. Calls do not overlap."""
        now = time.monotonic()
        if now - self._begun < DELAY or now - self._updated < INTERVAL or not sys.stderr.isatty():
            return
        self._updated = now
        if self._progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

            columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._progress.add_task("", total=total)
            self._progress.start()
        self._progress.update(self._progress.task_ids[0], completed=done)
