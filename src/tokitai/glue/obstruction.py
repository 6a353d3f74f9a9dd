"""What keeps sections from being glued: elements with two bit patterns, elements that nobody holds, sections of another
shape or type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..evidence.check import printable
from .boxes import Box, volume


@dataclass(frozen=True)
class Disagreement:
    """Two sections that hold the same elements of a tensor with different bits: `index` is the first of `count`.

    `ranks`, `origins` and `bits` are those of the first section that holds the element, and of the other one.
    """

    tensor: str
    index: tuple[int, ...]
    ranks: tuple[str, str]
    bits: tuple[str, str]
    count: int
    origins: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        (a, b), (x, y) = map(_held_by, self.ranks, self.origins), self.bits
        more = f"; they differ in {self.count} elements of it" if self.count > 1 else ""
        return printable(f"{self.tensor}{list(self.index)}: {x} in {a}, {y} in {b}{more}")


@dataclass(frozen=True)
class Gap:
    """Elements of a tensor that no section holds: the first, how many, the boxes that they make up, and the files that
    should hold them."""

    tensor: str
    index: tuple[int, ...]
    count: int
    boxes: tuple[Box, ...]
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = ", ".join(shown(self.tensor, b) for b in self.boxes[:3]) + ", ..." * (len(self.boxes) > 3)
        why = f"; missing: {', '.join(self.files)}" if self.files else ""
        elements = "1 element" if self.count == 1 else f"{self.count} elements"
        return printable(f"{where}: no section holds {elements}, from {list(self.index)} on{why}")


@dataclass(frozen=True)
class Missing:
    """A tensor, or a section of it, that a file should hold and does not, where it is not known which elements."""

    tensor: str
    file: str

    def __str__(self) -> str:
        return printable(f"{self.tensor}: {self.file} should hold it, and is not there or does not")


@dataclass(frozen=True)
class Conflict:
    """A section of another type, or for a tensor of another shape, than the tensor has by what most sections say:
    `what` is "dtype" or "shape". `box`: which elements it claims to hold."""

    tensor: str
    what: str
    rank: str
    found: str
    expected: str
    box: Box
    origin: str = ""

    def __str__(self) -> str:
        said = f"{self.what} {self.found} in {_held_by(self.rank, self.origin)}, {self.expected} elsewhere"
        return printable(f"{shown(self.tensor, self.box)}: {said}")


@dataclass(frozen=True)
class Obstruction:
    """Why sections do not glue. It is true in conditions.

    `classes` partitions the ranks that hold an element which another rank holds with different bits: within a class,
    all ranks agree wherever two hold the same element. A rank joins the first class of which that is so.
    """

    disagreements: tuple[Disagreement, ...] = ()
    gaps: tuple[Gap, ...] = ()
    missing: tuple[Missing, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    classes: tuple[tuple[str, ...], ...] = ()

    @property
    def lines(self) -> list[str]:
        """Everything found, a line each."""
        return [str(found) for found in (*self.conflicts, *self.missing, *self.gaps, *self.disagreements)]

    def __str__(self) -> str:
        agreeing = [printable(", ".join(ranks)) for ranks in self.classes]
        return "\n".join([*self.lines, *(f"agree among themselves: {ranks}" for ranks in agreeing)])

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "disagreements": [
                {"tensor": d.tensor, "index": d.index, "ranks": d.ranks, "files": d.origins, "bits": d.bits,
                 "count": d.count}
                for d in self.disagreements
            ],
            "gaps": [
                {"tensor": g.tensor, "index": g.index, "count": g.count, "boxes": g.boxes, "files": g.files}
                for g in self.gaps
            ],
            "missing": [{"tensor": m.tensor, "file": m.file} for m in self.missing],
            "conflicts": [
                {"tensor": c.tensor, "what": c.what, "rank": c.rank, "file": c.origin, "found": c.found,
                 "expected": c.expected, "box": c.box}
                for c in self.conflicts
            ],
            "classes": self.classes,
        }  # fmt: skip


def shown(tensor: str, box: Box) -> str:
    """A box of a tensor, as one would write it in Python."""
    if volume(box) == 1:
        return f"{tensor}{[start for start, _ in box]}"
    return f"{tensor}[{', '.join(f'{start}:{stop}' for start, stop in box)}]"


def _held_by(rank: str, origin: str) -> str:
    return f"rank {rank} ({origin})" if origin and origin != rank else f"rank {rank}"


def classes(ranks: Sequence[str], conflicts: Iterable[frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """A partition of the ranks that are in a conflict, such that no two of a class are in one."""
    pairs = set(conflicts)
    found: list[list[str]] = []
    for rank in (r for r in ranks if any(r in pair for pair in pairs)):
        home = next((c for c in found if not any(frozenset((rank, other)) in pairs for other in c)), None)
        if home is None:
            found.append([rank])
        else:
            home.append(rank)
    return tuple(map(tuple, found))
