"""The one rule of sums, against definitions that are written differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokitai.lang import Matrix, col_sum, operator, outputs, row_sum, storage
from tokitai.meaning import bits

F32 = np.float32
Array = np.ndarray[Any, Any]


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(*shape: int) -> Array:
    """Values of widely differing sizes: another order of summation has other bits."""
    g = rng(*shape)
    return (g.standard_normal(shape) * 2.0 ** g.integers(-12, 12, shape)).astype(F32)


def by_halves(x: Array) -> F32:
    """The balanced tree from the top: the left part is the largest power of two below the length."""
    n = len(x)
    if n == 1:
        return x[0]
    left = 1 << (n - 1).bit_length() - 1
    return by_halves(x[:left]) + by_halves(x[left:])


def same(a: Any, b: Any) -> bool:
    return np.array_equal(np.asarray(a, F32).view(np.uint32), np.asarray(b, F32).view(np.uint32))


@pytest.mark.parametrize("n", [*range(1, 71), 127, 1023, 1025, 4097, 20011])
def test_tree_is_the_balanced_tree(n: int) -> None:
    x = noise(3, n)
    got = bits.tree(x, np.add)
    assert got.shape == (3, 1)
    assert same(got[:, 0], [by_halves(row) for row in x])


def test_tree_is_no_other_order() -> None:
    """The noise tells orders apart, so that the test above can fail."""
    x = noise(3, 64)
    chain = x[:, 0]
    for column in x.T[1:]:
        chain = chain + column
    folded = x
    while folded.shape[1] > 1:  # halves upon each other, as many reductions do
        folded = folded[:, : folded.shape[1] // 2] + folded[:, folded.shape[1] // 2 :]
    tree = bits.tree(x, np.add)[:, 0]
    assert not same(tree, chain) and not same(tree, folded[:, 0]) and not same(tree, x.sum(axis=1))


def test_tree_shows_each_pair() -> None:
    def pair(a: Array, b: Array) -> Array:
        return np.array([[f"({p}{q})" for p, q in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)], object)

    letters = np.array([list("abcdefg")], object)
    assert bits.tree(letters, pair)[0, 0] == "(((ab)(cd))((ef)g))"


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_minus_zero_is_neutral_and_padding_passes_through(n: int) -> None:
    x = noise(2, n)
    x[0, : n // 2] = -0.0
    padded = np.concatenate([x, np.full((2, 32 - n), -0.0, F32)], axis=1)
    assert same(bits.tree(x, np.add), bits.tree(padded, np.add))
    assert same(bits.tree(np.full((1, n), -0.0, F32), np.add), [[-0.0]])
    plus = np.array([0x00000000, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF7FFFFF], np.uint32).view(F32)
    assert same(plus + F32(-0.0), plus) and not same(plus + F32(0.0), plus)


def test_an_empty_sum_is_plus_zero() -> None:
    assert same(bits.tree(np.zeros((2, 0), F32), np.add), [[0.0], [0.0]])
    assert same(bits.column_sum(np.zeros((0, 3), F32), np.add), [[0.0, 0.0, 0.0]])
    for rows in (0, 31, 32, 65):
        assert bits.column_sum(np.zeros((rows, 0), F32), np.add).shape == (1, 0)


@pytest.mark.parametrize("rows", range(131))
def test_column_sum_is_chains_of_32_rows_then_the_tree(rows: int) -> None:
    x = noise(rows, 3) if rows else np.zeros((0, 3), F32)
    want = []
    for column in x.T:
        chains: list[F32] = []
        for i, value in enumerate(column):
            if i % 32 == 0:
                chains.append(value)
            else:
                chains[-1] = chains[-1] + value
        want.append(by_halves(np.array(chains)) if chains else F32(0))
    assert same(bits.column_sum(x, np.add), [want])


@operator
def sums(x: Matrix[storage]):  # type: ignore[no-untyped-def]
    return outputs(r=row_sum(x), c=col_sum(x), s=col_sum(row_sum(x)))


def test_sums_in_a_definition() -> None:
    x = noise(70, 9)
    got = bits.evaluate(sums.trace("f32"), dict(x=x), (70, 9), {})
    rows = bits.tree(x, np.add)
    assert same(got["r"], rows)
    assert same(got["c"], bits.column_sum(x, np.add))
    assert same(got["s"], bits.column_sum(rows, np.add))


@operator
def row_sums(x: Matrix[storage]):  # type: ignore[no-untyped-def]
    return outputs(y=x * row_sum(x), r=row_sum(x))


def test_rows_that_are_computed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    x = noise(37, 11)
    whole = bits.evaluate(row_sums.trace("f32"), dict(x=x), (37, 11), {})
    monkeypatch.setattr(bits, "CHUNK", 40)
    parts = bits.evaluate(row_sums.trace("f32"), dict(x=x), (37, 11), {})
    assert all(same(whole[name], parts[name]) for name in ("y", "r"))
    assert not np.array_equal(whole["r"], x.sum(axis=1, keepdims=True))
