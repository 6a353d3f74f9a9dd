"""The oracle: exactly the bits that every kernel must return. Slow, obvious, and independent of every emitter.

NumPy computes each f32 operation with one IEEE 754 rounding. What NumPy lacks is built here from exact arithmetic:
the f32 fused multiply-add, the trees of sums, the rounding to bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import FloatModeError
from ..formats import FORMATS, canonical
from ..lang import FIXED_BITS, TOTALS, Function, Graph, Node, TensorSpec
from .fixed_point import block
from .fused import exact_product, fma, fused
from .interpret import Array, evaluate_body, evaluate_graph, evaluate_list
from .matrix_unit import chain, chain_of_met
from .product import chains, formats, over_blocks, turned, weighted, weighted_blocks
from .sums import column_sum, scattered_sum, tree

F32 = np.float32
CHUNK = 1 << 18  # elements computed at a time, so that intermediate arrays stay in cache


# ---------------------------------------------------------------------------------------------- single operations
def maximum(a: Array, b: Array) -> Array:
    """NaN where either is NaN; -0 below +0."""
    larger = np.where(a > b, a, b)
    both_zero = (a == 0) & (b == 0)
    larger = np.where(both_zero & ~np.signbit(a), a, larger)  # +0 wins over -0
    return np.where(np.isnan(a) | np.isnan(b), F32(np.nan), larger).astype(F32)


def minimum(a: Array, b: Array) -> Array:
    """NaN where either is NaN; -0 below +0."""
    smaller = np.where(a < b, a, b)
    both_zero = (a == 0) & (b == 0)
    smaller = np.where(both_zero & np.signbit(a), a, smaller)
    return np.where(np.isnan(a) | np.isnan(b), F32(np.nan), smaller).astype(F32)


def power_of_two(k: Array) -> Array:
    """2**k by its exponent field; 1 where k is outside [-126, 127] or NaN (unspecified by the language)."""
    inside = (k >= -126) & (k <= 127)
    whole = np.where(inside, k, 0).astype(np.int32)
    return ((whole + 127) << 23).astype(np.uint32).view(F32)


def exponent(a: Array) -> Array:
    """The exponent field less 127."""
    return (((a.view(np.uint32) >> 23) & 0xFF).astype(np.int32) - 127).astype(F32)


def significand(a: Array) -> Array:
    """The fraction with the exponent of 1."""
    return ((a.view(np.uint32) & 0x007FFFFF) | 0x3F800000).astype(np.uint32).view(F32)


def round_to(values: Array, format_name: str) -> Array:
    """f32 (or f64) values rounded once to a format, as stored values with the canonical NaN.

    bf16 takes the upper half of the f32 pattern after adding half an ulp, with ties to even; a NaN is set aside
    first, as the addition could carry it into an infinity or a zero. From f64 it goes by way of f32 rounded to odd,
    since two roundings to nearest are not one.
    """
    fmt = FORMATS[format_name]
    if not fmt.is_float:
        return values.astype(fmt.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if format_name == "bf16":
            pattern = _to_odd(values).view(np.uint32)
            rounded = (pattern + (((pattern >> 16) & 1) + np.uint32(0x7FFF))) >> 16
            stored: Array = np.where(np.isnan(values), fmt.nan, rounded).astype(np.uint16).view(ml_dtypes.bfloat16)
        else:
            stored = values.astype(fmt.dtype)
    return canonical(stored, fmt)


def _to_odd(values: Array) -> Array:
    """f64 values as f32: where they do not fit, the neighbour whose last bit is 1. f32 values as they are."""
    near = np.ascontiguousarray(values, F32)
    short, odd = np.abs(near) < np.abs(values), (near.view(np.int32) & 1) == 1
    moved = np.where((near == values) | odd | ~np.isfinite(near), 0, np.where(short, 1, -1))
    return np.asarray(near.view(np.int32) + moved.astype(np.int32)).view(F32)


def round_stochastic(values: Array, random: Array, format_name: str) -> Array:
    """One of the two neighbours, as f32: up where the lowest random bits are below the part that is dropped.

    bf16 drops 16 bits of the f32 pattern, f16 13; below 2**-14, where f16 is spaced 2**-24, the value in units of that
    spacing is split into whole and fraction, and 24 random bits are compared with the fraction.
    """
    pattern = np.ascontiguousarray(values, F32).view(np.uint32)
    size, sign = pattern & 0x7FFFFFFF, pattern & np.uint32(0x80000000)
    dropped = np.uint32(16 if format_name == "bf16" else 13)
    mask = np.uint32((1 << int(dropped)) - 1)
    up = size + (random & mask)
    result = up & ~mask
    if format_name == "f16":
        with np.errstate(all="ignore"):
            units = np.abs(values) * F32(2.0**24)
            whole = np.floor(units)
            chosen = whole + ((random & 0xFFFFFF).astype(F32) * F32(2.0**-24) < units - whole).astype(F32)
            small = (chosen * F32(2.0**-24)).view(np.uint32)
        result = np.where(size < 0x38800000, small, result)
        result = np.where(result >= 0x47800000, 0x7F800000, result)  # above 65504 there is only infinity
    result = np.where(size >= 0x7F800000, size, result).astype(np.uint32) | sign
    return result.view(F32)


def widen(stored: Array) -> Array:
    """Stored f16, bf16 or f32 values as f32; exact."""
    return stored.astype(F32)


# ---------------------------------------------------------------------------------------------- integers
def first_true(x: Array) -> Array:
    """The first column of each row that is true; the number of columns where none is."""
    return (
        np.where(x.any(axis=1, keepdims=True), x.argmax(axis=1, keepdims=True), x.shape[1])
        if x.shape[1]
        else (np.zeros((len(x), 1)))
    )


def integer(node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
    """Operations on integers and on conditions, exact in every meaning."""
    kind = FORMATS[node.type].dtype
    match node.op:
        case "column_index":
            return np.arange(shape[1], dtype=np.int32)[None, :]
        case "row_index":
            return np.arange(shape[0], dtype=np.int64)[:, None]
        case "const":
            return np.full((1, 1), node.data[0], kind)
        case "round":  # a whole host scalar, to nearest even where it is not
            return np.rint(args[0]).astype(kind)
        case "element_word":
            place = np.arange(shape[0] * shape[1], dtype=np.uint64).reshape(shape)
            return (place >> np.uint64(32 * int(str(node.data[0])))).astype(np.uint32)
        case "tensor_index":
            return np.zeros((1, 1), np.uint32)  # a call on one tensor
        case "int_add":
            return np.add(*args, dtype=kind)
        case "int_sub":
            return np.subtract(*args, dtype=kind)
        case "int_mul":
            return np.multiply(*args, dtype=kind)
        case "int_mulhi":
            return ((args[0].astype(np.uint64) * args[1].astype(np.uint64)) >> np.uint64(32)).astype(kind)
        case "int_xor":
            return args[0] ^ args[1]
        case "int_and":
            return args[0] & args[1]
        case "int_shift_right":
            return args[0] >> args[1]
        case "convert":
            return args[0].astype(kind)
        case "where":
            return np.where(args[0], args[1], args[2])
        case "lt":
            return args[0] < args[1]
        case "le":
            return args[0] <= args[1]
        case "eq":
            return np.equal(*args)
        case "ne":
            return np.not_equal(*args)
        case "logical_and":
            return args[0] & args[1]
        case "logical_or":
            return args[0] | args[1]
        case "logical_not":
            return ~args[0]
    raise AssertionError(f"no integer meaning for {node}")


# ---------------------------------------------------------------------------------------------- the domain
_FLOAT: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt, "neg": np.negative,
    "abs": np.abs, "fma": fma, "maximum": maximum, "minimum": minimum, "round_even": np.rint,
    "power_of_two": power_of_two, "exponent": exponent, "significand": significand,
}  # fmt: skip


class Bits:
    """The domain of f32 numbers. `params` holds the host scalars by name."""

    def __init__(self, params: Mapping[str, float]) -> None:
        self.params = params

    def load(self, tensor: TensorSpec, values: Array) -> Array:
        return widen(values) if FORMATS[str(tensor.format)].is_float else values

    def store(self, values: Array, format_name: str) -> Array:
        return round_to(values, format_name)

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        with np.errstate(all="ignore"):
            return self.compute(node, args, shape)

    def compute(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        if node.type == "host":
            return np.full((1, 1), self.host(node, [float(a[0, 0]) for a in args], shape))
        if node.type == "f64" or any(a.dtype == np.float64 for a in args if node.op != "round"):
            raise NotImplementedError(f"f64 arithmetic in kernels: {node}")
        match node.op:
            case "const" if node.type == "f32":
                return np.full((1, 1), node.data[0], F32)
            case "round" if not node.exact:
                return args[0].astype(FORMATS[node.type].dtype)
            case "where" if not node.exact:
                return np.where(*args)
            case "convert" if node.type == "f32":
                return args[0].astype(F32)
            case "round_to":
                return widen(round_to(args[0], str(node.data[0])))
            case "round_stochastic":
                value, random = np.broadcast_arrays(*args)
                return round_stochastic(value, random, str(node.data[0]))
            case "row_sum":
                return tree(args[0], np.add)
            case "row_max":
                return self.row_max(args[0])
            case "col_sum":
                return column_sum(args[0], np.add)
            case "matmul":
                return self.product(node, *args)
            case "weighted_sum" if node.data[1:] == ("fused16",):
                kinds = (str(node.args[1].data[1]),) * 2
                return weighted_blocks(
                    turned(node, args), lambda w, met, x: chain_of_met(w, met, x, *kinds), np.add, F32(0)
                )
            case "weighted_sum":
                return weighted(node, args, exact_product, fused, np.add, F32(-0.0), F32(0.0))
            case "take_column":
                return np.take_along_axis(np.broadcast_to(args[0], shape), args[1].astype(np.int64), axis=1)
            case "row_first":
                return first_true(args[0]).astype(F32)
            case "slots":
                return np.concatenate(args, axis=1)
            case "gather":
                return args[0][args[1][:, 0]]
            case "scatter_sum":
                return scattered_sum(args[0], args[1], np.zeros((int(args[2][0, 0]), shape[1]), F32), np.add)
            case "call":
                assert node.body is not None
                return evaluate_body(node.body, _Inside(self.params), args, shape)
            case op if op in _FLOAT:
                return _FLOAT[op](*np.broadcast_arrays(*args))
        return integer(node, args, shape)

    @staticmethod
    def product(node: Node, a: Array, b: Array) -> Array:
        """In f64 the product of two f32 numbers is exact, so that one addition is the fused operation."""
        if node.data[1] == "fused16":
            return over_blocks(node, a, b, lambda x, y: chain(x, y, *formats(node)), np.add, F32(0))
        if node.data[1] in FIXED_BITS:
            return over_blocks(node, a, b, lambda x, y: block(x, y, FIXED_BITS[str(node.data[1])]), np.add, F32(0))
        if node.data[1] == "f32":
            made = chains(node, a, b, exact_product, lambda x, y: exact_product(x, y).astype(F32), fused)
            return np.asarray(tree(made, np.add, axis=0)[0])
        made = chains(node, a, b, exact_product, exact_product, np.add)
        return np.asarray(tree(made, np.add, axis=0)[0].astype(F32))

    @staticmethod
    def row_max(x: Array) -> Array:
        total = np.full((len(x), 1), -np.inf, F32)
        if x.shape[1]:
            total = x.max(axis=1, keepdims=True)  # NumPy's maximum propagates NaN, but not the order of zeros
            has_positive_zero = ((x == 0) & ~np.signbit(x)).any(axis=1, keepdims=True)
            total = np.where((total == 0) & has_positive_zero, F32(0.0), total)
        return total

    def total(self, node: Node, parts: Sequence[Array]) -> Array:
        with np.errstate(all="ignore"):
            each = [tree(p, np.add) if node.op == "total_sum" else self.row_max(p) for p in parts]
            joined = np.concatenate(each, axis=1) if each else np.zeros((1, 0), F32)
            return tree(joined, np.add) if node.op == "total_sum" else self.row_max(joined)

    def host(self, node: Node, args: Sequence[float], shape: tuple[int, int]) -> float:
        """f64 scalars. A power is the square-and-multiply product from the lowest bit of the exponent."""
        a = np.float64(args[0]) if args else np.float64(0)
        b = np.float64(args[1]) if len(args) > 1 else np.float64(0)
        match node.op:
            case "param":
                return float(self.params[str(node.data[0])])
            case "number":
                return float(node.data[0])  # type: ignore[arg-type]
            case "rows":
                return float(shape[0])
            case "columns":
                return float(shape[1])
            case "host_add":
                return float(a + b)
            case "host_sub":
                return float(a - b)
            case "host_mul":
                return float(a * b)
            case "host_div":
                return float(a / b)
            case "host_neg":
                return float(-a)
            case "host_sqrt":
                return float(np.sqrt(a))
            case "host_power":
                result, square, n = np.float64(1 if b >= 0 else np.nan), a, max(int(b), 0)
                while n:
                    result = result * square if n & 1 else result
                    square, n = square * square, n >> 1
                return float(result)
        raise AssertionError(f"no host meaning for {node}")


class _Inside(Bits):
    """The same inside a function: NumPy's warnings are off already."""

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        return self.compute(node, args, shape)


