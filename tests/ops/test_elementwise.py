"""Element-wise operators: every 16-bit input, conversions between formats, clipping."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from running import BF16, F16, F32, array, same_bits, textbook

from tokitai import ops
from tokitai.formats import FORMATS
from tokitai.lang import Matrix, Operator, bf16, f16, f32, operator, outputs, round_to, storage, stored
from tokitai.meaning import bits
from tokitai.verification import cases
from tokitai.verification.compare import ulp_errors

Array = np.ndarray[Any, Any]
ALL = np.arange(65536, dtype=np.uint16)
ONE_INPUT = sorted(
    (op for op in ops.registry().values() if cases.exhaustive(op, op.trace("f16")) is not None), key=lambda op: op.name
)


def test_there_are_operators_of_one_input() -> None:
    names = {op.name for op in ONE_INPUT}
    assert {"gelu_erf", "gelu_tanh", "silu", "scale", "clip", "dropout"} <= names


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("op", ONE_INPUT, ids=str)
def test_every_16_bit_input_is_within_051_ulp(op: Operator, dtype: str) -> None:
    """Of the exact value; that of `scale` and `clip` is with their scalars as f32 has them, that of `dropout` with
    1/(1 - p) so. The kernel is run, not the oracle."""
    graph = op.trace(dtype)
    case = cases.exhaustive(op, graph)
    assert case is not None
    (name,) = case.tensors
    params = {p.name: int(case.params[p.name]) if p.whole else case.params[p.name] for p in op.params}
    if "p" in params:
        params["p"] = 0.5  # 1/(1 - p) is exact: another target otherwise, within u of this one
    got = op(case.tensors[name], **params)
    (result,) = graph.outputs
    want = np.broadcast_to(textbook(op, graph, case.tensors, case.shape, params)[result.name], got.shape)
    errors = ulp_errors(got, want, FORMATS[dtype])
    assert errors.max() <= 0.51, f"{errors.max()} at {case.tensors[name].ravel()[errors.argmax()]}"
    if op not in (ops.clip, ops.dropout, ops.dropout_backward):  # which are exact
        assert errors.max() > 0.49, "a rounding to nearest comes near half an ulp somewhere"


# ------------------------------------------------------------------ conversions
@operator
def to_f16(x: Matrix[f32]) -> Any:
    return outputs(y=stored(x, f16))


@operator
def to_bf16(x: Matrix[f32]) -> Any:
    return outputs(y=stored(x, bf16))


@operator
def through_f16(x: Matrix[f32]) -> Any:
    return outputs(y=stored(round_to(x, f16), f32))


@operator
def through_bf16(x: Matrix[f32]) -> Any:
    return outputs(y=stored(round_to(x, bf16), f32))


@operator
def widened(x: Matrix[storage]) -> Any:
    return outputs(y=stored(x, f32))


NARROW = {to_f16: F16, to_bf16: BF16}
CASES_F16 = {
    0x33000000: 0x0000, 0x33000001: 0x0001, 0x33400000: 0x0001, 0x337FFFFF: 0x0001, 0x33800000: 0x0001,
    0x38000000: 0x0200, 0x387FDFFF: 0x03FF, 0x387FE000: 0x0400, 0x477FEFFF: 0x7BFF, 0x477FF000: 0x7C00,
    0x47800000: 0x7C00, 0x7F800000: 0x7C00, 0x00000000: 0x0000, 0x00000001: 0x0000, 0x32FFFFFF: 0x0000,
    0x3F801000: 0x3C00, 0x3F801001: 0x3C01, 0x3F803000: 0x3C02,
}  # fmt: skip
CASES_BF16 = {
    0x7F800000: 0x7F80, 0x3F808000: 0x3F80, 0x3F808001: 0x3F81, 0x3F818000: 0x3F82, 0x7F7F7FFF: 0x7F7F,
    0x7F7F8000: 0x7F80, 0x00008000: 0x0000, 0x00008001: 0x0001, 0x00018000: 0x0002, 0x007FFFFF: 0x0080,
}  # fmt: skip
NANS = [0xFFFFFFFF, 0x7F800001, 0x7FC00000, 0xFF800001, 0x7FFF8C22, 0x7FFFFFFF, 0x7F80FFFF, 0x7F801FFF]


@pytest.mark.parametrize(("op", "table"), [(to_f16, CASES_F16), (to_bf16, CASES_BF16)], ids=["f16", "bf16"])
@pytest.mark.parametrize("lanes", [1, 5, 16, 40])
def test_conversions_that_have_gone_wrong(op: Operator, table: dict[int, int], lanes: int) -> None:
    """C94, C95, C97, C99, C100, C101: ties, subnormals and the half step below the smallest, the threshold of infinity,
    NaN with a payload in the bits that are dropped; in whole vectors and in tails. A stored NaN is the canonical
    one."""
    for sign in (0, 1):
        for pattern, want in table.items():
            x = np.full((1, lanes), pattern | sign << 31, np.uint32).view(np.float32)
            assert (op(x).view(np.uint16) == want | sign << 15).all(), f"{pattern:08x}"
    for pattern in NANS:
        x = np.full((1, lanes), pattern, np.uint32).view(np.float32)
        assert (op(x).view(np.uint16) == FORMATS["f16" if op is to_f16 else "bf16"].nan).all(), f"{pattern:08x}"


@pytest.mark.parametrize("op", [to_f16, to_bf16], ids=str)
@pytest.mark.parametrize("low", [0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_conversions_are_numpys_and_ml_dtypes(op: Operator, low: int) -> None:
    """All upper halves of an f32 with lower halves about every tie."""
    x = (ALL.astype(np.uint32) << 16 | low).view(np.float32).reshape(256, 256)
    with np.errstate(all="ignore"):
        want = x.astype(NARROW[op])
    number = ~np.isnan(x)
    assert (op(x).view(np.uint16)[number] == want.view(np.uint16)[number]).all()
    assert (op(x).view(np.uint16)[~number] == FORMATS["f16" if op is to_f16 else "bf16"].nan).all()


@pytest.mark.parametrize(("op", "to"), [(to_f16, F16), (to_bf16, BF16), (widened, F32)], ids=["f16", "bf16", "f32"])
def test_one_nan_among_numbers(op: Operator, to: Any) -> None:
    """In every lane and every one of the vectors that are stored together: it alone becomes the canonical one."""
    count = 83
    x = np.tile(np.linspace(-3, 3, count, dtype=np.float32), (count, 1))
    want = x.astype(to)
    np.fill_diagonal(x.view(np.uint32), 0xFFC00123)
    pattern = want.view({2: np.uint16, 4: np.uint32}[want.itemsize])
    np.fill_diagonal(pattern, {F16: 0x7E00, BF16: 0x7FC0, F32: 0x7FC00000}[to])
    assert same_bits(op(x), want)


@pytest.mark.parametrize(("op", "narrow"), [(through_f16, to_f16), (through_bf16, to_bf16)], ids=["f16", "bf16"])
def test_a_round_trip_is_not_left_out(op: Operator, narrow: Operator) -> None:
    """C97: the narrowing must not be optimised away."""
    x = np.array([[65536.0, 65520.0, 1 + 2.0**-12, 2.0**-25, 3e38, 3.4e38]], np.float32)
    y = op(x)
    assert same_bits(y, narrow(x).astype(np.float32))
    assert (y != x).any()
    if op is through_f16:
        assert np.isinf(y[0, 0])


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_widening_is_exact(dtype: Any) -> None:
    x = ALL.view(dtype).reshape(256, 256)
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float32)
    number = ~np.isnan(want)
    got = widened(x)
    assert (got.view(np.uint32)[number] == want.view(np.uint32)[number]).all()
    assert (got.view(np.uint32)[~number] == FORMATS["f32"].nan).all()


def test_the_oracle_rounds_f64_once() -> None:
    """C103: by way of f32 both are ties, and fall to even."""
    assert bits.round_to(np.array([1.00048828125000022204]), "f16").view(np.uint16)[0] == 0x3C01
    assert bits.round_to(np.array([1 + 2.0**-8 + 2.0**-40]), "bf16").view(np.uint16)[0] == 0x3F81


# ------------------------------------------------------------------ clip and scale
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_clip_keeps_nan_and_the_order_of_zeros(dtype: Any) -> None:
    x = array([[math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, -2.0, 2.0]], dtype)
    y = ops.clip(x, low=-1.0, high=1.0)
    assert np.isnan(y[0, 0]) and y[0, 1:].tolist() == [1.0, -1.0, 0.0, 0.0, 0.5, -1.0, 1.0]
    assert np.signbit(y[0, 3:5]).tolist() == [True, False]
    dx = ops.clip_backward(np.ones_like(x), x, low=-1.0, high=1.0)
    assert dx.tolist() == [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
    at = array([[-1.0, 1.0]], dtype)
    assert ops.clip_backward(at, at, low=-1.0, high=1.0).tolist() == at.tolist(), "limits belong to the inside"


@pytest.mark.parametrize("factor", [2.0, -0.5, 1 / 3, 1e-3, 65504.0])
def test_scale_is_one_product_and_one_rounding(factor: float) -> None:
    for dtype in (F16, BF16, F32):
        x = np.random.default_rng(1).standard_normal((7, 33)).astype(dtype)
        with np.errstate(over="ignore"):
            want = (x.astype(np.float32) * np.float32(factor)).astype(dtype)
        assert same_bits(ops.scale(x, factor=factor), want)
        assert same_bits(ops.scale_backward(x, factor=factor), want)


def test_the_formats_of_this_file_are_those_of_ml_dtypes() -> None:
    assert np.dtype(ml_dtypes.bfloat16) == BF16 == FORMATS["bf16"].dtype and FORMATS["f16"].dtype == F16
