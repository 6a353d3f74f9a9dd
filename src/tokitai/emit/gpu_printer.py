"""Expressions of GPU kernels: the same operations, with fewer instructions where a pattern allows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ..lang import Function, Graph, Node, Output
from ..lower.dividends import never_small
from ..lower.ranges import ALL, clamp, constant, ranges
from .text import Printer

# Operations whose result is NaN where an operand is; `where` is another one, for the operand that it picks.
_HAND_NAN_ON = {"add", "sub", "mul", "div", "fma", "neg", "abs", "sqrt", "maximum", "minimum", "where"}
SMALL, LARGE = 2.0**-62, 2.0**62  # as in quotients.h


class GpuPrinter(Printer):
    """A printer of kernels for GPUs."""

    def expression(self, node: Node, vector: bool, name: Mapping[Node, str], own_names: bool = False) -> str:
        """As on the CPU, but for three patterns: powers of two, sums with scaled values, clamps."""
        if node.op == "power_of_two":
            sum_ = node.args[0]
            shift = constant(sum_.args[1]) if sum_.op == "add" else None
            if shift is not None and shift.is_integer() and sum_.args[0].op == "round_even":
                return f"power_of_two({name[sum_.args[0]]}, {name[sum_.args[1]]})"
        if node.op == "add":
            for c, product in (node.args, node.args[::-1]):
                scale = constant(product.args[1]) if product.op == "mul" else None
                power = scale is not None and scale <= 1 and math.frexp(scale)[0] == 0.5
                if power and abs(constant(c) or 0.0) >= 2.0**-60:
                    # Exact but where the product is below 2^-126, and there the constant is the sum.
                    return f"add_scaled({name[c]}, {name[product.args[0]]}, {name[product.args[1]]})"
        limits = clamp(node)
        if limits is not None:
            return f"{limits[0]}({name[limits[1]]}, {name[node.args[1]]})"
        return super().expression(node, vector, name, own_names)

    def encode(self, o: Output, how: str = "encode") -> None:
        """A chunk of a result's values in its stored format; whole numbers are stored as they are."""
        if o.node.type == "f32":
            self.line(f"{how}(new_{o.name}, values_{o.name});")
        else:
            self.line(f"UNROLL for (int e = 0; e < CHUNK; ++e) new_{o.name}.e[e] = values_{o.name}[e];")


class FramedPrinter(GpuPrinter):
    """A printer of several kernels that begin with the same arguments."""

    def arguments(self) -> None:
        """What every kernel begins with."""
        raise NotImplementedError

    def kernel(self, name: str, threads: int, body: Callable[[], None], per_sm: int = 1) -> None:
        self.line()
        self.open(f"KERNEL({name}, {threads}, {per_sm})")
        self.arguments()
        body()
        self.close()


class QuotientPrinter(GpuPrinter):
    """A printer of kernels whose elements are divided in two ways (see quotients.h): functions that divide take the way
    as one more argument."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.way: str | None = None  # the name of the way while elements are printed
        self.intervals = ranges(graph.nodes)
        self.shown = _all_show_nan(graph)
        self.never_small = _never_small(graph)

    def expression(self, node: Node, vector: bool, name: Mapping[Node, str], own_names: bool = False) -> str:
        """Division, and calls of functions that divide, in the way that is given."""
        if node.op == "div" and self.way:
            return f"{self.way}.of({name[node.args[0]]}, {name[node.args[1]]}, {self.look(node)})"
        text = super().expression(node, vector, name, own_names)
        return f"{text[:-1]}, {self.way or 'Exact{}'})" if node.body is not None and divides(node.body) else text

    def look(self, node: Node) -> str:
        """What has to be checked in a quotient's operands: what their intervals leave open."""
        (low, high), (least, most) = (self.intervals.get(a, ALL) for a in node.args)
        small = max(low, -high) < SMALL and node not in self.never_small
        open_ = (least < SMALL or most > LARGE, small, max(-low, high) > LARGE and not self.shown)
        return f"Checks<{', '.join(str(b).lower() for b in open_)}>{{}}"

    def function(self, f: Function) -> None:
        """A function that divides takes the way."""
        if not divides(f):
            super().function(f)
            return
        outside, self.intervals, self.way = self.intervals, ranges(f.nodes), "quotients"
        start = len(self.lines)
        super().function(f)
        head = next(i for i in range(start, len(self.lines)) if self.lines[i].startswith("template"))
        line = self.lines[head].replace(">", ", class Q>", 1)
        self.lines[head] = line.replace(") {", ", const Q& quotients) {")
        self.intervals, self.way = outside, None


def divides(f: Function) -> bool:
    """Whether a function, or one that it calls, divides."""
    return any(n.op == "div" or (n.body is not None and divides(n.body)) for n in f.nodes)


def _never_small(graph: Graph) -> frozenset[Node]:
    """Divisions in functions of stored numbers whose dividends are never small."""
    calls = [n for n in graph.nodes if n.body is not None]
    inner = {n.body for f in graph.functions for n in f.nodes if n.body is not None}
    found: set[Node] = set()
    for f in graph.functions:
        given = [n.args for n in calls if n.body is f]
        formats = {str(args[0].data[1]) if len(args) == 1 and args[0].op == "input" else None for args in given}
        if len(formats) == 1 and f not in inner and (fmt := formats.pop()) is not None and divides(f):
            found |= never_small(f, fmt, SMALL)
    return frozenset(found)


def _all_show_nan(graph: Graph) -> bool:
    """Whether a quotient that is NaN makes every result NaN for which it matters."""
    return all(
        _shows_nan(n, nodes)
        for nodes in (graph.nodes, *(f.nodes for f in graph.functions))
        for n in nodes
        if n.op == "div" or (n.body is not None and divides(n.body))
    )


def _shows_nan(root: Node, nodes: Sequence[Node]) -> bool:
    """Whether nothing that is made of `root` compares it, say, or takes it apart."""
    reached = {root}
    for n in nodes:
        if any(a in reached for a in n.args):
            if n.op not in _HAND_NAN_ON or n.type != "f32" or (n.op == "where" and n.args[0] in reached):
                return False
            reached.add(n)
    return True
