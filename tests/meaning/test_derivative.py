"""A wrong gradient cannot hide behind an oracle that matches: backward definitions against the forward derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.elementary import exp, gelu_slope
from tokitai.elementary.exact import DECLARED, REAL
from tokitai.errors import DefinitionError
from tokitai.lang import (
    Cols,
    Contract,
    Matrix,
    Operator,
    Rows,
    col_sum,
    columns,
    f32,
    fma,
    function,
    maximum,
    operator,
    outputs,
    row_sum,
    rows,
    sqrt,
    storage,
    where,
)  # fmt: skip
from tokitai.meaning.derivative import check_backward, gradient

SHAPE = (5, 7)
BACKWARD = [op for op in ops.registry().values() if op.backward_of is not None]


@pytest.mark.parametrize("backward", BACKWARD, ids=str)
@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (1, 6), (40, 3)])
def test_every_backward_operator_is_the_derivative(backward: Operator, shape: tuple[int, int]) -> None:
    assert backward.backward_of is not None
    report = check_backward(backward, backward.backward_of, "f32", shape, seed=2)
    assert {name for name, _, _ in report} == {o.name for o in backward.trace("f32").outputs}
    for name, error, explained in report:
        assert error <= explained, f"{name}: {error} where rounding explains {explained}"
        # A bound that explains everything would pass everything: one f32 ulp of the largest element is already wrong.
        assert shape[1] == 1 or explained < 2.0**-24


@pytest.mark.parametrize("backward", BACKWARD, ids=str)
def test_every_option_has_its_derivative(backward: Operator) -> None:
    """Every other value of an option that both operators have, on a row that may be shorter than what is chosen."""
    forward = backward.backward_of
    assert forward is not None
    both = [o for o in backward.options if any(o.name == other.name for other in forward.options)]
    for options in [{o.name: v} for o in both for v in o.choices("f32") if v != o.default]:
        report = check_backward(backward, forward, "f32", SHAPE, seed=1, options=options)
        assert report and all(error <= explained for _, error, explained in report), options


def test_there_are_backward_operators() -> None:
    assert len(BACKWARD) >= 5


# ------------------------------------------------------------------ wrong gradients
WRONG: dict[str, tuple[Operator, Callable[..., Any], str]] = {}


def wrong(forward: Operator, result: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A backward definition of which this result is wrong."""

    def note(definition: Callable[..., Any]) -> Callable[..., Any]:
        WRONG[definition.__name__] = (forward, definition, result)
        return definition

    return note


@wrong(ops.rms_norm, "dx")
def weight_applied_twice(dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage], rstd: Rows[f32]) -> Any:
    xhat, g = x * rstd, dy * gamma
    slope = row_sum(g * gamma * xhat) / columns(x)
    return outputs(dx=fma(-slope, xhat, g) * rstd, dgamma=col_sum(dy * xhat))


@wrong(ops.rms_norm, "dgamma")
def weight_gradient_without_normalising(
    dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage], rstd: Rows[f32]
) -> Any:
    xhat, g = x * rstd, dy * gamma
    return outputs(dx=fma(-row_sum(g * xhat) / columns(x), xhat, g) * rstd, dgamma=col_sum(dy * x))


@wrong(ops.rms_norm, "dx")
def projection_missing(dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage], rstd: Rows[f32]) -> Any:
    return outputs(dx=dy * gamma * rstd, dgamma=col_sum(dy * x * rstd))


@wrong(ops.layer_norm, "dx")
def mean_term_missing(
    dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage], mean: Rows[f32], rstd: Rows[f32]
) -> Any:
    xhat, g = (x - mean) * rstd, dy * gamma
    slope = row_sum(g * xhat) / columns(x)
    return outputs(dx=fma(-slope, xhat, g) * rstd, dgamma=col_sum(dy * xhat), dbeta=col_sum(dy))


@wrong(ops.layer_norm, "dx")
def divided_by_one_less(
    dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage], mean: Rows[f32], rstd: Rows[f32]
) -> Any:
    xhat, g = (x - mean) * rstd, dy * gamma
    n = columns(x) - 1
    dx = fma(-(row_sum(g * xhat) / n), xhat, g - row_sum(g) / columns(x)) * rstd
    return outputs(dx=dx, dgamma=col_sum(dy * xhat), dbeta=col_sum(dy))


@wrong(ops.layer_norm, "dbeta")
def shift_gradient_weighted(
    dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage], mean: Rows[f32], rstd: Rows[f32]
) -> Any:
    return outputs(dbeta=col_sum(dy * gamma))


@wrong(ops.softmax, "dx")
def diagonal_alone(dy: Matrix[storage], y: Matrix[storage]) -> Any:
    return outputs(dx=y * dy * (1 - y))


@wrong(ops.softmax, "dx")
def sum_of_dy_alone(dy: Matrix[storage], y: Matrix[storage]) -> Any:
    return outputs(dx=y * (dy - row_sum(dy)))


