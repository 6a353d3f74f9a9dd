"""Lists of tensors: global norms and clipping by them, and sizes beyond 32 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import BF16, F16, F32, U, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.families.elementwise.plan import TILE
from tokitai.formats import format_of
from tokitai.lang import Matrix, element_word, operator, outputs, storage
from tokitai.meaning import bits
from tokitai.ops.adam import stochastic_bits
from tokitai.ops.dropouts import philox_reference
from tokitai.runtime.kernel import Kernel, host_kernel

Array = np.ndarray[Any, Any]
LENGTHS = [0, 1, 2, 3, 17, 1000, TILE - 1, TILE, TILE + 1, 3 * TILE + 5]
SIZES = st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=9)


def gradients(sizes: list[int], dtype: Any, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n, np.float32).astype(dtype) for n in sizes]


def exact_norm(grads: list[Array]) -> tuple[float, float]:
    """The norm in extended precision, and a bound on how far the f32 tree may be from it, both relative to it: each
    square is rounded once and each level of the tree once more, the root halves that, and is rounded itself."""
    total = sum((g.astype(np.longdouble) ** 2).sum() for g in grads)
    levels = 1 + math.ceil(math.log2(max([g.size for g in grads] + [1]))) + math.ceil(math.log2(max(len(grads), 1)))
    return float(np.sqrt(total)), math.expm1(levels * math.log1p(U)) / 2 + 2 * U


# ------------------------------------------------------------------ the global norm
@settings(max_examples=25, deadline=None)
@given(SIZES, st.integers(0, 99), st.sampled_from([F16, BF16, F32]))
def test_the_global_norm_is_within_the_trees_bound(sizes: list[int], seed: int, dtype: Any) -> None:
    grads = gradients(sizes, dtype, seed)
    got, (want, relative) = float(ops.global_norm(grads)), exact_norm(grads)
    assert abs(got - want) <= relative * want
    assert float(ops.global_norm([g for g in grads if g.size] or grads)) == got, "empty tensors have no place"
    assert float(ops.global_norm(grads, threads=3)) == got
    order = np.random.default_rng(seed).permutation(len(grads))
    assert abs(float(ops.global_norm([grads[i] for i in order])) - want) <= relative * want


@settings(max_examples=25, deadline=None)
@given(SIZES, st.integers(0, 99), st.sampled_from([F16, BF16, F32]), st.sampled_from([1e-3, 1.0, 30.0, 1e6, math.inf]))
def test_clipped_gradients(sizes: list[int], seed: int, dtype: Any, max_norm: float) -> None:
    grads = gradients(sizes, dtype, seed)
    before = [g.astype(np.longdouble) for g in grads]
    want, relative = exact_norm(grads)
    returned, norm = ops.clip_global_norm(grads, max_norm=max_norm)
    assert returned is grads and abs(float(norm) - want) <= relative * want
    factor = min(np.float64(np.float32(max_norm)) / want, 1.0) if want else 1.0
    for g, b in zip(grads, before, strict=True):
        exact = b * factor
        spacing = np.ldexp(1.0, np.maximum(np.frexp(exact.astype(np.float64))[1] - 1, format_of(dtype).emin))
        stored = spacing * 2.0 ** -(format_of(dtype).precision - 1) / 2
        allowed = np.abs(exact) * (relative + 4 * U) + (stored + 2 * U * np.abs(exact) + 2.0**-149) * (1 + 2.0**-7)
        assert (np.abs(g.astype(np.longdouble) - exact) <= allowed).all()
        if factor == 1 and float(np.float32(max_norm)) > want * (1 + 2 * relative):
            assert same_bits(g, b.astype(np.float64).astype(dtype)), "what is small enough is not touched"


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_squares_and_sums_that_f16_cannot_hold(dtype: Any) -> None:
    assert ops.global_norm([np.array([300, 400], dtype)]) == 500
    ones = [np.ones(5000, dtype), np.full(1, 64, dtype)]
    assert ops.global_norm(ones) == np.float32(math.sqrt(9096))
    assert ops.global_norm([np.zeros(3, dtype), np.zeros(0, dtype)]) == 0
    zeros = np.array([0.0, -0.0], dtype)
    ops.clip_global_norm([zeros], max_norm=1.0)
    assert same_bits(zeros, np.array([0.0, -0.0], dtype))


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("place", [(0, 0), (1, TILE), (2, 0)])
def test_nan_is_not_lost(dtype: Any, place: tuple[int, int]) -> None:
    grads = gradients([3, TILE + 1, 1], dtype, 1)
    grads[place[0]][place[1]] = math.nan
    assert np.isnan(ops.global_norm(grads))
    _, norm = ops.clip_global_norm(grads, max_norm=1.0)
    assert np.isnan(norm) and all(np.isnan(g.astype(np.float32)).all() for g in grads)


@pytest.mark.parametrize("max_norm", [-1.0, math.nan, 0.0])
def test_a_norm_that_is_none_is_refused(max_norm: float) -> None:
    """0 among them: zero gradients would be scaled by 0/0."""
    grads = gradients([4], F32, 1)
    before = grads[0].copy()
    with pytest.raises(ArgumentError, match=r"^clip_global_norm: max_norm=.*; accepted: "):
        ops.clip_global_norm(grads, max_norm=max_norm)
    assert same_bits(grads[0], before)


# ------------------------------------------------------------------ beyond 32 bits
def launch_repeated(
    kernel: Kernel, rows: int, arrays: dict[str, Array], results: dict[str, Array], **params: float
) -> None:
    """Run on a tensor of `rows` times the same row: the row stride is 0, so that memory holds one row while all sizes
    and places are those of the whole tensor. Results of a row replace those of the row before: one thread."""
    (cols,) = {a.size for a in arrays.values()}
    table = kernel.scalar_table(1, 1, params)
    addresses = [arrays[t.name].ctypes.data for t in kernel.graph.inputs]
    addresses += [results[o.name].ctypes.data for o in kernel.graph.outputs]
    matrices = sum(x.space == "rc" for x in (*kernel.graph.inputs, *kernel.graph.outputs))
    sizes = [1, rows, cols, *[0] * matrices, *table.whole]
    kernel.launch_raw(addresses, sizes, [(rows, cols)], table.table, 1)


@operator
def words(x: Matrix[storage]) -> Any:
    return outputs(y=x, low=element_word(0), high=element_word(1))


def test_the_words_of_a_place() -> None:
    x = np.zeros((3, TILE + 5), np.float32)
    _, low, high = words(x)
    assert low.dtype == np.uint32 and (low.ravel() == np.arange(x.size)).all() and not high.any()


@pytest.mark.slow
def test_places_beyond_32_bits() -> None:
    """2**32 + 16,384 elements: both words of the last row's places. (The oracle counts with NumPy's 64-bit integers
    and is not run at this size.)"""
    rows = 2**32 // TILE + 1
    kernel = host_kernel(words, "f16")
    results = dict(y=np.ones(TILE, F16), low=np.zeros(TILE, np.uint32), high=np.zeros(TILE, np.uint32))
    launch_repeated(kernel, rows, dict(x=np.zeros(TILE, F16)), results)
    assert (results["low"] == np.arange(TILE)).all() and (results["high"] == 1).all() and not results["y"].any()


@pytest.mark.slow
def test_a_norm_of_more_than_2_to_the_32_elements() -> None:
    """C30: of ones, whose tree sums are exact."""
    rows = 2**32 // TILE + 2**6
    norm = np.zeros(1, np.float32)
    launch_repeated(host_kernel(ops.global_norm, "f32"), rows, dict(grad=np.ones(TILE, F32)), dict(norm=norm))
    assert norm[0] == np.float32(math.sqrt(rows * TILE))


@pytest.mark.slow
def test_dropout_beyond_32_bits() -> None:
    """The last row's mask is that of places from 2**32 on; 2**31 of them would otherwise repeat."""
    rows, cols = 2**32 // TILE + 1, TILE
    y = np.zeros(cols, F16)
    launch_repeated(
        host_kernel(ops.dropout, "f16"), rows, dict(x=np.ones(cols, F16)), dict(y=y), p=0.5, seed=7, stream=1
    )
    kept = [philox_reference((i, 1, 0, 0), (7, 1))[0] >= 2**31 for i in range(cols)]
    assert (y != 0).tolist() == kept


