"""Embedding and its gradient: ids, padding, repeated ids, empty tensors; reported faults by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.meaning.sums import column_sum

Array = np.ndarray[Any, Any]
FORMATS = [F16, BF16, F32]


def backward(dy: Array, ids: Any, entries: int, **given: Any) -> Array:
    return run(ops.embedding_backward, dy=dy, ids=np.asarray(ids), entries=entries, **given)["dtable"]


def drawn(rows: int, cols: int, dtype: Any, seed: int = 0) -> Array:
    return array(np.random.default_rng(seed).standard_normal((rows, cols)), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("integer", [np.int32, np.int64])
def test_forward_looks_up(dtype: Any, integer: Any) -> None:
    """Leading dimensions are those of the ids; i32 and i64 ids give the same bits."""
    table = drawn(11, 19, dtype)
    ids = np.random.default_rng(1).integers(0, 11, (3, 5)).astype(integer)
    assert same_bits(ops.embedding(table, ids), table[ids])
    assert same_bits(ops.embedding(table[:, ::-1][:, ::-1], ids), table[ids])
    dy = drawn(15, 19, dtype).reshape(3, 5, 19)
    assert same_bits(backward(dy, ids, 11), backward(dy, ids.astype(np.int64), 11))


@pytest.mark.parametrize("total", [768, 769])
@pytest.mark.parametrize("dtype", FORMATS)
def test_padding_has_no_gradient(total: int, dtype: Any) -> None:
    """C45: on no path: its row is +0, and no other index is dropped."""
    ids = np.zeros(total, np.int64)
    ids[-1] = 1
    got = backward(np.ones((total, 8), dtype), ids, 10, padding_idx=0)
    want = np.zeros((10, 8), dtype)
    want[1] = 1
    assert same_bits(got, want)
    nan = np.full((total, 8), np.nan, dtype)
    nan[-1] = 1
    assert same_bits(backward(nan, ids, 10, padding_idx=0), want)


@pytest.mark.parametrize(("count", "dtype"), [(1000, BF16), (5000, F16), (1000, F32)])
def test_one_id_many_times_does_not_stall(count: int, dtype: Any) -> None:
    """C47: a narrow accumulator would stop at the format's last odd integer."""
    got = backward(np.ones((count, 32), dtype), np.full(count, 7), 35)
    want = np.zeros((35, 32))
    want[7] = count
    assert got.astype(np.float64).tolist() == array(want, dtype).astype(np.float64).tolist()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 999], r"ids\[1\]=999 \(1 such rows\); accepted: 0 to 2"),
        ([-1, 0], r"ids\[0\]=-1"),
        ([0, 3], r"ids\[1\]=3"),
        ([0, -(2**63)], r"ids\[1\]=-9223372036854775808"),
        ([2**40 + 1, 0], r"ids\[0\]=1099511627777"),
    ],
)
def test_an_id_out_of_range_is_an_error(ids: list[int], message: str) -> None:
    """C49, C50: forward and backward, and nothing is written."""
    table, dy = drawn(3, 12, F32), drawn(2, 12, F32)
    out = np.full((2, 12), 7, F32)
    with pytest.raises(ArgumentError, match=message):
        ops.embedding(table, np.array(ids), out=out)
    grad = np.full((3, 12), 7, F32)
    with pytest.raises(ArgumentError, match=message):
        ops.embedding_backward(dy, np.array(ids), entries=3, out=grad)
    with pytest.raises(ArgumentError, match=message):
        ops.embedding_backward(dy, np.array(ids), grad, entries=3)
    assert (out == 7).all() and (grad == 7).all()


def test_negative_padding_counts_from_the_end() -> None:
    """C50: an id does not."""
    got = backward(np.ones((2, 3), F32), [9, 1], 10, padding_idx=-1)
    assert not got[9].any() and got[1].tolist() == [1, 1, 1] and got.sum() == 3
    with pytest.raises(ArgumentError, match=r"ids\[0\]=-1"):
        backward(np.ones((1, 3), F32), [-1], 10, padding_idx=-1)


OUTSIDE = [(10, 10), (-11, 10), (2**40, 10), (-(2**53) + 1, 10), (0, 0), (-1, 0)]


@pytest.mark.parametrize(("padding", "entries"), OUTSIDE)
def test_padding_that_is_no_entry_is_refused(padding: int, entries: int) -> None:
    accepted = f"-{entries} to {entries - 1}" if entries else "None, of no entries"
    for ids in ([0, 1], [1, 0]):  # no call of the kind is known, and one is
        with pytest.raises(ArgumentError, match=f"embedding_backward: padding_idx={padding}; accepted: {accepted}"):
            backward(np.ones((2, 3), F32), ids, entries, padding_idx=padding)
        if entries:
            assert backward(np.ones((2, 3), F32), ids, entries).sum() == 6
            assert backward(np.ones((2, 3), F32), ids, entries, padding_idx=-entries).sum() == 3


def test_an_empty_table() -> None:
    empty = np.zeros((0, 4), F32)
    with pytest.raises(ArgumentError, match="1 indices of a table without entries; accepted: none"):
        ops.embedding(empty, np.array([0]))
    with pytest.raises(ArgumentError, match="without entries"):
        backward(np.ones((1, 4), F32), [0], 0)
    assert ops.embedding(empty, np.zeros((2, 0), np.int64)).shape == (2, 0, 4)
    assert backward(np.ones((0, 4), F32), np.zeros(0, np.int64), 0).shape == (0, 4)


