"""Operators on the caller's arrays: shapes, strides, alignment, and what is refused."""

from __future__ import annotations

import threading
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.lang import Matrix, Rows, i32, operator, outputs, row_sum, storage

BF16 = ml_dtypes.bfloat16
X = np.random.default_rng(1).standard_normal((24, 10)).astype(np.float32)
GAMMA = np.linspace(-1, 2, 10).astype(np.float32)


def same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


WANT = ops.rms_norm(X, GAMMA)


@operator
def shifted(
    x: Matrix[storage], ids: Rows[i32], *, by: float, times: int = 1, kind: Literal["up", "down"] = "up"
) -> Any:
    step = by * times
    return outputs(x=x + step if kind == "up" else x - step, total=row_sum(x))


IDS = np.zeros(24, np.int32)


# ------------------------------------------------------------------ shapes
@pytest.mark.parametrize("lead", [(24,), (2, 12), (2, 3, 4), (1, 24, 1), (24, 1, 1)])
def test_leading_dimensions_flatten_into_rows(lead: tuple[int, ...]) -> None:
    y, rstd = ops.rms_norm(X.reshape(*lead, 10), GAMMA)
    assert y.shape == (*lead, 10) and rstd.shape == lead
    assert same(y.reshape(24, 10), WANT[0]) and same(rstd.reshape(24), WANT[1])


def test_one_dimension_is_one_row() -> None:
    y, rstd = ops.rms_norm(X[3], GAMMA)
    assert same(y, WANT[0][3]) and rstd.shape == () and rstd == WANT[1][3]


