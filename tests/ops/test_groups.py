"""Grouped products: each has the bits of its product alone; empty groups; what a call accepts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import BF16, F16, F32, array, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError, DefinitionError
from tokitai.families import make_plan
from tokitai.lang import (
    Groups,
    Operand,
    Sizes,
    convert,
    f32,
    grouped_matmul,
    i64,
    matmul,
    operator,
    outputs,
    row_index,
    shape_from_text,
    shape_text,
    storage,
)
from tokitai.ops.groups import SHARES
from tokitai.verification import verify
from tokitai.verification.verdict import Variant
from tokitai.worker import Pool

FORMATS = pytest.mark.parametrize("dtype", [F16, BF16, F32])
ACCUMULATORS = pytest.mark.parametrize("accumulator", ["f32", "f64"])


def noise(seed: int, *shape: int, dtype: Any = F32) -> Any:
    return array(np.random.default_rng(seed).standard_normal(shape), dtype)


def parts(offsets: Any) -> list[slice]:
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(offsets)]


# ------------------------------------------------------------------ a loop of products
@FORMATS
@ACCUMULATORS
@pytest.mark.parametrize("share", SHARES)
def test_each_group_has_the_bits_of_its_product_alone(dtype: Any, accumulator: Any, share: str) -> None:
    offsets = np.array(SHARES[share]) * 9
    rows, groups = int(offsets[-1]), offsets.size - 1
    x, dy = noise(1, rows, 33, dtype=dtype), noise(2, rows, 17, dtype=dtype)
    w, v = noise(3, groups, 17, 33, dtype=dtype), noise(4, groups, 17, 33, dtype=dtype)
    more: dict[str, Any] = dict(accumulator=accumulator)
    y = ops.grouped_linear(x, w, offsets, **more)
    gated = ops.grouped_linear_swiglu(x, w, v, offsets, **more)
    dx = ops.grouped_linear_backward_input(dy, w, offsets, **more)
    dw = ops.grouped_linear_backward_weight(dy, x, offsets, **more)
    total = noise(5, groups, 17, 33)
    added = ops.grouped_linear_accumulate_weight(total.copy(), dy, x, offsets, **more)
    assert (y.shape, dx.shape, dw.shape) == ((rows, 17), (rows, 33), w.shape)
    for g, part in enumerate(parts(offsets)):
        assert same_bits(y[part], ops.matmul(x[part], w[g], layout="NT", **more))
        assert same_bits(gated[part], ops.linear_swiglu(x[part], w[g], v[g], **more))
        assert same_bits(dx[part], ops.matmul(dy[part], w[g], **more))
        assert same_bits(dw[g], ops.matmul(dy[part], x[part], layout="TN", **more))
        assert same_bits(added[g], ops.linear_accumulate_weight(total[g].copy(), dy[part], x[part], **more))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=70), st.integers(1, 300), st.integers(0, 60), st.just(3))
def test_any_shares_and_threads(counts: list[int], cols: int, inner: int, seed: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(counts)])
    x, w = noise(seed, offsets[-1], inner, dtype=F16), noise(seed + 1, len(counts), cols, inner, dtype=F16)
    dy = noise(seed + 2, offsets[-1], cols, dtype=F16)
    y, dw = ops.grouped_linear(x, w, offsets, threads=1), ops.grouped_linear_backward_weight(dy, x, offsets, threads=1)
    for threads in (2, 5):
        assert same_bits(ops.grouped_linear(x, w, offsets, threads=threads), y)
        assert same_bits(ops.grouped_linear_backward_weight(dy, x, offsets, threads=threads), dw)
    for g, part in list(enumerate(parts(offsets)))[::7]:
        assert same_bits(y[part], ops.matmul(x[part], w[g], layout="NT"))
        assert same_bits(dw[g], ops.matmul(dy[part], x[part], layout="TN"))


@ACCUMULATORS
def test_long_groups_are_summed_as_one_product(accumulator: Any) -> None:
    """Beyond a chain of 4096, in the K dimension that groups partition and in the one that each has."""
    offsets = np.array([0, 5000, 5000, 14000])
    x, dy = noise(1, 14000, 3, dtype=BF16), noise(2, 14000, 2, dtype=BF16)
    dw = ops.grouped_linear_backward_weight(dy, x, offsets, accumulator=accumulator)
    a, b = noise(3, 4, 9000, dtype=F16), noise(4, 2, 3, 9000, dtype=F16)
    y = ops.grouped_linear(a, b, np.array([0, 3, 4]), accumulator=accumulator)
    for g, part in enumerate(parts(offsets)):
        assert same_bits(dw[g], ops.matmul(dy[part], x[part], layout="TN", accumulator=accumulator))
    for g, part in enumerate(parts([0, 3, 4])):
        assert same_bits(y[part], ops.matmul(a[part], b[g], layout="NT", accumulator=accumulator))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 1000))
def test_gradients_of_all_groups_add_up_to_that_of_one(counts: list[int], seed: int) -> None:
    """The sum over g of dW_g is X^T dY, exactly in whole numbers: with weights alike the groups do not matter."""
    offsets, rng = np.concatenate([[0], np.cumsum(counts)]), np.random.default_rng(seed)
    x, dy = array(rng.integers(-8, 9, (offsets[-1], 7))), array(rng.integers(-8, 9, (offsets[-1], 5)))
    dw = ops.grouped_linear_backward_weight(dy, x, offsets)
    assert np.array_equal(dw.sum(axis=0), dy.T @ x)
    w = np.repeat(noise(seed, 1, 5, 7), len(counts), 0)
    assert same_bits(ops.grouped_linear(x, w, offsets), ops.linear(x, w[0]))


# ------------------------------------------------------------------ empty groups
@FORMATS
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_experts_without_tokens_have_a_gradient_of_zero(dtype: Any, threads: int) -> None:
    """C140: it keeps what was in memory. Groups of two, none and one; a buffer of NaN."""
    ones = np.ones((3, 2), dtype)
    out = array(np.full((3, 2, 2), np.nan), dtype)
    got = ops.grouped_linear_backward_weight(ones, ones, np.array([0, 2, 2, 3]), out=out, threads=threads)
    assert got is out
    assert same_bits(got, array([np.full((2, 2), 2), np.zeros((2, 2)), np.ones((2, 2))], dtype))


@FORMATS
def test_no_tokens_for_any_expert(dtype: Any) -> None:
    """C142: a crash, or no end."""
    nothing, w, offsets = np.zeros((0, 4), dtype), noise(1, 3, 4, 4, dtype=dtype), np.zeros(4, np.int64)
    for forward in (ops.grouped_linear, ops.grouped_linear_backward_input):
        assert forward(nothing, w, offsets).shape == (0, 4)
    assert ops.grouped_linear_swiglu(nothing, w, w, offsets).shape == (0, 4)
    out = array(np.full((3, 4, 4), np.nan), dtype)
    got = ops.grouped_linear_backward_weight(nothing, nothing, offsets, out=out)
    assert got.tobytes() == bytes(got.nbytes), "+0 in every bit"


@FORMATS
def test_a_sum_over_nothing_is_zero(dtype: Any) -> None:
    """K = 0, into memory that holds something else."""
    out = array(np.full((5, 3), np.nan), dtype)
    ops.grouped_linear(np.zeros((5, 0), dtype), np.zeros((2, 3, 0), dtype), np.array([0, 4, 5]), out=out)
    assert out.tobytes() == bytes(out.nbytes)


# ------------------------------------------------------------------ how arrays may lie
def test_leading_dimensions_are_rows() -> None:
    x, w, offsets = noise(1, 2, 3, 5), noise(2, 2, 4, 5), np.array([0, 5, 6], np.int32)
    y = ops.grouped_linear(x, w, offsets)
    assert y.shape == (2, 3, 4)
    assert same_bits(y.reshape(6, 4), ops.grouped_linear(x.reshape(6, 5), w, offsets.astype(np.int64)))


@FORMATS
def test_views_are_read_and_written_where_they_lie(dtype: Any) -> None:
    x, w, offsets = noise(1, 9, 37, dtype=dtype), noise(2, 3, 21, 37, dtype=dtype), np.array([0, 4, 4, 9])
    wide, high = np.full((9, 50), np.nan, dtype), np.full((3, 23, 41), np.nan, dtype)
    wide[:, 3:40], high[:, 1:-1, 1:-3] = x, w
    around = np.full((9, 30), 7, dtype)
    got = ops.grouped_linear(wide[:, 3:40], high[:, 1:-1, 1:-3], offsets, out=around[:, 5:26], copy=False)
    assert same_bits(got.copy(), ops.grouped_linear(x, w, offsets))
    assert (around[:, :5] == 7).all() and (around[:, 26:] == 7).all()


# ------------------------------------------------------------------ what is refused
X, W = np.ones((6, 4), np.float16), np.ones((2, 3, 4), np.float16)
WRONG: list[tuple[Any, str]] = [
    (lambda: ops.grouped_linear(X, W, np.array([1, 2, 6])), "offsets[0]=1; accepted: 0, as groups partition 0 to 6"),
    (lambda: ops.grouped_linear(X, W, np.array([0, 2, 5])), "offsets[2]=5; accepted: 6, as groups partition 0 to 6"),
    (lambda: ops.grouped_linear(X, W, np.array([0, 2, 7])), "offsets[2]=7; accepted: 6"),
    (lambda: ops.grouped_linear(X, W, np.array([0, 7, 6])), "offsets[1]=7; accepted: 0 to 6"),
    (lambda: ops.grouped_linear(X, W, np.array([0, -1, 6])), "offsets[1]=-1; accepted: 0 to 6"),
    (lambda: ops.grouped_linear(X, W[[0] * 4], np.array([0, 4, 2, 3, 6])), "offsets[2]=2; accepted: 4 to 6"),
    (lambda: ops.grouped_linear(X, W, np.array([[0, 2, 6]])), "offsets: shape (1, 3); accepted: (groups + 1,)"),
    (lambda: ops.grouped_linear(X, W[:0], np.array([0])), "offsets: shape (1,); accepted: (groups + 1,), of at least"),
    (lambda: ops.grouped_linear(X, W, np.array([0.0, 2.0, 6.0])), "offsets: format f64; accepted: i64"),
    (lambda: ops.grouped_linear(X, W, np.array([0, 6])), "weight: shape (2, 3, 4); accepted beside offsets: (1, .."),
    (lambda: ops.grouped_linear(X, W[0], np.array([0, 6])), "weight: shape (3, 4); accepted beside offsets: (1, .."),
    (lambda: ops.grouped_linear(X, W[:, :, 1:], np.array([0, 2, 6])), "weight: shape (2, 3, 3), 3 along inner"),
    (lambda: ops.grouped_linear_backward_weight(X, X[1:], np.array([0, 6])), "x: shape (5, 4), 5 along inner"),
    (
        lambda: ops.grouped_linear_backward_weight(X, X, np.array([0, 2, 6]), out=np.zeros((4, 4), np.float16)),
        "out (dweight): shape (4, 4) of float16; accepted: (2, 4, 4) of f16",
    ),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_does_not_fit_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        call()
    assert words in str(error.value)


def test_definitions_with_groups_are_refused_where_they_cannot_be() -> None:
    @operator
    def added(a: Operand[storage], b: Operand[storage], ends: Groups[i64]) -> Any:
        return outputs(y=grouped_matmul(a, b, ends) + ends)

    with pytest.raises(DefinitionError, match=r"the groups ends outside a product; accepted: grouped_matmul"):
        added.trace("f32")

    @operator
    def unused(a: Operand[storage], b: Operand[storage], ends: Groups[i64]) -> Any:
        return outputs(y=matmul(a, b))

    with pytest.raises(DefinitionError, match="the operand ends is not used"):
        unused.trace("f32")

    @operator
    def placed(a: Operand[storage], b: Operand[storage], ends: Groups[i64]) -> Any:
        return outputs(y=grouped_matmul(a, b, ends) * convert(row_index(), f32))

    with pytest.raises(DefinitionError, match="row_index beside groups; accepted: element-wise work"):
        make_plan(placed.trace("f32"))

    @operator
    def half(a: Operand[storage], b: Operand[storage], c: Operand[storage], ends: Groups[i64]) -> Any:
        return outputs(y=grouped_matmul(a, b, ends) + matmul(a, c, "NT"))

    with pytest.raises(DefinitionError, match="a product in other groups; accepted: the same for all products"):
        make_plan(half.trace("f32"))

    @operator
    def nothing(a: Operand[storage], b: Operand[storage]) -> Any:
        return outputs(y=grouped_matmul(a, b, 3))  # type: ignore[arg-type]

    with pytest.raises(DefinitionError, match=r"the groups 3; accepted: an input that is annotated as Groups"):
        nothing.trace("f32")


def test_sizes_of_groups_are_written_and_read() -> None:
    for shape in (Sizes(3, 4, 5, 6, "r"), Sizes(3, 4, 5, 1, "k")):
        assert shape_from_text(shape_text(shape)) == shape
    assert Sizes(3, 4, 5, 6) != Sizes(3, 4, 5, 6, "r")
    with pytest.raises(ValueError, match="3x4x5r"):
        shape_from_text("3x4x5r")


# ------------------------------------------------------------------ verification
@pytest.mark.slow
def test_groups_are_verified_at_the_sizes_asked_for(tmp_path: Any) -> None:
    from tokitai.evidence.check import check
    from tokitai.verification.recheck import recheck

    asked = dict(rows=30, cols=7, inner=9, batch=4)
    variant = Variant(frozenset())
    for op in (ops.grouped_linear, ops.grouped_linear_backward_weight):
        verdict = verify(op, shape=asked, dtype="f16", variant=variant, out=tmp_path)
        assert (verdict.verdict, verdict.failure) == ("verified", None)
        ragged = op.trace("f16").ragged
        kinds = {r.kind for r in verdict.results if r.shape == Sizes(30, 7, 9, 4, ragged)}
        assert kinds == {"structure", "seeded"} and verdict.shape == asked
        assert verdict.certificate is not None
        assert check(verdict.certificate) == [] and recheck(verdict.certificate, op, sample=12) == []
    case = "seeded/normal@30x7x9x4r#2"
    again = verify(ops.grouped_linear, dtype="f16", variant=variant, case=case)
    assert (again.verdict, [r.id for r in again.results]) == ("verified", [case])


def test_in_a_worker_process() -> None:
    with Pool(1, deadline=60) as pool:
        for case in ("structure/all inputs@25x33x12x3r#0", "seeded/normal@25x33x12x3r#0"):
            verdict = verify(ops.grouped_linear, dtype="f16", variant=Variant(frozenset()), case=case, pool=pool)
            assert (verdict.verdict, [r.id for r in verdict.results]) == ("verified", [case]), verdict.failure
