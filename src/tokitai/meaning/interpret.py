"""One walk over a graph, shared by the meanings: each supplies what an operation does to its kind of values.

Values are two-dimensional arrays that broadcast: rows x cols is (R, C), one a row is (R, 1), one a column is (1, C),
a scalar is (1, 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import ArgumentError
from ..lang import (
    GROUPS,
    MATRICES,
    ROW_REDUCTIONS,
    TOTALS,
    Function,
    Graph,
    Node,
    Sizes,
    TensorSpec,
    extents,
    topological,
)  # fmt: skip
from ..lang.graph import Space

Array = np.ndarray[Any, Any]


class Domain(Protocol):
    """What a meaning computes with."""

    def load(self, tensor: TensorSpec, values: Array) -> Array:
        """An input tensor, already two-dimensional."""

    def store(self, values: Array, format_name: str) -> Array:
        """A result in the format that it is stored in."""

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        """One operation; `shape` is (rows, cols) of the whole tensor."""

    def total(self, node: Node, parts: Sequence[Array]) -> Array:
        """A total over the flattened, non-empty tensors of a list, each (1, elements)."""


def full_size(space: Space, values: Array, shape: tuple[int, int]) -> tuple[int, int]:
    """The two-dimensional size of a tensor or result; a table has as many entries as its values have rows, and several
    values of a row lie side by side."""
    slots = values.shape[1] if values.ndim == 2 else 1
    entries = len(values) if values.ndim == 2 else values.size // max(shape[1], 1)
    return extents(space, shape, entries, slots)


def as_rows_cols(tensor: TensorSpec, values: Array, shape: tuple[int, int]) -> Array:
    """`values` as a broadcasting two-dimensional view. Raises ArgumentError where the size does not fit."""
    want = full_size(tensor.space, values, shape)
    if values.size != want[0] * want[1]:
        raise ArgumentError(f"{tensor.name}: shape {values.shape} where {want[0]} x {want[1]} elements are needed")
    return values.reshape(want)


def evaluate_graph(
    graph: Graph,
    domain: Domain,
    tensors: Mapping[str, Array],
    shape: tuple[int, int],
    known: Mapping[Node, Array] | None = None,
) -> dict[str, Array]:
    """All results of a graph over a domain, two-dimensional, by name. ``known`` gives values that are not computed."""
    if isinstance(shape, Sizes) and shape.several:
        items = [evaluate_graph(graph, domain, some, one, known) for some, one in items_of(graph, tensors, shape)]
        return {o.name: joined(o.space, [item[o.name] for item in items], shape) for o in graph.outputs}
    values = evaluate_nodes(graph.nodes, graph, domain, tensors, shape, known or {})
    stored = {o.name: (o.space, domain.store(values[o.node], o.format)) for o in graph.outputs}
    return {name: np.broadcast_to(made, full_size(space, made, shape)) for name, (space, made) in stored.items()}


def items_of(graph: Graph, tensors: Mapping[str, Array], shape: Sizes) -> list[tuple[dict[str, Array], Sizes]]:
    """The tensors and sizes of each product of a batch. A tensor that has no dimension for the batch is that of all of
    them; in groups, one that has the side that they partition is taken apart along it."""
    if graph.offsets is None:
        whole = {t.name for t in graph.inputs if tensors[t.name].ndim == (2 if t.space == "r" else 3)}
        return [({n: a[i] if n in whole else a for n, a in tensors.items()}, shape.one) for i in range(shape.batch)]
    spaces = {t.name: t.space for t in graph.inputs} | {o.name: o.space for o in graph.outputs}
    found = []
    for i, (begin, end) in enumerate(itertools.pairwise(tensors[graph.offsets.name].reshape(-1).tolist())):
        some = {n: _share(spaces[n], a, shape.ragged, i, slice(begin, end)) for n, a in tensors.items() if n in spaces}
        count = end - begin
        found.append((some, Sizes(count, shape[1], shape.inner) if shape.ragged == "r" else Sizes(*shape, count)))
    return found


def _share(space: Space, values: Array, ragged: str, group: int, part: slice) -> Array:
    if ragged in space and space not in GROUPS:
        return values[part] if space[0] == ragged else values[:, part]
    return values[group] if space in MATRICES else values


def joined(space: Space, made: Sequence[Array], shape: Sizes) -> Array:
    """A tensor of this space from those of each product of a batch, two-dimensional, as `items_of` took it apart."""
    if shape.ragged and shape.ragged in space:
        return np.concatenate(made, axis=space.index(shape.ragged))
    return np.stack(made)


def evaluate_list(
    graph: Graph, domain: Domain, tensors: Sequence[Mapping[str, Array]], shapes: Sequence[tuple[int, int]]
) -> list[dict[str, Array]]:
    """The results for a list of tensors: each on its own, but for totals, which run over all of them."""
    known: dict[Node, Array] = {}
    for total in (n for n in graph.nodes if n.op in TOTALS):
        below = tuple(topological([total.args[0]]))
        parts = []
        for i, (some, shape) in enumerate(zip(tensors, shapes, strict=True)):
            if shape[0] * shape[1]:
                values = evaluate_nodes(below, graph, domain, some, shape, {**known, **_place(below, i)})
                parts.append(_flat(values[total.args[0]], shape))
        known[total] = domain.total(total, parts)
    return [
        evaluate_graph(graph, domain, some, shape, {**known, **_place(graph.nodes, i)})
        for i, (some, shape) in enumerate(zip(tensors, shapes, strict=True))
    ]


def _place(nodes: Sequence[Node], index: int) -> dict[Node, Array]:
    return {n: np.full((1, 1), index, np.uint32) for n in nodes if n.op == "tensor_index"}


def _flat(values: Array, shape: tuple[int, int]) -> Array:
    return np.broadcast_to(values, shape).reshape(1, -1)


def load(domain: Any, node: Node, spec: TensorSpec, tensors: Mapping[str, Array], shape: tuple[int, int]) -> Any:
    """An input; of several values of a row the one that the node is."""
    values = as_rows_cols(spec, tensors[spec.name], shape)
    if spec.slots:
        slot = int(str(node.data[2]))
        values = values[:, slot : slot + 1]
    return domain.load(spec, values)


def evaluate_nodes(
    nodes: Sequence[Node],
    graph: Graph,
    domain: Domain,
    tensors: Mapping[str, Array],
    shape: tuple[int, int],
    known: Mapping[Node, Array],
) -> dict[Node, Array]:
    """The values of nodes, given operands first, and of those that are known."""
    specs = {t.name: t for t in graph.inputs}
    values: dict[Node, Array] = dict(known)
    for node in nodes:
        if node in values:
            continue
        if node.op == "input":
            values[node] = load(domain, node, specs[str(node.data[0])], tensors, shape)
        else:
            values[node] = apply(domain, node, [values[a] for a in node.args], shape)
    return values


def evaluate_body(body: Function, domain: Domain, args: Sequence[Array], shape: tuple[int, int]) -> Array:
    """A called function, by its definition."""
    values: dict[Node, Array] = dict(zip(body.params, args, strict=True))
    for node in body.nodes:
        if node not in values:
            values[node] = apply(domain, node, [values[a] for a in node.args], shape)
    return values[body.result]


def apply(domain: Domain, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
    """One operation over a domain, with operands in the size that it needs."""
    if node.op in ROW_REDUCTIONS:  # a column or row value under a row reduction is repeated
        args = [np.broadcast_to(args[0], shape)]
    if node.op == "col_sum":
        args = [np.broadcast_to(args[0], (shape[0], shape[1] if node.space == "c" else 1))]
    if node.op == "scatter_sum":
        args = [np.broadcast_to(args[0], shape), *args[1:]]
    if node.op == "weighted_sum":
        args = [np.broadcast_to(args[0], shape), *args[1:]]
    if node.op == "slots":
        args = [np.broadcast_to(a, (shape[0], 1)) for a in args]
    if node.op in TOTALS:
        return domain.total(node, [_flat(args[0], shape)] if shape[0] * shape[1] else [])
    return domain.apply(node, args, shape)
