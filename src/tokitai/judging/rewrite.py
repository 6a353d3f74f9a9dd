"""Graphs made of other graphs: a rule says which node takes another's place; the rest is built again around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ..lang import Graph, Node, Operator
from ..lang.values import Value, make, tracing

SHOWN = {"exp_down": "exp", "row_sum": "sum", "col_sum": "sum", "row_max": "max", "total_sum": "sum"}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "host_div": "/", "host_mul": "*", "host_add": "+"}
LONGEST = 48  # characters of an expression that is shown whole
ORIGIN = "model:0"

Rule = Callable[[Node, tuple[Node, ...]], "Node | Value | None"]


@dataclass(frozen=True)
class Named:
    """A graph and the names of its nodes: the definition's variables."""

    graph: Graph
    names: Mapping[Node, str]

    def name(self, node: Node) -> str:
        """What a reader of the definition calls a node: its variable, a function's name, or an expression."""
        return self.names.get(node) or self.text(node)

    def text(self, node: Node, within: str = "") -> str:
        """A node as an expression of variables and inputs; ``within``: the operation that it is an operand of."""
        if within and node in self.names:
            return self.names[node]
        below = [self.text(a, node.op) for a in node.args]
        if node.op in ("input", "param"):
            return str(node.data[0])
        if node.op in ("const", "number"):
            return f"{float(str(node.data[0])):g}"
        if node.op in ("rows", "columns"):
            return node.op
        if node.op in ("round", "convert", "round_to"):
            return below[0]
        if node.op in INFIX:
            made = INFIX[node.op].join(below)
            return f"({made})" if within in INFIX else made
        word = SHOWN.get(node.op, node.op) if node.op != "call" else SHOWN.get(str(node.data[0]), str(node.data[0]))
        made = f"{word}({','.join(below)})"
        return made if len(made) <= LONGEST else f"{word}(...)"


def named(operator: Operator, graph: Graph) -> Named:
    """A graph of an operator with the variables of its definition, and the names of its results."""
    variables = dict(operator.variables(graph))
    for o in graph.outputs:
        variables.setdefault(o.node, o.name)
    return Named(graph, variables)


def rebuilt(some: Named, rule: Rule) -> Named:
    """The graph with each node as ``rule`` makes it of its new operands, or as it was where it returns None."""
    graph = some.graph
    there: dict[Node, Node] = {}
    with tracing(graph.dtype):
        for node in graph.nodes:
            args = tuple(there[a] for a in node.args)
            made = rule(node, args)
            there[node] = same(node, args) if made is None else made.node if isinstance(made, Value) else made
    outputs = tuple(replace(o, node=there[o.node]) for o in graph.outputs)
    names = {there[n]: name for n, name in some.names.items() if n in there}
    return Named(replace(graph, outputs=outputs), names)


def same(node: Node, args: Iterable[Node]) -> Node:
    """The operation of a node on other operands."""
    return make(node.op, *args, space=node.space, type=node.type, data=node.data, body=node.body, exact=node.exact,
                origin=ORIGIN)  # fmt: skip


def behind(op: str, node: Node, *data: object) -> Node:
    """An operation of one operand behind a value."""
    return make(op, node, space=node.space, type=node.type, data=data, origin=ORIGIN)