@pytest.mark.parametrize("shape", [(0, 10), (3, 0, 10), (0,), (4, 0), (0, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    for dtype in (np.float16, BF16, np.float32):
        y, rstd = ops.rms_norm(np.zeros(shape, dtype))
        assert y.shape == shape and y.dtype == dtype
        assert rstd.shape == shape[:-1] and rstd.dtype == np.float32
        assert ops.softmax(np.zeros(shape, dtype)).shape == shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=np.array(1, np.float32)), r"x: a scalar; accepted: at least one dimension"),
        (dict(x=X, gamma=GAMMA[:9]), r"gamma: shape \(9,\); accepted beside x: \(10,\)"),
        (dict(x=X, gamma=GAMMA[None]), r"gamma: shape \(1, 10\); accepted beside x: \(10,\)"),
        (dict(x=X.astype(np.float64)), r"x: format f64; accepted: f16, bf16, f32"),
        (dict(x=X.astype(np.int32)), r"x: format i32; accepted: f16"),
        (dict(x=X.astype(complex)), r"x: format complex128; accepted: f16"),
        (dict(x=X.astype(">f4")), r"x: format >f4; accepted: f16"),
        (dict(x=X, gamma=GAMMA.astype(np.float16)), r"gamma: format f16 beside f32; accepted: one storage format"),
        (dict(x=X.tolist()), r"x: list; accepted: a NumPy array or an array that speaks DLPack"),
        (dict(x=3.0), r"x: float; accepted"),
        (dict(gamma=GAMMA), r"rms_norm: missing x; accepted: x, gamma"),
        (dict(x=X, weight=GAMMA), r"rms_norm: unknown argument weight; accepted: x, gamma, eps, out, threads, copy"),
        (dict(x=X, eps="small"), r"rms_norm: eps='small'; accepted: a number"),
        (dict(x=X, eps=True), r"rms_norm: eps=True; accepted: a number"),
        (dict(x=X, threads=0), r"threads=0; accepted: a whole number, 1 to 4096"),
        (dict(x=X, threads=1.5), r"threads=1\.5; accepted: a whole number, 1 to 4096"),
        (dict(x=X, threads=True), r"threads=True; accepted: a whole number, 1 to 4096"),
        (dict(x=X, threads=10**6), r"threads=1000000; accepted: a whole number, 1 to 4096"),
        (dict(x=np.zeros((1, 2**20 + 1), np.float16)), r"rms_norm: rows=1, cols=1048577; accepted: at most"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.rms_norm(**arguments)


def test_positional_arguments() -> None:
    assert same(ops.rms_norm(X, GAMMA)[0], ops.rms_norm(gamma=GAMMA, x=X)[0])
    assert same(ops.rms_norm(X, None)[0], ops.rms_norm(X)[0])
    with pytest.raises(ArgumentError, match="rms_norm: 3 positional arguments; accepted: x, gamma"):
        ops.rms_norm(X, GAMMA, 1e-5)
    with pytest.raises(ArgumentError, match="rms_norm: x is given twice"):
        ops.rms_norm(X, x=X)


# ------------------------------------------------------------------ scalars and options
def test_scalars_and_options_go_by_name() -> None:
    got, total = shifted(X.copy(), IDS, by=0.5, times=2)
    assert same(got, X + np.float32(1)) and total.shape == (24,)
    assert same(shifted(X.copy(), IDS, by=np.float64(0.5), times=np.int64(3), kind="down")[0], X - np.float32(1.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(), r"shifted: missing the scalar by"),
        (dict(by=1.0, times=1.5), r"shifted: times=1\.5; accepted: a whole number of at most 2\*\*53"),
        (dict(by=1.0, times=-(2**60)), r"shifted: times=-1152921504606846976; accepted"),
        (dict(by=1.0, times=float("nan")), r"shifted: times=nan; accepted"),
        (dict(by=1.0, times=float("inf")), r"shifted: times=inf; accepted"),
        (dict(by=1.0, times=2**60), r"shifted: times=1152921504606846976; accepted"),
        (dict(by=10**400), r"shifted: by of 1329 bits; accepted: a number of f64"),
        (dict(by=-(2**1024)), r"shifted: by of 1025 bits; accepted"),
        (dict(by=1.0, kind="left"), r"shifted: kind='left'; accepted: 'up', 'down'"),
        (dict(by=1.0, kind=b"up"), r"shifted: kind=b'up'; accepted: 'up', 'down'"),
        (dict(by=1.0, copy="no"), r"shifted: copy='no'; accepted: True, False"),
        (dict(by=1.0, kind=["up"]), r"shifted: kind=\['up'\]; accepted: 'up', 'down'"),
        (dict(by=1.0, ids=IDS + np.int64(2**31)), r"ids\[0\]=\d+ \(\d+ such\); accepted: -2147483648 to 2147483647"),
        (dict(by=1.0, ids=IDS.astype(np.int64), copy=False), r"ids: format i64; accepted: i32"),
        (dict(by=1.0, ids=IDS.astype(">i4")), r"ids: format >i4; accepted: i32"),
    ],
)
def test_wrong_scalars_and_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    x = X.copy()
    with pytest.raises(ArgumentError, match=f"^{message}"):
        shifted(**{"x": x, "ids": IDS, **arguments})
    assert same(x, X)


# ------------------------------------------------------------------ strides
def spread(axis: int) -> Any:
    """X with gaps between its rows, or between its columns."""
    size = (24, 16) if axis == 0 else (24, 20)
    base = np.full(size, np.nan, np.float32)
    view = base[:, 3:13] if axis == 0 else base[:, ::2]
    view[...] = X
    return view


@pytest.mark.parametrize(
    "view", [spread(0), X[::-1][::-1], np.broadcast_to(X[0], (24, 10))], ids=["gaps", "turned", "one row"]
)
def test_row_strides_are_read_in_place(view: Any) -> None:
    assert same(ops.rms_norm(view, GAMMA, copy=False)[0], ops.rms_norm(view.copy(), GAMMA)[0])


def test_turned_rows_are_read_in_place() -> None:
    assert same(ops.rms_norm(X[::-1], GAMMA, copy=False)[0], WANT[0][::-1])
    assert same(ops.rms_norm(X[5::3], GAMMA, copy=False)[0], WANT[0][5::3])


def misaligned(values: Any) -> Any:
    """The same values one byte off their alignment."""
    raw = np.zeros(values.nbytes + 1, np.uint8)
    view = np.ndarray(values.shape, values.dtype, raw.data, offset=1)
    view[...] = values
    return view


COPIED = {
    "column stride": spread(1),
    "transposed": np.asfortranarray(X),
    "turned columns": np.ascontiguousarray(X[:, ::-1])[:, ::-1],
    "misaligned": misaligned(X),
    "rows apart by no whole element": np.ndarray(
        (24, 10), np.float32, np.zeros(24 * 42 + 8, np.uint8), strides=(42, 4)
    ),
    "three dimensions that do not flatten": np.random.default_rng(0)
    .random((4, 6, 3, 10), np.float32)[:, ::2]
    .transpose(1, 0, 2, 3),
}


@pytest.mark.parametrize("name", COPIED)
def test_other_strides_are_copied_once_or_refused(name: str) -> None:
    view = COPIED[name]
    before = view.copy()
    assert same(ops.rms_norm(view, GAMMA)[0], ops.rms_norm(np.ascontiguousarray(view), GAMMA)[0])
    assert same(view.copy(), before)
    with pytest.raises(
        ArgumentError, match=r"^x: strides \(.*\) of shape \(.*\) need a copy; accepted with copy=False"
    ):
        ops.rms_norm(view, GAMMA, copy=False)


def test_three_dimensions_with_one_row_stride_flatten_without_a_copy() -> None:
    base = np.random.default_rng(0).random((4, 6, 16), np.float32)
    view = base[:, :, :10]
    assert same(ops.rms_norm(view, GAMMA, copy=False)[0], ops.rms_norm(view.copy(), GAMMA)[0])


def test_strided_vectors_are_copied() -> None:
    apart = np.repeat(GAMMA, 2)[::2]
    assert same(ops.rms_norm(X, apart)[0], WANT[0])
    with pytest.raises(ArgumentError, match=r"^gamma: strides"):
        ops.rms_norm(X, apart, copy=False)


@pytest.mark.parametrize("offset", range(1, 17))
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_views_at_any_element_have_the_same_bits(offset: int, dtype: Any) -> None:
    flat = np.zeros(offset + X.size, dtype)
    flat[offset:] = X.ravel()
    view = flat[offset:].reshape(X.shape)
    assert same(ops.softmax(view, copy=False), ops.softmax(X.astype(dtype)))


# ------------------------------------------------------------------ results in the caller's memory
def test_out_is_written_and_returned() -> None:
    y, rstd = np.empty_like(X), np.empty(24, np.float32)
    got = ops.rms_norm(X, GAMMA, out=(y, rstd))
    assert got[0] is y and got[1] is rstd and same(y, WANT[0]) and same(rstd, WANT[1])
    alone = np.empty_like(X)
    assert ops.softmax(X, out=alone) is alone and same(alone, ops.softmax(X))
    assert ops.softmax(X, out=(alone,)) is alone


def test_out_may_be_given_in_part() -> None:
    y = np.empty((2, 12, 10), np.float32)
    got, rstd = ops.rms_norm(X.reshape(2, 12, 10), GAMMA, out=[y, None])
    assert got is y and same(y.reshape(24, 10), WANT[0]) and same(rstd.reshape(24), WANT[1])


def test_out_with_a_row_stride_keeps_what_lies_between() -> None:
    base = np.full((24, 16), 7, np.float32)
    view = base[:, 3:13]
    assert ops.softmax(X, out=view) is view
    assert same(view.copy(), ops.softmax(X))
    assert (base[:, :3] == 7).all() and (base[:, 13:] == 7).all()


def test_out_may_be_turned() -> None:
    turned = np.empty(X.shape, np.float32)[::-1]
    assert ops.softmax(X, out=turned) is turned and same(turned.copy(), ops.softmax(X))


def read_only(shape: tuple[int, ...]) -> Any:
    array = np.empty(shape, np.float32)
    array.flags.writeable = False
    return array


SHARED = np.empty((2, 24, 10), np.float32)
SQUARE = X[:10].copy()


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (X, np.empty((24, 9), np.float32), r"out \(y\): shape \(24, 9\) of float32; accepted: \(24, 10\) of f32"),
        (X, np.empty((24, 10), np.float16), r"out \(y\): shape \(24, 10\) of float16; accepted: \(24, 10\) of f32"),
        (X, np.empty((2, 12, 10), np.float32), r"out \(y\): shape \(2, 12, 10\)"),
        (X, read_only((24, 10)), r"out \(y\): read-only; accepted: an array that may be written"),
        (X, np.empty((24, 20), np.float32)[:, ::2], r"out \(y\): strides \(80, 8\) of shape .*; accepted for"),
        (X, np.empty((10, 24), np.float32).T, r"out \(y\): strides"),
        (X, misaligned(X), r"out \(y\): strides"),
        (
            X,
            np.lib.stride_tricks.as_strided(np.empty(100, np.float32), (24, 10), (8, 4)),
            r"out \(y\): .* so that elements share memory",
        ),
        (
            X,
            np.lib.stride_tricks.as_strided(np.empty(10, np.float32), (24, 10), (0, 4)),
            r"out \(y\): .* so that elements share memory",
        ),
        (X, [np.empty((24, 10), np.float32)] * 2, r"out: 2 arrays; accepted: 1, for y"),
        (X, X.tolist(), r"out: 24 arrays; accepted: 1, for y"),
        (X, 3.0, r"out \(y\): float; accepted: a NumPy array"),
        (SHARED[0], SHARED[0], r"out \(y\): overlaps x; accepted: memory of its own"),
        (SHARED.reshape(48, 10)[:24], SHARED.reshape(48, 10)[23:47], r"out \(y\): overlaps x"),
        (SQUARE, SQUARE.T.T, r"out \(y\): overlaps x"),
    ],
)
def test_wrong_out_is_refused(x: Any, out: Any, message: str) -> None:
    before = x.copy()
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.softmax(x, out=out)
    assert same(x.copy(), before)


