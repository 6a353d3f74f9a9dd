"""Definitions as a reader writes them: each means what its kernels compute."""

from __future__ import annotations

import re

import numpy as np
import pytest
from holding import DEVICES, fault

import tokitai
from tokitai.errors import ArgumentError
from tokitai.lang import (
    Cols,
    Contract,
    Matrix,
    Operator,
    Outputs,
    Rows,
    Table,
    Value,
    bf16,
    col_sum,
    column_index,
    columns,
    convert,
    element_word,
    f32,
    fma,
    function,
    i32,
    maximum,
    operator,
    outputs,
    round_stochastic,
    row_first,
    row_sum,
    rows,
    storage,
    tensor_index,
    total_max,
    total_sum,
    u32,
    where,
)  # fmt: skip
from tokitai.meaning import bits


# ------------------------------------------------------------------ totals over several rows
@operator
def centred(x: Matrix[storage]) -> Outputs:
    """Each element without the mean of all."""
    mean = total_sum(x) / (rows(x) * columns(x))
    return outputs(y=x - mean, mean=mean)


@operator
def summed(x: Matrix[storage], w: Matrix[bf16]) -> Outputs:
    """Sums of terms that know their place in the tensor."""
    term = where(convert(element_word(0), f32) < 100, x * w, 1 / x)
    return outputs(total=total_sum(term), most=total_max(term), other=total_sum(w))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [centred, summed], ids=lambda op: op.name)
def test_a_total_counts_elements_across_rows(op: Operator, device: str) -> None:
    """Tiles ended with rows, where the definition flattens: with gaps between rows too."""
    assert fault(op, device, (7, 33), (3, 1), (5, 0), (0, 4), (33, 17)) is None


@pytest.mark.parametrize("device", DEVICES)
def test_tiles_of_a_total_go_on_in_the_next_row(device: str) -> None:
    """Rows that end in the middle of a tile, and several tiles and units of a row."""
    assert fault(summed, device, (3, 16385), (70, 700)) is None


def test_a_call_gives_the_totals_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        x = rng.standard_normal((7, 33)).astype(np.float32)
        want = bits.evaluate(centred.trace("f32"), dict(x=x), (7, 33), {})
        y, mean = centred(x)
        assert np.array_equal(y, want["y"]) and mean == want["mean"]
        gaps = np.zeros((7, 40), np.float32)
        gaps[:, :33] = x
        assert np.array_equal(centred(gaps[:, :33])[0], y)


@operator
def chosen(x: Matrix[storage], i: Rows[i32]) -> Outputs:
    """Whole numbers of which no two rows have the same."""
    return outputs(y=x * convert(i, f32))


@pytest.mark.parametrize("op", [centred, chosen], ids=lambda op: op.name)
def test_rows_that_know_of_others_are_not_repeated_by_the_oracle(op: Operator) -> None:
    """The oracle of a tiled tensor took the results of its first rows for those of the others."""
    assert fault(op, "cpu", (81, 70), how="tiled") is None


# ------------------------------------------------------------------ rows and columns of lists
@operator(contract=Contract(lists=True, max_cols=2**40))
def mean_of_all(x: Matrix[storage]) -> Outputs:
    return outputs(mean=total_sum(x) / columns(x))


@operator
def share(x: Matrix[storage]) -> Outputs:
    """Element-wise, so that it takes lists as well."""
    return outputs(y=x / columns(x) + rows(x))


def test_rows_and_columns_are_those_of_the_tensor_in_flat_calls_and_lists() -> None:
    """Both were 1: a mean of 32 elements was 32 times as large."""
    x = np.arange(32, dtype=np.float32)
    assert mean_of_all(x) == 15.5 and mean_of_all(x.reshape(4, 8)) == 15.5
    assert mean_of_all([x]) == 15.5 and mean_of_all([x, x]) == 31.0
    plain = share(x.reshape(4, 8))
    assert np.array_equal(plain, x.reshape(4, 8) / 8 + 4)
    for listed in share([x.reshape(4, 8), x.reshape(2, 2, 8)]):
        assert np.array_equal(listed.reshape(4, 8), plain)
    assert share([]) == []


def test_a_list_of_several_sizes_is_refused_where_they_are_counted() -> None:
    x = np.ones(8, np.float32)
    message = "^mean_of_all: counts columns, .* 1 x 8 and 1 x 5; accepted: lists of tensors of one size$"
    with pytest.raises(ArgumentError, match=message):
        mean_of_all([x, x[:5]])
    with pytest.raises(ArgumentError, match=r"^share: counts rows and columns, "):
        share([x.reshape(2, 4), x.reshape(4, 2)])


@pytest.mark.slow
@pytest.mark.parametrize("op", [mean_of_all, share], ids=lambda op: op.name)
def test_what_counts_columns_is_verified_on_lists(op: Operator) -> None:
    verdict = tokitai.verify(op)
    assert verdict.verdict == "verified" and "list" in verdict.evidence, verdict.failure


# ------------------------------------------------------------------ an empty sum
@operator
def shifted(x: Matrix[f32], s: Rows[f32], c: Cols[f32]) -> Outputs:
    """A sum over nothing meets other values."""
    return outputs(by_row=row_sum(x) + s, by_column=c + col_sum(x), of_both=col_sum(row_sum(x) + s))


