"""The arguments of a grouped product: how many groups there are, where each begins, and the sides of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...lang import GROUPS, MATRICES, Graph, Operator, Sizes
from ..arguments import Bound
from ..matmul.arguments import bound, sides_of

Array = np.ndarray[Any, Any]


def groups_of(graph: Graph, arrays: Mapping[str, Array]) -> tuple[int, dict[str, tuple[int, ...]]]:
    """How many groups there are, and the shapes of the tensors of one.

    Raises ArgumentError where a matrix of each group is not one of so many.
    """
    shapes = {t.name: arrays[t.name].shape for t in graph.inputs if t.space not in GROUPS}
    assert graph.offsets is not None, "of grouped products alone"
    offsets = arrays[graph.offsets.name]
    if offsets.ndim != 1 or offsets.size < 2:
        accepted = "(groups + 1,), of at least one group"
        raise ArgumentError(f"{graph.offsets.name}: shape {offsets.shape}; accepted: {accepted}")
    groups = offsets.size - 1
    for t in graph.inputs:
        if t.space in MATRICES and graph.ragged not in t.space:
            shape = shapes[t.name]
            if len(shape) != 3 or shape[0] != groups:
                accepted = f"accepted beside {graph.offsets.name}: ({groups}, .., ..), a matrix of each group"
                raise ArgumentError(f"{t.name}: shape {shape}; {accepted}")
            shapes[t.name] = shape[1:]
    return groups, shapes


def bind_grouped(operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool) -> Bound:
    """The sizes that the arrays have in common. Matrices without the side that groups partition have one dimension
    ahead, that of groups. Raises ArgumentError where they do not agree, and where groups do not partition their side;
    with ``read=False``, for arrays that lie elsewhere, groups are for others to look at."""
    groups, shapes = groups_of(graph, arrays)
    found = sides_of(operator, graph, arrays, shapes)
    sizes = Sizes(found.rows, found.cols, found.inner, groups, graph.ragged)
    if read and graph.offsets is not None:
        check_offsets(graph.offsets.name, arrays[graph.offsets.name], shared_by(sizes))
    result = (*found.ahead, found.cols)
    return bound(graph, arrays, sizes, result if graph.ragged == "r" else (groups, *result))


def shared_by(sizes: Sizes) -> int:
    """How long the side is that groups partition."""
    return sizes[0] if sizes.ragged == "r" else sizes.inner


def check_offsets(name: str, offsets: Array, size: int) -> None:
    """The first group begins at 0, each begins where the one before it ends, the last ends at ``size``. Raises
    ArgumentError that names the first bad position."""
    low, high = np.concatenate([[0], offsets[:-1]]), np.full(offsets.shape, size)
    low[-1], high[0] = size, 0
    bad = (offsets < low) | (offsets > high)
    if bad.any():
        at = int(bad.argmax())
        accepted = f"{low[at]} to {high[at]}" if low[at] < high[at] else low[at]
        why = f"as groups partition 0 to {size} in order"
        raise ArgumentError(f"{name}[{at}]={offsets[at]}; accepted: {accepted}, {why}")


__all__ = ["bind_grouped", "check_offsets", "groups_of", "shared_by"]
