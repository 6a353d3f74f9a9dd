"""Tensors in memory as callers have them: any strides, offsets, gaps and alignment, in guard memory that is watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fake_gpu import on_gpu

from tokitai.arrays.device_array import DeviceArray
from tokitai.backends.sim.device import open_sim

Array = np.ndarray[Any, Any]
GUARD = 0xFF  # NaN as a float of any format, -1 as an integer: what is read or followed by mistake is seen
BEYOND = 256  # guard bytes ahead and behind


@dataclass
class Placed:
    """An array of a library (numpy, torch; gpu or sim: see `fake_gpu`, `DeviceArray`) in memory of its own."""

    raw: Array  # all bytes
    view: Array  # the elements, as NumPy sees them
    array: Any  # what a call is given
    kind: str  # dense, rows or any: see `place`
    before: Array  # all bytes when it was made

    def untouched(self) -> bool:
        """Whether every byte is as it was."""
        return bool((self.raw == self.before).all())

    def guards_untouched(self) -> bool:
        """Whether every byte that is no element's is as it was."""
        elements = np.zeros_like(self.raw)
        start = self.view.__array_interface__["data"][0] - self.raw.__array_interface__["data"][0]
        plain = np.dtype(f"V{self.view.itemsize}")
        marked = np.ndarray(self.view.shape, plain, elements.data, start, self.view.strides)
        marked[...] = np.frombuffer(b"\x01" * self.view.itemsize, plain)[0]
        return bool(((self.raw == self.before) | (elements == 1)).all())


def place(
    rng: np.random.Generator, values: Array, library: str, expand: float, odds: tuple[float, ...] = (0.2, 0.3, 0.5)
) -> Placed:
    """`values` where a caller may have them. Its ``kind``, by these ``odds``:

    - dense: contiguous, of aligned elements;
    - rows: the last dimension too, those ahead with one stride together, which may be negative or zero;
    - any: dimensions in any order, each with gaps, backwards or repeated; elements of any alignment.

    Where a dimension is repeated, with the probability ``expand``, it holds one of its values everywhere.
    """
    kind = str(rng.choice(["dense", "rows", "any"], p=odds))
    item, rank = values.itemsize, values.ndim
    steps = np.zeros(rank, np.int64)
    reach = item
    order = list(range(rank))[::-1]
    if kind == "any":
        order = list(rng.permutation(rank))
    signed = library in ("numpy", "sim")  # tensors of torch have no negative strides
    backwards, repeated = signed and rng.random() < 0.3, rng.random() < expand
    for number, axis in enumerate(order):
        gap = 0
        if (kind == "any" and rng.random() < 0.4) or (kind == "rows" and number == 1):
            gap = int(rng.integers(0, 4)) * item
            gap += kind == "any" and library == "numpy" and rng.random() < 0.1  # strides of no whole elements
        steps[axis] = reach + gap
        reach = int(steps[axis]) * max(values.shape[axis], 1)
        if kind == "any":
            backwards, repeated = signed and rng.random() < 0.25, rng.random() < expand
        if backwards and (kind == "any" or (kind == "rows" and number)):
            steps[axis] *= -1
        if repeated and (kind == "any" or (kind == "rows" and number)):
            steps[axis] = 0
    smallest = int(np.log2(item)) if kind != "any" or rng.random() < 0.8 else 0
    alignment = 1 << int(rng.integers(smallest, 7))
    raw = np.full(reach + 2 * BEYOND, GUARD, np.uint8)
    lowest = sum(min(0, int(s) * (n - 1)) for s, n in zip(steps, values.shape, strict=True) if n)
    start = BEYOND - lowest
    start += (alignment - (raw.__array_interface__["data"][0] + start)) % (2 * alignment)
    view = np.ndarray(values.shape, values.dtype, raw.data, start, tuple(map(int, steps)))
    view[...] = values
    array: Any = view
    if library in ("torch", "gpu"):
        count = 1 + sum(int(s) // item * (n - 1) for s, n in zip(steps, values.shape, strict=True))
        flat = torch.frombuffer(raw, dtype=getattr(torch, values.dtype.name), offset=start, count=count)
        array = flat.as_strided(values.shape, [int(s) // item for s in steps])
        array = on_gpu(array) if library == "gpu" else array
    if library == "sim":
        array = DeviceArray((), values.dtype.name, open_sim())  # over memory that is watched
        array.shape, array.strides = values.shape, tuple(int(s) // item for s in steps)
        array.nbytes, array.address = values.nbytes, view.__array_interface__["data"][0]
    return Placed(raw, view, array, kind, raw.copy())


def bits(x: Any) -> tuple[Any, ...]:
    """The elements of an array of NumPy or torch, to compare; and its format and shape."""
    if isinstance(x, DeviceArray):
        x = x.numpy()
    if isinstance(x, torch.Tensor):
        x = x.as_subclass(torch.Tensor)
        shape, name = tuple(x.shape), str(x.dtype).removeprefix("torch.")
        return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), shape, name
    return np.ascontiguousarray(x).tobytes(), x.shape, x.dtype.name
