"""The arguments of a product: which side of each matrix is which, batches, results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...errors import ArgumentError
from ...lang import MATRICES, Graph, Operator, Sizes, extent
from ..arguments import Bound, Reading
from ..family import Array

SIDES = {"r": "rows", "c": "cols", "k": "inner"}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sides:
    """The sides that all matrices have in common."""

    rows: int
    cols: int
    inner: int
    lead: Shape  # dimensions ahead of those
    ahead: Shape  # of the columns of a result


def sides_of(operator: Operator, graph: Graph, arrays: Mapping[str, Array], shapes: Mapping[str, Shape]) -> Sides:
    """The sides of matrices of these ``shapes``, which may lack what groups have. Raises ArgumentError where they do
    not agree.

    Leading dimensions of a batched operator's matrices count its products; a matrix without any is that of all of
    them. Those of any other operator flatten into the first side: rows of x, or what a weight's gradient sums over.
    """
    batched = operator.contract.batched
    found: dict[str, tuple[int, str]] = {}
    leads: dict[str, Shape] = {}
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
                raise ArgumentError(f"{t.name}: shape {arrays[t.name].shape}, {size} along {SIDES[side]}; {beside}")
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
    return Sides(rows, cols, inner, lead, (*lead, rows) if batched or not leads else lead)


def bind_product(operator: Operator, graph: Graph, arrays: Mapping[str, Array]) -> Bound:
    """The sizes that the arrays have in common. Raises ArgumentError where they do not agree."""
    found = sides_of(operator, graph, arrays, {t.name: arrays[t.name].shape for t in graph.inputs})
    batch = math.prod(found.lead) if operator.contract.batched else 1
    return bound(graph, arrays, Sizes(found.rows, found.cols, found.inner, batch), (*found.ahead, found.cols))


def bound(graph: Graph, arrays: Mapping[str, Array], sizes: Sizes, result: Shape) -> Bound:
    """The arrays as kernels of these sizes read them; all results have one shape."""

    def read(space: str, array: Array) -> Reading:
        one = math.prod(extent(space, sizes.one))  # type: ignore[arg-type]
        batched = array.size != one or array.ndim > 2
        return Reading(extent(space, sizes, batched=batched), array.shape)  # type: ignore[arg-type]

    inputs = {t.name: read(t.space, arrays[t.name]) for t in graph.inputs}
    return Bound(sizes, inputs, {o.name: result for o in graph.outputs})


def product_sizes(
    spaces: Sequence[str], tensors: Sequence[Sequence[Array]], shapes: Sequence[tuple[int, int]]
) -> list[int]:
    """The sizes of a launch: rows, columns, the K dimension, the batch; of each matrix the row stride, and the stride
    from one product to the next, which is 0 where all share it."""
    made: list[int] = []
    for arrays, shape in zip(tensors, shapes, strict=True):
        sizes = Sizes.of(shape)
        made += [*sizes, sizes.inner, sizes.batch]
        for space, a in zip(spaces, arrays, strict=True):
            if space in MATRICES:
                strides = [step // a.itemsize for step in a.strides]
                made += [strides[-2], strides[0] if a.ndim == 3 else 0]
    return made


__all__ = ["bind_product", "bound", "product_sizes", "sides_of"]
