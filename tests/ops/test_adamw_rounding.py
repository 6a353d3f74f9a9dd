"""AdamW with stochastic rounding: one of two neighbours, by the bits of Philox, without bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optimizer import Array, State, state, step
from running import BF16, F16, U, same_bits

from tokitai.formats import format_of
from tokitai.meaning import bits
from tokitai.ops.adam import stochastic_bits


# ------------------------------------------------------------------ stochastic rounding
def neighbours(wide: Array, dtype: Any) -> tuple[Array, Array]:
    """The stored values next below and above f32 values (equal where the value is stored exactly)."""
    near = wide.astype(dtype)
    up, down = near.dtype.type(np.inf), near.dtype.type(-np.inf)
    back = near.astype(np.float32)
    below = np.where(back > wide, np.nextafter(near, down), near)
    above = np.where(back < wide, np.nextafter(near, up), near)
    return below, above


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_stochastic_results_are_neighbours_by_the_philox_bits(dtype: Any) -> None:
    """The master copy has the value before it is rounded: each weight is one of its two neighbours, and the one that
    the counter-based bits name."""
    sizes, scalars = [300, 0, 4000], dict(step=7, seed=12345, lr=0.01, rounding="stochastic")
    s = state(sizes, dtype, 8, master=True)
    s["master"] = [np.ldexp(m, np.random.default_rng(1).integers(-27, 3, m.shape)) for m in s["master"]]
    step(s, **scalars)
    fmt = format_of(dtype).name
    for i, (got, wide) in enumerate(zip(s["param"], s["master"], strict=True)):
        below, above = neighbours(wide, dtype)
        assert ((got == below) | (got == above)).all()
        random = np.array([stochastic_bits(i, k, 12345, 7) for k in range(got.size)], np.uint32)
        want = bits.round_to(bits.round_stochastic(wide, random, fmt), fmt)
        assert same_bits(got, want)
        if got.size:
            assert ((got != below) & (below != above)).any() and ((got != above) & (below != above)).any()


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_stochastic_rounding_keeps_what_is_exact(dtype: Any) -> None:
    """C104: no gradient, no decay: the value to be stored is the old weight, and it stays, whatever the bits: every
    finite one but -0, which the sum with a decay of +0 makes +0."""
    every = np.arange(65536, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):
        every = every[np.isfinite(every) & (every != 0)]
    moments = dict(exp_avg=[np.zeros(every.size, np.float32)], exp_avg_sq=[np.zeros(every.size, np.float32)])
    s: State = dict(param=[every.copy()], grad=[np.zeros_like(every)], **moments)
    for seed in range(3):
        step(s, step=1, seed=seed, rounding="stochastic")
        assert same_bits(s["param"][0], every)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_stochastic_rounding_with_the_largest_and_smallest_bits(dtype: Any) -> None:
    fmt = format_of(dtype)
    special = np.array([math.inf, -math.inf, math.nan], np.float32)
    exact = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    for random in (0, 2**32 - 1):
        noise = np.uint32(random)
        for values in (special, exact):
            got = bits.round_stochastic(values, np.full(values.shape, noise), fmt.name)
            assert ((got == values) & (np.signbit(got) == np.signbit(values)) | np.isnan(values) & np.isnan(got)).all()


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("value", [1.0 - 1e-3, 0.3, -0.70001, 2.0**-14 * 1.0001, 3e-7, 65504.0 / 3])
def test_stochastic_rounding_is_unbiased(dtype: Any, value: float) -> None:
    """The mean of n results is within 5 sigma of the value; sigma follows from the distance of the neighbours."""
    n = 20000
    s: State = dict(
        param=[np.zeros(n, dtype)], grad=[np.zeros(n, dtype)], exp_avg=[np.zeros(n, np.float32)],
        exp_avg_sq=[np.zeros(n, np.float32)], master=[np.full(n, value, np.float32)],
    )  # fmt: skip
    step(s, step=1, seed=77, rounding="stochastic")
    below, above = (x.astype(np.float64)[0] for x in neighbours(s["master"][0][:1], dtype))
    wide = float(np.float32(value))
    sigma = math.sqrt((above - wide) * (wide - below) / n)
    assert above > below and abs(float(s["param"][0].astype(np.float64).mean()) - wide) <= 5 * sigma


def test_stochastic_rounding_does_not_lose_small_updates() -> None:
    """C69: p = 1 in bf16 and a hundred steps of 1e-3: 0.9 in the mean, where rounding to nearest stays at 1."""
    n = 4000
    s: State = dict(
        param=[np.ones(n, BF16)], grad=[np.ones(n, BF16)],
        exp_avg=[np.zeros(n, np.float32)], exp_avg_sq=[np.zeros(n, np.float32)],
    )  # fmt: skip
    for t in range(1, 101):
        step(s, step=t, seed=3, rounding="stochastic")
    spacing = 2.0**-8  # in [0.5, 1)
    sigma = math.sqrt(100 * 1e-3 * (spacing - 1e-3) / n)
    assert abs(float(s["param"][0].astype(np.float64).mean()) - 0.9) <= 5 * sigma + 200 * U
