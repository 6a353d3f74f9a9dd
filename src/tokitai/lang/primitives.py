"""The functions of the language. Each rounds once, to nearest even, unless it is exact or says otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import DefinitionError
from .graph import ACCUMULATORS, NARROW_ACCUMULATORS, Function, Node, Space, Type, topological
from .origin import refuse
from .real import RealFunction
from .values import (
    INTEGERS,
    Number,
    Operand,
    Value,
    binary,
    floating,
    format_name,
    lift,
    make,
    storage_format,
    tracing,
    unify,
)  # fmt: skip

FLOAT_TYPES: tuple[Type, ...] = ("f32", "f64")


def fma(a: Number, b: Number, c: Number) -> Value:
    """a * b + c, rounded once."""
    return _float_op("fma", a, b, c)


def maximum(a: Number, b: Number) -> Value:
    """The larger operand; NaN where either is NaN; -0 is below +0."""
    return _float_op("maximum", a, b)


def minimum(a: Number, b: Number) -> Value:
    """The smaller operand; NaN where either is NaN; -0 is below +0."""
    return _float_op("minimum", a, b)


def sqrt(a: Number) -> Value:
    """The square root, correctly rounded; NaN below zero, except that sqrt(-0) is -0. Of a host scalar, in f64."""
    if isinstance(a, Value) and a.node.type == "host":
        return Value(make("host_sqrt", a.node, type="host"))
    return _float_op("sqrt", a)


def round_even(a: Number) -> Value:
    """The nearest whole number, ties to even; exact. Zero keeps the sign of its argument."""
    return _float_op("round_even", a)


def power_of_two(k: Number) -> Value:
    """2**k for a whole k in [-126, 127] (f32) or [-1022, 1023] (f64); exact. Elsewhere, and for NaN, unspecified:
    a definition must not let such a result reach an output."""
    return _float_op("power_of_two", k)


def exponent(a: Number) -> Value:
    """floor(log2 |a|) of a normal number, as a floating-point value; exact. Unspecified for other arguments."""
    return _float_op("exponent", a)


def significand(a: Number) -> Value:
    """|a| / 2**exponent(a), in [1, 2), of a normal number; exact. Unspecified for other arguments."""
    return _float_op("significand", a)


def where(condition: Value, a: Number, b: Number) -> Value:
    """a where the condition holds, b elsewhere; exact. The other operand is not read: NaN there does no harm."""
    if not isinstance(condition, Value) or condition.node.type != "bool":
        refuse(f"where({condition!r}, ...)", "a condition, made by < <= == != > >=")
    x, y = unify("where", a, b)
    if x.type == "host":
        x, y = (make("round", n, type="f32") for n in (x, y))
    if x.type == "bool":
        refuse(f"where(..., {Value(x)}, {Value(y)})", "numbers; & | ~ between conditions")
    if x.type in INTEGERS and not condition.node.exact:
        refuse("where(...) of integers by a condition on floating-point values", "a condition on integers and indices")
    return Value(make("where", condition.node, x, y, type=x.type))


def convert(x: Number, to: Any) -> Value:
    """x in another type (f32, f64, i32, i64, u32), rounded once to nearest even where it does not fit exactly.

    Floating-point to integer is not part of the language: results would differ between targets outside the range.
    """
    name = format_name(to)
    node = lift(x)
    if name not in (*FLOAT_TYPES, *INTEGERS):
        refuse(f"convert(..., {name})", "f32, f64, i32, i64 or u32; round_to(x, f16) rounds to a storage format")
    if node.type == name:
        return Value(node)
    if node.type == "host":
        return Value(make("round", node, type=name, exact=name not in FLOAT_TYPES))
    if node.type == "bool" or (node.type in FLOAT_TYPES and name not in FLOAT_TYPES):
        accepted = "integers to any type, floating-point to floating-point; where(c, 1, 0) for a condition"
        refuse(f"convert({x}, {name})", accepted)
    return Value(make("convert", node, type=name, data=(name,)))


def round_to(x: Value, to: Any) -> Value:
    """x rounded once to a storage format and widened again: what a store followed by a load gives."""
    return Value(make("round_to", floating(x, "round_to"), data=(_storage(to, "round_to"),)))


def _storage(to: Any, name: str) -> str:
    """The name of a storage format; `storage` is the one that the definition is traced for."""
    chosen = format_name(to)
    if chosen not in ("storage", "f16", "bf16", "f32"):
        refuse(f"{name}(..., {chosen})", "storage, f16, bf16 or f32")
    if chosen == "storage":
        return storage_format() or refuse("storage in a function, which serves all formats", "f16, bf16 or f32")
    return chosen


def row_sum(x: Value) -> Value:
    """The sum along each row: the balanced tree over the column index, neighbours first."""
    return Value(make("row_sum", _across("row_sum", x, "rc"), space="r", type=floating(x, "row_sum").type))


def row_max(x: Value) -> Value:
    """The maximum of each row; NaN where the row holds one. Order does not matter."""
    return Value(make("row_max", _across("row_max", x, "rc"), space="r", type=floating(x, "row_max").type))


def col_sum(x: Value) -> Value:
    """The sum down each column: a chain inside aligned blocks of 32 rows, then the balanced tree over the blocks."""
    node = _across("col_sum", x, "rc", "r")
    return Value(make("col_sum", node, space="c" if node.space == "rc" else "s", type=floating(x, "col_sum").type))


def take_column(x: Value, index: Value) -> Value:
    """x[r, index[r]] for each row r, or x[index[r]] of one value a column. The index must lie inside the row: the
    caller's indices are checked first."""
    node = _across("take_column", x, "rc", "c")
    if not isinstance(index, Value) or index.node.type not in ("i32", "i64") or index.node.space != "r":
        refuse(f"take_column with the index {index}", "an i32 or i64 value, one a row")
    return Value(make("take_column", node, index.node, space="r", type=node.type))


