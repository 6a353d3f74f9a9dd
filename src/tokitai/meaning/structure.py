"""Which expression was evaluated: the graph over 64-bit hashes instead of numbers.

Each input element is a distinct random hash, each operation mixes its operands. A kernel compiled with the same mixing
in place of its arithmetic returns the same hashes only if it evaluated the defined expression at every element: for
that shape and plan it does so for *all* inputs, but for a collision of probability below 2**-50. Its bits are then as
right as the arithmetic that the hashes stand for, which is what numbers show.

Integers (indices, ids, lengths) stay numbers, as they decide which elements meet; the statement then holds for the
integer tensors that were used. The mixing below is written down again in the kernels' header, on purpose: neither
side may borrow the other's mistakes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from ..formats import FORMATS
from ..lang import FIXED_BITS, Graph, Node, TensorSpec, extent
from . import bits
from .interpret import Array, evaluate_body, evaluate_graph, evaluate_list
from .matrix_unit import STEP
from .product import chains, over_blocks, turned, weighted, weighted_blocks
from .sums import column_sum, scattered_sum, tree

U64 = np.uint64
_ODD = U64(0x9E3779B97F4A7C15)

# The tag of each operation: its place in this list. Kernels' headers hold the same numbers.
TAGS = {
    name: i + 1
    for i, name in enumerate(
        "add sub mul div fma sqrt neg abs maximum minimum round_even power_of_two exponent significand lt le eq ne "
        "logical_and logical_or logical_not where convert round_f16 round_bf16 row_max const "
        "stochastic_f16 stochastic_bf16 row_first widen_f64 round_f32 fused_step fixed8 fixed16 fixed24 "
        "fixed_unit".split()
    )
}


_30, _27, _31 = U64(30), U64(27), U64(31)
_FIRST, _SECOND = U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection that spreads every bit."""
    y = x >> _30
    y ^= x
    y *= _FIRST
    y ^= y >> _27
    y *= _SECOND
    y ^= y >> _31
    return y


@cache
def _tag(name: str) -> np.uint64:
    return U64((TAGS[name] * int(_ODD)) & 0xFFFFFFFFFFFFFFFF)


def unary(name: str, a: Array) -> Array:
    """The hash of an operation of one operand."""
    return mix(a + _tag(name))


def symmetric(name: str, a: Array, b: Array) -> Array:
    """The same for (a, b) and (b, a)."""
    return mix(mix(a + _tag(name)) + mix(b + _tag(name)))


def ordered(name: str, a: Array, b: Array) -> Array:
    """A hash that tells (a, b) from (b, a)."""
    return mix(mix(a + _tag(name)) + mix(b ^ _tag(name)) * U64(3))


def fma(a: Array, b: Array, c: Array) -> Array:
    """The hash of a fused multiply-add: its factors may be swapped."""
    return fused(symmetric("fma", a, b), c)


def fused(factors: Array, c: Array) -> Array:
    """The same from the hash of the factors."""
    return mix(factors + mix(c ^ _tag("fma")) * U64(5))


def add(a: Array, b: Array) -> Array:
    """The hash of an addition. A hash of 0 is that of a sum over nothing: neutral, as padding is, wherever it is added.
    (That it is +0, which -0 tells from nothing, is shown by numbers: `verification.suite` has a case for it.)"""
    made = symmetric("add", a, b)
    return made if a.all() and b.all() else np.where(a == 0, b, np.where(b == 0, a, made))


def matrix_unit_chain(a: Array, b: Array) -> Array:
    """The hash of a chain of a matrix unit's steps, from +0. A step is one operation on the accumulator and its
    products, whose order does not matter, as they are added exactly."""
    c = np.full((len(a), b.shape[1]), unary("const", np.zeros((), U64)))
    for k in range(0, a.shape[1], STEP):
        products = np.zeros_like(c)
        for i in range(k, min(k + STEP, a.shape[1])):
            products = products + symmetric("fused_step", a[:, i, None], b[None, i, :])
        c = mix(mix(products + _tag("fused_step")) + mix(c ^ _tag("fused_step")) * U64(5))
    return c