@pytest.mark.slow
def test_adamw_beyond_32_bits() -> None:
    """C64: 2**32 + 16,384 elements with stochastic rounding, which draws by the place; the moments and the step are
    those of one row."""
    rows, n = 2**32 // TILE + 1, TILE
    kernel = host_kernel(ops.adamw, "bf16", present=(), options=dict(rounding="stochastic"))
    rng = np.random.default_rng(1)
    given = dict(
        param=rng.standard_normal(n).astype(BF16), grad=rng.standard_normal(n).astype(BF16),
        exp_avg=rng.standard_normal(n, np.float32), exp_avg_sq=rng.random(n, np.float32),
    )  # fmt: skip
    results = dict(param=np.zeros(n, BF16), exp_avg=np.zeros(n, np.float32), exp_avg_sq=np.zeros(n, np.float32))
    scalars = dict(step=9, lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, loss_scale=1.0, seed=5)
    launch_repeated(kernel, rows, given, results, **scalars)
    master = given["param"].astype(np.float32)
    moments = [given["exp_avg"].copy(), given["exp_avg_sq"].copy()]
    ops.adamw(given["param"].copy(), given["grad"], *moments, master, **scalars)  # the step in f32, before rounding
    random = np.array([stochastic_bits(0, 2**32 + k, 5, 9) for k in range(n)], np.uint32)
    want = bits.round_to(bits.round_stochastic(master, random, "bf16"), "bf16")
    assert same_bits(results["param"], want)
    assert same_bits(results["exp_avg"], moments[0]) and same_bits(results["exp_avg_sq"], moments[1])


@pytest.mark.slow
def test_more_than_2_to_the_28_elements_in_a_batch() -> None:
    """f16 weights in three tensors of 2**28 + 3 elements in all: every one is what a short list gives for its values,
    the last one too."""
    period = 4099  # prime, so that a slip by a power of two is seen
    rng = np.random.default_rng(3)
    row = dict(
        param=rng.standard_normal(period).astype(F16), grad=rng.standard_normal(period).astype(F16),
        exp_avg=rng.standard_normal(period, np.float32), exp_avg_sq=rng.random(period, np.float32),
    )  # fmt: skip
    sizes = [2**27 + 1, 0, 2**27 + 2]
    lists = {n: [np.resize(a, size) for size in sizes] for n, a in row.items()}
    ops.adamw(**lists, step=4, weight_decay=0.1)
    ops.adamw(**row, step=4, weight_decay=0.1)
    for n in ("param", "exp_avg", "exp_avg_sq"):
        for a in lists[n]:
            whole = a.size // period * period
            assert (a[:whole].reshape(-1, period) == row[n]).all() and (a[whole:] == row[n][: a.size - whole]).all()