_PLACES: dict[str, tuple[Space, Space]] = {"NN": ("rk", "kc"), "NT": ("rk", "ck"), "TN": ("kr", "kc")}


def matmul(a: Operand[Any], b: Operand[Any], layout: str = "NN", accumulator: str = "f32") -> Value:
    """The product of two matrices: over k, the sum of a[r, k] b[k, c], rows x cols, in f32.

    The sum is a chain of fused multiply-adds in the order of k inside aligned blocks of 4096, then the balanced tree
    over the blocks. A chain begins with -0.0, so that its first step is the product, rounded, with its sign; a product
    of -0.0 at its end changes nothing, which is how tails may be padded. A sum over nothing is +0.

    ``layout`` says how the operands are stored: N as rows x inner and inner x cols, T as the transpose of that; NN, NT
    or TN. With the ``accumulator`` f64 the sum is computed in f64, then rounded once to f32.

    With the accumulator fused16, of f16 and bf16 operands, a block's sum is a chain, from +0, of steps of Hopper's
    matrix unit: 16 products in the order of k and the accumulator are aligned to the largest of their exponents (-133
    at least), cut toward zero at 25 fraction bits, added exactly, and the sum is cut toward zero to f32
    (`meaning.matrix_unit`).

    With the accumulators fixed8, fixed16 and fixed24 a block's sum is exact: each row of the left operand and each
    column of the right one is rounded, to nearest even, to signed integers of so many bits in a unit that follows from
    its largest magnitude in the block; the sum of their products is rounded once to f32, and times both units
    (`meaning.fixed_point`).
    """
    for name, x in (("left", a), ("right", b)):
        if not isinstance(x, Operand):
            refuse(f"matmul with {x!r} on the {name}", "an input that is annotated as Operand[...]")
        if x.format not in ("f16", "bf16", "f32"):
            refuse(f"matmul with {x!r} of format {x.format}", "storage, f16, bf16 or f32")
    if layout not in _PLACES or accumulator not in ACCUMULATORS:
        refuse(f"matmul(..., {layout!r}, {accumulator!r})", f"one of {', '.join(_PLACES)}; {', '.join(ACCUMULATORS)}")
    if accumulator in NARROW_ACCUMULATORS and "f32" in (a.format, b.format):
        refuse(f"matmul of {a.format} and {b.format} with the accumulator {accumulator}", "operands of f16 or bf16")
    left, right = _PLACES[layout]
    return Value(make("matmul", a.placed(left), b.placed(right), space="rc", data=(layout, accumulator)))


_SIDES: dict[str, tuple[Space, Space]] = {"columns": ("rk", "ck"), "rows": ("ck", "rk")}  # of result and operand


