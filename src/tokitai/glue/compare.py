"""One block of a tensor, put together from its sections; and where they disagree, in what, and who with whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .boxes import Box, extents, meet, slices, volume, within
from .cover import Cover
from .dtypes import pattern
from .files import Files
from .obstruction import Disagreement
from .section import Array, Section

Part = tuple[Section, Box]  # a section, and what it holds of a block


@dataclass
class Found:
    """Disagreements of a tensor so far: of each pair of sections the first element, and how many; ranks in conflict."""

    first: dict[tuple[int, int], Disagreement] = field(default_factory=dict)
    conflicts: set[frozenset[str]] = field(default_factory=set)


class Reader:
    """Blocks of a cover, read into memory that is used again: one for each thread."""

    def __init__(self) -> None:
        self.files = Files()
        self._canvas = np.empty(0, np.uint8)
        self._scratch = np.empty(0, np.uint8)

    def assemble(self, cover: Cover, block: Box, parts: Sequence[Part], disjoint: bool) -> tuple[Array, bool]:
        """The block's elements as unsigned integers, each from the first section that holds it, and whether all
        sections agree. What nobody holds is arbitrary. `disjoint`: no two sections hold the same element."""
        size = volume(block) * cover.item_bytes
        if len(self._canvas) < size:
            self._canvas, self._scratch = np.empty(size, np.uint8), np.empty(size, np.uint8)
        kind = pattern(cover.item_bytes)
        if len(parts) == 1 and parts[0][1] == block:
            data = read(parts[0], cover.item_bytes, self._canvas[:size], self.files)
            return data.view(kind).reshape(extents(block)), True
        canvas = self._canvas[:size].view(kind).reshape(extents(block))
        agree, placed = True, list[Box]()
        for part in parts:
            box = part[1]
            target = canvas[slices(box, block)]
            earlier = [] if disjoint else [common for b in placed if (common := meet(b, box)) is not None]
            if not earlier and target.flags.c_contiguous:  # straight to where it belongs
                bytes_there = target.reshape(-1).view(np.uint8)
                data = read(part, cover.item_bytes, bytes_there, self.files)
                if data.ctypes.data != bytes_there.ctypes.data:
                    bytes_there[...] = data
                placed.append(box)
                continue
            data = read(part, cover.item_bytes, self._scratch[: volume(box) * cover.item_bytes], self.files)
            values = data.view(kind).reshape(extents(box))
            if not earlier:
                target[...] = values
            elif any(within(box, b) for b in placed):
                agree = agree and same(target, values)
                continue
            else:
                known = np.zeros(extents(box), bool)
                for common in earlier:
                    known[slices(common, box)] = True
                agree = agree and not ((target != values) & known).any()
                np.copyto(target, values, where=~known)
            placed.append(box)
        return canvas, agree

    def explain(self, cover: Cover, block: Box, canvas: Array, parts: Sequence[Part], found: Found) -> None:
        """Add to `found` how the sections of an assembled block disagree."""
        kind = pattern(cover.item_bytes)
        data = [
            read(part, cover.item_bytes, np.empty(volume(part[1]) * cover.item_bytes, np.uint8), self.files)
            .view(kind)
            .reshape(extents(part[1]))
            for part in parts
        ]
        differs = np.zeros(canvas.shape, bool)
        for (_, box), values in zip(parts, data, strict=True):
            differs[slices(box, block)] |= canvas[slices(box, block)] != values
        wrong = np.argwhere(differs) + np.array([start for start, _ in block], np.int64)
        inside, seen = [], []  # of each part, which of these elements it holds, and with which bits
        for (_, box), values in zip(parts, data, strict=True):
            starts, stops = np.array(box, np.int64).reshape(-1, 2).T
            inside.append(((wrong >= starts) & (wrong < stops)).all(axis=1))
            seen.append(np.zeros(len(wrong), kind))
            seen[-1][inside[-1]] = values[tuple((wrong[inside[-1]] - starts).T)]
        holder = np.argmax(np.array(inside), axis=0)  # the first section that holds the element
        for j, (section, _) in enumerate(parts):
            for i in range(j):
                either = inside[i] & inside[j]
                unequal = either & (seen[i] != seen[j])
                if not unequal.any():
                    continue
                found.conflicts.add(frozenset((parts[i][0].rank, section.rank)))
                at = np.flatnonzero(unequal & (holder == i))
                if len(at):
                    index = tuple(map(int, wrong[at[0]]))
                    bits = (_hex(seen[i][at[0]]), _hex(seen[j][at[0]]))
                    self._add(found, cover, (parts[i][0], section), index, bits, len(at))

    @staticmethod
    def _add(
        found: Found, cover: Cover, pair: tuple[Section, Section], index: tuple[int, ...], bits: tuple[str, str],
        count: int,
    ) -> None:  # fmt: skip
        a, b = pair
        key = (id(a), id(b))
        new = Disagreement(cover.tensor, index, (a.rank, b.rank), bits, count, (a.origin, b.origin))
        old = found.first.get(key)
        if old is not None:
            earlier = min(old, new, key=lambda d: d.index)
            new = Disagreement(cover.tensor, earlier.index, new.ranks, earlier.bits, old.count + count, new.origins)
        found.first[key] = new


def read(part: Part, item_bytes: int, scratch: Array, files: Files) -> Array:
    """The bytes of what a section holds of a block: one contiguous piece of it."""
    section, box = part
    start = 0
    for (first, _), (low, high) in zip(box, section.box, strict=True):
        start = start * (high - low) + first - low
    data = section.held.part(start, volume(box), scratch, files)
    return data if data.ctypes.data % item_bytes == 0 else data.copy()


def same(a: Array, b: Array) -> bool:
    """Whether two arrays of unsigned integers are equal, eight bytes at a time where they lie so."""
    if a.flags.c_contiguous and b.flags.c_contiguous and a.nbytes % 8 == 0:
        x, y = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
        if x.ctypes.data % 8 == 0 and y.ctypes.data % 8 == 0:
            return bool(np.array_equal(x.view(np.uint64), y.view(np.uint64)))
    return bool(np.array_equal(a, b))


def alone(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts that meet another one."""
    meeting = set()
    for (i, (_, a)), (j, (_, b)) in itertools.combinations(enumerate(parts), 2):
        if meet(a, b) is not None:
            meeting |= {i, j}
    return [parts[i] for i in sorted(meeting)]


def _hex(bits: Any) -> str:
    return f"0x{int(bits):0{2 * bits.dtype.itemsize}x}"
