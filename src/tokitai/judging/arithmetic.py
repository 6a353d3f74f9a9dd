"""What a third-party kernel may compute where the definition computes something else: operations of models.

A model (`models`) is the definition's graph with some of these in it:

* ``flush``: subnormal numbers of f32, or of a storage format, become zeros;
* ``approximate``: the value with a relative error of at most 2**level;
* ``toward_zero``: rounded to a storage format, by cutting;
* ``saturate``: infinities become the largest number of a format;
* ``before_tail``: whether a column lies before the last that is no multiple of a width;
* a sum or product whose ``data`` names a format: each addition is rounded to it.

Each has its bits, its exact value and its error bound here; all else is that of the definition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..formats import FORMATS
from ..lang import Graph, Node
from ..meaning import bits, bounds, real
from ..meaning.bounds import WIDEN, Bounded
from ..meaning.interpret import evaluate_graph
from ..meaning.product import operands
from .allowance import AnyOrder

Array = np.ndarray[Any, Any]

BEHIND = frozenset({"flush", "approximate", "toward_zero", "saturate", "round_to"})  # operations behind a value
NARROW = "narrow"  # first in the data of a sum whose additions are rounded to a format


def narrow_of(node: Node) -> tuple[str, str] | None:
    """Of a sum in a narrow format that format, and the order: chain or pairs."""
    data = node.data[2:] if node.op == "matmul" else node.data
    return (str(data[1]), str(data[2])) if data[:1] == (NARROW,) else None


def smallest_normal(format_name: str) -> float:
    """The smallest normal number of a format."""
    return float(2.0 ** FORMATS[format_name].emin)


def narrow_sum(x: Array, format_name: str, order: str, axis: int) -> Array:
    """The sum along an axis in which each addition is rounded to a format: from the first term on, or in pairs."""
    x = np.moveaxis(bits.widen(bits.round_to(np.asarray(x, np.float32), format_name)), axis, 0)
    if not len(x):
        return np.moveaxis(np.zeros((1, *x.shape[1:]), np.float32), 0, axis)
    while order == "pairs" and len(x) > 1:
        paired = len(x) // 2 * 2
        both = bits.widen(bits.round_to(x[0:paired:2] + x[1:paired:2], format_name))
        x = np.concatenate([both, x[paired:]])
    total = x[0]
    for term in x[1:]:
        total = bits.widen(bits.round_to(total + term, format_name))
    return np.moveaxis(total[None], 0, axis)


def cut(values: Array, format_name: str) -> Array:
    """f32 values rounded toward zero to a format, as f32."""
    fmt = FORMATS[format_name]
    near = bits.widen(bits.round_to(np.asarray(values, np.float32), format_name))
    over = np.abs(near) > np.abs(values)
    stored = bits.round_to(near, format_name)
    whole = np.asarray(stored.view(f"u{stored.dtype.itemsize}") - over.astype(f"u{stored.dtype.itemsize}"))
    return np.asarray(np.where(over, bits.widen(whole.view(fmt.dtype)), near), np.float32)


def largest(format_name: str) -> float:
    """The largest number of a format."""
    fmt = FORMATS[format_name]
    return float(2.0**fmt.emax * (2 - 2.0 ** (1 - fmt.precision)))


def _before_tail(node: Node, shape: tuple[int, int]) -> Array:
    width = int(str(node.data[0]))
    return np.arange(shape[1])[None, :] < shape[1] // width * width


class ModelBits(bits.Bits):
    """The bits of a model."""

    def compute(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        """One operation."""
        narrow = narrow_of(node)
        match node.op:
            case "flush":
                small = np.abs(args[0]) < smallest_normal(str(node.data[0]))
                return np.where(small, np.copysign(np.float32(0), args[0]), args[0])
            case "approximate":
                return args[0]
            case "toward_zero":
                return cut(args[0], str(node.data[0]))
            case "saturate":
                most = np.float32(largest(str(node.data[0])))
                return np.where(np.isnan(args[0]), args[0], np.clip(args[0], -most, most))
            case "before_tail":
                return _before_tail(node, shape)
            case "row_sum" | "col_sum" if narrow:
                return narrow_sum(args[0], *narrow, axis=1 if node.op == "row_sum" else 0)
            case "matmul" if narrow:
                left, right = (np.asarray(x, np.float32) for x in operands(node, *args))
                total = np.zeros((len(left), right.shape[1]), np.float32)
                for k in range(left.shape[1]):
                    exact = total.astype(np.float64) + left[:, k : k + 1].astype(np.float64) * right[k : k + 1]
                    total = bits.widen(bits.round_to(exact, narrow[0]))
                return total
        return super().compute(node, args, shape)


class ModelReal(real.Real):
    """The exact value of a model. Sums and functions are exact; what stores are, and what is left out, stays so."""

    def compute(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        """One operation."""
        match node.op:
            case "flush" | "approximate" | "saturate":
                return args[0]
            case "toward_zero":
                return cut(args[0].astype(np.float64).astype(np.float32), str(node.data[0])).astype(self.dtype)
            case "before_tail":
                return _before_tail(node, shape)
        return super().compute(node, args, shape)


class ModelBounds(AnyOrder):
    """Error bounds of a model, in whatever order."""

    def __init__(self, params: Mapping[str, float], noise: bool = False, results: int = 1) -> None:
        super().__init__(params, noise, results)
        self.bits = ModelBits(params)

    def apply(self, node: Node, args: Sequence[Any], shape: tuple[int, int]) -> Any:
        """One operation; a sum stays one behind it."""
        if node.op == "before_tail":
            return _before_tail(node, shape)
        made = super().apply(node, args, shape)
        if node.op in BEHIND and node.args[0] in self.sums:
            self.sums[node] = self.sums[node.args[0]]
        return made

    def _error(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        match node.op:
            case "flush":
                near = (np.abs(x[0]) - e[0] < smallest_normal(str(node.data[0]))) & (np.abs(x[0]) + e[0] > 0)
                return e[0] + np.where(near, np.abs(x[0]) + e[0], 0)
            case "approximate":
                return e[0] + 2.0 ** int(str(node.data[0])) * np.abs(v)
            case "toward_zero":
                low, high = (cut(np.asarray(x[0] + side * e[0], np.float32), str(node.data[0])) for side in (-1, 1))
                return np.where(e[0] == 0, 0, np.maximum(high - v, v - low))
            case "saturate":
                return e[0]
        return super()._error(node, v, x, e)

    def _across(self, node: Node, args: Sequence[Any], plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        narrow = narrow_of(node)
        if not narrow:
            return super()._across(node, args, plain, shape)
        axis = 1 if node.op == "row_sum" else 0
        full = shape if node.space != "s" else (shape[0], 1)
        terms = np.broadcast_to(np.asarray(args[0].value, np.float64), full)
        error = np.broadcast_to(args[0].error, full)
        size = np.abs(terms).sum(axis=axis, keepdims=True) + error.sum(axis=axis, keepdims=True)
        value = self.bits.apply(node, plain, shape)
        return Bounded(value, WIDEN * (error.sum(axis=axis, keepdims=True) + self._narrow(narrow[0], full[axis], size)))

    def _product(self, node: Node, plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        narrow = narrow_of(node)
        if not narrow:
            return super()._product(node, plain, shape)
        left, right = (np.abs(x.astype(np.float64)) for x in operands(node, *plain))
        value = self.bits.apply(node, plain, shape)
        return Bounded(value, WIDEN * self._narrow(narrow[0], left.shape[1], left @ right))

    def _narrow(self, format_name: str, count: int, size: Array) -> Array:
        """What n roundings to a format make of a sum, one of each term's own among them."""
        fmt = FORMATS[format_name]
        unit = 2.0**-fmt.precision
        tiny = 2.0 ** (fmt.emin - fmt.precision)
        return np.asarray(np.expm1((self.height("chain", count) + 1) * np.log1p(unit)) * size + count * tiny)


def evaluate(graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Mapping[str, float]) -> Any:
    """The bits of every result of a model, as stored."""
    with np.errstate(all="ignore"):
        return evaluate_graph(graph, ModelBits(params), tensors, shape)


def exactly(graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Mapping[str, float]) -> Any:
    """The exact value of every result of a model."""
    with np.errstate(all="ignore"):
        return evaluate_graph(graph, ModelReal(params, REAL), tensors, shape)


def limits(
    graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Mapping[str, float], noise: bool,
    off: Mapping[str, Array] | None = None,
) -> Mapping[str, Array]:  # fmt: skip
    """The rounding-error bound of every result of a model. Raises TokitaiError where none is known."""
    results = sum(math.prod(shape) for _ in graph.outputs)

    def domain(given: Mapping[str, float]) -> ModelBounds:
        return ModelBounds(given, noise, results)

    with np.errstate(all="ignore"):
        return {n: e for n, (_, e) in bounds.evaluate(graph, tensors, shape, params, domain, off).items()}