@pytest.mark.parametrize("shape", [(0,), (0, 3)])
def test_no_ids(shape: tuple[int, ...]) -> None:
    """C53: zeros, of every entry."""
    ids = np.zeros(shape, np.int64)
    out = np.full((10, 4), np.nan, F32)
    ops.embedding_backward(np.zeros((*shape, 4), F32), ids, entries=10, out=out)
    assert same_bits(out, np.zeros((10, 4), F32))
    assert ops.embedding(drawn(10, 4, F32), ids).shape == (*shape, 4)


def test_no_columns() -> None:
    """C54."""
    assert ops.embedding(np.zeros((10, 0), F32), np.array([0, 1])).shape == (2, 0)
    assert backward(np.zeros((2, 0), F32), [0, 1], 10).shape == (10, 0)


def test_a_transposed_view_of_ids() -> None:
    """C56: forward and backward read it as it is."""
    ids = np.array([[0, 1], [2, 3]]).T
    assert not ids.flags.c_contiguous
    assert ops.embedding(np.arange(4, dtype=F32)[:, None], ids)[:, :, 0].tolist() == [[0, 2], [1, 3]]
    dy = drawn(4, 5, F32).reshape(2, 2, 5)
    assert same_bits(backward(dy, ids, 4), backward(dy, ids.copy(), 4))
    with pytest.raises(ArgumentError, match="need a copy"):
        ops.embedding(np.zeros((4, 1), F32), ids, copy=False)


def test_rows_beyond_31_bits() -> None:
    """C51: a place is the product of an id and a stride in 64 bits, whatever the width of the ids. Pages of zeros that
    nobody touches take no memory."""
    table = np.zeros((262_144, 8960), F16)
    table[255_999] = np.arange(8960) % 1000
    for integer in (np.int32, np.int64):
        assert same_bits(ops.embedding(table, np.array([255_999, 0], integer)), table[[255_999, 0]])


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_rule_of_summation(dtype: Any) -> None:
    """Rank by rank among an entry's rows: what the oracle's column sum gives of those rows alone."""
    rng = np.random.default_rng(3)
    ids = np.where(rng.random(1500) < 0.6, 4, rng.integers(0, 40, 1500))
    dy = drawn(1500, 21, dtype, 4)
    got = backward(dy, ids, 41)
    for entry in range(41):
        mine = dy[ids == entry].astype(np.float32)
        want = column_sum(mine, np.add)[0] if len(mine) else np.zeros(21, np.float32)
        assert same_bits(got[entry], want.astype(dtype) if dtype != BF16 else want.astype(BF16))


@pytest.mark.parametrize("dtype", FORMATS)
def test_adding_to_a_gradient(dtype: Any) -> None:
    """In place, old + sum in f32, rounded once; entries that nobody chose keep what they had."""
    dy, ids, old = drawn(90, 9, dtype), np.arange(90) % 7, drawn(12, 9, dtype, 5)
    total = backward(dy.astype(F32), ids, 12)
    want = array((old.astype(F32) + total).astype(np.float64), dtype)
    given = old.copy()
    made = ops.embedding_backward(dy, ids, given, entries=12)
    assert made is given and same_bits(given, want) and same_bits(given[7:], old[7:])
    with pytest.raises(ArgumentError, match="entries differ"):
        ops.embedding_backward(dy, ids, given, entries=13)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_repeats_have_the_same_bits(threads: int) -> None:
    """C57: 8 ids many times each, whatever the threads; within the bound of f64."""
    rng = np.random.default_rng(0)
    ids, dy = rng.integers(0, 8, 20_000), rng.standard_normal((20_000, 64)).astype(F32)
    first = ops.embedding_backward(dy, ids, entries=8, threads=1)
    for _ in range(5):
        assert same_bits(ops.embedding_backward(dy, ids, entries=8, threads=threads), first)
    exact, size = np.zeros((8, 64)), np.zeros((8, 64))
    np.add.at(exact, ids, dy.astype(np.float64))
    np.add.at(size, ids, np.abs(dy).astype(np.float64))
    count = np.bincount(ids).max()
    assert (np.abs(first - exact) <= count * 2.0**-24 * size).all()


def test_wrong_shapes() -> None:
    table = drawn(4, 3, F32)
    with pytest.raises(ArgumentError, match=r"table: shape \(3,\); accepted: \(entries, columns\)"):
        ops.embedding(table[0], np.array([0]))
    with pytest.raises(ArgumentError, match="ids: format f32; accepted: i64"):
        ops.embedding(table, np.zeros(2, F32))
    with pytest.raises(ArgumentError, match=r"ids: shape \(3,\)"):
        backward(drawn(2, 3, F32), [0, 1, 2], 4)
    with pytest.raises(ArgumentError, match="entries=-1"):
        backward(drawn(1, 3, F32), [0], -1)
    with pytest.raises(ArgumentError, match="overlaps"):
        ops.embedding_backward(table, np.array([0, 1, 2, 3]), table, entries=4)
