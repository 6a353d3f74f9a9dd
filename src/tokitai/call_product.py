"""Run a matrix product on the caller's own arrays: which side of each is which, batches, results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import _writable, view_as
from .call_grouped import check_offsets, groups_of
from .device import cpu
from .device.dlpack import as_numpy, like
from .errors import ArgumentError
from .formats import FORMATS
from .kernel import Kernel
from .lang import MATRICES, Graph, Operator, Sizes, TensorSpec, extent

Array = np.ndarray[Any, Any]
SIDES = {"r": "rows", "c": "cols", "k": "inner"}


@dataclass(frozen=True)
class Found:
    """The sizes of a call, and the shape of its results as the caller sees them."""

    sizes: Sizes
    result: tuple[int, ...]


def sizes_of(operator: Operator, graph: Graph, arrays: Mapping[str, Array]) -> Found:
    """The sizes that the arrays have in common. Raises ArgumentError where they do not agree.

    Leading dimensions of a batched operator's matrices count its products; a matrix without any is that of all of
    them. Those of any other operator flatten into the first side: rows of x, or what a weight's gradient sums over.
    In groups, matrices without the side that these share out have one dimension ahead, that of groups.
    """
    batched = operator.contract.batched
    groups, shapes = groups_of(graph, arrays)
    found: dict[str, tuple[int, str]] = {}
    leads: dict[str, tuple[int, ...]] = {}
    for t in graph.inputs:
        if t.name not in shapes:
            continue
        shape = shapes[t.name]
        matrix = t.space in MATRICES
        least = (2 if batched or t.space[0] != "r" else 1) if matrix else 1
        if len(shape) < least or (not matrix and len(shape) > 1):
            dimensions = f"{least} dimension{'s' * (least > 1)}"
            raise ArgumentError(f"{t.name}: shape {shape}; accepted: {dimensions}{' or more' * matrix}")
        ahead = shape[:-2] if batched else shape[:-1]
        if matrix and (ahead if batched else t.space[0] == "r"):
            leads[t.name] = ahead
        own = shape[-2:] if batched or not matrix else (math.prod(shape[:-1]), shape[-1])
        for side, size in zip(t.space, own, strict=True):
            name = found.setdefault(side, (size, t.name))[1]
            if found[side][0] != size:
                beside = f"accepted beside {name}: {found[side][0]}"
                raise ArgumentError(f"{t.name}: shape {arrays[t.name].shape}, {size} {_words(t, side)}; {beside}")
    (first, lead), *others = leads.items() or [("", ())]
    for name, ahead in others:
        if ahead != lead:
            raise ArgumentError(f"{name}: shape {arrays[name].shape}; accepted beside {first}: {lead} ahead")
    rows, cols, inner = (found[side][0] for side in "rck")
    limits = operator.contract
    if rows > limits.max_rows or not limits.min_cols <= cols <= limits.max_cols:
        raise ArgumentError(
            f"{operator.name}: rows={rows}, cols={cols}; accepted: at most {limits.max_rows} rows, "
            f"{limits.min_cols} to {limits.max_cols} columns"
        )
    ahead = (*lead, rows) if batched or not leads else lead
    if graph.offsets is not None:
        sizes = Sizes(rows, cols, inner, groups, graph.ragged)
        check_offsets(graph.offsets.name, arrays[graph.offsets.name], rows if graph.ragged == "r" else inner)
        return Found(sizes, (*ahead, cols) if graph.ragged == "r" else (groups, *ahead, cols))
    batch = math.prod(lead) if batched else 1
    return Found(Sizes(rows, cols, inner, batch), (*ahead, cols))


def _words(t: TensorSpec, side: str) -> str:
    return f"along {SIDES[side]}"


def call_product(
    operator: Operator, kernel: Kernel, given: Mapping[str, Any], arrays: Mapping[str, Array],
    params: Mapping[str, float], out: Any, threads: int, copy: bool,
) -> Any:  # fmt: skip
    """Check the arrays, run, and return the results as `tokitai.call` does. Raises ArgumentError."""
    graph = kernel.graph
    found = sizes_of(operator, graph, arrays)
    sizes = found.sizes
    tensors = {t.name: flat(t, arrays[t.name], sizes, copy) for t in graph.inputs}
    fresh = [o for o in graph.outputs if not o.inplace]
    supplied = list(out) if isinstance(out, (tuple, list)) else [out] * (out is not None)
    if out is not None and len(supplied) != len(fresh):
        raise ArgumentError(
            f"out: {len(supplied)} arrays; accepted: {len(fresh)}, for {', '.join(o.name for o in fresh)}"
        )
    theirs = {o.name: x for o, x in zip(fresh, supplied, strict=False) if x is not None}
    theirs |= {o.name: given[o.name] for o in graph.outputs if o.inplace}
    results: dict[str, Array] = {}
    apart = dict(arrays)  # what a result must not overlap
    want = extent("rc", sizes)
    for o in graph.outputs:
        if o.name not in theirs:
            results[o.name] = cpu.aligned_empty(want, FORMATS[o.format].dtype)
            continue
        name = o.name if o.inplace else f"out ({o.name})"
        target = as_numpy(name, theirs[o.name])
        if target.shape != found.result or target.dtype != FORMATS[o.format].dtype:
            shape = f"shape {target.shape} of {target.dtype}"
            raise ArgumentError(f"{name}: {shape}; accepted: {found.result} of {o.format}")
        results[o.name] = own(name, target, want, {n: a for n, a in apart.items() if n != o.name or not o.inplace})
        apart[name] = target
    kernel.launch(tensors, results, sizes, kernel.scalar_table(*sizes, params), threads)
    example = next(iter(given.values()))
    returned = [
        theirs[o.name] if o.name in theirs else like(results[o.name].reshape(found.result), example)
        for o in graph.outputs
    ]
    return returned[0] if len(returned) == 1 else tuple(returned)


def flat(
    t: TensorSpec, array: Array, sizes: Sizes, copy: bool, copied: Callable[[Array], Array] = np.ascontiguousarray
) -> Array:
    """The array as the kernel reads it, copied only if need be. Raises ArgumentError."""
    one = math.prod(extent(t.space, sizes.one))
    want = extent(t.space, sizes, batched=array.size != one or array.ndim > 2)
    view = view_as(array, want)
    if view is not None:
        return view
    if not copy:
        raise ArgumentError(
            f"{t.name}: strides {array.strides} of shape {array.shape} need a copy; "
            "accepted with copy=False: contiguous arrays and views with a row stride"
        )
    return copied(array).reshape(want)


def own(name: str, target: Array, want: tuple[int, ...], apart: Mapping[str, Array]) -> Array:
    """The caller's array as the kernel writes it. Raises ArgumentError where a result cannot lie there."""
    view = _writable(name, target, want, apart)
    check_apart(name, view)
    return view


def check_apart(name: str, view: Array) -> None:
    """The products of a batch have memory of their own. Raises ArgumentError."""
    if view.ndim == 3 and any(np.shares_memory(a, b) for a, b in itertools.pairwise(view)):
        raise ArgumentError(f"{name}: strides {view.strides}, so that products overlap; accepted: memory of each")
