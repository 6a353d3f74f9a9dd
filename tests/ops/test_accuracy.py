"""How far the bits lie from the exact value: the figures that the package states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from running import textbook

from tokitai import ops
from tokitai.elementary.exact import REAL
from tokitai.formats import FORMATS
from tokitai.lang import Operator
from tokitai.meaning import bits
from tokitai.verification import cases
from tokitai.verification.compare import ulp_errors

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op", [ops.gelu_erf, ops.gelu_tanh], ids=str)
def test_gelu_is_within_051_ulp_of_the_real_result_on_all_65536_inputs(op: Operator, dtype: str) -> None:
    graph = op.trace(dtype)
    case = cases.exhaustive(op, graph)
    assert case is not None and case.tensors["x"].size == len(np.unique(case.tensors["x"].view(np.uint16))) == 65536
    got = bits.evaluate(graph, case.tensors, case.shape, case.params)["y"]
    want = textbook(op, graph, case.tensors, case.shape, case.params)["y"]
    errors = ulp_errors(got, want, FORMATS[dtype])
    assert errors.max() <= 0.51, f"{errors.max()} at {case.tensors['x'].ravel()[errors.argmax()]}"
    assert errors.max() > 0.49, "a rounding to nearest comes near half an ulp somewhere"


@pytest.mark.parametrize("mean", [1e4, 1e6])
@pytest.mark.parametrize("spread", [3e-3, 1e-2, 0.1, 1.0])
@pytest.mark.parametrize("cols", [16, 1000, 4096])
def test_layer_norm_of_rows_far_from_zero(mean: float, spread: float, cols: int) -> None:
    """Rows whose mean lies far above their spread, as they are in f32: within 2e-6 of the result in f64."""
    rng = np.random.default_rng([cols, int(mean), int(spread * 1e3)])
    x = (rng.standard_normal((16, cols)) * spread + mean).astype(np.float32)
    graph = ops.layer_norm.trace("f32", present=())
    got = bits.evaluate(graph, dict(x=x), x.shape, dict(eps=1e-5))["y"]
    wide = x.astype(REAL)
    d = wide - wide.mean(axis=1, keepdims=True)
    want = d / np.sqrt((d * d).mean(axis=1, keepdims=True) + REAL(1e-5))
    assert np.abs(got - want).max() <= 2e-6, np.abs(got - want).max()


@pytest.mark.parametrize("value", [0.0, 14.0, 1234.0, -3.5, 65504.0, 0.1, 1e-3, 3.3333333, 1e30, -1e-30])
@pytest.mark.parametrize("cols", [1, 2, 3, 17, 256, 1000, 4097])
def test_constant_rows_give_exactly_beta(value: float, cols: int) -> None:
    rng = np.random.default_rng(cols)
    beta = rng.standard_normal(cols).astype(np.float32)
    x = np.full((2, cols), value, np.float32)
    tensors = dict(x=x, gamma=rng.standard_normal(cols).astype(np.float32), beta=beta)
    got = bits.evaluate(ops.layer_norm.trace("f32"), tensors, x.shape, dict(eps=1e-5))
    assert (got["y"] == beta).all()
    if abs(value) < 1e20:  # beyond, one ulp of the mean has a square that overflows
        assert (got["rstd"] == np.float32(1) / np.sqrt(np.float32(1e-5))).all()


NORMS = [ops.layer_norm, ops.rms_norm, ops.softmax]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op", NORMS, ids=str)
def test_norms_and_softmax_are_within_06_ulp_in_half_precision(op: Operator, dtype: str) -> None:
    """Of the largest result in the row: results that cancel almost to zero have no more correct bits than that."""
    graph = op.trace(dtype)
    worst = 0.0
    for seed, shape in enumerate([(200, 64), (40, 1000), (8, 4096)]):
        case = cases.seeded(op, graph, "normal", shape, seed)
        got = bits.evaluate(graph, case.tensors, shape, case.params)["y"]
        want = textbook(op, graph, case.tensors, shape, case.params)["y"]
        scale = np.abs(want).max(axis=1, keepdims=True)
        worst = max(worst, float(ulp_errors(got, want, FORMATS[dtype], scale=scale).max()))
    assert 0.45 < worst <= 0.6