def weighted_sum(
    weights: Value, x: Operand[Any], limit: Value | None = None, over: str = "columns", accumulator: str = "f32"
) -> Value:
    """A matrix product whose left side is computed. Over columns: for each row r the sum of weights[r, c] x[c], rows x
    inner, of an operand of cols x inner. Over rows: for each column c the sum of weights[r, c] x[r], cols x inner, of
    an operand of rows x inner.

    With a ``limit``, an i32 value one a row, row r meets the columns below limit[r] only: what else there is in weights
    and operand is not read, NaN or not. The sum is that of `matmul` in f32: a chain of fused multiply-adds in
    order, begun with -0.0, inside aligned blocks of 4096 columns or rows, then the balanced tree over the blocks. A sum
    over nothing is +0. Weights are f32 values: they are not rounded to a storage format on their way.

    With the accumulator fused16 a block's sum is a chain of a matrix unit's steps, as in `matmul`: each takes the next
    16 columns or rows, counted from the block's beginning, whatever is met of them. The weights are then values that
    were rounded to f16 or bf16, by `round_to`, or 0 where a condition does not hold, and the operand has that format.
    """
    node = _across("weighted_sum", weights, "rc")
    if node.type != "f32":
        refuse(f"weighted_sum with weights {weights}", "f32 values")
    if not isinstance(x, Operand) or x.format not in ("f16", "bf16", "f32"):
        refuse(f"weighted_sum of {x!r}", "an input that is annotated as Operand[...], of storage, f16, bf16 or f32")
    if over not in _SIDES:
        refuse(f"weighted_sum(..., over={over!r})", "'columns' or 'rows'")
    if limit is not None and (not isinstance(limit, Value) or limit.node.type != "i32" or limit.node.space != "r"):
        refuse(f"weighted_sum with the limit {limit}", "an i32 value, one a row")
    if accumulator not in ("f32", *NARROW_ACCUMULATORS):
        refuse(f"weighted_sum(..., accumulator={accumulator!r})", ", ".join(("f32", *sorted(NARROW_ACCUMULATORS))))
    narrow = accumulator in NARROW_ACCUMULATORS
    if narrow and (x.format == "f32" or not _has_format(node, x.format)):
        refuse(
            f"weighted_sum of {weights} and {x!r} of {x.format} with the accumulator {accumulator}",
            "weights by round_to(..., f16) or bf16, or 0 where(...) else, and an operand of that format",
        )
    space, given = _SIDES[over]
    below, data = () if limit is None else (limit.node,), (over, accumulator) if narrow else (over,)
    return Value(make("weighted_sum", node, x.placed(given), *below, space=space, data=data, exact=False))


def _has_format(node: Node, name: str) -> bool:
    """Whether a value was rounded to this storage format, or is 0 where it was not."""
    if node.op == "where" and node.space == "rc":
        return all(_has_format(a, name) for a in node.args[1:])
    return (node.op, node.data) == ("round_to", (name,)) or (node.op == "const" and node.data[0] == 0)


def rows(x: Value) -> Value:
    """The number of rows, as a host scalar."""
    return Value(make("rows", space="s", type="host", exact=True))


def columns(x: Value) -> Value:
    """The number of columns, as a host scalar."""
    return Value(make("columns", space="s", type="host", exact=True))


def column_index() -> Value:
    """0, 1, 2 ... along each row, as i32."""
    return Value(make("column_index", space="c", type="i32", exact=True))


def row_index() -> Value:
    """0, 1, 2 ... down each column, as i64."""
    return Value(make("row_index", space="r", type="i64", exact=True))


def element_word(word: int) -> Value:
    """32 bits of the place row * cols + column of each element, as u32: word 0 the lower, word 1 the upper ones."""
    if word not in (0, 1):
        refuse(f"element_word({word!r})", "0 or 1")
    return Value(make("element_word", space="rc", type="u32", data=(word,), exact=True))


def tensor_index() -> Value:
    """The place of a tensor in the list that the operator was called with, from 0, as u32."""
    return Value(make("tensor_index", space="s", type="u32", exact=True))


def total_sum(x: Value) -> Value:
    """The sum of all elements: the balanced tree along each tensor, flattened, then over the tensors of a list that
    are not empty."""
    return Value(make("total_sum", _across("total_sum", x, "rc"), space="s", type=floating(x, "total_sum").type))


def total_max(x: Value) -> Value:
    """The maximum of all elements of all tensors; NaN where there is one. Of no elements: -inf."""
    return Value(make("total_max", _across("total_max", x, "rc"), space="s", type=floating(x, "total_max").type))


def round_stochastic(x: Value, bits: Value, to: Any) -> Value:
    """x rounded to one of its two neighbours in a 16-bit format, up with the probability of the part that is dropped.

    ``bits`` are 32 random bits; the lowest ones are used. What the format holds exactly, infinities and NaN are kept.
    """
    name = _storage(to, "round_stochastic")
    node = floating(x, "round_stochastic")
    if not isinstance(bits, Value) or bits.node.type != "u32":
        refuse(f"round_stochastic with {bits}", "u32 random bits")
    return x if name == "f32" else Value(make("round_stochastic", node, bits.node, data=(name,), exact=False))


