"""Host scalars of a launch: every `round` node of a graph, computed in f64 and rounded once.

The oracle has its own evaluation of these few operations (`meaning.bits`); neither may borrow the other's mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..lang import Graph, Node


def rounded_scalars(graph: Graph) -> tuple[Node, ...]:
    """The host scalars that enter the kernel, in the order of the kernel's scalar table."""
    return tuple(n for n in graph.nodes if n.op == "round" and not n.exact)


def whole_scalars(graph: Graph) -> tuple[Node, ...]:
    """The host scalars that enter the kernel as integers, in the order in which they follow the kernel's sizes."""
    return tuple(n for n in graph.nodes if n.op == "round" and n.exact)


def host_values(
    graph: Graph, entries: Sequence[Node], rows: int, cols: int, params: Mapping[str, float]
) -> list[float]:
    """The f64 value of each entry of a scalar table; the launcher rounds it as it stores it."""
    known: dict[Node, float] = {}
    for node in graph.nodes:
        if node.type == "host":
            known[node] = _value(node, [known[a] for a in node.args], rows, cols, params)
    return [known[n.args[0]] for n in entries]


def _value(node: Node, args: list[float], rows: int, cols: int, params: Mapping[str, float]) -> float:
    match node.op, args:
        case "param", _:
            return float(params[str(node.data[0])])
        case "number", _:
            return float(str(node.data[0]))
        case "rows", _:
            return float(rows)
        case "columns", _:
            return float(cols)
        case "host_add", [a, b]:
            return a + b
        case "host_sub", [a, b]:
            return a - b
        case "host_mul", [a, b]:
            return a * b
        case "host_div", [a, b]:
            if b == 0:  # IEEE 754, where Python would raise
                return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
            return a / b
        case "host_neg", [a]:
            return -a
        case "host_sqrt", [a]:
            return math.sqrt(a) if a >= 0 else math.nan
        case "host_power", [a, b]:
            return power(a, int(b)) if b >= 0 else math.nan
    raise AssertionError(f"no host value for {node}")


def power(base: float, exponent: int) -> float:
    """base**exponent for a whole exponent >= 0, as the square-and-multiply product from the lowest bit: a fixed
    sequence of f64 products, so the same bits with every C library. Errors double with each squaring: the result is
    within exponent * 2**-53 of itself."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
