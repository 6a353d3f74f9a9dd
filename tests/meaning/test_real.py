"""The meaning in real numbers: what the bits approximate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from tokitai import elementary, ops
from tokitai.elementary.exact import DECLARED, REAL
from tokitai.errors import TokitaiError
from tokitai.lang import Matrix, Operator, Value, bf16, f32, function, operator, round_to
from tokitai.lang.values import make
from tokitai.meaning import bits, bounds, real
from tokitai.meaning.derivative import gradient
from tokitai.verification import cases

DTYPES = ("f16", "bf16", "f32")
EPSILON = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ops.registry().values(), ids=str)
def test_bits_lie_near_the_real_numbers(op: Operator, dtype: str) -> None:
    """On plain noise. The graph has at most N operations on the way to a result and a tree of log2(rows + cols) sums;
    each rounds to f32 with 2^-24 of the largest number there is, and the store rounds once more."""
    shape = (6, 33)
    graph = op.trace(dtype)
    case = cases.seeded(op, graph, "normal", shape, seed=3)
    got = bits.evaluate(graph, case.tensors, case.shape, case.params)
    want = real.evaluate(graph, case.tensors, case.shape, case.params)
    sizes = [np.abs(a.astype(float)).max() for a in (*case.tensors.values(), *want.values()) if a.dtype.kind != "i"]
    depth = len(graph.nodes) + math.ceil(math.log2(sum(shape))) + 40 * len(graph.functions)
    largest = max(1.0, *sizes) ** 2 * shape[1]
    for o in graph.outputs:
        here = got[o.name].astype(REAL)
        with np.errstate(invalid="ignore"):  # an infinity is right where the real numbers have it
            error = np.where(here == want[o.name], 0, np.abs(here - want[o.name]))
        store = EPSILON.get(o.format, 0)
        finite = np.where(np.isfinite(want[o.name]), want[o.name], 0)
        assert (error <= depth * 2.0**-24 * largest + 2 * store * np.abs(finite)).all(), o.name


POINTS = np.concatenate([np.linspace(-12, 12, 481), [0.0, 1e-30, -1e-30, 30.0, -30.0]])
SCIPY: dict[str, Any] = {
    "erf": special.erf,
    "erfc": special.erfc,
    "normal_cdf": special.ndtr,
    "sigmoid": special.expit,
    "gelu": lambda x: x * special.ndtr(x),
    "silu": lambda x: x * special.expit(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "tanh": np.tanh,
    "expm1": special.expm1,
    "log1p": lambda x: special.log1p(np.abs(x)),
    "exp": np.exp,
    "exp_down": np.exp,
    "exp_short": lambda x: np.exp(np.minimum(x, 0)),
    "exp2": np.exp2,
    "log": lambda x: np.log(np.abs(x)),
    "sin": np.sin,
    "cos": np.cos,
}


@pytest.mark.parametrize("name", SCIPY)
def test_functions_agree_with_scipy_in_f64(name: str) -> None:
    """Within a few roundings of f64. One of the argument of exp(-x**2/2) is worth x**2 of the result; each side has
    two of them in the tails of the normal distribution."""
    x = np.where(POINTS == 0, 0.5, POINTS) if name == "log" else POINTS
    argument = np.abs(x) if name in ("log", "log1p") else x
    got = DECLARED[name].value(argument.astype(REAL)).astype(np.float64)
    want = SCIPY[name](x)
    assert (np.abs(got - want) <= (2 * x * x + 8) * 2.0**-52 * np.abs(want)).all()


def test_functions_at_the_ends() -> None:
    ends = np.array([-np.inf, np.inf, np.nan, -0.0], REAL)
    with np.errstate(all="ignore"):
        for name, at_minus, at_plus in [
            ("gelu", -0.0, np.inf), ("gelu_tanh", -0.0, np.inf), ("silu", -0.0, np.inf), ("sigmoid", 0, 1),
            ("normal_cdf", 0, 1), ("gelu_slope", 0, 1), ("gelu_tanh_slope", 0, 1), ("silu_slope", 0, 1),
            ("softplus", 0, np.inf),
        ]:  # fmt: skip
            got = DECLARED[name].value(ends)
            assert (got[0], got[1]) == (at_minus, at_plus) and np.isnan(got[2]), name
            assert not (at_minus == 0 and np.signbit(at_minus)) or np.signbit(got[0])


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_slopes_are_the_slopes(name: str) -> None:
    """Central differences of f64-accurate functions: 2^-17 wide, so that both errors stay near 2^-34."""
    x = np.linspace(-6, 6, 241).astype(REAL)
    h = REAL(2.0**-17)
    slope = (DECLARED[name].value(x + h) - DECLARED[name].value(x - h)) / (2 * h)
    np.testing.assert_allclose(
        DECLARED[f"{name}_slope"].value(x).astype(float), slope.astype(float), rtol=0, atol=2.0**-31
    )


def test_every_function_of_the_language_has_a_real_meaning() -> None:
    """So that what a function is meant to be does not come from its own polynomial."""
    assert set(elementary.__all__) == set(DECLARED)
    probe = Value(make("input", space="s", type="f32", data=("probe", "f32")))
    for name in elementary.__all__:
        body = getattr(elementary, name)(probe).node.body
        assert body.name == name and body.real is DECLARED[name]


def test_a_function_of_the_readers_own_is_not_taken_for_one_of_its_name() -> None:
    @function
    def silu(x: Value) -> Value:
        return x * 2

    def doubled(x: Matrix[f32]) -> Any:
        return silu(x)

    x = np.array([[1.0, -3.0]], np.float32)
    graph = operator(doubled).trace("f32")
    assert (real.evaluate(graph, dict(x=x), x.shape, {})["y"] == x * 2).all()
    made = gradient(graph, dict(x=x), x.shape, {}, dict(y=np.ones((1, 2))))
    assert (made["x"] == 2).all()
    with pytest.raises(TokitaiError, match="silu: no error bound is known"):
        bounds.evaluate(graph, dict(x=x), x.shape, {})


def halfway_rounded(x: Matrix[f32]) -> Any:
    return round_to(x, bf16) + x


def test_rounding_to_storage_is_part_of_the_definition() -> None:
    x = np.array([[1 + 2.0**-9 + 2.0**-20]], np.float32)
    got = real.evaluate(operator(halfway_rounded).trace("f32"), dict(x=x), (1, 1), {})["y"]
    assert got[0, 0] == 1 + REAL(x[0, 0])
