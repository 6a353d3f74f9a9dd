"""Hashes tell expressions apart, and only expressions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokitai.lang import (
    Cols,
    Matrix,
    Value,
    bf16,
    col_sum,
    column_index,
    f16,
    fma,
    function,
    maximum,
    minimum,
    operator,
    outputs,
    round_to,
    row_max,
    row_sum,
    sqrt,
    storage,
    where,
)
from tokitai.meaning import structure

SHAPE = (40, 7)
U64 = np.uint64


def hashed(definition: Callable[..., Any], dtype: str = "f32") -> dict[str, Any]:
    """The hashes of a definition over x, y (rows x cols) and w (columns): the same elements for every definition."""
    graph = operator(definition).trace(dtype)
    rng = np.random.default_rng(5)
    sizes = dict(x=SHAPE, y=SHAPE, w=SHAPE[1:])
    tensors = {n: rng.integers(1, 2**64, size, dtype=U64) for n, size in sizes.items()}
    scalars = {n: 12345 + i for i, n in enumerate(m for m in graph.nodes if m.op == "round")}
    return structure.evaluate(graph, {t.name: tensors[t.name] for t in graph.inputs}, SHAPE, scalars, {})


@function
def gate(a: Value) -> Value:
    return where(a > 0.0, a, a * 0.5)


VARIANTS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "plain": lambda x, y, w: fma(x, w, y) - x * y / sqrt(w),
    "operands of sub": lambda x, y, w: x * y / sqrt(w) - fma(x, w, y),
    "operands of div": lambda x, y, w: fma(x, w, y) - sqrt(w) / (x * y),
    "two roundings for one": lambda x, y, w: (x * w + y) - x * y / sqrt(w),
    "another addend": lambda x, y, w: fma(x, y, w) - x * y / sqrt(w),
    "dropped term": lambda x, y, w: fma(x, w, y) - x / sqrt(w),
    "dropped root": lambda x, y, w: fma(x, w, y) - x * y / w,
    "turned sign": lambda x, y, w: fma(-x, w, y) - x * y / sqrt(w),
    "negated difference": lambda x, y, w: fma(x, w, y) + -(x * y / sqrt(w)),
    "extra rounding": lambda x, y, w: round_to(fma(x, w, y), f16) - x * y / sqrt(w),
    "rounding to another format": lambda x, y, w: round_to(fma(x, w, y), bf16) - x * y / sqrt(w),
    "added zero": lambda x, y, w: fma(x, w, y) - x * y / sqrt(w) + 0.0,
    "added minus zero": lambda x, y, w: fma(x, w, y) - x * y / sqrt(w) + -0.0,
    "times one": lambda x, y, w: (fma(x, w, y) - x * y / sqrt(w)) * 1.0,
    "times another number": lambda x, y, w: (fma(x, w, y) - x * y / sqrt(w)) * 1.0000001,
    "absolute value": lambda x, y, w: abs(fma(x, w, y) - x * y / sqrt(w)),
    "maximum": lambda x, y, w: maximum(x, y),
    "minimum": lambda x, y, w: minimum(x, y),
    "less": lambda x, y, w: where(x < y, x, y),
    "less or equal": lambda x, y, w: where(x <= y, x, y),
    "greater": lambda x, y, w: where(x > y, x, y),
    "branches swapped": lambda x, y, w: where(x < y, y, x),
    "equal": lambda x, y, w: where(x == y, x, y),
    "not equal": lambda x, y, w: where(x != y, x, y),
    "and": lambda x, y, w: where((x < y) & (y < w), x, y),
    "or": lambda x, y, w: where((x < y) | (y < w), x, y),
    "and not": lambda x, y, w: where((x < y) & ~(y < w), x, y),
    "chosen by index": lambda x, y, w: where(column_index() < 3, x, y),
    "chosen by another index": lambda x, y, w: where(column_index() < 4, x, y),
    "row sum": lambda x, y, w: x * row_sum(y),
    "row sum of the other": lambda x, y, w: x * row_sum(x),
    "row sum of products": lambda x, y, w: x * row_sum(y * w),
    "row maximum": lambda x, y, w: x * row_max(y),
    "row maximum of a sum": lambda x, y, w: x * row_max(y + w),
    "a function": lambda x, y, w: gate(x),
}


def test_any_single_change_has_other_hashes() -> None:
    """At every element of the result, or at one element of those that only an index tells apart."""
    found = {name: hashed(_with_body(body))["y"] for name, body in VARIANTS.items()}
    for a, b in itertools.combinations(found, 2):
        by_index = a == "chosen by index" and b == "chosen by another index"
        assert (found[a] != found[b]).any() if by_index else (found[a] != found[b]).all(), (a, b)


def _with_body(body: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def definition(x: Matrix[storage], y: Matrix[storage], w: Cols[storage]) -> Any:
        return body(x, y, w)

    return definition


SYMMETRIC: list[Callable[[Any, Any, Any], Any]] = [
    lambda x, y, w: x + y,
    lambda x, y, w: x * y,
    lambda x, y, w: fma(x, y, w),
    lambda x, y, w: maximum(x, y),
    lambda x, y, w: minimum(x, y),
    lambda x, y, w: where(x == y, w, 1.0),
    lambda x, y, w: where(x != y, w, 1.0),
    lambda x, y, w: where((x < w) & (y < w), w, 1.0),
    lambda x, y, w: where((x < w) | (y < w), w, 1.0),
]


@pytest.mark.parametrize("index", range(len(SYMMETRIC)))
def test_swapped_operands_of_symmetric_operations_have_equal_hashes(index: int) -> None:
    body = SYMMETRIC[index]
    straight = hashed(_with_body(body))["y"]
    swapped = hashed(_with_body(lambda x, y, w: body(y, x, w)))["y"]
    assert (straight == swapped).all()


def test_a_maximum_does_not_depend_on_the_order_of_columns_but_a_sum_does() -> None:
    def both(x: Matrix[storage]) -> Any:
        return outputs(m=row_max(x), s=row_sum(x))

    graph = operator(both).trace("f32")
    x = np.random.default_rng(1).integers(1, 2**64, (3, 7), dtype=U64)
    straight = structure.evaluate(graph, dict(x=x), (3, 7), {}, {})
    turned = structure.evaluate(graph, dict(x=x[:, ::-1]), (3, 7), {}, {})
    assert (straight["m"] == turned["m"]).all()
    assert (straight["s"] != turned["s"]).all()


def test_a_sum_in_another_order_has_another_hash() -> None:
    x = np.random.default_rng(2).integers(1, 2**64, (1, 8), dtype=U64)
    with np.errstate(over="ignore"):
        tree = structure.bits.tree(x, structure.add)
        chain = x[:, :1]
        for i in range(1, 8):
            chain = structure.add(chain, x[:, i : i + 1])
        halves = structure.add(
            structure.bits.tree(x[:, ::2], structure.add), structure.bits.tree(x[:, 1::2], structure.add)
        )
    assert len({int(v[0, 0]) for v in (tree, chain, halves)}) == 3


def test_a_column_sum_is_a_chain_of_32_rows() -> None:
    def down(x: Matrix[storage]) -> Any:
        return outputs(c=col_sum(x))

    x = np.random.default_rng(3).integers(1, 2**64, SHAPE, dtype=U64)
    got = structure.evaluate(operator(down).trace("f32"), dict(x=x), SHAPE, {}, {})["c"]
    with np.errstate(over="ignore"):
        first, second = x[0], x[32]
        for row in x[1:32]:
            first = structure.add(first, row)
        for row in x[33:]:
            second = structure.add(second, row)
        assert (got[0] == structure.add(first, second)).all()
        assert (got[0] != structure.bits.tree(x, structure.add, axis=0)[0]).all()


def test_a_store_is_a_rounding() -> None:
    def copied(x: Matrix[storage]) -> Any:
        return x

    stored = {dtype: hashed(copied, dtype)["y"] for dtype in ("f32", "f16", "bf16")}
    for a, b in itertools.combinations(stored.values(), 2):
        assert (a != b).all()


def test_hashes_are_drawn_anew_for_each_seed_and_graph_and_never_zero() -> None:
    """Zero is the neutral element of the kernels' padding."""
    from tokitai import ops

    graphs = [ops.softmax.trace("f32"), ops.softmax.trace("f16")]
    drawn = [structure.hashes(g, (9, 9), seed)[0]["x"] for g in graphs for seed in (0, 1)]
    assert all((d != 0).all() and len(np.unique(d)) == d.size for d in drawn)
    assert len({d.tobytes() for d in drawn}) == 4
    assert (structure.hashes(graphs[0], (9, 9), 0)[0]["x"] == drawn[0]).all()
    _, scalars = structure.hashes(ops.layer_norm.trace("f32"), (3, 4), 0)
    assert len(set(scalars.values())) == len(scalars) == 2


def test_the_mixing_is_a_bijection_of_known_values() -> None:
    """SplitMix64's finaliser: its published first outputs for seed 0 are mix(k * golden ratio)."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([(k * golden) % 2**64 for k in (1, 2, 3)], U64)
    with np.errstate(over="ignore"):
        assert structure.mix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_tags_are_those_of_the_kernels_header() -> None:
    """Written down twice on purpose; only the numbers must agree."""
    import re

    from tokitai.emit.cpp import first, headers, own, segments

    every = headers(of_products=True) | first() | segments() | own("fixed_point.h")
    found = re.search(r"enum Tag : uint64_t \{([^}]*)\}", every["hashes.h"])
    assert found is not None
    names = [n.split("=")[0].strip().lower() for n in found[1].split(",")]
    tags = [(n, i + 1) for i, n in enumerate(names)]
    for text in every.values():  # headers of few kernels have their own
        tags += [(name.lower(), int(tag)) for name, tag in re.findall(r"\b([A-Z]\w*) = Tag\((\d+)\)", text)]
    assert len(set(tags)) == len(tags) and dict(tags) == structure.TAGS
