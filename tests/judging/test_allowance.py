"""The rounding-error bound in any order: never less than the definition's own bound, and enough for every order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokitai.elementary import exp
from tokitai.elementary.exact import REAL
from tokitai.judging.allowance import allowed
from tokitai.lang import Matrix, Outputs, col_sum, operator, outputs, row_sum, sqrt, storage
from tokitai.meaning import bounds, real
from tokitai.ops import get, registry
from tokitai.verification import cases


@operator
def sums(x: Matrix[storage]) -> Outputs:
    """All sums there are, of rows and of columns."""
    return outputs(rows=row_sum(x), cols=col_sum(x))


@operator
def functions(x: Matrix[storage]) -> Outputs:
    """One of each kind whose allowance is wider than the definition's error."""
    return outputs(e=exp(x), q=1 / x, s=sqrt(x))


def case_of(op: Any, dtype: str, shape: tuple[int, int] = (5, 33)) -> tuple[Any, cases.Case]:
    graph = op.trace(dtype)
    return graph, cases.seeded(op, graph, "normal", shape, 1)


TOTALS = {"global_norm", "clip_global_norm"}  # totals over a list, of which the definition's bounds know nothing


@pytest.mark.parametrize("name", [n for n in registry() if n not in TOTALS])
def test_it_is_never_less_than_the_bound_of_the_definition(name: str) -> None:
    """But where every operation on the way is exact in any order: there it says so, and the definition is."""
    graph, case = case_of(get(name), "f32")
    own = bounds.evaluate(graph, case.tensors, case.shape, case.params)
    exact = real.evaluate(graph, case.tensors, case.shape, case.params)
    most = allowed(graph, case)
    assert most.keys() == own.keys() and most
    for result, (value, error) in own.items():
        distance = np.abs(value.astype(REAL) - exact[result].reshape(value.shape))
        assert ((most[result] >= error) | (distance <= most[result])).all(), result


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 90), st.integers(0, 2**31), st.booleans())
def test_sums_in_any_order_are_explained(cols: int, rows: int, seed: int, wide: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, cols)) * (np.exp2(rng.integers(-30, 30, (rows, cols))) if wide else 1)
    x = x.astype(np.float32)
    graph = sums.trace("f32")
    most = allowed(graph, cases.Case("yours", "x", x.shape, 0, {"x": x}))
    for name, axis in (("rows", 1), ("cols", 0)):
        some = rng.permutation(x, axis=axis)
        chain = np.add.accumulate(some, axis=axis, dtype=np.float32).take(-1, axis=axis)
        backwards = np.add.accumulate(some[::-1, ::-1], axis=axis, dtype=np.float32).take(-1, axis=axis)
        total = x.astype(REAL).sum(axis=axis)
        for got in (chain, backwards[::-1]):
            assert (np.abs(got.astype(REAL) - total) <= most[name].reshape(-1)).all()


def test_a_sum_in_sixteen_bits_is_not_explained() -> None:
    x = np.full((1, 3000), 0.37, np.float16)
    most = allowed(sums.trace("f16"), cases.Case("yours", "x", x.shape, 0, {"x": x}))
    chain = np.add.accumulate(x, axis=1, dtype=np.float16)[0, -1]
    assert abs(float(chain) - 3000 * float(x[0, 0])) > 10 * most["rows"][0]


def test_functions_quotients_and_roots_may_be_those_of_a_library() -> None:
    x = np.array([[0.37, 1.7, 5.3, 77.0]], np.float32)
    case = cases.Case("yours", "x", x.shape, 0, {"x": x})
    graph = functions.trace("f32")
    own = bounds.evaluate(graph, case.tensors, case.shape, {})
    most = allowed(graph, case)
    for name, ulps in (("e", 4.0), ("q", 2.0), ("s", 2.0)):
        ulp = np.spacing(own[name][0])
        assert (most[name] >= ulps * ulp).all() and (most[name] <= (2 * ulps + 1) * ulp).all(), name
        assert (most[name] > own[name][1]).all()
