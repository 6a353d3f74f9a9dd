"""Operands of the wrong type, space or size are refused at the user's line; so are functions that are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from refusing import check_refused, collector

from tokitai.errors import DefinitionError
from tokitai.lang import (
    Cols,
    Matrix,
    Rows,
    Value,
    bf16,
    bit_xor,
    col_sum,
    column_index,
    columns,
    convert,
    f32,
    fma,
    function,
    i32,
    multiply_high,
    operator,
    outputs,
    round_to,
    row_max,
    row_sum,
    shift_right,
    sqrt,
    storage,
    stored,
    take_column,
    u32,
    where,
)

REFUSED, refused = collector()


# ------------------------------------------------------------------ types and spaces
@refused("add of a rows x cols f32 value (input), a one-per-row i32 value (input)", "convert(x, f32)")
def mixed_types(x: Matrix[storage], t: Rows[i32]) -> Any:
    return x + t  # here


@refused("row_sum of a one-per-row f32 value (input)", "a rows x cols value")
def sum_of_a_row_value(x: Matrix[storage], r: Rows[storage]) -> Any:
    return x * row_sum(r)  # here


@refused("row_max of a one-per-column f32 value (input)", "a rows x cols value")
def maximum_of_a_column_value(x: Matrix[storage], c: Cols[storage]) -> Any:
    return x * row_max(c)  # here


@refused("col_sum of a one-per-column f32 value (input)", "a value with one element a row")
def sum_down_a_column_value(x: Matrix[storage], c: Cols[storage]) -> Any:
    return x * col_sum(c)  # here


@refused("row_sum of a rows x cols i32 value (input)", "an f32 or f64 value")
def sum_of_integers(x: Matrix[i32]) -> Any:
    return row_sum(x)  # here


@refused("sqrt of a rows x cols i32 value (input)", "f32 or f64 values")
def root_of_integers(x: Matrix[i32]) -> Any:
    return sqrt(x)  # here


@refused("neg of a rows x cols i32 value (input)", "an f32 or f64 value")
def negated_integer(x: Matrix[i32]) -> Any:
    return -x  # here


@refused("neg of a rows x cols bool value (lt)", "an f32 or f64 value")
def negated_condition(x: Matrix[storage]) -> Any:
    return where(-(x < 0.0), x, 0.0)  # here


@refused("division of a rows x cols i32 value", "floating-point values")
def divided_integer(x: Matrix[i32]) -> Any:
    return x / 2  # here


@refused("the number 0.5 beside an integer value", "a whole number")
def fraction_beside_an_integer(x: Matrix[i32]) -> Any:
    return x + 0.5  # here


@refused("the whole number 2147483648 beside a value of type i32", "-2147483648 to 2147483647")
def integer_out_of_range(x: Matrix[i32]) -> Any:
    return x + 2**31  # here


@refused("the whole number -1 beside a value of type u32", "0 to 4294967295")
def negative_unsigned(x: Matrix[u32]) -> Any:
    return bit_xor(x, -1)  # here


@refused("the whole number 9007199254740993", "2**53")
def huge_integer(x: Matrix[storage]) -> Any:
    return x + (2**53 + 1)  # here


@refused("the whole number 1" + "0" * 400, "2**53")
def absurd_integer_beside_a_scalar(x: Matrix[storage], *, eps: float) -> Any:
    return x + eps * 10**400  # here


@refused("the constant nan", "finite numbers and infinities")
def not_a_number(x: Matrix[storage]) -> Any:
    return x + math.nan  # here


@refused("the constant nan", "finite numbers and infinities")
def not_a_number_beside_a_scalar(x: Matrix[storage], *, eps: float) -> Any:
    return x + eps * math.nan  # here


@refused("add of a host scalar and a value of type i32", "f32 or f64 values beside host scalars")
def scalar_beside_integer(x: Matrix[i32], *, eps: float) -> Any:
    return x + eps  # here


@refused("add of a rows x cols bool value (lt), a rows x cols f32 value (input)", "operands of one type")
def arithmetic_with_a_condition(x: Matrix[storage]) -> Any:
    return (x < 0.0) + x  # here


@refused("add of a rows x cols bool value (lt)", "& | ~")
def sum_of_conditions(x: Matrix[storage]) -> Any:
    return where((x < 0.0) + (x < 1.0), x, 0.0)  # here


@refused("eq of a rows x cols bool value (lt)", "& | ~ for conditions")
def compared_conditions(x: Matrix[storage]) -> Any:
    return where((x < 0.0) == (x < 1.0), x, 0.0)  # here


@refused("logical_and of a rows x cols f32 value (input)", "conditions")
def logic_of_numbers(x: Matrix[storage]) -> Any:
    return where((x < 0.0) & x, x, 0.0)  # here


@refused("logical_or of a condition on numbers and one on indices", "nested where")
def logic_of_both_kinds(x: Matrix[storage]) -> Any:
    return where((x < 0.0) | (column_index() == 0), x, 0.0)  # here


@refused("where(True, ...)", "a condition, made by")
def where_of_a_python_bool(x: Matrix[storage]) -> Any:
    return where(True, x, 0.0)  # type: ignore[arg-type]  # here


@refused("where(..., a rows x cols bool value (lt), a rows x cols bool value (le))", "& | ~ between conditions")
def choice_of_conditions(x: Matrix[storage]) -> Any:
    return where(where(x < 0.0, x < 1.0, x <= 2.0), x, 0.0)  # here


@refused("where(...) of integers by a condition on floating-point values", "a condition on integers and indices")
def integers_by_numbers(x: Matrix[storage]) -> Any:
    return x * convert(where(x < 0.0, column_index(), 0), f32)  # here


@refused("convert(a rows x cols f32 value (input), i32)", "integers to any type")
def number_to_integer(x: Matrix[storage]) -> Any:
    return convert(x, i32)  # here


@refused("convert(..., bf16)", "round_to(x, f16)")
def converted_to_storage(x: Matrix[storage]) -> Any:
    return convert(x, bf16)  # here


@refused("round_to(..., i32)", "storage, f16, bf16 or f32")
def rounded_to_integer(x: Matrix[storage]) -> Any:
    return round_to(x, i32)  # here


@refused("the format 'f16'", "storage or one of f16")
def format_as_text(x: Matrix[storage]) -> Any:
    return outputs(y=stored(x, "f16"))  # here


@refused("a shift by 40", "a Python int from 0 to 31")
def far_shift(x: Matrix[u32]) -> Any:
    return shift_right(x, 40)  # here


@refused("a shift by -1", "a Python int from 0 to 31")
def backward_shift(x: Matrix[u32]) -> Any:
    return shift_right(x, -1)  # here


@refused("int_mulhi of a rows x cols i32 value", "u32 values")
def high_product_of_signed(x: Matrix[i32]) -> Any:
    return multiply_high(x, 3)  # here


@refused("take_column with the index a rows x cols i32 value", "one a row")
def index_of_the_wrong_space(x: Matrix[storage], t: Matrix[i32]) -> Any:
    return take_column(x, t)  # here


@refused("take_column with the index 0", "one a row")
def index_that_is_a_number(x: Matrix[storage]) -> Any:
    return take_column(x, 0)  # type: ignore[arg-type]  # here


# ------------------------------------------------------------------ functions
@function
def two_arguments(a: Value, b: Value) -> Value:
    return fma(a, b, a)


@function
def rounds_to_storage(a: Value) -> Value:
    return round_to(a, storage)  # inside


@function
def counts_columns(a: Value) -> Value:
    return a / columns(a)


@function
def returns_a_pair(a: Value) -> Any:
    return a, a


@refused("two_arguments of 1 arguments", "2")
def too_few_arguments(x: Matrix[storage]) -> Any:
    return two_arguments(x)  # here


@refused("two_arguments of a rows x cols i32 value", "f32 or f64 values")
def function_of_integers(x: Matrix[i32]) -> Any:
    return two_arguments(x, x)  # here


@refused("the function counts_columns uses a scalar host value (columns)", "its parameters and constants")
def function_that_knows_the_shape(x: Matrix[storage]) -> Any:
    return counts_columns(x)  # here


@refused("the function returns_a_pair returns (", "one f32 value")
def function_of_two_results(x: Matrix[storage]) -> Any:
    return returns_a_pair(x)  # here


@pytest.mark.parametrize(("definition", "found", "accepted"), REFUSED, ids=lambda p: getattr(p, "__name__", ""))
def test_refused_at_the_users_line(definition: Callable[..., Any], found: str, accepted: str) -> None:
    check_refused(definition, found, accepted)


def test_storage_inside_a_function_is_refused_for_it_serves_all_formats() -> None:
    def definition(x: Matrix[storage]) -> Any:
        return rounds_to_storage(x)

    with pytest.raises(DefinitionError, match=r"storage in a function, which serves all formats; accepted: f16"):
        operator(definition).trace("f16")
