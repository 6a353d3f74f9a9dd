"""What the tracer refuses, it refuses at the user's line, with what was found and what would be accepted."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
    f16,
    f32,
    fma,
    function,
    i32,
    i64,
    multiply_high,
    operator,
    outputs,
    round_to,
    row_max,
    row_sum,
    rows,
    shift_right,
    sqrt,
    storage,
    stored,
    take_column,
    u32,
    where,
)

REFUSED: list[tuple[Callable[..., Any], str, str]] = []


def refused(found: str, accepted: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A definition whose line with `# here` must be refused, with these words in the message."""

    def note(definition: Callable[..., Any]) -> Callable[..., Any]:
        REFUSED.append((definition, found, accepted))
        return definition

    return note


# ------------------------------------------------------------------ Python that means something else for values
@refused("the truth of a rows x cols bool value (lt)", "where(condition, a, b)")
def truth(x: Matrix[storage]) -> Any:
    return x if x < 0.0 else -x  # here


@refused("the truth of a rows x cols bool value (lt)", "where")
def chained_comparison(x: Matrix[storage]) -> Any:
    return where(0.0 < x < 1.0, x, 0.0)  # here


@refused("iteration of a rows x cols f32 value (input)", "row_sum")
def iteration(x: Matrix[storage]) -> Any:
    return sum(x)  # here


@refused("iteration of a rows x cols f32 value (input)", "row_sum")
def length(x: Matrix[storage]) -> Any:
    return x / len(x)  # here


@refused("[0]", "take_column")
def item(x: Matrix[storage]) -> Any:
    return x[0]  # here


@refused("a rows x cols f32 value (input) ** 2", "x * x")
def square(x: Matrix[storage]) -> Any:
    return x**2  # here


@refused("** -1", "with a whole exponent")
def negative_power(x: Matrix[storage], *, beta: float) -> Any:
    return x * beta**-1  # here


@refused("** a scalar host value (param)", "an int parameter")
def broken_power(x: Matrix[storage], *, beta: float, step: float) -> Any:
    return x * beta**step  # here


@refused("a power of a rows x cols f32 value", "exp2")
def two_to_the(x: Matrix[storage]) -> Any:
    return 2.0**x  # here


@refused("the remainder % of", "+ - * /")
def remainder(x: Matrix[storage]) -> Any:
    return x % 2.0  # here


@refused("the whole quotient // of", "+ - * /")
def quotient(x: Matrix[storage]) -> Any:
    return x // 2.0  # here


@refused("the product @ of", "+ - * /")
def product(x: Matrix[storage]) -> Any:
    return x @ x  # here


@refused(">> of a rows x cols u32 value", "shift_right")
def shift_operator(x: Matrix[u32]) -> Any:
    return convert(x >> 3, f32)  # here


@refused("the Python number of a rows x cols f32 value", "instead of those of math")
def math_function(x: Matrix[storage]) -> Any:
    return math.sqrt(x)  # type: ignore[arg-type]  # here


@refused("the Python number of a scalar host value", "instead of those of math")
def math_of_a_scalar(x: Matrix[storage], *, eps: float) -> Any:
    return x + math.sqrt(eps)  # here


@refused("the Python number of", "tokitai.lang")
def whole_number(x: Matrix[storage]) -> Any:
    return x + int(columns(x))  # type: ignore[call-overload]  # here


@refused("numpy.exp of a rows x cols f32 value", "tokitai.lang")
def numpy_ufunc(x: Matrix[storage]) -> Any:
    return np.exp(x)  # type: ignore[call-overload]  # here


@refused("numpy.sum of a rows x cols f32 value", "tokitai.lang")
def numpy_function(x: Matrix[storage]) -> Any:
    return x / np.sum(x)  # type: ignore[call-overload]  # here


@refused("numpy.multiply of a rows x cols f32 value", "int and float")
def numpy_array_beside(x: Matrix[storage]) -> Any:
    return np.ones(3) * x  # here


@refused("numpy.multiply of a rows x cols f32 value", "int and float")
def numpy_scalar_on_the_left(x: Matrix[storage]) -> Any:
    return np.float32(2) * x  # here


@refused("np.float32(2.0) of type float32 in an expression", "int and float")
def numpy_scalar_on_the_right(x: Matrix[storage]) -> Any:
    return x * np.float32(2)  # here


@refused("as a NumPy array", "instead of NumPy's")
def numpy_array(x: Matrix[storage]) -> Any:
    return np.array(x)  # here


@refused("True of type bool in an expression", "int and float")
def a_bool_number(x: Matrix[storage]) -> Any:
    return x + True  # here


@refused("'1' of type str in an expression", "int and float")
def a_string(x: Matrix[storage]) -> Any:
    return x + "1"  # type: ignore[operator]  # here


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
    lines, first = inspect.getsourcelines(definition)
    line = first + next(i for i, text in enumerate(lines) if text.rstrip().endswith("# here"))
    with pytest.raises(DefinitionError) as caught:
        operator(definition).trace("f16")
    message = str(caught.value)
    assert message.startswith(f"{__file__}:{line}: "), message
    what, separator, would_do = message.removeprefix(f"{__file__}:{line}: ").partition("; accepted: ")
    assert separator and found in what and accepted in would_do, message