def check_float_mode() -> None:
    """Refuse to be an oracle where a library has switched on flush-to-zero or another rounding mode."""
    tiny, one, half_ulp = np.float32(1e-45), np.float32(1), np.float32(2.0**-24)
    with np.errstate(all="ignore"):
        kept = np.float32(1e-38) * np.float32(0.5) != 0 and tiny + np.float32(0) == tiny and tiny != 0
        nearest = one + half_ulp == one and one + half_ulp * np.float32(1.5) > one and -one - half_ulp == -one
    if not (kept and nearest):
        raise FloatModeError(
            "this thread flushes subnormals or does not round to nearest (a library set the floating-point mode); "
            "the oracle's bits would be wrong. Accepted: the default IEEE 754 mode"
        )


def evaluate(
    graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Mapping[str, float]
) -> dict[str, Array]:
    """The bits of every result, as stored, two-dimensional. `tensors` hold stored values, `params` the host scalars.

    Rows are computed a few at a time where they do not meet: the result is the same, the memory less.
    """
    check_float_mode()
    domain = Bits(params)
    rows, cols = shape
    across = (*TOTALS, "col_sum", "scatter_sum", "row_index", "rows", "element_word", "matmul", "weighted_sum")
    meets = any(n.op in across for n in graph.nodes)
    step = max(1, CHUNK // max(cols, 1))
    if meets or rows <= step:
        return evaluate_graph(graph, domain, tensors, shape)
    spaces = {t.name: t.space for t in graph.inputs}
    parts = []
    for start in range(0, rows, step):
        here = min(step, rows - start)
        some = {
            name: values.reshape(rows, -1)[start : start + here] if spaces[name] in ("rc", "r") else values
            for name, values in tensors.items()
            if name in spaces
        }
        parts.append(evaluate_graph(graph, domain, some, (here, cols)))
    joined: dict[str, Array] = {}
    for o in graph.outputs:
        joined[o.name] = parts[0][o.name] if o.space in ("c", "s") else np.concatenate([p[o.name] for p in parts])
    return joined


def evaluate_tensors(
    graph: Graph, tensors: Sequence[Mapping[str, Array]], shapes: Sequence[tuple[int, int]], params: Mapping[str, float]
) -> list[dict[str, Array]]:
    """The bits of every result for a list of tensors."""
    check_float_mode()
    return evaluate_list(graph, Bits(params), tensors, shapes)


def evaluate_function(function: Any, *args: Array) -> Array:
    """A function of the language (exp, tanh ...) over f32 arrays of one shape: its bits, element by element."""
    check_float_mode()
    body = function if isinstance(function, Function) else _body(function, len(args))
    flat = [np.ascontiguousarray(a, F32).reshape(1, -1) for a in args]
    with np.errstate(all="ignore"):
        result = evaluate_body(body, _Inside({}), flat, flat[0].shape)
    return np.broadcast_to(result, flat[0].shape).reshape(np.shape(args[0]))


def _body(function: Callable[..., Any], count: int) -> Function:
    from ..lang.values import Value, make

    probe = [Value(make("input", space="s", type="f32", data=(f"probe{i}", "f32"))) for i in range(count)]
    body = function(*probe).node.body
    assert isinstance(body, Function)
    return body
