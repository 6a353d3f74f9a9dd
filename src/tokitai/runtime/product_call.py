"""A matrix product on the caller's own arrays: which side of each is which, batches, results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..families.grouped.arguments import check_offsets, groups_of, shared_by
from ..lang import MATRICES, Graph, Operator, Sizes, TensorSpec, extent
from .layout import copied_once, view_as

Array = np.ndarray[Any, Any]
SIDES = {"r": "rows", "c": "cols", "k": "inner"}


@dataclass(frozen=True)
class Found:
    """The sizes of a call, and the shape of its results as the caller sees them."""

    sizes: Sizes
    result: tuple[int, ...]


def sizes_of(operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool = True) -> Found:
    """The sizes that the arrays have in common. Raises ArgumentError where they do not agree, and where groups do not
    share out their side; with ``read=False``, for arrays that lie elsewhere, groups are for others to look at.

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
        if read:
            check_offsets(graph.offsets.name, arrays[graph.offsets.name], shared_by(sizes))
        return Found(sizes, (*ahead, cols) if graph.ragged == "r" else (groups, *ahead, cols))
    batch = math.prod(lead) if batched else 1
    return Found(Sizes(rows, cols, inner, batch), (*ahead, cols))


def _words(t: TensorSpec, side: str) -> str:
    return f"along {SIDES[side]}"


def flat(
    t: TensorSpec, array: Array, sizes: Sizes, copy: bool, copied: Callable[[Array], Array] = np.ascontiguousarray
) -> Array:
    """The array as the kernel reads it, copied only if need be. Raises ArgumentError."""
    one = math.prod(extent(t.space, sizes.one))
    want = extent(t.space, sizes, batched=array.size != one or array.ndim > 2)
    view = view_as(array, want, t.space)
    return view if view is not None else copied_once(t, array, copy, copied).reshape(want)
