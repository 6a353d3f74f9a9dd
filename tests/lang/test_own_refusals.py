"""Definitions that kernels cannot hold, and contracts that do not fit: refused with the reader's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import tokitai
from tokitai.elementary import exp
from tokitai.errors import DefinitionError
from tokitai.families import make_plan
from tokitai.lang import (
    Cols,
    Contract,
    Groups,
    Index,
    Matrix,
    Operand,
    Outputs,
    Rows,
    Slots,
    Table,
    column_index,
    convert,
    f32,
    f64,
    grouped_matmul,
    i32,
    i64,
    matmul,
    operator,
    outputs,
    row_first,
    row_max,
    row_sum,
    slots,
    storage,
    stored,
    take_column,
    tensor_index,
    weighted_sum,
)  # fmt: skip

HERE = Path(__file__)


def line_of(marker: str) -> int:
    """The line of this file that ends in a comment with these words."""
    return next(i for i, text in enumerate(HERE.read_text().splitlines(), 1) if text.endswith(f"# {marker}"))


# ------------------------------------------------------------------ refusals
def f64_input(a: Matrix[storage], wide: Matrix[f64]) -> Outputs:  # the f64 input
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


def sum_of_slots(a: Matrix[storage]) -> Outputs:
    both = slots(row_max(a), row_sum(a))
    return outputs(y=both + 1)  # a sum of slots


def table_in_a_product(
    x: Operand[storage],
    w: Operand[storage],
    table: Table[f32],  # the table in a product
) -> Outputs:
    return outputs(y=matmul(x, w))


def column_in_attention(
    q: Operand[storage],
    k: Operand[storage],
    c: Cols[f32],  # the column in attention
) -> Outputs:
    return outputs(y=weighted_sum(matmul(q, k, "NT"), k))


def replaced_too_early(a: Matrix[f32], b: Matrix[f32]) -> Outputs:
    top = row_max(b)
    return outputs(y=a * top, a=b * 2)  # replaced too early


REFUSED: list[tuple[Callable[..., Any], str, str]] = [
    (f64_input, "the f64 input", "the input wide in f64"),
    (f64_result, "the f64 result", "the result y in f64"),
    (long_with_columns, "the i64 matrix", "input of type i64 with columns"),
    (of_each_tensor, "which tensor", "the result which, a scalar made of tensor_index"),
    (scores_of_attention, "the scores", "the result scores, .* beside a weighted sum"),
    (column_of_attention, "the column", "the result place, .* beside a weighted sum"),
    (sum_of_slots, "a sum of slots", "add of several values a row"),
    (table_in_a_product, "the table in a product", "the input table, a table, beside a product"),
    (column_in_attention, "the column in attention", "the input c beside a weighted sum"),
    (replaced_too_early, "replaced too early", "the result a replaces an input that is read again"),
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
    (dict(lists=True), "an operator on lists with the input u; accepted: inputs of Matrix[...] alone"),
]


@pytest.mark.parametrize(("said", "message"), CONTRACTS, ids=[m.split(";")[0][15:] for _, m in CONTRACTS])
def test_a_contract_that_does_not_fit_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=rf"test_own_refusals.py:\d+: {re.escape(message)}"):

        @operator(contract=Contract(**said))
        def own(x: Matrix[storage], u: Rows[f32], i: Rows[i32], *, p: float, mode: bool = False) -> Outputs:
            return outputs(y=x * u * p)


def test_places_that_are_no_results_are_refused() -> None:
    @operator(contract=Contract(places=("column",)))
    def own(x: Matrix[storage]) -> Outputs:
        return outputs(first=row_first(x > 0))

    with pytest.raises(DefinitionError, match=r"test_own_refusals.py:\d+: the contract's places name column; acc"):
        own.trace("f32")


def test_slots_need_the_option_that_counts_them() -> None:
    with pytest.raises(DefinitionError, match=r"test_own_refusals.py:\d+: an input of Slots.* without the option k"):

        @operator
        def own(x: Matrix[storage], w: Slots[f32]) -> Outputs:
            return outputs(y=x * w[0])

    with pytest.raises(DefinitionError, match="without the option k"):

        @operator
        def other(x: Matrix[storage], w: Slots[f32], *, k: Literal["two", "four"] = "two") -> Outputs:
            return outputs(y=x * w[0])


def test_a_definition_without_a_tensor_is_refused() -> None:
    """It was verified on the CPU and refuted on GPUs."""
    with pytest.raises(DefinitionError, match=r"test_own_refusals.py:\d+: .* without a tensor; accepted: a tensor"):

        @operator
        def own(x: Matrix[storage] | None, *, p: float) -> Outputs:
            return outputs(y=convert(p, f32))


def test_groups_that_kernels_cannot_read_are_refused() -> None:
    @operator
    def own(x: Operand[storage], w: Operand[storage], ends: Groups[i32]) -> Outputs:
        return outputs(y=grouped_matmul(x, w, ends))

    with pytest.raises(DefinitionError, match=r"test_own_refusals.py:\d+: the groups ends stored as i32; accept"):
        own.trace("f32")


def test_a_value_a_row_beside_a_batch_of_products_is_refused() -> None:
    """Kernels read one for all products, the definition one for each: other numbers in silence."""

    @operator(contract=Contract(batched=True))
    def own(x: Operand[storage], w: Operand[storage], u: Rows[f32]) -> Outputs:
        return outputs(y=matmul(x, w) + u)

    with pytest.raises(DefinitionError, match=r"test_own_refusals.py:\d+: the input u with one value a row beside"):
        own.trace("f32")
