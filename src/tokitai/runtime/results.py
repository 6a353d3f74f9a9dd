"""Where the results of a call lie: in the caller's arrays, or in new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.libraries import IMMUTABLE, library_of
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import Output, extent
from ..lang.graph import Space
from .kernel import KernelBase
from .layout import accepted_layout, view_as
from .problem import Problem

Array = np.ndarray[Any, Any]


def place_results(
    kernel: KernelBase, given: Mapping[str, Any], views: Mapping[str, Array], problem: Problem, out: Any,
    view: Callable[[str, Any], Array], make: Callable[[Output, tuple[int, ...]], Array],
) -> tuple[dict[str, Array], dict[str, Any]]:  # fmt: skip
    """For each result the array that the kernel writes; and what the caller supplied, by name. ``views`` are those of
    ``given``, ``view`` views what the caller gives, ``make`` gives a new array. Raises ArgumentError."""
    fresh = [o for o in kernel.graph.outputs if not o.inplace]
    supplied = list(out) if isinstance(out, (tuple, list)) else [out] * (out is not None)
    if out is not None and len(supplied) != len(fresh):
        names = ", ".join(o.name for o in fresh)
        raise ArgumentError(f"out: {len(supplied)} arrays; accepted: {len(fresh)}, for {names}")
    supplied_arrays = {o.name: x for o, x in zip(fresh, supplied, strict=False) if x is not None}
    flat: dict[str, Array] = {}
    disjoint_from = dict(views)  # what a result must not overlap
    for o in kernel.graph.outputs:
        want = extent(o.space, problem.sizes, problem.entries, o.slots)
        if o.inplace:
            refuse_read_only(o.name, given[o.name], views[o.name])
            flat[o.name] = _writable(o.name, views[o.name], want, o.space)
            _check_disjoint(o.name, views[o.name], {n: a for n, a in disjoint_from.items() if n != o.name})
        elif o.name in supplied_arrays:
            name, wanted = f"out ({o.name})", problem.results[o.name]
            target = view(name, supplied_arrays[o.name])
            place = o.name in kernel.operator.contract.places
            stored_as = "i32" if place else o.format
            if target.shape != wanted or target.dtype != FORMATS[stored_as].dtype:
                found = f"shape {target.shape} of {target.dtype}"
                raise ArgumentError(f"{name}: {found}; accepted: {wanted} of {stored_as}")
            refuse_read_only(name, supplied_arrays[o.name], target)
            if place:  # kernels give f32, which is copied
                _refuse_overlap(name, target)
                flat[o.name] = make(o, want)
            else:
                flat[o.name] = _writable(name, target, want, o.space)
            _check_disjoint(name, target, disjoint_from)
            disjoint_from[name] = target
        else:
            flat[o.name] = make(o, want)
    return flat, supplied_arrays


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


def _check_disjoint(name: str, target: Array, others: Mapping[str, Array]) -> None:
    for other, array in others.items():
        if np.may_share_memory(target, array) and np.shares_memory(target, array):
            raise ArgumentError(f"{name}: overlaps {other}; accepted: memory of its own")
