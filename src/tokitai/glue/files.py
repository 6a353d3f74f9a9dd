"""Files that a thread reads pieces of: opened once, closed when others are needed, or at the end."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

MOST = 64  # files that a thread has open


class Files:
    """The files that one thread has open."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path) -> int:
        """The open file, to read from until the next call."""
        if path in self._open:
            self._open.move_to_end(path)
        else:
            if len(self._open) == MOST:
                os.close(self._open.popitem(last=False)[1])
            self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._open[path]

    def close(self) -> None:
        """Close them all."""
        while self._open:
            os.close(self._open.popitem()[1])
