"""Host scalars of a launch: every `round` node of a graph, computed in f64 and rounded once.

The oracle has its own evaluation of these few operations (`meaning.bits`); neither may borrow the other's mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..lang import Graph, Node


def rounded_scalars(graph: Graph) -> tuple[Node, ...]:
    """The host scalars that enter the kernel, in the order of the kernel's scalar table."""
    return tuple(n for n in graph.nodes if n.op == "round" and not n.exact)


def whole_scalars(graph: Graph) -> tuple[Node, ...]:
    """The host scalars that enter the kernel as integers, in the order in which they follow the kernel's sizes."""
    return tuple(n for n in graph.nodes if n.op == "round" and n.exact)


class HostScalars:
    """The f64 values of a graph's host scalars, laid out once for many launches."""

    def __init__(self, graph: Graph) -> None:
        nodes = [n for n in graph.nodes if n.type == "host"]
        at = {n: i for i, n in enumerate(nodes)}
        self._steps = [_step(n, [at[a] for a in n.args]) for n in nodes]
        self._rounded, self._whole = ([at[n.args[0]] for n in some(graph)] for some in (rounded_scalars, whole_scalars))

    def __call__(self, rows: int, cols: int, params: Mapping[str, float]) -> tuple[list[float], tuple[int, ...]]:
        """Those of the scalar table, which the launcher rounds as it stores them; and the whole ones."""
        known: list[float] = []
        for step in self._steps:
            known.append(step(known, rows, cols, params))
        return [known[i] for i in self._rounded], tuple([round(known[i]) for i in self._whole])


Step = Callable[[list[float], int, int, Mapping[str, float]], float]


def _step(node: Node, places: list[int]) -> Step:
    """What computes a node from the values before it."""
    i, j = (*places, 0, 0)[:2]
    match node.op:
        case "param":
            name = str(node.data[0])
            return lambda known, rows, cols, params: float(params[name])
        case "number":
            number = float(str(node.data[0]))
            return lambda known, rows, cols, params: number
        case "rows":
            return lambda known, rows, cols, params: float(rows)
        case "columns":
            return lambda known, rows, cols, params: float(cols)
        case "host_add":
            return lambda known, rows, cols, params: known[i] + known[j]
        case "host_sub":
            return lambda known, rows, cols, params: known[i] - known[j]
        case "host_mul":
            return lambda known, rows, cols, params: known[i] * known[j]
        case "host_div":
            return lambda known, rows, cols, params: quotient(known[i], known[j])
        case "host_neg":
            return lambda known, rows, cols, params: -known[i]
        case "host_sqrt":
            return lambda known, rows, cols, params: math.sqrt(known[i]) if known[i] >= 0 else math.nan
        case "host_power":
            return lambda known, rows, cols, params: power(known[i], int(known[j])) if known[j] >= 0 else math.nan
    raise AssertionError(f"no host value for {node}")


def quotient(a: float, b: float) -> float:
    """a/b as IEEE 754 has it, where Python would raise."""
    if b == 0:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


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
