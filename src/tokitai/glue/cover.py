"""A cover of a tensor: its sections, the type and shape that they have in common, and what they lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from .boxes import Box, box_of, meet, uncovered, volume, within
from .dtypes import ITEM_BYTES
from .obstruction import Conflict, Gap, Missing
from .section import Absent, Section

BOXES_OF_A_GAP = 16  # that are named; all are counted

T = TypeVar("T")


@dataclass(frozen=True)
class Cover:
    """A tensor by what most of its sections say, and the sections that hold elements of it. `inferred`: its shape was
    given nowhere."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    sections: tuple[Section, ...]
    conflicts: tuple[Conflict, ...]
    absent: tuple[Absent, ...]
    inferred: bool

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def whole(self) -> Box:
        """All of its indices."""
        return box_of((0,) * len(self.shape), self.shape)

    @property
    def bytes(self) -> int:
        return volume(self.whole) * self.item_bytes

    def gap(self) -> Gap | None:
        """What no section holds; sections in a conflict hold what they claim to, since they are named already."""
        held = [s.box for s in self.sections]
        held += [c.box for c in self.conflicts if len(c.box) == len(self.shape)]
        gaps = uncovered(self.whole, held)
        boxes = tuple(islice(gaps, BOXES_OF_A_GAP))
        if not boxes:
            return None
        count = sum(map(volume, boxes)) + sum(map(volume, gaps))
        files = (a.origin for a in self.absent if a.box is None or any(meet_any(a.box, b) for b in boxes))
        return Gap(self.tensor, tuple(start for start, _ in boxes[0]), count, boxes, tuple(dict.fromkeys(files)))

    def missing(self, gap: Gap | None) -> tuple[Missing, ...]:
        """Sections that are not there, besides those that a gap names already."""
        named = () if gap is None else gap.files
        return tuple(dict.fromkeys(Missing(self.tensor, a.origin) for a in self.absent if a.origin not in named))

    def overlaps(self) -> list[Box]:
        """What two sections or more have in common."""
        boxes = [s.box for s in self.sections]
        counted = Counter(boxes)
        distinct = sorted(counted)
        found = [box for box, count in counted.items() if count > 1]
        for i, a in enumerate(distinct):
            for b in distinct[i + 1 :]:
                if a and b[0][0] >= a[0][1]:
                    break  # sorted by where they begin: so do all that follow
                common = meet(a, b)
                if common is not None:
                    found.append(common)
        return found


def meet_any(a: Box, b: Box) -> bool:
    """Whether two boxes, perhaps of tensors of different rank, have an element in common."""
    return len(a) == len(b) and meet(a, b) is not None


def covers(members: Iterable[Section | Absent]) -> tuple[list[Cover], list[Missing]]:
    """The cover of each tensor, by name, and what is missing of those of which no section says what they are."""
    by_name: dict[str, list[Section | Absent]] = {}
    for member in members:
        by_name.setdefault(member.tensor, []).append(member)
    found, lost = [], []
    for name in sorted(by_name):
        sections = [m for m in by_name[name] if isinstance(m, Section)]
        absent = [m for m in by_name[name] if isinstance(m, Absent)]
        cover = _cover(name, sections, absent)
        if cover is None:
            lost += [Missing(name, a.origin) for a in absent]
        else:
            found.append(cover)
    return found, list(dict.fromkeys(lost))


def _cover(name: str, sections: Sequence[Section], absent: Sequence[Absent]) -> Cover | None:
    members: list[Section | Absent] = [*sections, *absent]
    dtype = most([m.dtype for m in members]) or most([s.held.dtype for s in sections])
    shape = most([None if m.shape is None else tuple(m.shape) for m in members])
    inferred = shape is None
    if shape is None:
        boxes = [s.box for s in sections] + [a.box for a in absent if a.box is not None]
        axes = most([len(b) for b in boxes])
        if axes is None:
            return None
        ends = [[stop for _, stop in b] for b in boxes if len(b) == axes]
        shape = tuple(max(end[i] for end in ends) for i in range(axes))
    if dtype is None:
        return None
    whole = box_of((0,) * len(shape), shape)
    conflicts, sound = [], []
    for s in sections:
        claimed = shape if s.shape is None else tuple(s.shape)
        outside = claimed == shape and not (len(s.box) == len(shape) and within(s.box, whole))
        if claimed != shape:
            conflicts.append(Conflict(name, "shape", s.rank, str(list(claimed)), str(list(shape)), s.box, s.origin))
        elif outside:
            found = f"{[stop for _, stop in s.box]} or more"
            conflicts.append(Conflict(name, "shape", s.rank, found, str(list(shape)), s.box, s.origin))
        elif s.held.dtype != dtype:
            conflicts.append(Conflict(name, "dtype", s.rank, s.held.dtype, dtype, s.box, s.origin))
        elif volume(s.box):
            sound.append(s)
    return Cover(name, dtype, shape, tuple(sound), tuple(conflicts), tuple(absent), inferred)


def most(values: Iterable[T | None]) -> T | None:
    """The most frequent value that is not None, and of several the first; None where there is none."""
    counted = Counter(v for v in values if v is not None)
    return max(counted, key=counted.__getitem__) if counted else None