@wrong(ops.gelu_erf, "dx")
def slope_of_the_negated(dy: Matrix[storage], x: Matrix[storage]) -> Any:
    return outputs(dx=dy * gelu_slope(-x))


@wrong(ops.gelu_tanh, "dx")
def slope_of_the_other_gelu(dy: Matrix[storage], x: Matrix[storage]) -> Any:
    """They differ by less than a thousandth: a test with a tolerance passes it."""
    return outputs(dx=dy * gelu_slope(x))


@wrong(ops.gelu_erf, "dx")
def off_by_three_millionths(dy: Matrix[storage], x: Matrix[storage]) -> Any:
    return outputs(dx=dy * gelu_slope(x) * (1 + 2.0**-18))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradients_are_found(name: str) -> None:
    forward, definition, result = WRONG[name]
    report = {n: (e, x) for n, e, x in check_backward(operator(definition), forward, "f32", SHAPE, seed=2)}
    error, explained = report[result]
    assert not error <= explained, f"{error} was explained by {explained}"
    for other in set(report) - {result}:
        assert report[other][0] <= report[other][1], other


def test_verify_refutes_a_wrong_gradient() -> None:
    """The kernel computes this definition bit for bit; the derivative still refutes it."""
    from tokitai.lang import Contract
    from tokitai.verification import verify
    from tokitai.verification.verdict import Variant

    wrong_op = operator(contract=Contract(formats=("f32",)), backward_of=ops.softmax)(diagonal_alone)
    verdict = verify(wrong_op, variant=Variant(frozenset()), shape=dict(rows=3, cols=9))
    assert verdict.verdict == "refuted" and verdict.exit_code == 1
    assert verdict.failure is not None and "dx is not the derivative of softmax: it differs by" in verdict.failure
    runs = [r for r in verdict.results if r.kind != "derivative"]
    assert all(r.equal for r in runs) and len(runs) > 50


# ------------------------------------------------------------------ results that would not be looked at
def forward_of_one(x: Matrix[storage], w: Cols[storage]) -> Any:
    return x * 2.0


def gradient_of_what_does_not_matter(dy: Matrix[storage], x: Matrix[storage], w: Cols[storage]) -> Any:
    return outputs(dx=dy * 2.0, dw=col_sum(dy * x))


def gradient_with_a_misspelt_name(dy: Matrix[storage]) -> Any:
    return outputs(dz=dy * 2.0)


def test_an_input_without_influence_has_a_zero_gradient() -> None:
    forward, backward = operator(forward_of_one), operator(gradient_of_what_does_not_matter)
    zeros = gradient(forward.trace("f32"), dict(x=np.ones((2, 3), REAL), w=np.ones(3, REAL)), (2, 3), {},
                     dict(y=np.ones((2, 3))))  # fmt: skip
    assert zeros["w"].shape == (1, 3) and not zeros["w"].any()
    report = {n: (e, x) for n, e, x in check_backward(backward, forward, "f32", SHAPE, seed=1)}
    assert report["dx"][0] <= report["dx"][1]
    assert not report["dw"][0] <= report["dw"][1]


def test_a_result_that_is_named_after_no_input_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"the result dz; accepted: dx, dw"):
        check_backward(operator(gradient_with_a_misspelt_name), operator(forward_of_one), "f32", SHAPE, seed=1)


def test_every_function_with_a_real_meaning_has_a_slope_or_is_one() -> None:
    assert {n for n, f in DECLARED.items() if f.derivative is None} == {n for n in DECLARED if n.endswith("_slope")}


# ------------------------------------------------------------------ right gradients that were refuted
@operator(contract=Contract(draw={"var": "positive"}, defaults={"eps": 1e-5}))
def batch_norm(
    x: Matrix[storage], mean: Cols[f32], var: Cols[f32], gamma: Cols[storage], beta: Cols[storage], *, eps: float
) -> Any:
    return outputs(y=fma((x - mean) / sqrt(var + eps), gamma, beta))


@operator(contract=Contract(draw={"var": "positive"}, defaults={"eps": 1e-5}), backward_of=batch_norm)
def batch_norm_backward(
    dy: Matrix[storage], x: Matrix[storage], mean: Cols[f32], var: Cols[f32], gamma: Cols[storage], *, eps: float
) -> Any:
    """Of running statistics: variances are what the contract says that they are."""
    rstd = 1 / sqrt(var + eps)
    return outputs(dx=dy * gamma * rstd, dgamma=col_sum(dy * (x - mean) * rstd), dbeta=col_sum(dy))


@operator
def mean_square(x: Matrix[storage]) -> Any:
    """A scalar of the whole call."""
    return outputs(loss=col_sum(row_sum(x * x)) / (rows(x) * columns(x)))


@operator(backward_of=mean_square)
def mean_square_backward(dloss: Rows[f32], x: Matrix[storage]) -> Any:
    """The gradient of the scalar, which each row has."""
    return outputs(dx=dloss * x * 2 / (rows(x) * columns(x)))


