"""Definitions as a reader writes them: each means what its kernels compute, or is refused with the reader's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from holding import DEVICES, fault

import tokitai
from tokitai.elementary import exp
from tokitai.errors import ArgumentError, DefinitionError
from tokitai.lang import (
    Cols,
    Contract,
    Index,
    Matrix,
    Operand,
    Operator,
    Outputs,
    Rows,
    Slots,
    Table,
    Value,
    bf16,
    col_sum,
    column_index,
    columns,
    convert,
    element_word,
    f32,
    f64,
    fma,
    function,
    i32,
    i64,
    matmul,
    maximum,
    operator,
    outputs,
    round_stochastic,
    row_first,
    row_max,
    row_sum,
    rows,
    storage,
    stored,
    take_column,
    tensor_index,
    total_max,
    total_sum,
    u32,
    weighted_sum,
    where,
)  # fmt: skip
from tokitai.lower import make_plan
from tokitai.meaning import bits

HERE = Path(__file__)


def line_of(marker: str) -> int:
    """The line of this file that ends in a comment with these words."""
    return next(i for i, text in enumerate(HERE.read_text().splitlines(), 1) if text.endswith(f"# {marker}"))


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


# ------------------------------------------------------------------ rows and columns of lists
@operator(contract=Contract(max_rows=1, max_cols=2**40))
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


@pytest.mark.parametrize("device", DEVICES)
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


@operator(contract=Contract(max_rows=1))
def scattered(a: Matrix[f32]) -> Outputs:
    """A scalar that differs from tensor to tensor, made of a total."""
    total = total_sum(a)
    return outputs(y=a * round_stochastic(total, tensor_index(), bf16))


@pytest.mark.parametrize("device", DEVICES)
def test_a_scalar_of_a_tensor_may_be_made_of_a_total(device: str) -> None:
    assert fault(scattered, device, (1, 37)) is None


# ------------------------------------------------------------------ refusals
def f64_input(a: Matrix[storage],
              wide: Matrix[f64]) -> Outputs:  # the f64 input
    return outputs(y=a)


def f64_result(a: Matrix[storage]) -> Outputs:
    return outputs(y=stored(a * 2, f64))  # the f64 result


def long_with_columns(
    a: Matrix[i64],  # the i64 matrix
) -> Outputs:
    return outputs(y=a + 1)


def of_each_tensor(a: Matrix[storage]) -> Outputs:
    return outputs(y=a, which=tensor_index())  # which tensor


def scores_of_attention(q: Operand[storage], k: Operand[storage], v: Operand[storage]) -> Outputs:
    s = matmul(q, k, "NT")  # the scores
    return outputs(y=weighted_sum(s, v), scores=s)


def column_of_attention(q: Operand[storage], k: Operand[storage], v: Operand[storage], u: Rows[storage]) -> Outputs:
    place = convert(column_index(), f32)  # the column
    return outputs(y=weighted_sum(matmul(q, k, "NT") * u, v), place=place)


def exp_of_f64(a: Matrix[f64]) -> Outputs:
    return outputs(y=convert(exp(a), f32))  # exp in f64


def maximum_of_text(a: Matrix[storage]) -> Outputs:
    return outputs(y=exp(a + "1"))  # type: ignore[operator]  # a text


REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (f64_input, "the f64 input", "the input wide in f64"),
    (f64_result, "the f64 result", "the result y in f64"),
    (long_with_columns, "the i64 matrix", "input of type i64 with columns"),
    (of_each_tensor, "which tensor", "the result which differs from tensor to tensor"),
    (scores_of_attention, "the scores", "the result scores, .* beside a weighted sum"),
    (column_of_attention, "the column", "the result place, .* beside a weighted sum"),
    (exp_of_f64, "exp in f64", "exp of a rows x cols f64 value"),
    (maximum_of_text, "a text", "'1' of type str"),
]


@pytest.mark.parametrize(("definition", "marker", "what"), REFUSED, ids=[d.__name__ for d, _, _ in REFUSED])
def test_a_refusal_names_the_readers_line(definition: Callable[..., Any], marker: str, what: str) -> None:
    where_ = re.escape(f"{HERE}:{line_of(marker)}: ")
    with pytest.raises(DefinitionError, match=f"^{where_}{what}.*; accepted: "):
        make_plan(operator(definition).trace("f16"))


def test_a_line_inside_the_package_is_never_named() -> None:
    """What a definition calls of the package does not hide whose line it is."""

    @operator
    def own(a: Matrix[storage], i: Rows[i32]) -> Outputs:
        return outputs(y=exp(take_column(a, i)), z=row_max(exp(a)))

    package = str(Path(tokitai.__file__).parent)
    graph = own.trace("f16")
    assert {n.origin.rpartition(":")[0] for n in graph.nodes} == {str(HERE)}
    assert not any(t.origin.startswith(package) for t in graph.inputs)


CONTRACTS: list[tuple[dict[str, Any], str]] = [
    (dict(switches={"on": "p"}), "the contract's switches name on; accepted: options: mode"),
    (dict(switches={"mode": "q"}), "the contract's switches name q; accepted: scalars: p"),
    (dict(indices={"x": Index()}), "the contract's indices name x, stored as storage; accepted: tensors of whole"),
    (dict(indices={"i": Index(besides="none")}), "the contract's indices may be the scalar none; accepted: scalars: p"),
    (dict(no_nan=("u",)), "the contract's no_nan names u; accepted: tensors of rows x cols"),
    (dict(draw={"x": "posative"}), "the contract's draw of x as 'posative'; accepted: positive, unit"),
    (dict(draw={"x": "saved"}), "the contract's draw of x as 'saved'; accepted: 'saved' where backward_of"),
]


@pytest.mark.parametrize(("said", "message"), CONTRACTS, ids=[m.split(";")[0][15:] for _, m in CONTRACTS])
def test_a_contract_that_does_not_fit_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=rf"test_own_definitions.py:\d+: {re.escape(message)}"):

        @operator(contract=Contract(**said))
        def own(x: Matrix[storage], u: Rows[f32], i: Rows[i32], *, p: float, mode: bool = False) -> Outputs:
            return outputs(y=x * u * p)


def test_places_that_are_no_results_are_refused() -> None:
    @operator(contract=Contract(places=("column",)))
    def own(x: Matrix[storage]) -> Outputs:
        return outputs(first=row_first(x > 0))

    with pytest.raises(DefinitionError, match=r"test_own_definitions.py:\d+: the contract's places name column; acc"):
        own.trace("f32")


def test_slots_need_the_option_that_counts_them() -> None:
    with pytest.raises(DefinitionError, match=r"test_own_definitions.py:\d+: an input of Slots.* without the option k"):

        @operator
        def own(x: Matrix[storage], w: Slots[f32]) -> Outputs:
            return outputs(y=x * w[0])

    with pytest.raises(DefinitionError, match="without the option k"):

        @operator
        def other(x: Matrix[storage], w: Slots[f32], *, k: Literal["two", "four"] = "two") -> Outputs:
            return outputs(y=x * w[0])


def test_a_definition_without_a_tensor_is_refused() -> None:
    """It was verified on the CPU and refuted on GPUs."""
    with pytest.raises(DefinitionError, match=r"test_own_definitions.py:\d+: .* without a tensor; accepted: a tensor"):

        @operator
        def own(x: Matrix[storage] | None, *, p: float) -> Outputs:
            return outputs(y=convert(p, f32))


@operator
def table_beside(a: Matrix[f32], table: Table[f32]) -> Outputs:
    """A table that is not used makes no element-wise kernel of it."""
    return outputs(y=a * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_a_table_that_is_not_used_does_no_harm(device: str) -> None:
    assert fault(table_beside, device, (3, 17)) is None
