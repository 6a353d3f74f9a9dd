"""A graph as plain tuples and back, so that another process can build its kernels.

Nodes refer to each other by their places in a list: a graph may be deeper than what can be pickled as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..lang import Graph
from ..lang.graph import Function, Node, Output, TensorSpec


def flattened(graph: Graph) -> dict[str, Any]:
    """The graph as tuples, lists and dicts of plain values."""
    places = {n: i for i, n in enumerate(graph.nodes)}
    return {
        "name": graph.name,
        "dtype": graph.dtype,
        "inputs": [(t.name, t.space, t.format, t.optional, t.slots) for t in graph.inputs],
        "params": graph.params,
        "outputs": [(o.name, places[o.node], o.format, o.inplace) for o in graph.outputs],
        "options": dict(graph.options),
        "functions": [_function(f) for f in graph.functions],
        "nodes": _nodes(graph.nodes, places),
    }


def _function(function: Function) -> tuple[Any, ...]:
    """A parameter that the body has no use for is kept: those of a call are counted."""
    nodes = list(dict.fromkeys((*function.params, *function.nodes)))
    places = {n: i for i, n in enumerate(nodes)}
    return function.name, [places[p] for p in function.params], places[function.result], _nodes(nodes, places)


def _nodes(nodes: Iterable[Node], places: Mapping[Node, int]) -> list[tuple[Any, ...]]:
    return [
        (n.op, [places[a] for a in n.args], n.space, n.type, n.data, n.exact, n.body and n.body.name, n.origin)
        for n in nodes
    ]


def restored(flat: Mapping[str, Any]) -> Graph:
    """The graph that `flattened` gave."""
    functions: dict[str, Function] = {}
    for name, params, result, rows in flat["functions"]:
        nodes = _restored(rows, functions)
        functions[name] = Function(name, tuple(nodes[p] for p in params), nodes[result])
    nodes = _restored(flat["nodes"], functions)
    return Graph(
        flat["name"],
        flat["dtype"],
        tuple(TensorSpec(*t) for t in flat["inputs"]),
        tuple(flat["params"]),
        tuple(Output(name, nodes[place], fmt, inplace) for name, place, fmt, inplace in flat["outputs"]),
        flat["options"],
    )


def _restored(rows: Iterable[tuple[Any, ...]], functions: Mapping[str, Function]) -> list[Node]:
    made: list[Node] = []
    for op, args, space, type_, data, exact, body, origin in rows:
        made.append(
            Node(op, tuple(made[a] for a in args), space, type_, data, exact, functions[body] if body else None, origin)
        )
    return made
