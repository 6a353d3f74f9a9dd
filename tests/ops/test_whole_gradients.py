"""Gradients of norms held against the derivative of the whole forward function, from x alone: a backward pass is given
statistics that were rounded, and no part of the result may hang on what their rounding left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from running import array, run

from tokitai import ops
from tokitai.lang import Cols, Matrix, Operator, Outputs, Rows, col_sum, columns, f32, fma, operator, outputs, row_sum
from tokitai.lang import storage as stored_format
from tokitai.meaning import bits, bounds
from tokitai.ops import layernorm
from tokitai.verification import cases
from tokitai.verification.accuracy import measure_error
from tokitai.verification.cases import Case
from tokitai.verification.run import CaseResult

Array = np.ndarray[Any, Any]
EPS = 1e-5
NORMS = [ops.layer_norm_backward, ops.add_layer_norm_backward, ops.rms_norm_backward, ops.add_rms_norm_backward]


def whole(x: Array, dy: Array, gamma: Array, kind: str) -> dict[str, Array]:
    """torch's derivative in f64, of rows from which their first element was taken where a norm does not see that: the
    difference is exact, so that f64 has all of it."""
    wide = x.astype(np.float64)
    wide = wide - wide[:, :1] if kind == "layer" else wide
    leaf, weight = (torch.tensor(a.astype(np.float64), requires_grad=True) for a in (wide, gamma))
    call = torch.nn.functional.layer_norm if kind == "layer" else torch.nn.functional.rms_norm
    call(leaf, (x.shape[1],), weight, eps=EPS).backward(torch.tensor(dy.astype(np.float64)))
    assert leaf.grad is not None and weight.grad is not None
    return dict(dx=leaf.grad.numpy(), dgamma=weight.grad.numpy()[None, :])


def statistics(x: Array, kind: str) -> dict[str, Array]:
    """What the forward pass stores for x, and how far 1/sqrt is off."""
    made = run(ops.layer_norm if kind == "layer" else ops.rms_norm, x=x, eps=EPS)
    return {n: made[n] for n in (("mean", "rstd") if kind == "layer" else ("rstd",))}


def away(x: Array, kind: str, rstd: Array) -> Array:
    wide = x.astype(np.longdouble)
    d = wide - wide.mean(axis=1, keepdims=True) if kind == "layer" else wide
    return np.abs(rstd - 1 / np.sqrt((d * d).mean(axis=1) + np.longdouble(EPS))).astype(np.float64)


def held(x: Array, dy: Array, gamma: Array, kind: str, saved: dict[str, Array]) -> None:
    """The kernel's gradients lie within the bound of the definition, which knows how far rstd is off and no more."""
    op = ops.layer_norm_backward if kind == "layer" else ops.rms_norm_backward
    got = run(op, dy=dy, x=x, gamma=gamma, **saved)
    tensors = dict(dy=dy, x=x, gamma=gamma, **saved)
    off = dict(rstd=away(x, kind, saved["rstd"]))
    limits = {n: e for n, (_, e) in bounds.evaluate(op.trace("f32"), tensors, x.shape, {}, off=off).items()}
    for name, want in whole(x, dy, gamma, kind).items():
        error = np.abs(got[name].reshape(want.shape) - want)
        limit = limits[name] + 2.0**-44 * np.abs(want).max(axis=-1, keepdims=True)  # the roundings of f64
        assert np.isfinite(limit).all() and (error <= limit).all(), (name, (error / limit).max())


def far_rows() -> Iterator[Any]:
    rng = np.random.default_rng(5)
    for cols in (1, 2, 3, 4, 7, 64, 1000):
        yield pytest.param(2.0**24 + 2 * np.arange(cols)[None, :], id=f"2**24, steps of 2, {cols} columns")
        yield pytest.param(np.full((2, cols), 1234.0), id=f"constant 1234, {cols} columns")
        yield pytest.param(np.full((2, cols), 0.1), id=f"constant 0.1, {cols} columns")
        for mean, spread in ((1e6, 0.1), (-3e4, 1e-2), (1e3, 1.0), (0.0, 1.0)):
            yield pytest.param(mean + spread * rng.standard_normal((5, cols)), id=f"{mean} +- {spread}, {cols} columns")


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("rows", list(far_rows()))
def test_a_gradient_is_that_of_the_whole_function(rows: Array, kind: str) -> None:
    rng = np.random.default_rng(rows.size)
    x, dy = array(rows), array(rng.standard_normal(rows.shape))
    gamma = array(rng.standard_normal(rows.shape[1]))
    held(x, dy, gamma, kind, statistics(x, kind))


