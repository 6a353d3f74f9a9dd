"""How the tensors of a call lie in memory: as kernels read and write them, copied once, or refused.

Kernels take *matrices* (of rows x cols, operands of products, tables) with unit column stride and any stride from row
to row and from product to product of a batch: with gaps, backwards, or zero. All else they take contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..lang import MATRICES, Graph, TensorSpec, extent
from ..lang.graph import Space

Array = np.ndarray[Any, Any]


def accepted_layout(space: Space) -> str:
    """What kernels take of a tensor of this space, in words."""
    return "contiguous arrays and views with a row stride" if space in MATRICES else "contiguous arrays"


def view_as(array: Array, want: tuple[int, ...], space: Space = "rc") -> Array | None:
    """`array` in the wanted shape, with aligned elements, as kernels take a tensor of this space; or None. Reads no
    element: the memory may be a device's, and assigning to ``shape`` copies before it finds that a view is impossible.
    """
    try:
        view = array.reshape(want, copy=False)
    except ValueError:
        return None
    if not view.flags.aligned:
        return None
    if space not in MATRICES:
        return view if view.flags.c_contiguous else None
    unit = view.size == 0 or view.shape[-1] <= 1 or view.strides[-1] == view.itemsize
    whole = all(n <= 1 or s % view.itemsize == 0 for n, s in zip(view.shape, view.strides, strict=True))
    return view if unit and whole else None


def flatten(
    tensor: TensorSpec, array: Array, shape: tuple[int, int], copy: bool,
    copied: Callable[[Array], Array] = np.ascontiguousarray,
) -> Array:  # fmt: skip
    """The array as kernels read it; copied only if need be. Raises ArgumentError where a copy is not wanted."""
    want = extent(tensor.space, shape, len(array) if tensor.space == "t" else 0, tensor.slots)
    view = view_as(array, want, tensor.space)
    return view if view is not None else copied_once(tensor, array, copy, copied).reshape(want)


def readable(
    graph: Graph, tensors: Mapping[str, Array], rows: int, new: Callable[[TensorSpec, tuple[int, int]], Array]
) -> dict[str, Array]:
    """The tensors, but for tables without entries beside rows that choose none of them: kernels look up before they
    know, so each of these is one with an entry, whatever it holds. ``new`` makes it."""
    replaced = {o.name for o in graph.outputs if o.inplace}
    bare = [t for t in graph.inputs if t.space == "t" and rows and not len(tensors[t.name]) and t.name not in replaced]
    return {**tensors, **{t.name: new(t, (1, tensors[t.name].shape[1])) for t in bare}}


def copied_once(tensor: TensorSpec, array: Array, copy: bool, copied: Callable[[Array], Array]) -> Array:
    """A contiguous copy. Raises ArgumentError where none is wanted."""
    if not copy:
        raise ArgumentError(
            f"{tensor.name}: strides {array.strides} of shape {array.shape} need a copy; "
            f"accepted with copy=False: {accepted_layout(tensor.space)}, of aligned elements"
        )
    return copied(array)
