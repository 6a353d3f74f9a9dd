"""Every primitive has a meaning in bits, structure and real, and an emission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokitai.elementary.exact import REAL
from tokitai.families import emit_cpu, make_plan
from tokitai.lang import (
    PRIMITIVES,
    Graph,
    Matrix,
    Operand,
    Rows,
    Table,
    Value,
    bf16,
    bit_and,
    bit_xor,
    col_sum,
    column_index,
    columns,
    convert,
    element_word,
    exponent,
    extent,
    f32,
    fma,
    function,
    gather,
    i32,
    i64,
    matmul,
    maximum,
    minimum,
    multiply_high,
    operator,
    outputs,
    power_of_two,
    round_even,
    round_stochastic,
    round_to,
    row_first,
    row_index,
    row_max,
    row_sum,
    rows,
    scatter_sum,
    shift_right,
    significand,
    slots,
    sqrt,
    storage,
    take_column,
    tensor_index,
    total_max,
    total_sum,
    u32,
    weighted_sum,
    where,
)
from tokitai.meaning import bits, real, structure
from tokitai.meaning.derivative import gradient

SHAPE = (3, 5)
DEFINITIONS: dict[str, Callable[..., Any]] = {}


def uses(*primitives: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def note(definition: Callable[..., Any]) -> Callable[..., Any]:
        DEFINITIONS.update(dict.fromkeys(primitives, definition))
        return definition

    return note


@uses("input", "add", "sub", "mul", "div", "fma", "sqrt", "neg", "abs", "maximum", "minimum", "const")
def arithmetic(x: Matrix[storage], y: Matrix[storage]) -> Any:
    z = fma(x, y, -x) + abs(y) / (x * x + 1.0) - sqrt(abs(x))
    return maximum(minimum(z, y), x)


@uses("round_even", "power_of_two", "exponent", "significand", "round_to", "convert")
def exact(x: Matrix[storage], y: Matrix[storage]) -> Any:
    size = abs(x) + 1.0
    k = exponent(size) + convert(column_index(), f32)
    return round_even(y) * power_of_two(k) * round_to(significand(size), bf16)


@uses("lt", "le", "eq", "ne", "logical_and", "logical_or", "logical_not", "where", "column_index", "row_index")
def conditions(x: Matrix[storage], y: Matrix[storage]) -> Any:
    diagonal = (column_index() < 2) & ~(row_index() == 1) | (column_index() != 3) & (row_index() <= 1)
    inside = ((x < y) & (x <= 1.0) | (x == 0.5)) & ~(x != x)
    return where(inside, x, where(diagonal, y, 0.0))


@uses("int_add", "int_sub", "int_mul", "int_mulhi", "int_xor", "int_and", "int_shift_right")
def integers(x: Matrix[storage], y: Matrix[storage], seed: Rows[u32]) -> Any:
    a = multiply_high(seed * 0xD2511F53, 0xCD9E8D57) + 3 - shift_right(seed, 7)
    return x * y * convert(bit_and(bit_xor(a, 0xFFFF), 0xFF), f32)


@uses("row_sum", "row_max", "col_sum", "take_column")
def across(x: Matrix[storage], y: Matrix[storage], t: Rows[i32]) -> Any:
    return outputs(z=x * row_sum(y) - row_max(x) + take_column(x, t), c=col_sum(y), s=col_sum(row_sum(x)))


@uses("param", "number", "rows", "columns", "host_add", "host_sub", "host_mul", "host_div", "host_neg", "host_sqrt",
      "host_power", "round")  # fmt: skip
def scalars(x: Matrix[storage], y: Matrix[storage], *, a: float, k: int) -> Any:
    return x * ((a + 1.5) * rows(x) - (-a) / columns(x)) + y * sqrt(a) * a**k


@function
def halved(a: Value) -> Value:
    return a * 0.5


@uses("call")
def called(x: Matrix[storage], y: Matrix[storage]) -> Any:
    return halved(x) + halved(y)


@uses("total_sum", "total_max")
def totals(x: Matrix[storage], y: Matrix[storage]) -> Any:
    return x * total_sum(y) - total_max(x * y)


@uses("tensor_index", "element_word", "round_stochastic")
def stochastic(x: Matrix[storage], y: Matrix[storage]) -> Any:
    """Rounds to one of two neighbours that are 2^-7 apart."""
    return round_stochastic(x, bit_xor(element_word(0) * 0x9E3779B9, element_word(1)) + tensor_index(), bf16) + y


@uses("gather")
def gathered(x: Matrix[storage], y: Matrix[storage], table: Table[storage], index: Rows[i32]) -> Any:
    return gather(table, index) * x + y


@uses("scatter_sum")
def scattered(x: Matrix[storage], y: Matrix[storage], table: Table[storage], index: Rows[i32], *, entries: int) -> Any:
    return outputs(z=table - scatter_sum(x * y, index, entries))


@uses("matmul")
def multiplied(x: Operand[storage], y: Operand[storage], z: Matrix[storage]) -> Any:
    product = matmul(x, y, "NT")
    return outputs(made=product * z + product)


@uses("weighted_sum")
def weighed(x: Operand[storage], y: Operand[storage]) -> Any:
    scores = matmul(x, y, "NT")
    return outputs(a=weighted_sum(scores, y) + row_sum(scores), b=weighted_sum(scores * 0.5, x, over="rows"))


@uses("row_first", "slots")
def firsts(x: Matrix[storage], y: Matrix[storage]) -> Any:
    return outputs(z=slots(row_first(x > y), row_first(y > 100), row_sum(x * y)))


PARAMS = dict(a=2.25, k=3.0, entries=3)


def graph_of(definition: Callable[..., Any]) -> Graph:
    return operator(definition).trace("f32")


def numbers(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    drawn: dict[str, Any] = {}
    for t in graph.inputs:
        size = extent(t.space, SHAPE, 3)
        whole = rng.integers(0, 3 if t.name == "index" else 5, size)
        drawn[t.name] = rng.standard_normal(size).astype(np.float32) if t.format == "f32" else whole.astype(
            {"i32": np.int32, "u32": np.uint32}[str(t.format)]
        )  # fmt: skip
    return drawn


def test_every_primitive_is_used_below() -> None:
    assert set(DEFINITIONS) == set(PRIMITIVES)
    for name, definition in DEFINITIONS.items():
        assert name in {n.op for n in graph_of(definition).nodes}, name


@pytest.mark.parametrize("definition", dict.fromkeys(DEFINITIONS.values()))
def test_primitives_have_a_meaning_in_bits_and_in_real_numbers(definition: Callable[..., Any]) -> None:
    graph = graph_of(definition)
    tensors = numbers(graph)
    got = bits.evaluate(graph, tensors, SHAPE, PARAMS)
    want = real.evaluate(graph, tensors, SHAPE, PARAMS)
    wide = real.evaluate(graph, tensors, SHAPE, PARAMS, np.float64)
    for name in want:
        assert got[name].dtype == np.float32 and got[name].shape == want[name].shape
        size = np.abs(want[name]).max() + 1
        roundings = 2.0**-7 if definition is stochastic else 64 * 2.0**-24
        assert np.abs(got[name] - want[name]).max() <= roundings * size, name
        assert np.abs(wide[name] - want[name]).max() <= 64 * 2.0**-53 * size, name


@pytest.mark.parametrize("definition", dict.fromkeys(DEFINITIONS.values()))
def test_primitives_have_a_meaning_in_hashes(definition: Callable[..., Any]) -> None:
    graph = graph_of(definition)
    tensors, hashes = structure.hashes(graph, SHAPE, seed=7)
    tensors |= {n: a for n, a in numbers(graph).items() if a.dtype != np.float32}
    got = structure.evaluate(graph, tensors, SHAPE, hashes, PARAMS)
    again = structure.evaluate(graph, tensors, SHAPE, hashes, PARAMS)
    for name, values in got.items():
        assert values.dtype == np.uint64 and (values == again[name]).all()
        assert len(np.unique(values)) == values.size, "hashes of different elements differ"


@pytest.mark.parametrize("definition", dict.fromkeys(DEFINITIONS.values()))
def test_primitives_are_emitted(definition: Callable[..., Any]) -> None:
    graph = graph_of(definition)
    text = emit_cpu(make_plan(graph)).text
    for node in graph.nodes:
        kind = PRIMITIVES[node.op].kind
        if kind in ("float", "compare", "logic", "int"):
            assert f"{node.op}(" in text, node.op


@pytest.mark.parametrize(
    "definition", [d for d in dict.fromkeys(DEFINITIONS.values()) if d not in (exact, called, stochastic)]
)
def test_gradients_agree_with_differences(definition: Callable[..., Any]) -> None:
    """Reverse mode against central differences in extended precision, input by input."""
    graph = graph_of(definition)
    tensors = {n: a.astype(REAL) if a.dtype == np.float32 else a for n, a in numbers(graph).items()}
    rng = np.random.default_rng(3)
    results = real.evaluate(graph, tensors, SHAPE, PARAMS)
    cotangents = {n: rng.standard_normal(v.shape) for n, v in results.items()}

    def total(values: dict[str, Any]) -> Any:
        found = real.evaluate(graph, values, SHAPE, PARAMS)
        return sum((found[n] * cotangents[n]).sum() for n in found)

    got = gradient(graph, tensors, SHAPE, PARAMS, cotangents)
    h = REAL(2.0**-20)
    for name in ("x", "y"):
        for at in np.ndindex(tensors[name].shape):
            bump = np.zeros(tensors[name].shape, REAL)
            bump[at] = h
            up, down = ({**tensors, name: tensors[name] + s * bump} for s in (1, -1))
            slope = (total(up) - total(down)) / (2 * h)
            # The error is h**2/6 of a third derivative, which stays below 1e4 at these points.
            assert abs(got[name][at] - slope) <= 1e4 * h * h + 1e-9, (name, at)


def test_the_index_of_a_row_is_64_bits_wide() -> None:
    def at_row(x: Matrix[storage], t: Rows[i64]) -> Any:
        return where(row_index() == t, x, 0.0)

    x = np.ones((3, 2), np.float32)
    got = bits.evaluate(graph_of(at_row), dict(x=x, t=np.array([0, 5, 2])), (3, 2), {})["y"]
    assert got.tolist() == [[1, 1], [0, 0], [1, 1]]
