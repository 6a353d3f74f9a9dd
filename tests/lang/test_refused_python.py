"""Python that would mean something else for values is refused at the user's line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from refusing import check_refused, collector

from tokitai.lang import (
    Matrix,
    columns,
    convert,
    f32,
    storage,
    u32,
    where,
)

REFUSED, refused = collector()


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


@pytest.mark.parametrize(("definition", "found", "accepted"), REFUSED, ids=lambda p: getattr(p, "__name__", ""))
def test_refused_at_the_users_line(definition: Callable[..., Any], found: str, accepted: str) -> None:
    check_refused(definition, found, accepted)
