"""Memory that is lent to a kernel: tensors in layouts of every kind, with guard zones and gaps of known contents.

A call gets one piece of memory with all of its tensors. What it held is kept, and after the call every byte of it is
compared: inputs, gaps between their elements, guard zones. Only the elements of tensors that the operator replaces may
have changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..formats import FORMATS
from .candidate import Tensor

Array = np.ndarray[Any, Any]

GUARD = 512  # bytes on either side of every tensor
ALIGN = 64

LAYOUTS = (
    "rows apart", "transposed", "every second column", "every third row", "rows reversed", "columns reversed",
    "rows expanded", "columns expanded",
)  # fmt: skip
REVERSED = ("rows reversed", "columns reversed")  # which PyTorch does not have
EXPANDED = {"rows expanded": -2, "columns expanded": -1}  # the axis along which all elements are one


@dataclass(frozen=True)
class Placement:
    """How the tensors of a call lie. ``kinds``: a layout of `LAYOUTS` for some tensors, by name; the others are
    contiguous. ``shift``: elements between an aligned address and the first byte of each tensor; ``seed`` draws gaps
    and what lies in them, or ``fill`` is the byte that does."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    shift: int = 0
    seed: int = 0
    fill: int | None = None

    def __str__(self) -> str:
        each = [f"{name}: {kind}" for name, kind in self.kinds.items()]
        return ", ".join([*each, *(["first element misaligned"] if self.shift else [])]) or "contiguous"


@dataclass(frozen=True)
class Extent:
    """Bytes that a layout takes, the first element's place in them, and bytes between neighbours along each axis."""

    nbytes: int
    first: int
    strides: tuple[int, ...]


def extent_of(shape: tuple[int, ...], size: int, kind: str | None, gap: int) -> Extent:
    """A tensor of elements of ``size`` bytes in a layout; ``gap``: elements between rows, where there are any."""
    axes = [i - len(shape) for i in range(len(shape))]
    order = axes[::-1]  # the innermost first
    if kind == "transposed" and len(axes) > 1:
        order[0], order[1] = order[1], order[0]
    step = {"every second column": {-1: 2}, "every third row": {-2 if len(axes) > 1 else -1: 3}}.get(str(kind), {})
    if len(axes) == 1 and kind in ("rows apart", "transposed"):
        step = {-1: 2 + gap % 3}
    flat = EXPANDED.get(str(kind)) if len(axes) > 1 or kind not in EXPANDED else -1
    turned = {"rows reversed": -2 if len(axes) > 1 else -1, "columns reversed": -1}.get(str(kind))
    strides, first, at = [0] * len(axes), 0, size
    for place, axis in enumerate(order):
        if axis == flat:
            continue
        stride = at * step.get(axis, 1)
        at = stride * max(shape[axis], 1)
        if place == 0 and len(axes) > 1 and kind is not None:
            at += gap * size
        if axis == turned:
            first, stride = first + stride * max(shape[axis] - 1, 0), -stride
        strides[axis] = stride
    return Extent(at, first, tuple(strides))


class Memory:
    """Lent memory: where each tensor lies, what it held, and how it is now."""

    def __init__(self, inputs: Sequence[tuple[str, str, tuple[int, ...]]], placement: Placement) -> None:
        rng = np.random.default_rng([placement.seed, 77])
        self.placement = placement
        self.tensors: list[Tensor] = []
        at = 0
        for name, fmt, shape in inputs:
            size = FORMATS[fmt].dtype.itemsize
            gap = int(rng.choice([1, 3, 5, 8, 16, 19, 64]))
            extent = extent_of(shape, size, placement.kinds.get(name), gap)
            at = -(-(at + GUARD) // ALIGN) * ALIGN + placement.shift * size
            self.tensors.append(Tensor(name, fmt, shape, at + extent.first, extent.strides))
            at += extent.nbytes
        self.nbytes = -(-(at + GUARD) // ALIGN) * ALIGN
        self._rng = rng
        self.now: Array = np.zeros(0, np.uint8)
        self.was: Array = self.now

    def fill(self, memory: Array, values: Mapping[str, Array]) -> None:
        """Put ``values`` into memory of at least `nbytes` bytes, known contents round them."""
        fill = self.placement.fill
        self.now = memory[: self.nbytes]
        if fill is None:
            noise = self._rng.integers(0, 256, min(self.nbytes, 1 << 16), np.uint8)
            for start in range(0, self.nbytes, noise.size):
                self.now[start : start + noise.size] = noise[: self.nbytes - start]
        else:
            self.now[...] = fill
        for t in self.tensors:
            t.view(self.now)[...] = values[t.name].reshape(t.shape)
        self.was = self.now.copy()

    def after(self, name: str) -> Array:
        """A copy of what a tensor holds now."""
        return next(t for t in self.tensors if t.name == name).view(self.now).copy()

    def changed(self, replaced: Sequence[str]) -> str | None:
        """Which memory was written that should not be, in words; the tensors in ``replaced`` may be."""
        now, was = self.now.copy(), self.was
        for t in self.tensors:
            if t.name in replaced:
                t.view(now)[...] = t.view(was)
        if np.array_equal(now, was):
            return None
        for t in self.tensors:
            a, b = (t.view(m) for m in (now, was))
            word = f"u{a.dtype.itemsize}"
            if (different := a.view(word) != b.view(word)).any():
                at = ",".join(map(str, np.argwhere(different)[0]))
                return f"changed its input {t.name}, at [{at}]"
        first = int(np.argmax(now != was))
        for t in self.tensors:
            size = FORMATS[t.format].dtype.itemsize
            reach = [(n - 1) * s for n, s in zip(t.shape, t.strides, strict=True)] if math.prod(t.shape) else [0]
            low, high = t.offset + sum(min(0, r) for r in reach), t.offset + sum(max(0, r) for r in reach) + size
            if low <= first < high:
                return f"wrote between the elements of {t.name}"
        before = max((t for t in self.tensors if t.offset <= first), key=lambda t: t.offset, default=self.tensors[0])
        side = "behind" if before.offset <= first else "ahead of"
        return f"wrote {side} the memory of {before.name}"


def spaced(results: Sequence[tuple[str, str, tuple[int, ...], str | None]]) -> tuple[list[Tensor], int]:
    """Results, contiguous and each at an aligned place, and how many bytes they take in all."""
    sizes = [math.prod(shape) * FORMATS[fmt].dtype.itemsize for _, fmt, shape, _ in results]
    places = itertools.accumulate((-(-n // ALIGN) * ALIGN for n in sizes), initial=0)
    made = []
    for (name, fmt, shape, also), place in zip(results, places, strict=False):
        strides = extent_of(shape, FORMATS[fmt].dtype.itemsize, None, 0).strides
        made.append(Tensor(name, fmt, shape, place, strides, also))
    return made, sum(-(-n // ALIGN) * ALIGN for n in sizes) + ALIGN
