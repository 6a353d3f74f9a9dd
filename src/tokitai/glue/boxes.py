"""Boxes of indices: products of ranges. What two have in common, what none of several covers, the blocks of a tensor.

A *block* is the unit in which tensors are read, compared and hashed: a box that is one contiguous piece of the tensor
in row-major order. Its part in a section, another box of the same tensor, is one contiguous piece of that section.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Box = tuple[tuple[int, int], ...]  # of each axis the first index and the one after the last

BLOCK_BYTES = 2**20  # of the digest's definition: another size is another digest


def box_of(offset: Sequence[int], extents: Sequence[int]) -> Box:
    """The box of these extents that begins at `offset`."""
    return tuple((start, start + extent) for start, extent in zip(offset, extents, strict=True))


def extents(box: Box) -> tuple[int, ...]:
    """How many indices a box has along each axis."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """How many elements a box has."""
    return math.prod(extents(box))


def meet(a: Box, b: Box) -> Box | None:
    """What two boxes have in common, or None where that is nothing."""
    common = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return common if all(start < stop for start, stop in common) else None


def within(inner: Box, outer: Box) -> bool:
    """Whether `outer` holds all of `inner`."""
    return all(r <= p and q <= s for (p, q), (r, s) in zip(inner, outer, strict=True))


def slices(inner: Box, outer: Box) -> tuple[Any, ...]:
    """Where `inner` lies in an array that holds `outer`: the index of a view, also where that is a scalar."""
    return (*(slice(p - r, q - r) for (p, q), (r, _) in zip(inner, outer, strict=True)), ...)


def uncovered(whole: Box, boxes: Iterable[Box]) -> Iterator[Box]:
    """Disjoint boxes that make up what no box covers of the whole; the first begins at the first such element."""
    if volume(whole):
        yield from _uncovered(whole, sorted({b for b in boxes if volume(b)}))


def _uncovered(whole: Box, boxes: Sequence[Box]) -> Iterator[Box]:
    if not boxes:
        yield whole
    elif whole:
        (start, stop), rest = whole[0], whole[1:]
        edges = {edge for b in boxes for edge in b[0] if start < edge < stop}
        for low, high in itertools.pairwise(sorted({start, stop, *edges})):
            active = sorted({b[1:] for b in boxes if b[0][0] <= low and high <= b[0][1]})
            for gap in _uncovered(rest, active):
                yield ((low, high), *gap)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a tensor: `rows` indices of `axis` at a time, all of the axes behind it, one index of those before.

    `axis` is the first one of which an index has no more than `BLOCK_BYTES` bytes.
    """

    shape: tuple[int, ...]
    axis: int
    rows: int

    @classmethod
    def of(cls, shape: tuple[int, ...], item_bytes: int) -> Blocks:
        """The blocks of a tensor of this shape."""
        for axis in range(len(shape)):
            row = item_bytes * math.prod(shape[axis + 1 :])
            if row <= BLOCK_BYTES:
                return cls(shape, axis, max(1, BLOCK_BYTES // row) if row else 1)
        return cls(shape, 0, 1)  # a scalar

    @property
    def counts(self) -> tuple[int, ...]:
        """How many blocks there are along each of the axes up to `axis`."""
        if not math.prod(self.shape):
            return (0,)
        if not self.shape:
            return ()
        return (*self.shape[: self.axis], -(-self.shape[self.axis] // self.rows))

    def number(self, at: tuple[int, ...]) -> int:
        """The place of a block among all, in row-major order."""
        number = 0
        for index, count in zip(at, self.counts, strict=True):
            number = number * count + index
        return number

    def box(self, at: tuple[int, ...]) -> Box:
        """The box of a block."""
        if not self.shape:
            return ()
        first, stop = at[-1] * self.rows, self.shape[self.axis]
        one = tuple((index, index + 1) for index in at[:-1])
        return (*one, (first, min(first + self.rows, stop)), *((0, n) for n in self.shape[self.axis + 1 :]))

    def all(self) -> Iterator[tuple[int, ...]]:
        """Every block, in order."""
        return itertools.product(*map(range, self.counts))

    def touching(self, boxes: Iterable[Box]) -> list[tuple[int, ...]]:
        """The blocks in which one of the boxes has an element, in order."""
        found: set[tuple[int, ...]] = set()
        for box in {b for b in boxes if volume(b)}:
            ranges = [range(*side) for side in box[: self.axis]]
            if box:
                start, stop = box[self.axis]
                ranges.append(range(start // self.rows, (stop - 1) // self.rows + 1))
            found.update(itertools.product(*ranges))
        return sorted(found)