def test_interleaved_rows_do_not_overlap() -> None:
    base = np.empty((48, 10), np.float32)
    base[::2] = X
    ops.softmax(base[::2], out=base[1::2])
    assert same(base[1::2].copy(), ops.softmax(X)) and same(base[::2].copy(), X)


def test_two_results_must_not_share_memory() -> None:
    x = np.ones((5, 5), np.float32)
    back = ops.layer_norm_backward(
        x, x, mean=np.zeros(5, np.float32), rstd=np.ones(5, np.float32), gamma=np.ones(5, np.float32)
    )
    assert len(back) == 3
    both = np.empty(5, np.float32)
    with pytest.raises(ArgumentError, match=r"^out \(\w+\): overlaps out \(\w+\); accepted: memory of its own"):
        ops.layer_norm_backward(
            x, x, mean=np.zeros(5, np.float32), rstd=np.ones(5, np.float32), gamma=np.ones(5, np.float32),
            out=(None, both, both),
        )  # fmt: skip


# ------------------------------------------------------------------ results in place
def test_results_in_place() -> None:
    base = np.full((24, 16), 7, np.float32)
    view = base[:, :10]
    view[...] = X
    got, total = shifted(view, IDS, by=1.0)
    assert got is view and same(view.copy(), X + np.float32(1))
    assert same(total, shifted(X.copy(), IDS, by=0.0)[1]), "sums are those of what was there before"
    assert (base[:, 10:] == 7).all()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (read_only((24, 10)), "x: read-only"),
        (spread(1), "x: strides"),
        (np.lib.stride_tricks.as_strided(np.zeros(10, np.float32), (24, 10), (0, 4)), "x: .*share memory"),
    ],
)
def test_results_that_cannot_lie_in_place(x: Any, message: str) -> None:
    before = x.copy()
    with pytest.raises(ArgumentError, match=f"^{message}"):
        shifted(x, IDS, by=1.0)
    assert same(x.copy(), before)


# ------------------------------------------------------------------ threads
def test_calls_at_the_same_time_have_the_same_bits() -> None:
    x = np.random.default_rng(8).standard_normal((257, 333)).astype(np.float32)
    gamma = np.ones(333, np.float32)
    y, mean, rstd = ops.layer_norm(x, gamma, gamma)
    want = [y, *ops.layer_norm_backward(x, x, gamma, mean, rstd)]
    different: list[int] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for _ in range(10):
            y, mean, rstd = ops.layer_norm(x, gamma, gamma, threads=number % 3 + 1)
            got = [y, *ops.layer_norm_backward(x, x, gamma, mean, rstd, threads=number % 2 + 1)]
            if not all(same(a, b) for a, b in zip(got, want, strict=True)):
                different.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different


def test_first_calls_at_the_same_time_compile_one_kernel() -> None:
    @operator
    def quadrupled(x: Matrix[storage]) -> Any:
        return x * 4.0

    results: list[Any] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        results.append(quadrupled(X))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and all(same(r, X * np.float32(4)) for r in results)


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    assert same(ops.rms_norm(X, GAMMA, threads=threads)[0], WANT[0])
