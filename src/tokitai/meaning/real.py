"""The mathematics of a graph in high precision: what the bits approximate.

Named functions are evaluated as the functions of real numbers that they stand for. Where NumPy's `longdouble` is no
wider than f64, so says `PRECISION`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..formats import FORMATS
from ..lang import Graph, Node, TensorSpec
from . import bits
from .interpret import Array, evaluate_body, evaluate_graph
from .product import operands, turned

PRECISION = np.finfo(REAL).nmant + 1

_DIRECT: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "neg": np.negative,
    "abs": np.abs, "fma": lambda a, b, c: a * b + c, "maximum": np.maximum, "minimum": np.minimum,
    "round_even": np.rint, "power_of_two": np.exp2, "host_add": np.add, "host_sub": np.subtract,
    "host_mul": np.multiply,
    "host_div": np.divide, "host_neg": np.negative, "host_sqrt": np.sqrt, "host_power": np.power,
}  # fmt: skip


def product_of_met(weights: Array, met: Array, x: Array) -> Array:
    """weights x where they meet: what is not attended is not read, so NaN and infinity in it do no harm."""
    if np.isfinite(x).all():
        return np.where(met, weights, 0) @ x
    return np.stack([np.where(m[:, None], w[:, None] * x, 0).sum(axis=0) for w, m in zip(weights, met, strict=True)])


class Real:
    """The domain of real numbers, in `dtype` precision. Rounding to a storage format inside a definition still happens:
    it is part of what is defined."""

    def __init__(self, params: Mapping[str, float], dtype: type[Any] = REAL) -> None:
        self.params, self.dtype = params, dtype

    def load(self, tensor: TensorSpec, values: Array) -> Array:
        return values.astype(self.dtype) if FORMATS[str(tensor.format)].is_float else values

    def store(self, values: Array, format_name: str) -> Array:
        return values

    def total(self, node: Node, parts: Sequence[Array]) -> Array:
        every = np.concatenate(parts, axis=1) if parts else np.zeros((1, 0), self.dtype)
        total = every.sum(keepdims=True) if node.op == "total_sum" else every.max(keepdims=True, initial=-np.inf)
        return np.asarray(total)

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        with np.errstate(all="ignore"):
            return self.compute(node, args, shape)

    def compute(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        if node.op in _DIRECT:
            return _DIRECT[node.op](*args)
        match node.op:
            case "const" if node.type in ("f32", "f64"):
                return np.full((1, 1), node.data[0], self.dtype)
            case "number" | "param":
                value = self.params[str(node.data[0])] if node.op == "param" else node.data[0]
                return np.full((1, 1), value, self.dtype)
            case "rows" | "columns":
                return np.full((1, 1), shape[node.op == "columns"], self.dtype)
            case "round" if not node.exact:
                return args[0]
            case "round_stochastic":
                return args[0]
            case "round_to":
                return bits.round_to(args[0].astype(np.float64), str(node.data[0])).astype(self.dtype)
            case "exponent":
                return (np.frexp(args[0])[1] - 1).astype(self.dtype)
            case "significand":
                return np.asarray(np.abs(np.frexp(args[0])[0] * 2))
            case "where" if not node.exact:
                return np.where(*args)
            case "convert" if node.type in ("f32", "f64"):
                return args[0].astype(self.dtype)
            case "lt" | "le" | "eq" | "ne" if not node.exact:
                compare = {"lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal}
                return np.asarray(compare[node.op](*args))
            case "row_sum":
                return np.asarray(args[0].sum(axis=1, keepdims=True))
            case "row_max":
                return np.asarray(args[0].max(axis=1, keepdims=True, initial=-np.inf))
            case "col_sum":
                return np.asarray(args[0].sum(axis=0, keepdims=True))
            case "matmul":
                return operands(node, *args)[0] @ operands(node, *args)[1]
            case "weighted_sum":
                weights, met, x = turned(node, args)
                return product_of_met(weights, met, x)
            case "take_column":
                return np.take_along_axis(np.broadcast_to(args[0], shape), args[1].astype(np.int64), axis=1)
            case "row_first":
                return bits.first_true(args[0]).astype(self.dtype)
            case "slots":
                return np.concatenate(args, axis=1)
            case "gather":
                return args[0][args[1][:, 0]]
            case "scatter_sum":
                total = np.zeros((int(args[2][0, 0]), shape[1]), self.dtype)
                np.add.at(total, args[1][:, 0], args[0])
                return total
            case "call":
                assert node.body is not None
                if node.body.real is not None:
                    return node.body.real.value(*args)
                return evaluate_body(node.body, self, args, shape)
        return bits.integer(node, args, shape)


def evaluate(
    graph: Graph,
    tensors: Mapping[str, Array],
    shape: tuple[int, int],
    params: Mapping[str, float],
    dtype: type[Any] = REAL,
) -> dict[str, Array]:
    """Every result as a real number, unrounded, two-dimensional."""
    return evaluate_graph(graph, Real(params, dtype), tensors, shape)