@pytest.mark.parametrize("how", ["normal", "zeros"])
@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_sum_is_one_thing_in_every_meaning(device: str, how: str) -> None:
    assert fault(shifted, device, (3, 0), (0, 5), (0, 0), (2, 3), how=how) is None


def test_verification_tells_an_empty_sum_from_nothing() -> None:
    """A hash of it is neutral where it is added; zeros of both signs show that it is +0."""

    def edit(text: str) -> str:
        return re.sub(r"(const S v\d+ = )add\((v\d+), (v\d+)\);", r"\1cols ? add(\2, \3) : \3;", text)

    verdict = tokitai.verify(nudged, edit=edit)
    assert verdict.verdict == "refuted" and "zeros@3x0" in str(verdict.failure)


@operator
def nudged(x: Matrix[f32], s: Rows[f32]) -> Outputs:
    return outputs(y=row_sum(x) + s)


# ------------------------------------------------------------------ results and inputs of other kinds
@operator
def counted_up(a: Matrix[i32], b: Matrix[i32]) -> Outputs:
    """Nothing but whole numbers."""
    return outputs(y=where(a < b, a + 1, b), z=convert(a, u32))


@operator
def bumped(a: Matrix[i32], c: Cols[i32]) -> Outputs:
    return outputs(y=a + c + column_index())


@pytest.mark.slow
@pytest.mark.parametrize("device", (*DEVICES, "scalar"))
@pytest.mark.parametrize("op", [counted_up, bumped], ids=lambda op: op.name)
def test_whole_numbers_alone(op: Operator, device: str) -> None:
    """Ended in a KeyError, and on GPUs in a source that did not compile."""
    assert fault(op, device, (3, 17), (2, 16), (1, 1), (0, 3)) is None


@pytest.mark.slow
def test_whole_numbers_alone_are_verified() -> None:
    for device in DEVICES:
        assert tokitai.verify(counted_up, device=device).verdict == "verified"


@operator(contract=Contract(places=("first",)))
def first_positive(x: Matrix[storage]) -> Outputs:
    """The first column that is above zero; the number of columns where none is."""
    return outputs(first=row_first(x > 0))


def test_places_need_no_option_k() -> None:
    x = np.array([[-1, 2, 3], [-1, -1, -1]], np.float32)
    found = first_positive(x)
    assert found.dtype == np.int32 and found.tolist() == [1, 3]
    out = np.empty(2, np.int32)
    assert first_positive(x, out=out) is out and out.tolist() == [1, 3]


@function
def bend(x: Value, y: Value) -> Value:
    return fma(x, y, 1) / maximum(abs(y), 0.5)


@operator
def bent(a: Matrix[storage], u: Rows[f32]) -> Outputs:
    """A function of two values, one of which all elements share."""
    return outputs(y=bend(a, 2), z=bend(u, a), w=bend(a, a))


@pytest.mark.parametrize("device", DEVICES)
def test_a_function_takes_values_of_several_spaces(device: str) -> None:
    assert fault(bent, device, (3, 130), (2, 5)) is None


@operator(contract=Contract(lists=True))
def scattered(a: Matrix[f32]) -> Outputs:
    """A scalar that differs from tensor to tensor, made of a total."""
    total = total_sum(a)
    return outputs(y=a * round_stochastic(total, tensor_index(), bf16))


@pytest.mark.parametrize("device", DEVICES)
def test_a_scalar_of_a_tensor_may_be_made_of_a_total(device: str) -> None:
    assert fault(scattered, device, (1, 37)) is None


@operator
def constant_beside(a: Matrix[f32], *, p: float = 0.5) -> Outputs:
    """A scalar that no total is in."""
    return outputs(y=a * 2, scale=convert(p, f32) * 3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_scalar_result_without_a_total_is_written(device: str) -> None:
    assert fault(constant_beside, device, (3, 17), (0, 4), (2, 0)) is None


@operator(contract=Contract(max_rows=1))
def of_one_row(a: Matrix[f32]) -> Outputs:
    """At most one row, and no lists: what it takes is a matrix."""
    return outputs(y=a - total_sum(a))


@pytest.mark.parametrize("device", DEVICES)
def test_at_most_one_row_is_not_a_list(device: str) -> None:
    assert fault(of_one_row, device, (1, 37), (0, 4), (1, 0)) is None
    row = np.arange(5, dtype=np.float32)[None]
    assert np.array_equal(of_one_row(row), row - 10)
    with pytest.raises(ArgumentError, match="rows=2, cols=5; accepted: at most 1 rows"):
        of_one_row(np.ones((2, 5), np.float32))


def test_a_scalar_result_of_an_operator_on_lists() -> None:
    @operator(contract=Contract(lists=True))
    def own(a: Matrix[f32], *, p: float) -> Outputs:
        return outputs(y=a * 2, scale=convert(p, f32) * 3)

    y, scale = own(np.ones((2, 3), np.float32), p=0.5)
    assert scale == 1.5 and y.shape == (2, 3) and (y == 2).all()


@operator
def table_beside(a: Matrix[f32], table: Table[f32]) -> Outputs:
    """A table that is not used makes no element-wise kernel of it."""
    return outputs(y=a * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_table_that_is_not_used_does_no_harm(device: str) -> None:
    assert fault(table_beside, device, (3, 17)) is None
