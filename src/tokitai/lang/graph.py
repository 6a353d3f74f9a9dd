"""The graph that a definition becomes: typed primitive operations over `rows x cols`, `rows`, `cols` and scalar values.

Two types of arithmetic live in one graph. *Host* values are f64 scalars, computed once a call on the host (1/n, bias
corrections); a `round` node takes one to f32 where it meets tensors. All other values are computed by the kernel.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from .real import RealFunction

# rows x cols, one a row, one a column, one in all, entries x cols (a table); operands of products: rows x inner,
# inner x cols, their transposes; where groups begin and end, and among what: rows or the K dimension
Space = Literal["rc", "r", "c", "s", "t", "rk", "kr", "kc", "ck", "g", "gr", "gk"]
Type = Literal["f32", "f64", "i32", "i64", "u32", "bool", "host"]


@dataclass(frozen=True)
class Primitive:
    """One operation of the language.

    ``symmetric`` operations take their first two operands in either order with the same bits.
    """

    name: str
    arity: int
    kind: Literal["leaf", "host", "float", "compare", "logic", "int", "cast", "reduce", "index", "call", "product"]
    symmetric: bool = False


PRIMITIVES: dict[str, Primitive] = {
    p.name: p
    for p in (
        Primitive("input", 0, "leaf"),
        Primitive("const", 0, "leaf"),
        Primitive("column_index", 0, "index"),
        Primitive("row_index", 0, "index"),
        Primitive("element_word", 0, "index"),  # of the place row * cols + column, 32 bits at a time; data = (0 or 1,)
        Primitive("tensor_index", 0, "index"),
        # host scalars, f64
        Primitive("param", 0, "host"),
        Primitive("number", 0, "host"),
        Primitive("rows", 0, "host"),
        Primitive("columns", 0, "host"),
        Primitive("host_add", 2, "host", symmetric=True),
        Primitive("host_sub", 2, "host"),
        Primitive("host_mul", 2, "host", symmetric=True),
        Primitive("host_div", 2, "host"),
        Primitive("host_neg", 1, "host"),
        Primitive("host_sqrt", 1, "host"),
        Primitive("host_power", 2, "host"),
        Primitive("round", 1, "cast"),
        # arithmetic: IEEE 754, one rounding, to nearest even
        Primitive("add", 2, "float", symmetric=True),
        Primitive("sub", 2, "float"),
        Primitive("mul", 2, "float", symmetric=True),
        Primitive("div", 2, "float"),
        Primitive("fma", 3, "float", symmetric=True),
        Primitive("sqrt", 1, "float"),
        Primitive("neg", 1, "float"),
        Primitive("abs", 1, "float"),
        Primitive("maximum", 2, "float", symmetric=True),
        Primitive("minimum", 2, "float", symmetric=True),
        Primitive("round_even", 1, "float"),
        Primitive("power_of_two", 1, "float"),
        Primitive("exponent", 1, "float"),
        Primitive("significand", 1, "float"),
        # comparisons are false where an operand is NaN, except `ne`
        Primitive("lt", 2, "compare"),
        Primitive("le", 2, "compare"),
        Primitive("eq", 2, "compare", symmetric=True),
        Primitive("ne", 2, "compare", symmetric=True),
        Primitive("logical_and", 2, "logic", symmetric=True),
        Primitive("logical_or", 2, "logic", symmetric=True),
        Primitive("logical_not", 1, "logic"),
        Primitive("where", 3, "float"),
        # integers wrap modulo 2**32 (u32) or must not overflow (i32)
        Primitive("int_add", 2, "int", symmetric=True),
        Primitive("int_sub", 2, "int"),
        Primitive("int_mul", 2, "int", symmetric=True),
        Primitive("int_mulhi", 2, "int", symmetric=True),
        Primitive("int_xor", 2, "int", symmetric=True),
        Primitive("int_and", 2, "int", symmetric=True),
        Primitive("int_shift_right", 2, "int"),
        # casts
        Primitive("convert", 1, "cast"),  # between types; data = (type,)
        Primitive("round_to", 1, "cast"),  # to a storage format and back; data = (format name,)
        Primitive("round_stochastic", 2, "cast"),  # to one of two neighbours, by random bits; data = (format name,)
        # across columns or rows, by the one summation rule
        Primitive("row_sum", 1, "reduce"),
        Primitive("row_max", 1, "reduce"),
        Primitive("row_first", 1, "reduce"),
        Primitive("slots", -1, "index"),  # several values of each row, side by side: a result of rows x slots
        Primitive("col_sum", 1, "reduce"),
        Primitive("total_sum", 1, "reduce"),  # over all elements of all tensors of a list
        Primitive("total_max", 1, "reduce"),
        Primitive("take_column", 2, "index"),
        Primitive("gather", 2, "index"),
        Primitive("scatter_sum", 3, "reduce"),
        # data = (how operands are stored, format of the accumulator); in groups also (the side partitioned, offsets)
        Primitive("matmul", 2, "product"),
        Primitive(
            "weighted_sum", -1, "product"
        ),  # of an operand's lines, with a limit or without; data = (over what, accumulator if narrow)
        # a function that is itself a definition (exp, tanh ...); data = (name,)
        Primitive("call", -1, "call"),
    )
}

COL_SUM_BLOCK = 32
"""Rows in one chain of a column sum: a chain inside aligned blocks, then the balanced tree over the blocks.