@operator(backward_of=mean_square)
def mean_square_backward_expanded(dloss: Matrix[f32], x: Matrix[storage]) -> Any:
    return outputs(dx=dloss * x * 2 / (rows(x) * columns(x)))


@operator(backward_of=mean_square)
def mean_square_backward_on_the_host(x: Matrix[storage], *, dloss: float) -> Any:
    return outputs(dx=x * (dloss * 2 / (rows(x) * columns(x))))


@operator
def scaled_rows(x: Matrix[storage]) -> Any:
    rstd = 1 / sqrt(row_sum(x * x) + 1)
    return outputs(y=x * rstd, rstd=rstd)


@operator(backward_of=scaled_rows)
def scaled_rows_backward(dy: Matrix[storage], drstd: Matrix[f32], x: Matrix[storage], rstd: Matrix[f32]) -> Any:
    """A row's own values, expanded: its statistic, and the gradient of that."""
    slope = (row_sum(dy * x) + drstd) * rstd * rstd * rstd
    return outputs(dx=dy * rstd - slope * x)


@function
def bent(x: Any, y: Any) -> Any:
    return fma(x, y, exp(x)) / maximum(abs(y), 0.5)


@operator
def by_own_function(x: Matrix[f32], c: Cols[f32]) -> Any:
    return outputs(y=bent(x, c))


@operator(backward_of=by_own_function)
def by_own_function_backward(dy: Matrix[f32], x: Matrix[f32], c: Cols[f32]) -> Any:
    divisor = maximum(abs(c), 0.5)
    through = where(abs(c) >= 0.5, fma(x, c, exp(x)) / divisor * where(c < 0, -1, 1), 0)
    return outputs(dx=dy * (c + exp(x)) / divisor, dc=col_sum(dy * (x - through) / divisor))


RIGHT = [
    batch_norm_backward, mean_square_backward, mean_square_backward_expanded, mean_square_backward_on_the_host,
    scaled_rows_backward, by_own_function_backward,
]  # fmt: skip


@pytest.mark.parametrize("backward", RIGHT, ids=str)
def test_a_right_gradient_is_not_refuted(backward: Operator) -> None:
    assert backward.backward_of is not None
    report = check_backward(backward, backward.backward_of, "f32", SHAPE, seed=1)
    assert report and all(error <= explained < 2.0**-24 for _, error, explained in report), report


def test_a_wrong_gradient_of_what_is_expanded_is_seen() -> None:
    @operator(backward_of=mean_square)
    def halved(dloss: Rows[f32], x: Matrix[storage]) -> Any:
        return outputs(dx=dloss * x / (rows(x) * columns(x)))

    @operator(backward_of=by_own_function)
    def one_sided(dy: Matrix[f32], x: Matrix[f32], c: Cols[f32]) -> Any:
        return outputs(dx=dy * c / maximum(abs(c), 0.5))

    for backward, forward in ((halved, mean_square), (one_sided, by_own_function)):
        ((_, error, explained),) = check_backward(backward, forward, "f32", SHAPE, seed=1)
        assert error > 0.1 > explained


def test_a_gradient_of_another_size_is_refused() -> None:
    @operator(backward_of=mean_square)
    def of_each_row(dloss: Rows[f32], x: Matrix[storage]) -> Any:
        return outputs(dx=dloss * row_sum(x))

    message = r"test_derivative.py:\d+: the result dx of 5 x 1 elements; accepted: as many as x has, 5 x 7"
    with pytest.raises(DefinitionError, match=message):
        check_backward(of_each_row, mean_square, "f32", SHAPE, seed=1)

    @operator(backward_of=scaled_rows)
    def of_one(dy: Rows[f32], x: Matrix[storage]) -> Any:
        return outputs(dx=dy * x)

    message = r"test_derivative.py:\d+: the gradient dy of 5 x 1 elements; accepted: as many as y has, 5 x 7, or those"
    with pytest.raises(DefinitionError, match=message):
        check_backward(of_one, scaled_rows, "f32", SHAPE, seed=1)


def test_a_backward_pass_that_takes_no_gradient_is_refused() -> None:
    """Its results were held against zeros."""

    @operator(backward_of=scaled_rows)
    def own(grad: Matrix[storage], x: Matrix[storage]) -> Any:
        return outputs(dx=grad * x)

    message = r"test_derivative.py:\d+: own takes the gradient of no result of scaled_rows; accepted: dy, drstd"
    with pytest.raises(DefinitionError, match=message):
        check_backward(own, scaled_rows, "f32", SHAPE, seed=1)


def test_a_function_without_a_derivative_is_refused_by_name() -> None:
    @operator
    def forward(x: Matrix[f32]) -> Any:
        return outputs(y=gelu_slope(x))

    @operator(backward_of=forward)
    def backward(dy: Matrix[f32], x: Matrix[f32]) -> Any:
        return outputs(dx=dy)

    message = r"test_derivative.py:\d+: no derivative of gelu_slope is known; accepted: "
    with pytest.raises(DefinitionError, match=message):
        check_backward(backward, forward, "f32", SHAPE, seed=1)
