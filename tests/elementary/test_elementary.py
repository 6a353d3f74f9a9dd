"""The elementary functions against the figures that were recorded over all 2^32 inputs.

The oracle's bits are compared with references of another make than the recording's: SciPy's and NumPy's double
functions and, at the worst inputs, mpmath. A definition that was changed and not tried again fails by its digest.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

from tokitai import elementary
from tokitai.elementary.exact import proved
from tokitai.meaning.bits import evaluate_function
from tools.prove_elementary.__main__ import TABLE, shown, table
from tools.prove_elementary.generate import digest, traced

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
FUNCTIONS: dict[str, dict[str, Any]] = RECORDED["functions"]
NAMES = elementary.__all__
Array = np.ndarray[Any, np.dtype[Any]]
INF, NAN = math.inf, math.nan


def _times(x: Array, factor: Array) -> Array:
    return np.where(factor == 0, np.copysign(0.0, x), x * factor)


def _gelu_exponent(x: Array) -> Array:
    return 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


def _slope(exponent: Array, rise: Array) -> Array:
    return _times(1 + _times(rise, special.expit(-exponent)), special.expit(exponent))


def _gelu_rise(x: Array) -> Array:
    return 2 * math.sqrt(2 / math.pi) * (x + 3 * 0.044715 * x * x * x)


DOUBLE: dict[str, Callable[[Array], Array]] = {
    "cos": lambda x: np.where(np.abs(x) <= 2**20, np.cos(x), np.nan),
    "erf": special.erf,
    "erfc": special.erfc,
    "exp": np.exp,
    "exp_down": lambda x: np.where(x > 0, np.nan, np.exp(x)),
    "exp_short": lambda x: np.exp(np.minimum(x, 0)),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "gelu": lambda x: _times(x, special.ndtr(x)),
    "gelu_slope": lambda x: special.ndtr(x) + _times(x, np.exp(-x * x / 2) / math.sqrt(2 * math.pi)),
    "gelu_tanh": lambda x: _times(x, special.expit(_gelu_exponent(x))),
    "gelu_tanh_slope": lambda x: _slope(_gelu_exponent(x), _gelu_rise(x)),
    "log": np.log,
    "log1p": np.log1p,
    "normal_cdf": special.ndtr,
    "sigmoid": special.expit,
    "silu": lambda x: _times(x, special.expit(x)),
    "silu_slope": lambda x: _slope(x, x),
    "sin": lambda x: np.where(np.abs(x) <= 2**20, np.sin(x), np.nan),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "tanh": np.tanh,
}

_sqrt2pi = mpmath.sqrt(2 * mpmath.pi)
_c1 = 2 * mpmath.sqrt(2 / mpmath.pi)
_k = mpmath.mpf("0.044715")


def _logistic(v: mpmath.mpf) -> mpmath.mpf:
    return 1 / (1 + mpmath.exp(-v))


def _phi(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def _gelu_tanh(x: mpmath.mpf) -> mpmath.mpf:
    return x * _logistic(_c1 * (x + _k * x**3))


def _silu(x: mpmath.mpf) -> mpmath.mpf:
    return x * _logistic(x)


EXACT: dict[str, Callable[[mpmath.mpf], mpmath.mpf]] = {
    "cos": mpmath.cos,
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "exp": mpmath.exp,
    "exp_down": mpmath.exp,
    "exp_short": lambda x: mpmath.exp(min(x, 0)),
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "gelu": lambda x: x * _phi(x),
    "gelu_slope": lambda x: _phi(x) + x * mpmath.exp(-x * x / 2) / _sqrt2pi,
    "gelu_tanh": _gelu_tanh,
    "gelu_tanh_slope": lambda x: mpmath.diff(_gelu_tanh, x),
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "normal_cdf": _phi,
    "sigmoid": _logistic,
    "silu": _silu,
    "silu_slope": lambda x: mpmath.diff(_silu, x),
    "sin": mpmath.sin,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "tanh": mpmath.tanh,
}

_ODD = [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN)]  # pairs, as a dict would take 0.0 and -0.0 for one key
_GATED = [*_ODD, (INF, INF), (-INF, -0.0)]
_SLOPE = [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, -0.0), (NAN, NAN)]
_DISTRIBUTION = [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN)]
_POWER = [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN)]
SPECIAL: dict[str, list[tuple[float, float]]] = {
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (2.0**20 + 1, NAN), (-(2.0**20) - 1, NAN), (NAN, NAN)],
    "erf": [*_ODD, (INF, 1.0), (-INF, -1.0)],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (NAN, NAN)],
    "exp": [*_POWER, (88.8, INF), (-104.0, 0.0)],
    "exp_down": [(0.0, 1.0), (-0.0, 1.0), (-INF, 0.0), (-104.0, 0.0), (-103.9, 2.0**-149), (NAN, NAN)],
    "exp_short": [(0.0, 1.0), (-0.0, 1.0), (INF, 1.0), (-INF, 0.0), (-104.0, 0.0), (NAN, NAN)],
    "exp2": [*_POWER, (128.0, INF), (127.0, 2.0**127), (-149.0, 2.0**-149), (-150.0, 0.0)],
    "expm1": [*_ODD, (INF, INF), (-INF, -1.0), (88.8, INF)],
    "gelu": _GATED,
    "gelu_slope": _SLOPE,
    "gelu_tanh": _GATED,
    "gelu_tanh_slope": _SLOPE,
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-1e-45, NAN), (NAN, NAN)],
    "log1p": [*_ODD, (INF, INF), (-1.0, -INF), (-1.5, NAN), (-INF, NAN)],
    "normal_cdf": _DISTRIBUTION,
    "sigmoid": _DISTRIBUTION,
    "silu": _GATED,
    "silu_slope": _SLOPE,
    "sin": [*_ODD, (INF, NAN), (-INF, NAN), (2.0**20 + 1, NAN)],
    "softplus": [(INF, INF), (-INF, 0.0), (NAN, NAN)],
    "tanh": [*_ODD, (INF, 1.0), (-INF, -1.0)],
}


def bits(x: float) -> str:
    return "nan" if math.isnan(x) else struct.pack(">f", x).hex()


def from_hex(text: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(text))[0])


def ulps(result: Array, want: Array) -> Array:
    """|result - want| in ulp of f32 at want, an infinite result counting as 2^128, as in harness.h."""
    edge = 2.0**128
    want = np.clip(want, -edge, edge)
    size = np.floor(np.log2(np.clip(np.abs(want), 2.0**-126, 2.0**127)))
    return np.asarray(np.abs(np.clip(result.astype(np.float64), -edge, edge) - want) / 2.0 ** (size - 23))


def test_the_package_keeps_the_recorded_errors() -> None:
    assert proved() == {name: found["largest_error_ulp"] for name, found in RECORDED["functions"].items()}


def test_every_function_is_recorded_and_tested() -> None:
    assert set(NAMES) == set(FUNCTIONS) == set(DOUBLE) == set(EXACT) == set(SPECIAL)


@pytest.mark.parametrize("name", NAMES)
def test_record_belongs_to_this_definition(name: str) -> None:
    record = FUNCTIONS[name]
    assert record["definition"] == digest(traced(getattr(elementary, name))), "run python -m tools.prove_elementary"
    assert record["tried"] == 2**32
    assert record["mismatches"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_docstring_states_the_recorded_error(name: str) -> None:
    stated = re.search(r"Largest error: (\d+\.\d\d) ulp", getattr(elementary, name).__doc__ or "")
    assert stated is not None
    assert stated[1] == shown(FUNCTIONS[name]["largest_error_ulp"])


def test_table_is_written_from_the_record() -> None:
    assert TABLE.read_text() == table(RECORDED)


@pytest.mark.parametrize("name", NAMES)
def test_sample_stays_within_the_recorded_error(name: str) -> None:
    patterns = (np.arange(2**16, dtype=np.uint64) * 65537 % 2**32).astype(np.uint32)
    x = patterns.view(np.float32)
    if name == "exp_down":
        x = x[~(x > 0)]  # it is unspecified above 0
    result = evaluate_function(getattr(elementary, name), x)
    with np.errstate(all="ignore"):
        want = DOUBLE[name](x.astype(np.float64))
        assert np.array_equal(np.isnan(result), np.isnan(want))
        error = ulps(result, want)
    # SciPy's tails have errors of up to 1e-14 relatively: 2e-7 ulp
    assert np.nanmax(error) <= FUNCTIONS[name]["largest_error_ulp"] + 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_worst_inputs_have_the_recorded_error(name: str) -> None:
    worst = FUNCTIONS[name]["worst"]
    x = np.array([from_hex(w["input"]) for w in worst], np.float32)
    result = evaluate_function(getattr(elementary, name), x)
    assert [bits(float(r)) for r in result] == [w["result"] for w in worst]
    with mpmath.workprec(200):
        want = np.array([float(EXACT[name](mpmath.mpf(float(v)))) for v in x])
    assert np.allclose(ulps(result, want), [w["error_ulp"] for w in worst], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "zero"), [("gelu_slope", -0.7517915), ("gelu_tanh_slope", -0.7524614), ("silu_slope", -1.2784646)]
)
def test_next_to_the_zero_of_a_slope(name: str, zero: float) -> None:
    """The recording's double reference is a difference there, and not accurate enough by itself."""
    x = (np.float32(zero).view(np.int32) + np.arange(-200, 200, dtype=np.int32)).view(np.float32)
    result = evaluate_function(getattr(elementary, name), x)
    assert result[0] * result[-1] < 0  # the zero is among them
    with mpmath.workprec(200):
        want = np.array([float(EXACT[name](mpmath.mpf(float(v)))) for v in x])
    assert ulps(result, want).max() <= FUNCTIONS[name]["largest_error_ulp"]


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str) -> None:
    x, want = zip(*SPECIAL[name], strict=True)
    result = evaluate_function(getattr(elementary, name), np.array(x, np.float32))
    assert [bits(float(r)) for r in result] == [bits(v) for v in want]