def matrix_unit_chain_of_met(a: Array, met: Array, b: Array) -> Array:
    """The same of what is met: a step with no product is none. 0, which is neutral, where there is no step."""
    c = np.zeros((len(a), b.shape[1]), U64)
    for k in range(0, a.shape[1], STEP):
        products = np.zeros_like(c)
        for i in range(k, min(k + STEP, a.shape[1])):
            products = products + np.where(
                met[:, i, None], symmetric("fused_step", a[:, i, None], b[None, i, :]), U64(0)
            )
        begun = np.where(c == 0, unary("const", np.zeros((), U64)), c)
        made = mix(mix(products + _tag("fused_step")) + mix(begun ^ _tag("fused_step")) * U64(5))
        c = np.where(met[:, k : k + STEP].any(axis=1, keepdims=True), made, c)
    return c


def fixed_point_block(name: str, a: Array, b: Array) -> Array:
    """The hash of an exact sum of a block, whose products are added in any order, and of the units of its row and its
    column, each of which is made of all of their elements, in any order."""
    left, right = (unary("fixed_unit", x).sum(axis=i, keepdims=True, dtype=U64) for x, i in ((a, 1), (b, 0)))
    products = np.zeros((len(a), b.shape[1]), U64)
    for i in range(a.shape[1]):
        products += symmetric(name, a[:, i, None], b[None, i, :])
    return ordered(name, products, symmetric("fixed_unit", left, right))


def _products(a: Array, b: Array) -> Array:
    """The hash of a product that begins a chain, and of the factors of one that goes on."""
    return np.stack([symmetric("mul", a, b), symmetric("fma", a, b)])


def _go_on(product: Array, c: Array) -> Array:
    return np.where(c == 0, product[0], fused(product[1], c))


