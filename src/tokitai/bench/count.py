"""What a call moves and computes, counted from its graph: the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..formats import format_of
from ..lang import PRIMITIVES, Graph, Node, Sizes
from ..lang.graph import Space
from ..verification.cases import size_of

FREE = {"leaf", "host", "index"}  # kinds of nodes that compute nothing with an element


def bytes_of(graph: Graph, shapes: Sequence[tuple[int, int]]) -> int:
    """Bytes of all inputs, read once, and of all results, written once. What is read again is not counted."""
    stored = [(str(t.format), t.space, t.slots) for t in graph.inputs]
    stored += [(o.format, o.space, o.slots) for o in graph.outputs]
    return sum(
        format_of(fmt).dtype.itemsize * _elements(space, s) * (slots or 1)
        for fmt, space, slots in stored
        for s in (shapes[:1] if space == "s" else shapes)  # one for a whole list
    )


def operations_of(graph: Graph, shapes: Sequence[tuple[int, int]]) -> int:
    """Primitive operations of the definition: one for each element, functions such as exp by their own primitives, a
    sum by one addition for each element, a matrix product by its fused multiply-adds. Nothing is said about
    instructions: one may do eight of them."""
    return sum(_cost(n) * _times(n, s) * _elements(_span(n), s) for n in graph.nodes for s in shapes)


def _times(node: Node, shape: tuple[int, int]) -> int:
    if node.op == "weighted_sum":
        return shape[1] if node.data[0] == "columns" else shape[0]
    return Sizes.of(shape).inner if node.op == "matmul" else 1


def _elements(space: Space, shape: tuple[int, int]) -> int:
    count = 1
    for n in size_of(space, shape):
        count *= n
    return count


def _span(node: Node) -> Space:
    """The space over which a node works: for a reduction, that of its operand."""
    return node.args[0].space if PRIMITIVES[node.op].kind == "reduce" else node.space


def _cost(node: Node) -> int:
    if node.body is not None:
        return _total(node.body.nodes)
    return int(PRIMITIVES[node.op].kind not in FREE and node.type != "host" and node.op != "round")


def _total(nodes: Iterable[Node]) -> int:
    return sum(_cost(n) for n in nodes)
