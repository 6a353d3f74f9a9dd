"""Signatures and results that no operator can have are refused at the definition's own line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from tokitai.errors import DefinitionError
from tokitai.families.rowwise.plan import plan_rows
from tokitai.lang import (
    Cols,
    Matrix,
    Rows,
    col_sum,
    columns,
    f16,
    f32,
    i32,
    i64,
    operator,
    outputs,
    row_sum,
    rows,
    storage,
    stored,
)


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
        (bare_matrix, "the parameter x: <class", "Slots[...], Table[...] or Operand[...] of a format"),
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
