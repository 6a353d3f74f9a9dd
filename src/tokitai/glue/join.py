"""`check` and `glue`: every block of every tensor, in threads, in memory that does not grow with the tensors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3

from .boxes import Blocks, Box, volume
from .compare import Found, Reader, alone
from .cover import Cover, covers
from .digest import TensorDigest, digest_of_blocks, digest_of_tensors
from .dtypes import numpy_dtype
from .obstruction import Missing, Obstruction, classes
from .output import Writer
from .section import Absent, Array, Section

Progress = Callable[[int, int], None]  # bytes that are done, of all


@dataclass(frozen=True)
class Glued:
    """The one global section. `digest` is that of all tensors, however they were cut; `tensors` has each one's.

    `arrays` are the tensors by name, where they were not written to a file. `inferred` names the tensors whose shape
    was given nowhere: they end where their last section does.
    """

    digest: str
    tensors: tuple[TensorDigest, ...]
    arrays: dict[str, Array] = field(repr=False)
    inferred: tuple[str, ...] = ()


def check(
    sections: Iterable[Section | Absent], *, threads: int | None = None, progress: Progress | None = None
) -> Obstruction | None:
    """None where all sections agree to the bit on every element that two of them hold, else what they disagree in.

    Whether they hold all elements together is not asked. Only elements that two sections hold are read. Raises
    InputFileError where a file is truncated.
    """
    found, _ = covers(sections)
    work = [_Work(cover, Blocks.of(cover.shape, cover.item_bytes)) for cover in found]
    _run(work, threads, progress)
    return _obstruction(found, work, (), gaps=False)


def glue(
    sections: Iterable[Section | Absent],
    *,
    into: str | Path | None = None,
    arrays: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Glued | Obstruction:
    """The one global section of which all are parts, or the obstruction: elements in which two sections disagree, that
    none holds, and sections of another shape or type.

    With `into` tensors are written to that safetensors file, else to arrays, unless `arrays` is false. Raises
    InputFileError where a file is truncated.
    """
    found, lost = covers(sections)
    known = [cover.gap() for cover in found]
    whole = not lost and not any(g or c.conflicts or c.absent for g, c in zip(known, found, strict=True))
    made: dict[str, Array] = {}
    if whole and arrays and into is None:
        made = {c.tensor: np.empty(c.shape, numpy_dtype(c.dtype)) for c in found}
    writer = Writer(Path(into), found) if into is not None and whole else None
    work = [
        _Work(
            cover, Blocks.of(cover.shape, cover.item_bytes), digests=whole, writer=writer,
            array=made[cover.tensor].reshape(-1).view(np.uint8) if cover.tensor in made else None,
        )
        for cover in found
    ]  # fmt: skip
    try:
        _run(work, threads, progress)
        obstruction = _obstruction(found, work, lost, gaps=True)
        if obstruction is not None:
            return obstruction
        tensors = tuple(TensorDigest(w.cover.tensor, w.cover.dtype, w.cover.shape, w.digest()) for w in work)
        if writer is not None:
            writer.finish()
    finally:
        if writer is not None:
            writer.close()
    inferred = tuple(c.tensor for c in found if c.inferred)
    return Glued(digest_of_tensors(tensors), tensors, made, inferred)


def digest(tensors: Mapping[str, object]) -> str:
    """The digest of whole tensors by name: `glue` finds the same for their sections."""
    result = glue([Section("", name, values) for name, values in tensors.items()], arrays=False)
    assert isinstance(result, Glued)
    return result.digest


class _Work:
    """What is done with the blocks of one tensor, by several threads."""

    def __init__(
        self, cover: Cover, blocks: Blocks, *, digests: bool = False,
        writer: Writer | None = None, array: Array | None = None,
    ) -> None:  # fmt: skip
        self.cover, self.blocks = cover, blocks
        self.digests, self.writer, self.array = digests, writer, array
        self.found = Found()
        self._lock = threading.Lock()
        self._leaves: dict[int, bytes] = {}
        sides = np.array([s.box for s in cover.sections], np.int64).reshape(len(cover.sections), len(cover.shape), 2)
        self._starts, self._stops = sides[:, :, 0], sides[:, :, 1]
        overlaps = cover.overlaps()
        self._overlaps = bool(overlaps)
        self._at = None if digests else blocks.touching(overlaps)

    def steps(self) -> Iterator[tuple[int, ...]]:
        """The blocks that are read: all where a digest is wanted, else those with overlaps."""
        return self.blocks.all() if self._at is None else iter(self._at)

    @property
    def bytes(self) -> int:
        """How many bytes of the tensor are in these blocks."""
        if self._at is None:
            return self.cover.bytes
        return sum(volume(self.blocks.box(at)) for at in self._at) * self.cover.item_bytes

    def parts(self, block: Box) -> list[tuple[Section, Box]]:
        """The sections that hold an element of a block, in order, with what they hold of it."""
        low, high = np.array(block, np.int64).reshape(-1, 2).T
        starts, stops = np.maximum(self._starts, low), np.minimum(self._stops, high)
        some = np.flatnonzero((starts < stops).all(axis=1))
        boxes = np.stack([starts[some], stops[some]], axis=2).tolist()
        return [(self.cover.sections[i], tuple(map(tuple, b))) for i, b in zip(some.tolist(), boxes, strict=True)]

    def step(self, at: tuple[int, ...], reader: Reader) -> int:
        """Read a block, compare, hash and store it. Returns its bytes."""
        block = self.blocks.box(at)
        parts = self.parts(block)
        if self._at is not None:
            parts = list(alone(parts))
        canvas, agree = reader.assemble(self.cover, block, parts, not self._overlaps)
        if not agree:
            with self._lock:
                reader.explain(self.cover, block, canvas, parts, self.found)
        elif self.digests:
            data = canvas.reshape(-1).view(np.uint8)
            number = self.blocks.number(at)
            leaf = blake3(data.data).digest()
            start = 0
            for (first, _), extent in zip(block, self.cover.shape, strict=True):
                start = start * extent + first
            start *= self.cover.item_bytes
            if self.array is not None:
                self.array[start : start + len(data)] = data
            if self.writer is not None:
                self.writer.write(self.cover.tensor, start, data)
            with self._lock:
                self._leaves[number] = leaf
        return volume(block) * self.cover.item_bytes

    def digest(self) -> str:
        return digest_of_blocks(self._leaves[n] for n in range(len(self._leaves)))


def _run(work: list[_Work], threads: int | None, progress: Progress | None) -> None:
    """All blocks of all tensors, each by the next thread that is free."""
    total = sum(w.bytes for w in work)
    steps = ((w, at) for w in work for at in w.steps())
    lock = threading.Lock()
    done = 0
    failed = threading.Event()

    def loop() -> None:
        nonlocal done
        reader = Reader()
        try:
            while not failed.is_set():
                with lock:
                    step = next(steps, None)
                if step is None:
                    return
                count = step[0].step(step[1], reader)
                with lock:
                    done += count
                    if progress is not None:
                        progress(done, total)
        except BaseException:
            failed.set()
            raise
        finally:
            reader.files.close()

    if progress is not None:
        progress(0, total)
    count = threads or processors()
    if count == 1:
        loop()
        return
    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(loop) for _ in range(count)]:
            future.result()


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _obstruction(found: list[Cover], work: list[_Work], lost: Iterable[Missing], *, gaps: bool) -> Obstruction | None:
    ranks = dict.fromkeys(s.rank for cover in found for s in cover.sections)
    disagreements = [
        d for w in work for d in sorted(w.found.first.values(), key=lambda d: (d.index, d.ranks, d.origins))
    ]
    known = [(cover, cover.gap()) for cover in found] if gaps else []
    result = Obstruction(
        tuple(disagreements),
        tuple(gap for _, gap in known if gap is not None),
        (*lost, *(missing for cover, gap in known for missing in cover.missing(gap))),
        tuple(c for cover in found for c in cover.conflicts),
        classes(list(ranks), (pair for w in work for pair in w.found.conflicts)),
    )
    return result if result != Obstruction() else None
