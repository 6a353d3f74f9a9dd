"""Run attention on the caller's own arrays: heads, groups of heads that share keys, what queries see, results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .call import check_indices, view_as
from .call_product import own
from .device import cpu
from .device.dlpack import as_numpy, like
from .errors import ArgumentError
from .formats import FORMATS
from .kernel import Kernel
from .lang import Graph, Operator, Sizes, TensorSpec, extent
from .lang.graph import Space

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Heads:
    """The sizes of a call. A batch is one head of keys and values with all queries that share it, head after head:
    ``shapes`` gives those of tensors as the caller sees them."""

    sizes: Sizes
    shapes: Mapping[Space, tuple[int, ...]]


def heads_of(operator: Operator, graph: Graph, arrays: Mapping[str, Array]) -> Heads:
    """The sizes that the arrays have in common: (..., heads, queries, dim) beside (..., heads of keys, keys, dim), or
    (queries, dim) beside (keys, dim). Raises ArgumentError where they do not agree."""
    queries, keys = (next(t.name for t in graph.inputs if t.space == space) for space in ("rk", "ck"))
    q, k = arrays[queries].shape, arrays[keys].shape
    for name, shape in ((queries, q), (keys, k)):
        if len(shape) < 2:
            raise ArgumentError(f"{name}: shape {shape}; accepted: 2 dimensions or more")
    heads, shared = (q[-3], k[-3]) if len(q) > 2 and len(k) == len(q) else (1, 1)
    if len(k) != len(q) or k[:-3] != q[:-3] or k[-1] != q[-1]:
        accepted = (*q[:-3], *(["heads"] if len(q) > 2 else []), "keys", q[-1])
        raise ArgumentError(f"{keys}: shape {k}; accepted beside {queries}: ({', '.join(map(str, accepted))})")
    if (heads % shared if shared else heads) != 0:
        raise ArgumentError(f"{keys}: shape {k}, {shared} heads; accepted beside {queries}: a divisor of {heads}")
    found: dict[Space, tuple[int, ...]] = {"rk": q, "ck": k, "r": q[:-1]}
    for t in graph.inputs:
        shape = arrays[t.name].shape
        if t.name in operator.contract.indices:
            if not _broadcasts(shape, found[t.space]):
                raise ArgumentError(f"{t.name}: shape {shape}; accepted: what broadcasts to {found[t.space]}")
        elif shape != found[t.space]:
            beside = queries if t.space != "ck" else keys
            raise ArgumentError(f"{t.name}: shape {shape}; accepted beside {beside}: {found[t.space]}")
    rows = heads // max(shared, 1) * q[-2]
    limits = operator.contract
    if rows > limits.max_rows or not limits.min_cols <= k[-2] <= limits.max_cols:
        raise ArgumentError(
            f"{operator.name}: {rows} queries of a head of keys, {k[-2]} keys; accepted: at most {limits.max_rows} "
            f"queries, {limits.min_cols} to {limits.max_cols} keys"
        )
    return Heads(Sizes(rows, k[-2], k[-1], math.prod(k[:-2])), found)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def call_attention(
    operator: Operator, kernel: Kernel, given: Mapping[str, Any], arrays: Mapping[str, Array],
    params: Mapping[str, float], out: Any, threads: int, copy: bool,
) -> Any:  # fmt: skip
    """Check the arrays, run, and return the results as `tokitai.call` does. Raises ArgumentError."""
    graph = kernel.graph
    found = heads_of(operator, graph, arrays)
    sizes = found.sizes
    check_indices(operator, arrays, params, sizes)
    tensors = {t.name: _flat(operator, t, arrays[t.name], found, copy) for t in graph.inputs}
    supplied = list(out) if isinstance(out, (tuple, list)) else [out] * (out is not None)
    names = ", ".join(o.name for o in graph.outputs)
    if out is not None and len(supplied) != len(graph.outputs):
        raise ArgumentError(f"out: {len(supplied)} arrays; accepted: {len(graph.outputs)}, for {names}")
    theirs = {o.name: x for o, x in zip(graph.outputs, supplied, strict=False) if x is not None}
    results: dict[str, Array] = {}
    apart = dict(arrays)  # what a result must not overlap
    for o in graph.outputs:
        want, shape, dtype = extent(o.space, sizes), found.shapes[o.space], FORMATS[o.format].dtype
        if o.name not in theirs:
            results[o.name] = cpu.aligned_empty(want, dtype)
            continue
        name = f"out ({o.name})"
        target = as_numpy(name, theirs[o.name])
        if target.shape != shape or target.dtype != dtype:
            raise ArgumentError(f"{name}: shape {target.shape} of {target.dtype}; accepted: {shape} of {o.format}")
        results[o.name] = own(name, target, want, apart)
        apart[name] = target
    kernel.launch(tensors, results, sizes, kernel.scalar_table(*sizes, params), threads)
    example = next(iter(given.values()))
    returned = [
        theirs[o.name] if o.name in theirs else like(results[o.name].reshape(found.shapes[o.space]), example)
        for o in graph.outputs
    ]
    return returned[0] if len(returned) == 1 else tuple(returned)


def _flat(operator: Operator, t: TensorSpec, array: Array, found: Heads, copy: bool) -> Array:
    """The array as the kernel reads it, copied only if need be; what broadcasts is small, and is always spread."""
    want = extent(t.space, found.sizes)
    if t.name in operator.contract.indices:
        return np.ascontiguousarray(np.broadcast_to(array, found.shapes[t.space])).reshape(want)
    view = view_as(array, want)
    if view is not None and (t.space != "r" or view.flags.c_contiguous):
        return view
    if not copy:
        raise ArgumentError(
            f"{t.name}: strides {array.strides} of shape {array.shape} need a copy; "
            "accepted with copy=False: contiguous arrays, and views with a row stride and one from head to head"
        )
    return np.ascontiguousarray(array).reshape(want)
