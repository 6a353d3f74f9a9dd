"""Matrix products and linear layers: reported faults as cases, laws, and what a call accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import BF16, F16, F32, array, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError, DefinitionError
from tokitai.families import make_plan
from tokitai.lang import Operand, Sizes, matmul, operator, outputs, row_sum, shape_from_text, shape_text, storage
from tokitai.meaning import bits

LAYOUTS = ("NN", "NT", "TN")
FORMATS = pytest.mark.parametrize("dtype", [F16, BF16, F32])


def stored(a: Any, b: Any, layout: str) -> tuple[Any, Any]:
    """rows x inner and inner x cols as a layout has them."""
    left, right = (a.T if layout[0] == "T" else a), (b.T if layout[1] == "T" else b)
    return np.ascontiguousarray(left), np.ascontiguousarray(right)


def noise(seed: int, *shape: int, dtype: Any = F32) -> Any:
    return array(np.random.default_rng(seed).standard_normal(shape), dtype)


def framed(a: Any, filler: float = np.nan) -> Any:
    """A view of the same elements inside a larger array of something else, one element off."""
    around = np.full((a.shape[0] + 2, a.shape[1] + 5), filler, np.float32).astype(a.dtype)
    view = around[1:-1, 1:-4]
    view[...] = a
    return view


# ------------------------------------------------------------------ reported faults
def test_f32_operands_are_not_narrowed() -> None:
    """C80: an f32 product rounded to TF32, whose significand has 11 bits."""
    assert ops.matmul(array([[1024.5]]), array([[1.0]]))[0, 0] == 1024.5
    v = array([[0.0, 3.14]])
    got = ops.matmul(ops.matmul(v, np.eye(2, dtype=np.float32)), v, layout="NT")[0, 0]
    assert got == np.float32(np.float64(v[0, 1]) ** 2)


@FORMATS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sum_over_nothing_is_zero(dtype: Any, layout: str) -> None:
    """C82: K = 0 leaves what was in memory, or fails; so do its gradients."""
    a, b = stored(np.zeros((2, 0), dtype), np.zeros((0, 3), dtype), layout)
    out = array(np.full((2, 3), np.nan), dtype)
    assert ops.matmul(a, b, layout=layout, out=out) is out and out.tobytes() == bytes(out.nbytes)
    dy = np.ones((2, 3), dtype)
    assert ops.matmul_backward_left(dy, b, layout=layout).shape == a.shape
    assert ops.matmul_backward_right(dy, a, layout=layout).shape == b.shape
    c = noise(1, 2, 3, dtype=dtype)
    assert same_bits(ops.matmul(a, b, c, beta=1.0, layout=layout), c), "beta c"


@FORMATS
@pytest.mark.parametrize("size", [1, 7, 65, 200])
def test_beta_of_zero_does_not_read_c(dtype: Any, size: int) -> None:
    """C84: NaN in memory that nobody has written survives a product with zero, at times in edge tiles only."""
    ones, c = np.ones((size, size), dtype), array(np.full((size, size), np.nan), dtype)
    assert (ops.matmul(ones, ones, c, beta=0.0) == array(size, dtype)).all()
    assert np.isnan(ops.matmul(ones, ones, c, beta=0.5)).all()


@pytest.mark.parametrize("half", [2, 300, 5000])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_partial_sums_are_not_narrowed(dtype: Any, half: int) -> None:
    """C85: parts of a sum rounded to bf16, where 257 is 256, before they meet: in one chain, and in two."""
    a = np.zeros((1, 2 * half))
    a[0, [0, 1, half, half + 1]] = 256.0, 1.0, -256.0, 0.0
    assert ops.matmul(array(a, dtype), np.ones((2 * half, 1), dtype))[0, 0] == 1


@pytest.mark.parametrize("part", [1, 64, 300])
def test_long_sums_have_the_same_bits_each_time(part: int) -> None:
    """C86: parts of a sum meet in the result's format, in the order of arrival. 2048 and 63 ones: 2112 in f16."""
    a = np.zeros((1, 64 * part))
    a[0, ::part] = [2048.0] + [1.0] * 63
    b = np.ones((64 * part, 1), np.float16)
    assert {float(ops.matmul(array(a, F16), b, threads=1 + i % 7)[0, 0]) for i in range(20)} == {2112.0}


