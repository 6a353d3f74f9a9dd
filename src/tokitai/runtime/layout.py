"""How the tensors of a call lie in memory: as kernels read and write them, copied once, or refused.

Kernels take *matrices* (of rows x cols, operands of products, tables) with unit column stride and any stride from row
to row and from product to product of a batch: with gaps, backwards, or zero. All else they take contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.dlpack import as_numpy
from ..arrays.libraries import IMMUTABLE, library_of
from ..backends.cpu import device as cpu
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import MATRICES, Graph, Output, TensorSpec, extent
from ..lang.graph import Space
from .kernel import KernelBase

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


def place_results(
    kernel: KernelBase, given: Mapping[str, Any], arrays: Mapping[str, Array], shape: tuple[int, int], entries: int,
    full: Mapping[str, tuple[int, ...]], out: Any, seen: Callable[[str, Any], Array] = as_numpy,
    make: Callable[[Output, tuple[int, ...]], Array] = lambda o, want: cpu.aligned_empty(want, FORMATS[o.format].dtype),
) -> tuple[dict[str, Array], dict[str, Any]]:  # fmt: skip
    """For each result the array that the kernel writes; and what the caller supplied, by name. ``arrays`` are those of
    ``given``, ``full`` the shapes that the caller sees, ``seen`` views what the caller gives as an array of NumPy,
    ``make`` gives a new one."""
    fresh = [o for o in kernel.graph.outputs if not o.inplace]
    supplied = list(out) if isinstance(out, (tuple, list)) else [out] * (out is not None)
    if out is not None and len(supplied) != len(fresh):
        names = ", ".join(o.name for o in fresh)
        raise ArgumentError(f"out: {len(supplied)} arrays; accepted: {len(fresh)}, for {names}")
    theirs = {o.name: x for o, x in zip(fresh, supplied, strict=False) if x is not None}
    flat: dict[str, Array] = {}
    apart = dict(arrays)  # what a result must not overlap
    for o in kernel.graph.outputs:
        want = extent(o.space, shape, entries, o.slots)
        if o.inplace:
            refuse_read_only(o.name, given[o.name], arrays[o.name])
            flat[o.name] = _writable(o.name, arrays[o.name], want, o.space)
            _lies_apart(o.name, arrays[o.name], {n: a for n, a in apart.items() if n != o.name})
        elif o.name in theirs:
            name, wanted = f"out ({o.name})", full[o.name]
            target = seen(name, theirs[o.name])
            place = o.name in kernel.operator.contract.places
            stored_as = "i32" if place else o.format
            if target.shape != wanted or target.dtype != FORMATS[stored_as].dtype:
                found = f"shape {target.shape} of {target.dtype}"
                raise ArgumentError(f"{name}: {found}; accepted: {wanted} of {stored_as}")
            refuse_read_only(name, theirs[o.name], target)
            if place:  # kernels give f32, which is copied
                _refuse_overlap(name, target)
                flat[o.name] = make(o, want)
            else:
                flat[o.name] = _writable(name, target, want, o.space)
            _lies_apart(name, target, apart)
            apart[name] = target
        else:
            flat[o.name] = make(o, want)
    return flat, theirs


def refuse_read_only(name: str, x: Any, array: Array) -> None:
    """Raises ArgumentError where the caller's ``x``, which NumPy sees as ``array``, may not be written."""
    if library_of(x) in IMMUTABLE:
        raise ArgumentError(f"{name}: an array of JAX, which nobody may write; accepted: one of NumPy, torch or CuPy")
    if not array.flags.writeable:
        raise ArgumentError(f"{name}: read-only; accepted: an array that may be written")


def _writable(name: str, target: Array, want: tuple[int, ...], space: Space) -> Array:
    """The caller's array as the kernel writes it. Raises ArgumentError where a result cannot lie there."""
    view = view_as(target, want, space)
    if view is None:
        found = f"strides {target.strides} of shape {target.shape}"
        raise ArgumentError(f"{name}: {found}; accepted for a result: {accepted_layout(space)}, of aligned elements")
    _refuse_overlap(name, view)
    return view


def _refuse_overlap(name: str, array: Array) -> None:
    """Each dimension steps over all that the narrower ones reach. Raises ArgumentError."""
    reach = array.itemsize
    for step, n in sorted((abs(s), n) for n, s in zip(array.shape, array.strides, strict=True) if n > 1):
        if step < reach and array.size:
            found = f"strides {array.strides} of shape {array.shape}, so that elements share memory"
            raise ArgumentError(f"{name}: {found}; accepted: memory of its own for each")
        reach += (n - 1) * step


def _lies_apart(name: str, target: Array, apart: Mapping[str, Array]) -> None:
    for other, array in apart.items():
        if np.may_share_memory(target, array) and np.shares_memory(target, array):
            raise ArgumentError(f"{name}: overlaps {other}; accepted: memory of its own")
