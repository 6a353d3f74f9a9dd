"""One walk over a graph, shared by the meanings: each supplies what an operation does to its kind of values.

Values are two-dimensional arrays that broadcast: rows x cols is (R, C), one a row is (R, 1), one a column is (1, C),
a scalar is (1, 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..errors import ArgumentError
from ..lang import Function, Graph, Node, TensorSpec

Array = np.ndarray[Any, Any]


class Domain(Protocol):
    """What a meaning computes with."""

    def load(self, tensor: TensorSpec, values: Array) -> Array:
        """An input tensor, already two-dimensional."""

    def store(self, values: Array, format_name: str) -> Array:
        """A result in the format that it is stored in."""

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        """One operation; `shape` is (rows, cols) of the whole tensor."""


def as_rows_cols(tensor: TensorSpec, values: Array, shape: tuple[int, int]) -> Array:
    """`values` as a broadcasting two-dimensional view. Raises ArgumentError where the size does not fit."""
    want = {"rc": shape, "r": (shape[0], 1), "c": (1, shape[1]), "s": (1, 1)}[tensor.space]
    if values.size != want[0] * want[1]:
        raise ArgumentError(f"{tensor.name}: shape {values.shape} where {want[0]} x {want[1]} elements are needed")
    return values.reshape(want)


def evaluate_graph(
    graph: Graph, domain: Domain, tensors: Mapping[str, Array], shape: tuple[int, int]
) -> dict[str, Array]:
    """All results of a graph over a domain, two-dimensional, by name."""
    specs = {t.name: t for t in graph.inputs}
    values: dict[Node, Array] = {}
    for node in graph.nodes:
        if node.op == "input":
            spec = specs[str(node.data[0])]
            values[node] = domain.load(spec, as_rows_cols(spec, tensors[spec.name], shape))
        else:
            values[node] = _apply(domain, node, [values[a] for a in node.args], shape)
    full = {"rc": shape, "r": (shape[0], 1), "c": (1, shape[1]), "s": (1, 1)}
    return {o.name: np.broadcast_to(domain.store(values[o.node], o.format), full[o.space]) for o in graph.outputs}


def evaluate_body(body: Function, domain: Domain, args: Sequence[Array], shape: tuple[int, int]) -> Array:
    """A called function, by its definition."""
    values: dict[Node, Array] = dict(zip(body.params, args, strict=True))
    for node in body.nodes:
        if node not in values:
            values[node] = _apply(domain, node, [values[a] for a in node.args], shape)
    return values[body.result]


def _apply(domain: Domain, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
    if node.op == "row_sum" or node.op == "row_max":  # a column or row value under a row reduction is repeated
        args = [np.broadcast_to(args[0], shape)]
    if node.op == "col_sum":
        args = [np.broadcast_to(args[0], (shape[0], shape[1] if node.space == "c" else 1))]
    return domain.apply(node, args, shape)