@FORMATS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inner", [255, 257, 1001])
def test_a_tail_along_k_is_not_read_past(dtype: Any, layout: str, inner: int) -> None:
    """C88: operands inside buffers of NaN, whose inner size is no multiple of anything."""
    a, b = stored(np.ones((1, inner), dtype), np.ones((inner, 1), dtype), layout)
    got = ops.matmul(framed(a), framed(b), layout=layout, copy=False)
    assert got == array(inner, dtype)


@FORMATS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_outer_product(dtype: Any, layout: str) -> None:
    """C89: K = 1. Zeros have the sign of their product."""
    row = array([[*np.arange(128.0), -0.0]], dtype)
    got = ops.matmul(*stored(array([[2.0], [-1.0]], dtype), row, layout), layout=layout)
    assert same_bits(got, np.concatenate([row * dtype.type(2), -row]))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_a_gradient_in_parts_does_not_stall(dtype: Any) -> None:
    """C91: 512 parts of one each, added in bf16, stall at 256."""
    one, total = np.ones((1, 1), dtype), np.zeros((1, 1), np.float32)
    for _ in range(512):
        assert ops.linear_accumulate_weight(total, one, one) is total
    assert total[0, 0] == 512
    ones = np.ones((512, 1), dtype)
    assert ops.linear_backward_weight(ones, ones)[0, 0] == 512


@FORMATS
def test_a_result_may_lie_one_element_off(dtype: Any) -> None:
    """C92: only the inputs' alignment is looked at; rows of 46 elements, the first one misaligned."""
    a, b = noise(1, 13, 70, dtype=dtype), noise(2, 70, 41, dtype=dtype)
    around = np.full((13, 46), 7, dtype)
    view = around[:, 1:42]
    assert ops.matmul(a, b, out=view) is view
    assert same_bits(view.copy(), ops.matmul(a, b))
    assert (around[:, 0] == 7).all() and (around[:, 42:] == 7).all()
    total = np.zeros((70, 46), np.float32)
    ops.linear_accumulate_weight(total[:, 1:42], a, view)
    assert same_bits(total[:, 1:42].copy(), ops.linear_accumulate_weight(np.zeros((70, 41), np.float32), a, view))
    assert not total[:, 0].any() and not total[:, 42:].any()


# ------------------------------------------------------------------ laws
SIDES = st.integers(1, 40)


@settings(max_examples=12, deadline=None)
@given(SIDES, SIDES, st.integers(0, 1000), st.sampled_from(LAYOUTS), st.sampled_from(["f32", "f64"]))
def test_the_identity_changes_no_bit(rows: int, inner: int, seed: int, layout: str, accumulator: str) -> None:
    """A I = A, I B = B, but for the sign of a zero, which the sum with +0 has lost."""
    x = noise(seed, rows, inner)
    unit = np.eye(inner, dtype=np.float32)
    assert same_bits(ops.matmul(*stored(x, unit, layout), layout=layout, accumulator=accumulator), x)
    unit = np.eye(rows, dtype=np.float32)
    assert same_bits(ops.matmul(*stored(unit, x, layout), layout=layout, accumulator=accumulator), x)


@settings(max_examples=12, deadline=None)
@given(SIDES, SIDES, st.integers(0, 9000), st.integers(0, 1000), st.sampled_from(LAYOUTS))
def test_small_whole_numbers_are_exact(rows: int, cols: int, inner: int, seed: int, layout: str) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-8, 9, (rows, inner)), rng.integers(-8, 9, (inner, cols))
    got = ops.matmul(*stored(array(a), array(b), layout), layout=layout)
    assert np.array_equal(got, a @ b)


@settings(max_examples=12, deadline=None)
@given(SIDES, SIDES, st.integers(0, 300), st.integers(0, 1000), st.sampled_from(["f32", "f64"]))
def test_layouts_threads_and_batches_have_the_same_bits(
    rows: int, cols: int, inner: int, seed: int, accumulator: str
) -> None:
    a, b = noise(seed, 3, rows, inner, dtype=F16), noise(seed + 1, 3, inner, cols, dtype=F16)
    plain = np.stack([ops.matmul(x, y, accumulator=accumulator, threads=1) for x, y in zip(a, b, strict=True)])
    for threads in (1, 2, 5):
        assert same_bits(ops.matmul(a, b, accumulator=accumulator, threads=threads), plain)
    turned = ops.matmul(a, np.ascontiguousarray(b.swapaxes(1, 2)), layout="NT", accumulator=accumulator)
    assert same_bits(turned, plain)
    turned = ops.matmul(np.ascontiguousarray(a.swapaxes(1, 2)), b, layout="TN", accumulator=accumulator)
    assert same_bits(turned, plain)
    shared = ops.matmul(a, b[0], accumulator=accumulator)
    assert same_bits(shared[0], plain[0])
    assert same_bits(shared[2], ops.matmul(a[2], b[0], accumulator=accumulator))


