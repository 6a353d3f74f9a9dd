"""Wrong graphs made from right ones: each differs in one operation, and so computes something else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np

from tokitai.lang import Function, Graph, Node

ORDERED = {"sub", "div", "lt", "le"}


def rebuilt(graph: Graph, changed: Mapping[Node, Node]) -> Graph:
    """The graph with some nodes replaced, and all that is made of them made anew."""
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        args = tuple(new[a] for a in n.args)
        if n in changed:
            replacement = changed[n]
            new[n] = dataclasses.replace(replacement, args=tuple(new.get(a, a) for a in replacement.args))
        else:
            new[n] = n if args == n.args else dataclasses.replace(n, args=args)
    outputs = tuple(dataclasses.replace(o, node=new[o.node]) for o in graph.outputs)
    return Graph(graph.name, graph.dtype, graph.inputs, graph.params, outputs, graph.options)


def mutants(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """What went wrong, and the graph in which it did: swapped and dropped operands, other constants, other operations,
    an accumulator in the storage format, a result rounded twice."""
    for i, n in enumerate(graph.nodes):
        for what, wrong in _wrong(n):
            yield f"node {i}, {n.op}: {what}", rebuilt(graph, {n: wrong})
    for o in graph.outputs:
        if o.format != "f32" and o.node.type == "f32":
            twice = Node("round_to", (o.node,), o.node.space, "f32", ("bf16" if o.format == "f16" else "f16",))
            results = tuple(dataclasses.replace(x, node=twice) if x is o else x for x in graph.outputs)
            yield (
                f"{o.name}: rounded twice",
                Graph(graph.name, graph.dtype, graph.inputs, graph.params, results, graph.options),
            )


def _wrong(n: Node) -> Iterator[tuple[str, Node]]:
    a = n.args
    if n.op in ORDERED and a[0] is not a[1]:
        yield "operands swapped", dataclasses.replace(n, args=(a[1], a[0]))
    if n.op in ("add", "sub", "mul", "div") and a[0].space == n.space:
        yield "second operand dropped", dataclasses.replace(n, op="abs", args=(a[0],))
    if n.op == "fma":
        yield "addend negated", dataclasses.replace(n, args=(a[0], a[1], Node("neg", (a[2],), a[2].space, n.type)))
        product = Node("mul", (a[0], a[1]), n.space, n.type)
        yield "rounded twice instead of once", dataclasses.replace(n, op="add", args=(product, a[2]))
    if n.op in ("add", "mul"):
        yield "another operation", dataclasses.replace(n, op="mul" if n.op == "add" else "add")
    if n.op == "const" and n.type == "f32":
        yield "another constant", dataclasses.replace(n, data=(_another(float(str(n.data[0]))),))
    if n.op in ("maximum", "minimum"):
        yield "the other one", dataclasses.replace(n, op="minimum" if n.op == "maximum" else "maximum")
    if n.op == "sqrt":
        yield "left out", dataclasses.replace(n, op="abs")
    if n.op in ("row_sum", "col_sum", "total_sum") and n.type == "f32":
        narrow = Node("round_to", (a[0],), a[0].space, "f32", ("f16",))
        yield "terms in f16", dataclasses.replace(n, args=(narrow,))
    if n.op == "matmul":
        other = "f64" if n.data[1] == "f32" else "f32"
        yield "another accumulator", dataclasses.replace(n, data=(n.data[0], other, *n.data[2:]))
    if n.op == "weighted_sum":
        narrow = Node("round_to", (a[0],), a[0].space, "f32", ("bf16",))
        yield "weights in bf16", dataclasses.replace(n, args=(narrow, *a[1:]))
        if len(a) > 2:
            yield "all columns are met", dataclasses.replace(n, args=a[:2])
    if n.op == "row_sum":
        yield "a maximum instead", dataclasses.replace(n, op="row_max")
    if n.op == "row_max":
        yield "a sum instead", dataclasses.replace(n, op="row_sum")
        yield "the smallest instead", _smallest(n)
    if n.op in ("gather", "scatter_sum"):
        index = a[1]
        for entry in (0, 1):  # a table that is drawn has two at least
            yield f"entry {entry} for all rows", dataclasses.replace(n, args=(a[0], _whole(entry, index), *a[2:]))
    if n.op == "gather":
        yield "negated", Node("neg", (n,), n.space, n.type)
        yield "rounded to f16", Node("round_to", (n,), n.space, n.type, ("f16",))
        yield "rounded to bf16", Node("round_to", (n,), n.space, n.type, ("bf16",))
    if n.op == "scatter_sum":
        narrow = Node("round_to", (a[0],), a[0].space, "f32", ("f16",))
        yield "terms in f16", dataclasses.replace(n, args=(narrow, *a[1:]))
        yield "negated", Node("neg", (n,), n.space, n.type)
    if n.op == "row_first":
        yield "where it does not hold", dataclasses.replace(n, args=(Node("logical_not", a, "rc", "bool"),))
    if n.op in ("eq", "ne"):
        yield "the opposite", dataclasses.replace(n, op="ne" if n.op == "eq" else "eq")
    if n.op == "slots" and len(set(a)) > 1:
        yield "in another order", dataclasses.replace(n, args=(*a[1:], a[0]))
    if n.op == "where":
        yield "branches swapped", dataclasses.replace(n, args=(a[0], a[2], a[1]))
    if n.op == "call" and n.body is not None:
        yield "the function left out", dataclasses.replace(n, op="neg", data=(), body=None)
        for what, result in _wrong_bodies(n.body):
            body = Function(f"{n.body.name}_wrong", n.body.params, result)
            yield f"inside {n.body.name}, {what}", dataclasses.replace(n, data=(body.name,), body=body)


def _smallest(n: Node) -> Node:
    """The smallest element of each row, negated: the largest of the negated elements."""
    (a,) = n.args
    return dataclasses.replace(n, args=(Node("neg", (a,), a.space, a.type),))


def _whole(value: int, like: Node) -> Node:
    """A whole number for every row: an index must be one a row, so it is made of one."""
    zero = Node("int_sub", (like, like), like.space, like.type, exact=True)
    number = Node("const", (), "s", like.type, (value,), exact=True)
    return Node("int_add", (zero, number), like.space, like.type, exact=True)


def _another(constant: float) -> float:
    """Another f32 number: to one of 2^23 and more, adding a half can change nothing."""
    if not math.isfinite(constant):
        return 0.0
    return constant + 0.5 if np.float32(constant + 0.5) != np.float32(constant) else 2 * constant


def _wrong_bodies(f: Function) -> Iterator[tuple[str, Node]]:
    """Wrong results of a called function."""
    for i, n in enumerate(f.nodes):
        for what, wrong in _wrong(n):
            new: dict[Node, Node] = {}
            for m in f.nodes:
                source = wrong if m is n else m
                args = tuple(new.get(a, a) for a in source.args)
                new[m] = source if args == source.args else dataclasses.replace(source, args=args)
            yield f"node {i}, {n.op}: {what}", new[f.result]