@pytest.mark.parametrize("ulps", [-3, -1, 1, 3])
def test_any_number_near_the_mean_serves(ulps: int) -> None:
    rng = np.random.default_rng(8)
    x, dy = array(1e5 + rng.standard_normal((4, 300)) * 0.05), array(rng.standard_normal((4, 300)))
    saved = statistics(x, "layer")
    saved["mean"] = saved["mean"] + np.float32(ulps) * np.spacing(np.float32(1e5))
    held(x, dy, array(np.ones(300)), "layer", saved)


def test_steps_of_two_at_2_to_the_24() -> None:
    """The mean rounds to 2**24, half of the spread away: at it the gradient would be -0.67 in the second column."""
    x, dy = array([[2.0**24, 2.0**24 + 2]]), array([[1.0, 0.0]])
    dx = run(ops.layer_norm_backward, dy=dy, x=x, **statistics(x, "layer"))["dx"]
    want = whole(x, dy, array([1.0, 1.0]), "layer")["dx"]
    assert np.abs(want).max() < 1e-5
    assert np.abs(dx - want).max() <= 4 * 2.0**-24  # roundings of dy - shift - slope xhat, each of at most 1


def test_constant_rows_have_no_slope() -> None:
    for cols, value in [(c, v) for c in (1, 2, 3, 1000) for v in (14.0, 0.1, 16777217.0)]:
        x, dy = array(np.full((1, cols), value)), array(np.cos(np.arange(cols))[None, :])
        got = run(ops.layer_norm_backward, dy=dy, x=x, gamma=array(np.ones(cols)), **statistics(x, "layer"))
        assert (got["dgamma"] == 0).all()


# ------------------------------------------------------------------ that a verification sees it
@operator(contract=layernorm.CONTRACT, backward_of=ops.layer_norm, textbook=layernorm.textbook_backward)
def as_it_was(
    dy: Matrix[stored_format], x: Matrix[stored_format], gamma: Cols[stored_format] | None, mean: Rows[f32],
    rstd: Rows[f32],
) -> Outputs:  # fmt: skip
    """The chain rule at the mean that was stored, as this package had it."""
    n = columns(x)
    xhat = (x - mean) * rstd
    g = dy if gamma is None else dy * gamma
    slope = row_sum(g * xhat) / n
    results = dict(dx=fma(-slope, xhat, g - row_sum(g) / n) * rstd, dbeta=col_sum(dy))
    return outputs(**results, dgamma=col_sum(dy * xhat)) if gamma is not None else outputs(**results)


as_it_was.set_hard_inputs(ops.layer_norm_backward.hard_inputs)


def failures(op: Operator, dtype: str) -> list[str]:
    """Of the hard inputs in an operator's domain, those where its bits are further away than rounding explains."""
    graph, found = op.trace(dtype), []
    for case in cases.hard(op, graph):
        if case.in_domain:
            result = CaseResult(case.kind, case.name, case.shape, case.seed, case.id, {}, ())
            measure_error(graph, case, bits.evaluate(graph, case.tensors, case.shape, case.params), op, result)
            found += [case.name] if result.failure else []
    return found


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("op", NORMS, ids=str)
def test_verification_holds_gradients_to_the_whole_function(op: Operator, dtype: str) -> None:
    assert failures(op, dtype) == []


def test_verification_sees_a_gradient_that_is_taken_at_the_rounded_mean() -> None:
    found = failures(as_it_was, "f32")
    assert len(found) >= 10 and {n.partition(",")[0] for n in found} >= {"mean 2**24", "one step above 2**20"}


def test_a_case_says_what_the_forward_pass_saved() -> None:
    op = ops.add_layer_norm_backward
    graph = op.trace("f32")
    case = cases.seeded(op, graph, "normal", (3, 9), 1)
    assert set(case.saved) == {"mean", "rstd"}
    want = run(ops.layer_norm, x=case.tensors["h"], eps=case.params["eps"])
    assert all((case.tensors[n] == want[n]).all() for n in case.saved)
    given = [c for c in cases.hard(ops.rms_norm_backward, ops.rms_norm_backward.trace("f32")) if c.saved]
    assert given and all(isinstance(c, Case) and c.saved == ("rstd",) for c in given)