@pytest.mark.parametrize("accumulator", ["f32", "f64"])
def test_rows_and_columns_do_not_see_the_rest(accumulator: str) -> None:
    """Whatever tile an element lies in, and however many there are: its bits are those of its row and its column."""
    a, b = noise(1, 301, 5000, dtype=BF16), noise(2, 5000, 65, dtype=BF16)
    whole = ops.matmul(a, b, accumulator=accumulator)
    for r, c in ((0, 0), (300, 64), (151, 17)):
        assert same_bits(ops.matmul(a[r : r + 1], b[:, c : c + 1], accumulator=accumulator)[0], whole[r, c : c + 1])


def test_f64_accumulators_round_once() -> None:
    a = array([[1.0, 2.0**-24, 2.0**-24]])
    ones = np.ones((3, 1), np.float32)
    assert ops.matmul(a, ones)[0, 0] == 1
    assert ops.matmul(a, ones, accumulator="f64")[0, 0] == np.float32(1 + 2.0**-23)


# ------------------------------------------------------------------ linear layers
@FORMATS
def test_leading_dimensions_of_a_linear_layer_are_rows(dtype: Any) -> None:
    x, w = noise(1, 2, 3, 5, 17, dtype=dtype), noise(2, 9, 17, dtype=dtype)
    bias, residual = noise(3, 9, dtype=dtype), noise(4, 2, 3, 5, 9, dtype=dtype)
    got = ops.linear(x, w, bias, residual)
    flat = ops.linear(x.reshape(30, 17), w, bias, residual.reshape(30, 9))
    assert got.shape == (2, 3, 5, 9) and same_bits(got.reshape(30, 9), flat)
    assert same_bits(ops.linear(x[0, 0, 0], w), ops.linear(x[0, 0], w)[0])
    dy = residual
    weight = ops.linear_backward_weight(dy, x)
    assert weight.shape == w.shape
    assert same_bits(weight, ops.matmul(dy.reshape(30, 9), x.reshape(30, 17), layout="TN"))
    assert ops.linear_backward_input(dy, w).shape == x.shape
    assert ops.linear_backward_bias(dy).shape == bias.shape


def test_an_epilogue_is_rounded_once() -> None:
    """1 + 2^-11 lies half-way between two f16 numbers; with 2^-12 more it is above."""
    x, w = array([[1.0, 2.0**-11]], F16), array([[1.0, 1.0]], F16)
    bias = array([2.0**-12], F16)
    assert ops.linear(x, w, bias)[0, 0] == np.float16(1 + 2.0**-10)
    assert (ops.linear(x, w) + bias)[0, 0] == np.float16(1)


ALONE = {"gelu": ops.gelu_erf, "gelu_tanh": ops.gelu_tanh, "silu": ops.silu}


@pytest.mark.parametrize(("activation", "alone"), ALONE.items())
def test_an_activation_is_the_operator_of_that_name(activation: str, alone: Any) -> None:
    """In f32, where a store in between rounds nothing."""
    x, w = noise(1, 9, 33), noise(2, 17, 33)
    assert same_bits(ops.linear(x, w, activation=activation), alone(ops.linear(x, w)))


def test_swiglu_is_its_parts() -> None:
    x, gate, up = noise(1, 9, 300), noise(2, 17, 300), noise(3, 17, 300)
    assert same_bits(ops.linear_swiglu(x, gate, up), ops.swiglu(ops.linear(x, gate), ops.linear(x, up)))


