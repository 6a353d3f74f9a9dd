"""What a replacement swapped and what it left, in a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One module, or one computation inside a module's `forward`: its name in the model, the name of its class, the
    kind of the rule that took it, and for what was left the reason."""

    name: str
    of: str
    kind: str
    reason: str | None = None

    @property
    def pattern(self) -> str:
        """The name with * in place of numbers."""
        return re.sub(r"(?<![^.])\d+(?![^.])", "*", self.name) or "(model)"


@dataclass(frozen=True)
class Report:
    """What was swapped and what was left. Its text has a line for each name, with * in place of numbers."""

    swapped: tuple[Entry, ...]
    left: tuple[Entry, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The lines of the text."""
        for title, entries in (("swapped", self.swapped), ("left", self.left)):
            counted: dict[tuple[str, str, str], int] = {}
            for e in entries:
                key = (e.pattern, e.of, e.kind if e.reason is None else f"{e.kind}: {e.reason}" if e.kind else e.reason)
                counted[key] = counted.get(key, 0) + 1
            width = [max((len(key[i]) for key in counted), default=0) for i in (0, 1)]
            yield f"{title}: {len(entries)}"
            for (pattern, of, words), count in counted.items():
                yield f"  {pattern:{width[0]}}  {count:>3} x {of:{width[1]}}  {words}"