Contributions to one entry of a table are added by the same rule, by their rank among those in the order of the rows."""


MATMUL_BLOCK = 4096
"""Products in one chain of a matrix product: a chain inside aligned blocks along k, then the tree over the blocks."""

FIXED_BITS = {"fixed8": 8, "fixed16": 16, "fixed24": 24}
"""Accumulators that add exactly, of operands in signed fixed point of so many bits."""

ACCUMULATORS = ("f32", "f64", "fused16", *FIXED_BITS)  # of products
NARROW_ACCUMULATORS = frozenset({"fused16"})  # those of 16-bit operands alone

OPERANDS = frozenset({"rk", "kr", "kc", "ck"})
"""Spaces of what a matrix product takes."""

GROUPS = frozenset({"g", "gr", "gk"})
"""Spaces of where the groups of a product begin and end; g before a definition is traced."""

MATRICES = frozenset({"rc", "t", *OPERANDS})
"""Spaces of tensors with two sides, which kernels take with a row stride."""

ROW_REDUCTIONS = frozenset({"row_sum", "row_max", "row_first"})
TOTALS = frozenset({"total_sum", "total_max"})
"""Reductions over all elements of a call; over a list of tensors: the tree along each, then over the non-empty ones."""


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a graph. Nodes with equal contents are one node: the tracer interns them."""

    op: str
    args: tuple[Node, ...]
    space: Space
    type: Type
    data: tuple[object, ...] = ()
    exact: bool = False  # made of integers alone, so a structure run keeps the number
    body: Function | None = None  # of a call
    origin: str = field(default="", compare=False)  # the user's file:line

    def __repr__(self) -> str:
        detail = f" {', '.join(map(str, self.data))}" if self.data else ""
        return f"<{self.op}{detail}: {self.space} {self.type}>"


@dataclass(frozen=True, eq=False)
class Function:
    """A named function of the language: its parameters are `input` nodes, its body a graph over them."""

    name: str
    params: tuple[Node, ...]
    result: Node
    real: RealFunction | None = None  # what it stands for; else its own definition

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(topological([self.result]))


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that an operator takes: its name, space and format (None where `dtype=` selects it)."""

    name: str
    space: Space  # of an operand of a product before a definition is traced: rk, wherever it will be used
    format: str | None
    optional: bool = False
    slots: int = 0  # of each row, where there are several side by side
    origin: str = field(default="", compare=False)  # the user's file:line


@dataclass(frozen=True, eq=False)
class Output:
    """A result: the node, the format that it is stored in, and the input whose place it takes, if any."""

    name: str
    node: Node
    format: str
    inplace: bool = False

    @property
    def space(self) -> Space:
        return self.node.space

    @property
    def slots(self) -> int:
        """How many values of each row lie side by side; 0 for one alone."""
        return len(self.node.args) if self.node.op == "slots" else 0


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced definition for one choice of storage format, optional tensors and options."""

    name: str
    dtype: str
    inputs: tuple[TensorSpec, ...]  # those that are present, formats resolved
    params: tuple[str, ...]  # host scalars, in order
    outputs: tuple[Output, ...]
    options: Mapping[str, object]
    one_row: bool = False  # calls have one row at most: kernels need not count elements across rows

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after its operands."""
        return tuple(topological(o.node for o in self.outputs))

    @cached_property
    def offsets(self) -> TensorSpec | None:
        """The input that says where the groups of a product begin and end, if there is one."""
        return next((t for t in self.inputs if t.space in GROUPS), None)

    @cached_property
    def ragged(self) -> str:
        """The side that the groups of a product partition: r or k; empty where there are none."""
        return "" if self.offsets is None else self.offsets.space[1]

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """The functions that are called, each after those that it calls itself."""
        found: dict[str, Function] = {}

        def visit(nodes: Iterable[Node]) -> None:
            for node in nodes:
                if node.body is not None and node.body.name not in found:
                    visit(node.body.nodes)
                    found[node.body.name] = node.body

        visit(self.nodes)
        return tuple(found.values())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the definition's meaning: independent of file, line, variable names and hash seeds."""
        text = {
            "name": self.name,
            "inputs": [[i.name, i.space, i.format, *([i.slots] if i.slots else [])] for i in self.inputs],
            "params": list(self.params),
            "outputs": [[o.name, o.format, o.inplace] for o in self.outputs],
            "nodes": _listing(self.nodes, [o.node for o in self.outputs]),
            "functions": {f.name: _listing(f.nodes, [f.result]) for f in self.functions},
        }
        return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        """The graph in plain text, one node a line; shown by ``tokitai show``."""
        name = {n: f"v{i}" for i, n in enumerate(self.nodes)}
        lines = [f"{name[n]:>5} : {n.space:>2} {n.type:<4} = {_term(n, name)}" for n in self.nodes]
        lines += [f"store {o.name} : {o.space} {o.format} = {name[o.node]}" for o in self.outputs]
        return "\n".join(lines)


def topological(roots: Iterable[Node]) -> Iterator[Node]:
    """Every node that the roots need, operands first, in a fixed order."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready:
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if a not in seen)


def _listing(nodes: Iterable[Node], results: Iterable[Node]) -> list[object]:
    index = {n: i for i, n in enumerate(nodes)}
    rows: list[object] = [[n.op, n.space, n.type, [str(d) for d in n.data], [index[a] for a in n.args]] for n in index]
    return [*rows, ["results", [index[r] for r in results]]]


def _term(node: Node, name: Mapping[Node, str]) -> str:
    label = str(node.data[0]) if node.op == "call" else node.op
    parts = [name[a] for a in node.args] + ([] if node.op == "call" else [str(d) for d in node.data])
    return f"{label}({', '.join(parts)})" if parts else label