def test_storage_inside_a_function_is_refused_for_it_serves_all_formats() -> None:
    def definition(x: Matrix[storage]) -> Any:
        return rounds_to_storage(x)

    with pytest.raises(DefinitionError, match=r"storage in a function, which serves all formats; accepted: f16"):
        operator(definition).trace("f16")


# ------------------------------------------------------------------ refused at the definition's own line
def no_annotation(x, y: Cols[f32]):  # type: ignore[no-untyped-def]
    return x


def bare_matrix(x: Matrix) -> Any:  # type: ignore[type-arg]
    return x


def unknown_annotation(x: Matrix[storage], y: Vector[f32]) -> Any:  # type: ignore[name-defined]  # noqa: F821
    return x


def positional_scalar(x: Matrix[storage], eps: float) -> Any:
    return x + eps


def text_scalar(x: Matrix[storage], *, eps: str) -> Any:
    return x


def reserved_name(x: Matrix[storage], *, threads: float) -> Any:
    return x * threads


@pytest.mark.parametrize(
    ("definition", "found", "accepted"),
    [
        (no_annotation, "the parameter x: None of no_annotation", "Matrix[...]"),
        (bare_matrix, "the parameter x: <class", "Matrix[...], Rows[...] or Cols[...] of a format"),
        (unknown_annotation, "annotations of unknown_annotation cannot be read (name 'Vector'", "Matrix[...]"),
        (positional_scalar, "the parameter eps: <class 'float'>", "after * a float"),
        (text_scalar, "the parameter eps: <class 'str'>", "after * a float, int, bool or Literal[...]"),
        (reserved_name, "the parameter threads", "a name other than out, threads, copy"),
    ],
)
def test_signatures(definition: Callable[..., Any], found: str, accepted: str) -> None:
    line = inspect.getsourcelines(definition)[1]
    with pytest.raises(DefinitionError) as caught:
        operator(definition)
    message = str(caught.value)
    assert message.startswith(f"{__file__}:{line}: ") and found in message and accepted in message


def returns_a_list(x: Matrix[storage]) -> Any:
    return [x, x]


def returns_nothing(x: Matrix[storage]) -> Any:
    return outputs()


def returns_a_number(x: Matrix[storage]) -> Any:
    return outputs(y=x, one=1.0)


def returns_a_condition(x: Matrix[storage]) -> Any:
    return outputs(y=x < 0.0)


def replaces_another_space(x: Matrix[storage]) -> Any:
    return outputs(x=row_sum(x))


def replaces_another_kind(x: Matrix[storage], t: Rows[i32]) -> Any:
    return outputs(t=row_sum(x))


def replaces_in_another_format(x: Matrix[storage]) -> Any:
    return outputs(x=stored(x, f32))


def integers_stored_as_numbers(x: Matrix[i32]) -> Any:
    return outputs(y=stored(x, f16))


def numbers_stored_as_integers(x: Matrix[storage]) -> Any:
    return outputs(y=stored(x, i64))


@pytest.mark.parametrize(
    ("definition", "found", "accepted"),
    [
        (returns_a_list, "returns_a_list returns [a rows x cols", "outputs(name=value, ...) or a single value"),
        (returns_nothing, "returns_nothing returns {}", "outputs("),
        (returns_a_number, "the result one=1.0", "a value of the language"),
        (returns_a_condition, "the result y is a condition", "where(condition, 1, 0)"),
        (replaces_another_space, "the result x is a one-per-row f32 value (row_sum)", "the input's own space"),
        (replaces_another_kind, "the result t of type f32, stored as its input", "of its input, i32"),
        (replaces_in_another_format, "the result x of type f32, stored as f32", "format of its input, f16"),
        (integers_stored_as_numbers, "the result y of type i32 stored as f16", "a format of the same kind"),
        (numbers_stored_as_integers, "the result y of type f32 stored as i64", "a format of the same kind"),
    ],
)
def test_results(definition: Callable[..., Any], found: str, accepted: str) -> None:
    line = inspect.getsourcelines(definition)[1]
    with pytest.raises(DefinitionError) as caught:
        operator(definition).trace("f16")
    message = str(caught.value)
    assert message.startswith(f"{__file__}:{line}: ") and found in message and accepted in message, message


def test_a_later_definition_does_not_take_the_blame_for_an_earlier_one() -> None:
    """Equal nodes of two definitions have each their own origin."""
    from tokitai.lower.rowwise import plan_rows

    def first(x: Matrix[storage]) -> Any:
        return outputs(s=col_sum(x))

    def second(x: Matrix[storage]) -> Any:
        return x - col_sum(x)  # here

    operator(first).trace("f32")
    lines, start = inspect.getsourcelines(second)
    with pytest.raises(DefinitionError, match=rf"^{re.escape(__file__)}:{start + 1}: sub of a row with a column sum"):
        plan_rows(operator(second).trace("f32"))
    assert lines[1].endswith("# here\n")


def test_rows_is_a_scalar() -> None:
    def mean_of_all(x: Matrix[storage]) -> Any:
        return outputs(m=col_sum(row_sum(x)) / (rows(x) * columns(x)))

    (result,) = operator(mean_of_all).trace("f32").outputs
    assert (result.space, result.format) == ("s", "f32")