class Structure:
    """The domain of hashes. `scalars` gives each host scalar that is rounded to a float its hash; those that become
    integers are computed from `params`."""

    def __init__(self, scalars: Mapping[Node, int], params: Mapping[str, float]) -> None:
        self.scalars, self.params = scalars, params

    def total(self, node: Node, parts: Sequence[Array]) -> Array:
        with np.errstate(over="ignore"):
            return total(node, parts)

    def load(self, tensor: TensorSpec, values: Array) -> Array:
        return values  # widening is exact: the element itself

    def store(self, values: Array, format_name: str) -> Array:
        return self.rounded(values, format_name)

    @staticmethod
    def rounded(values: Array, format_name: str) -> Array:
        return unary(f"round_{format_name}", values) if format_name in ("f16", "bf16") else values

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        with np.errstate(over="ignore"):
            return self.compute(node, args, shape)

    def compute(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        if node.type == "host":
            return np.full((1, 1), bits.Bits(self.params).host(node, [float(a[0, 0]) for a in args], shape))
        if node.exact or (node.op == "const" and node.type != "f32"):
            return bits.integer(node, args, shape)
        match node.op:
            case "round":
                return np.full((1, 1), self.scalars[node], U64)
            case "const":
                pattern = np.array([[node.data[0]]], np.float32).view(np.uint32).astype(U64)
                return unary("const", pattern)
            case "convert":
                return unary("convert", args[0].astype(np.int64).view(U64))
            case "round_to":
                return self.rounded(args[0], str(node.data[0]))
            case "where" if node.args[0].exact:
                return np.where(*args)
            case "where":
                return mix(ordered("where", args[1], args[2]) + mix(args[0] ^ _tag("where")) * U64(5))
            case "fma":
                return fma(*args)
            case "matmul" if node.data[1] == "fused16":
                return over_blocks(node, args[0], args[1], matrix_unit_chain, add, unary("const", np.zeros((), U64)))
            case "matmul" if node.data[1] in FIXED_BITS:
                made_of = partial(fixed_point_block, str(node.data[1]))
                return over_blocks(node, args[0], args[1], made_of, add, unary("const", np.zeros((), U64)))
            case "matmul":
                a, b = (unary("widen_f64", x) for x in args) if node.data[1] == "f64" else args
                made = chains(node, a, b, partial(symmetric, "fma"), partial(symmetric, "mul"), fused)
                nothing = unary("const", np.zeros((1, *made.shape[1:]), U64))  # +0: a hash of 0 would be neutral
                total = tree(made if len(made) else nothing, add, axis=0)[0]
                return unary("round_f32", total) if node.data[1] == "f64" else total
            case "weighted_sum" if node.data[1:] == ("fused16",):
                nothing = unary("const", np.zeros((), U64))
                return weighted_blocks(turned(node, args), matrix_unit_chain_of_met, add, nothing)
            case "weighted_sum":  # a chain begins with its first product; 0 stands for nothing so far
                return weighted(node, args, _products, _go_on, add, U64(0), unary("const", np.zeros((), U64)))
            case "row_sum":
                return tree(args[0], add)
            case "col_sum":
                return column_sum(args[0], add)
            case "round_stochastic":
                return ordered(f"stochastic_{node.data[0]}", args[0], unary("convert", args[1].astype(U64)))
            case "row_max":  # an order-free mix: the bits of a maximum do not depend on the order
                return mix(unary("row_max", args[0]).sum(axis=1, keepdims=True, dtype=U64))
            case "take_column":
                return np.take_along_axis(np.broadcast_to(args[0], shape), args[1].astype(np.int64), axis=1)
            case "row_first":  # as for a maximum, of conditions with their columns
                columns = unary("convert", np.arange(shape[1], dtype=np.int64).view(U64))
                return mix(ordered("row_first", args[0], columns[None, :]).sum(axis=1, keepdims=True, dtype=U64))
            case "slots":
                return np.concatenate(args, axis=1)
            case "gather":
                return args[0][args[1][:, 0]]
            case "scatter_sum":
                nothing = unary("const", np.zeros((int(args[2][0, 0]), shape[1]), U64))  # the hash of +0
                return scattered_sum(args[0], args[1], nothing, add)
            case "call":
                assert node.body is not None
                return evaluate_body(node.body, _Inside(self.scalars, self.params), args, shape)
            case "add":
                return add(*args)
            case "mul" | "maximum" | "minimum" | "eq" | "ne" | "logical_and" | "logical_or":
                return symmetric(node.op, *args)
            case "sub" | "div" | "lt" | "le":
                return ordered(node.op, *args)
            case "sqrt" | "neg" | "abs" | "round_even" | "power_of_two" | "exponent" | "significand" | "logical_not":
                return unary(node.op, args[0])
        raise AssertionError(f"no structural meaning for {node}")


class _Inside(Structure):
    """The same inside a function: NumPy's warnings are off already."""

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        return self.compute(node, args, shape)


def total(node: Node, parts: Sequence[Array]) -> Array:
    """Of flattened tensors: the tree of trees for a sum, an order-free mix for a maximum."""
    if node.op == "total_sum":
        each = [tree(p, add) for p in parts]
        return tree(np.concatenate(each, axis=1) if each else np.zeros((1, 0), U64), add)
    leaves = [unary("row_max", p).sum(axis=1, keepdims=True, dtype=U64) for p in parts]
    return mix(sum(leaves, np.zeros((1, 1), U64)))


def drawn_entries(rows: int) -> int:
    """Entries of a table that is drawn: fewer than the rows, so that some are met often; never none."""
    return rows // 3 + 2


def hashes(graph: Graph, shape: tuple[int, int], seed: int) -> tuple[dict[str, Array], dict[Node, int]]:
    """Random hashes for every element of the float inputs and for every rounded host scalar."""
    rng = np.random.default_rng([seed, int.from_bytes(hashlib.sha256(graph.digest.encode()).digest()[:8], "little")])
    floats = [t for t in graph.inputs if FORMATS[str(t.format)].is_float]
    sizes = {t.name: extent(t.space, shape, drawn_entries(shape[0]), t.slots) for t in floats}
    tensors = {name: rng.integers(1, 2**64, s, dtype=U64) for name, s in sizes.items()}
    scalars = {n: int(rng.integers(1, 2**64, dtype=U64)) for n in graph.nodes if n.op == "round" and not n.exact}
    return tensors, scalars


def evaluate(
    graph: Graph,
    tensors: Mapping[str, Array],
    shape: tuple[int, int],
    scalars: Mapping[Node, int],
    params: Mapping[str, float],
) -> dict[str, Array]:
    """The hash of every result element, two-dimensional."""
    return evaluate_graph(graph, Structure(scalars, params), tensors, shape)


def evaluate_tensors(
    graph: Graph,
    tensors: Sequence[Mapping[str, Array]],
    shapes: Sequence[tuple[int, int]],
    scalars: Mapping[Node, int],
    params: Mapping[str, float],
) -> list[dict[str, Array]]:
    """The same for a list of tensors."""
    return evaluate_list(graph, Structure(scalars, params), tensors, shapes)