# ------------------------------------------------------------------ what is refused
ONES = np.ones((3, 4), np.float16)
WRONG: list[tuple[Any, str]] = [
    (lambda: ops.matmul(ONES, ONES), "b: shape (3, 4), 3 along inner; accepted beside a: 4"),
    (lambda: ops.matmul(ONES, ONES.T, ONES), "c: shape (3, 4), 4 along cols; accepted beside b: 3"),
    (lambda: ops.matmul(ONES[0], ONES), "a: shape (4,); accepted: 2 dimensions or more"),
    (lambda: ops.matmul(ONES[None], np.ones((2, 4, 5), F16)), "b: shape (2, 4, 5); accepted beside a: (1,) ahead"),
    (lambda: ops.matmul(ONES, ONES.astype(np.float32).T), "b: format f32 beside f16; accepted: one storage format"),
    (lambda: ops.matmul(ONES, ONES.T, layout="TT"), "layout='TT'; accepted: 'NN', 'NT', 'TN'"),
    (lambda: ops.matmul(ONES, ONES.T, copy=False), "b: strides (2, 8) of shape (4, 3) need a copy"),
    (lambda: ops.matmul(ONES, ONES, layout="NT", out=np.zeros((4, 3), np.float16)), "out (y): shape (4, 3) of float16"),
    (lambda: ops.linear(ONES, np.ones((5, 4), np.float16), np.ones(4, np.float16)), "bias: shape (4,), 4 along cols"),
    (lambda: ops.linear(ONES, np.ones((2, 5, 2), np.float16)), "weight: shape (2, 5, 2), 2 along inner"),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_does_not_fit_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        call()
    assert words in str(error.value)


def test_a_result_may_not_overlap_an_operand() -> None:
    square = np.ones((4, 4), np.float32)
    with pytest.raises(ArgumentError, match=r"^out \(y\): overlaps a"):
        ops.matmul(square, np.ones((4, 4), np.float32), out=square)
    stacked = np.broadcast_to(np.zeros((4, 4), np.float32), (3, 4, 4))
    with pytest.raises(ArgumentError, match="read-only"):
        ops.matmul(np.ones((3, 4, 4), np.float32), square, out=stacked)
    repeated = np.lib.stride_tricks.as_strided(np.zeros((6, 4), np.float32), (3, 4, 4), (16, 16, 4))
    with pytest.raises(ArgumentError, match="share memory"):
        ops.matmul(np.ones((3, 4, 4), np.float32), square, out=repeated)


def test_definitions_with_a_product_are_refused_where_they_cannot_be() -> None:
    @operator
    def added(a: Operand[storage], b: Operand[storage]) -> Any:
        return outputs(y=matmul(a, b) + a)

    with pytest.raises(DefinitionError, match=r"the operand a outside a product; accepted: matmul"):
        added.trace("f32")

    @operator
    def twice(a: Operand[storage]) -> Any:
        return outputs(y=matmul(a, a))

    with pytest.raises(DefinitionError, match="the operand a is used as"):
        twice.trace("f32")

    @operator
    def summed(a: Operand[storage], b: Operand[storage]) -> Any:
        return outputs(y=row_sum(matmul(a, b)))

    with pytest.raises(DefinitionError, match="row_sum beside a product"):
        make_plan(summed.trace("f32"))

    @operator
    def of_two(a: Operand[storage], b: Operand[storage], c: Operand[storage], d: Operand[storage]) -> Any:
        return outputs(y=matmul(a, b) + matmul(c, d))

    with pytest.raises(DefinitionError, match="several of one left operand"):
        make_plan(of_two.trace("f32"))


def test_shapes_are_written_and_read() -> None:
    for shape in ((3, 4), Sizes(3, 4, 5), Sizes(3, 4, 5, 6)):
        assert shape_from_text(shape_text(shape)) == shape
    assert Sizes(3, 4, 5) != Sizes(3, 4, 6) and Sizes(3, 4, 4) != (3, 4)


def test_the_oracle_is_the_mathematics_in_exact_arithmetic() -> None:
    """A chain of two, by hand: 1 + 2^-11 squared is exact in the second step only if it is fused."""
    x = 1 + 2.0**-12
    a, b = array([[1.0, x]]), array([[-1.0], [x]])
    graph = ops.matmul.trace("f32", present=())
    got = bits.evaluate(graph, dict(a=a, b=b), Sizes(1, 1, 2), dict(alpha=1.0, beta=1.0))["y"]
    assert got[0, 0] == 2.0**-11 + 2.0**-24
