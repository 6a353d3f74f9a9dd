"""A progress bar on standard error, for work that takes long enough to wonder about it."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY = 2.0  # seconds before anything is shown


class Bar:
    """Shows which of `total` verifications is under way, where standard error is a terminal; prints to `results`."""

    def __init__(self, total: int, results: TextIO | None = None) -> None:
        self.total, self.results = total, results
        self.label, self.cases, self.done = "compiling", 0, 0
        self._progress: Progress | None = None
        self._timer = threading.Timer(DELAY, self._show)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def start(self, label: str) -> None:
        """The next verification begins."""
        self.label, self.cases = label, 0
        self._update()

    def case(self, _: str) -> None:
        """A case of it is over."""
        self.cases += 1
        self._update()

    def end(self, text: str) -> None:
        """It is over; `text` says how."""
        self.done += 1
        self._update()
        with self._lock:
            if self._progress is not None:
                self._progress.stop()  # the bar is out of the way while a line is printed
            if self.results is not None:
                print(text, file=self.results, flush=True)
            if self._progress is not None:
                self._progress.start()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with self._lock:
            if self._closed:
                return
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._progress.add_task("")
            self._progress.start()
        self._update()

    def _update(self) -> None:
        if self._progress is not None:
            of = f" ({min(self.done + 1, self.total)} of {self.total})" if self.total > 1 else ""
            total = self.total if self.total > 1 else None  # how many cases one has is known only at its end
            text = f"{self.label}{of}, cases: {self.cases}"
            self._progress.update(self._progress.task_ids[0], description=text, completed=self.done, total=total)