def multiply_high(a: Value, b: Value | int) -> Value:
    """The upper 32 bits of the product of two u32 values; exact."""
    return _u32_op("int_mulhi", a, b)


def bit_xor(a: Value, b: Value | int) -> Value:
    """Exclusive or of two u32 values; exact."""
    return _u32_op("int_xor", a, b)


def bit_and(a: Value, b: Value | int) -> Value:
    """Bitwise and of two u32 values; exact."""
    return _u32_op("int_and", a, b)


def shift_right(a: Value, count: int) -> Value:
    """A u32 value shifted right by a constant count from 0 to 31; exact."""
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= 31:
        refuse(f"a shift by {count!r}", "a Python int from 0 to 31")
    return _u32_op("int_shift_right", a, count)


def function(body: Callable[..., Value], *, real: RealFunction | None = None) -> Callable[..., Value]:
    """Make a Python function over values a *named* function of the language: exp, tanh and the like.

    It is traced once for each operand type, appears in the graph as one call, and is emitted as one function. ``real``
    is the function of real numbers that it stands for: by default that of its own definition.
    """
    traced: dict[Type, Function] = {}
    count = body.__code__.co_argcount

    @functools.wraps(body)
    def call(*args: Number) -> Value:
        if len(args) != count:
            refuse(f"{body.__name__} of {len(args)} arguments", f"{count}")
        nodes = [n if n.type != "host" else make("round", n, type="f32") for n in unify(body.__name__, *args)]
        kind = nodes[0].type
        if kind not in FLOAT_TYPES:
            refuse(f"{body.__name__} of {Value(nodes[0])}", "f32 or f64 values")
        if kind not in traced:
            names = body.__code__.co_varnames[:count]
            params = tuple(make("input", space="s", type=kind, data=(f"{body.__name__}.{n}", kind)) for n in names)
            try:
                with tracing(None):
                    traced.setdefault(kind, Function(body.__name__, params, _result(body, params), real))
            except DefinitionError:
                if kind == "f32":
                    raise
                refuse(f"{body.__name__} of {Value(nodes[0])}", "f32 values, as the function is defined in f32 alone")
        return Value(make("call", *nodes, type=kind, data=(body.__name__,), body=traced[kind]))

    return call


def _result(body: Callable[..., Value], params: tuple[Node, ...]) -> Node:
    """The result of a function, which may depend on its parameters and on constants alone."""
    result = body(*map(Value, params))
    if not isinstance(result, Value) or result.node.type != params[0].type:
        refuse(f"the function {body.__name__} returns {result!r}", f"one {params[0].type} value")
    for node in topological([result.node]):
        if node not in params and not node.args and node.op != "const":
            refuse(f"the function {body.__name__} uses {Value(node)}", "its parameters and constants")
    return result.node


def _float_op(name: str, *values: Number) -> Value:
    nodes = unify(name, *values)
    if all(n.type == "host" for n in nodes):
        nodes = [make("round", n, type="f32") for n in nodes]
    for n in nodes:
        if n.type not in FLOAT_TYPES:
            refuse(f"{name} of {Value(n)}", "f32 or f64 values")
    return Value(make(name, *nodes, type=nodes[0].type))


def _u32_op(name: str, a: Value, b: Value | int) -> Value:
    nodes = unify(name, a, b)
    if any(n.type != "u32" for n in nodes):
        refuse(f"{name} of {' and '.join(str(Value(n)) for n in nodes)}", "u32 values")
    return Value(make(name, *nodes, type="u32"))


def _across(name: str, x: Value, *spaces: str) -> Node:
    node = floating(x, name)
    if node.space not in spaces:
        words = {
            "rc": "a rows x cols value", "r": "a value with one element a row", "c": "a value with one element a column"
        }  # fmt: skip
        refuse(f"{name} of {x}", " or ".join(words[s] for s in spaces))
    return node


__all__ = [
    "binary", "bit_and", "bit_xor", "col_sum", "column_index", "columns", "convert", "element_word", "exponent",
    "fma", "function", "matmul", "maximum", "minimum", "multiply_high", "power_of_two", "round_even",
    "round_stochastic", "round_to", "row_index", "row_max", "row_sum", "rows", "shift_right", "significand", "sqrt",
    "take_column", "tensor_index", "total_max", "total_sum", "weighted_sum", "where",
]  # fmt: skip
