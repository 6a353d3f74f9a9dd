"""Attention on the caller's own arrays: heads, groups of heads that share keys, what queries see, results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..lang import Graph, Operator, Sizes, TensorSpec, extent
from ..lang.graph import Space
from .layout import copied_once, view_as

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
            check_limit(t.name, shape, found[t.space])
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


def check_limit(name: str, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    """A limit is of queries alone, or has all dimensions of ``lead``, where any may be 1: what would broadcast from the
    middle, as (heads, queries), has another reading, (batch, queries). Raises ArgumentError."""
    whole = lead[-1:] if len(shape) == 1 else lead
    if shape and (len(shape) != len(whole) or any(n not in (1, m) for n, m in zip(shape, whole, strict=True))):
        raise ArgumentError(
            f"{name}: shape {shape}; accepted: ({lead[-1]},), of queries alone, or {lead}, where any may be 1"
        )


def as_read(
    operator: Operator, t: TensorSpec, array: Array, found: Heads, copy: bool,
    spread: Callable[[Array, tuple[int, ...]], Array],
) -> Array:  # fmt: skip
    """The array as the kernel reads it, copied only if need be; what broadcasts is small, and is always spread.
    ``spread`` makes a copy that is contiguous, of a shape to which the array broadcasts. Raises ArgumentError."""
    want = extent(t.space, found.sizes)
    full = found.shapes[t.space]
    view = view_as(array, want, t.space) if array.shape == full else None
    if view is not None:
        return view
    copy = copy or t.name in operator.contract.indices
    return copied_once(t, array, copy, lambda a: spread(a, full)).reshape(want)