@pytest.mark.slow
def test_exp_down_has_the_bits_of_exp() -> None:
    """Every 509th non-positive pattern, NaN included, and 2000 on each side of where the clamp, the result's format or
    n changes."""
    steps = (-(np.arange(1, 151) - 0.585) / 1.442695).astype(np.float32)  # near where n goes to the next
    edges = np.array([-104.0, -103.97208, -103.27893, -87.33655, -1e-38, *steps], np.float32).view(np.uint32)
    around = (edges[:, None] + np.arange(-2000, 2001)).astype(np.uint32).ravel()
    strided = np.arange(2**31, 2**32, 509, dtype=np.uint64).astype(np.uint32)
    ends = np.array([0, 0x80000000, 0x80000001, 0xFF7FFFFF, 0xFF800000, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    x = np.concatenate([strided, around, ends]).view(np.float32)
    assert not (x > 0).any()
    down, full = evaluate_function(elementary.exp_down, x), evaluate_function(elementary.exp, x)
    same = (down.view(np.uint32) == full.view(np.uint32)) | (np.isnan(down) & np.isnan(full))
    assert same.all()
    assert ((full > 0) & (full < 2.0**-126)).sum() > 10000  # subnormal results were among them


def test_odd_functions_are_odd_to_the_bit() -> None:
    x = np.geomspace(1e-44, 1e6, 5000).astype(np.float32)
    for name in ("erf", "sin", "tanh"):
        f = getattr(elementary, name)
        assert np.array_equal(evaluate_function(f, -x), -evaluate_function(f, x), equal_nan=True), name
