"""The mathematics of a graph in high precision: what the bits approximate.

NumPy's `longdouble` carries 64 bits of significand on x86-64 and 113 on most others; where it is no wider than f64, so
says `PRECISION`. The few functions that NumPy lacks in that precision (erf, erfc) are taken in f64, whose error of a
few 2^-53 is far below anything that a stored f32 can show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..formats import FORMATS
from ..lang import Graph, Node, TensorSpec
from . import bits
from .interpret import Array, evaluate_body, evaluate_graph
from .product import operands, turned

REAL = np.longdouble
PRECISION = np.finfo(REAL).nmant + 1


def _elementwise(f: Callable[[float], float]) -> Callable[[Array], Array]:
    ufunc = np.frompyfunc(lambda v: f(float(v)), 1, 1)
    return lambda x: np.asarray(ufunc(x), dtype=REAL)


erf = _elementwise(math.erf)
erfc = _elementwise(math.erfc)


def normal_cdf(x: Array) -> Array:
    """The standard normal distribution function, without cancellation for negative x."""
    return erfc(-x / np.sqrt(REAL(2))) / 2


def sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _times(x: Array, gate: Array) -> Array:
    """x gate, 0 in the limit of -inf, where the gate vanishes faster."""
    return np.where(np.isneginf(x), -0.0, x * gate)


def gelu(x: Array) -> Array:
    """x Phi(x)."""
    return _times(x, normal_cdf(x))


def gelu_slope(x: Array) -> Array:
    """Phi(x) + x phi(x)."""
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.arctan(REAL(1)) * 4)
    return normal_cdf(x) + np.where(np.isinf(x), 0, x * density)


def _gelu_tanh_argument(x: Array) -> tuple[Array, Array]:
    c = np.sqrt(1 / (2 * np.arctan(REAL(1))))  # sqrt(2/pi)
    return 2 * c * (x + REAL("0.044715") * x**3), 2 * c * (1 + 3 * REAL("0.044715") * x**2)


def gelu_tanh(x: Array) -> Array:
    """x sigmoid(2u)."""
    return _times(x, sigmoid(_gelu_tanh_argument(x)[0]))


def gelu_tanh_slope(x: Array) -> Array:
    """The derivative of x sigmoid(2u)."""
    v, slope = _gelu_tanh_argument(x)
    return sigmoid(v) + np.where(np.isinf(x), 0, x * sigmoid(v) * sigmoid(-v) * slope)


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return _times(x, sigmoid(x))


def silu_slope(x: Array) -> Array:
    """The derivative of x sigmoid(x)."""
    return sigmoid(x) + np.where(np.isinf(x), 0, x * sigmoid(x) * sigmoid(-x))


# What a named function of the language stands for. A function that is not listed stands for its own definition.
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp_down": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "erf": erf, "erfc": erfc, "normal_cdf": normal_cdf,
    "sigmoid": sigmoid, "gelu": gelu, "gelu_slope": gelu_slope, "gelu_tanh": gelu_tanh,
    "gelu_tanh_slope": gelu_tanh_slope, "silu": silu, "silu_slope": silu_slope,
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
}  # fmt: skip

_DIRECT: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "neg": np.negative,
    "abs": np.abs, "fma": lambda a, b, c: a * b + c, "maximum": np.maximum, "minimum": np.minimum,
    "round_even": np.rint, "power_of_two": np.exp2, "host_add": np.add, "host_sub": np.subtract,
    "host_mul": np.multiply,
    "host_div": np.divide, "host_neg": np.negative, "host_sqrt": np.sqrt, "host_power": np.power,
}  # fmt: skip


def product_of_met(weights: Array, met: Array, x: Array) -> Array:
    """weights x where they meet: what is not met is not looked at, so NaN and infinity in it do no harm."""
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
                name = str(node.data[0])
                if name in FUNCTIONS:
                    return FUNCTIONS[name](*args)
                assert node.body is not None
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
