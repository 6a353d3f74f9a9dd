"""The steps of a matrix unit against the rule in exact fractions, written from its description alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai.meaning import matrix_unit

F32 = np.float32
FORMATS = {"f16": (np.float16, -14, 10), "bf16": (ml_dtypes.bfloat16, -126, 7)}


def exponent(x: Fraction) -> int:
    """floor(log2 |x|)."""
    n = 0
    while abs(x) >= Fraction(2) ** (n + 1):
        n += 1
    while abs(x) < Fraction(2) ** n:
        n -= 1
    return n


def toward_zero(x: Fraction, unit: Fraction) -> Fraction:
    whole = abs(x) // unit * unit
    return whole if x >= 0 else -whole


def by_the_rule(c: Any, a: Any, b: Any, emin: int) -> Fraction:
    """One step on finite numbers, before the last cut would overflow."""
    products = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    tops = [
        max(exponent(Fraction(float(x))), emin) + max(exponent(Fraction(float(y))), emin)
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    start = Fraction(float(c))
    if start:
        tops.append(max(exponent(start), -126))
    top = max([*tops, -133])
    unit = Fraction(2) ** (top - 25)
    total = sum((toward_zero(p, unit) for p in products), toward_zero(start, unit))
    if not total:
        return Fraction(0)
    return toward_zero(total, Fraction(2) ** max(exponent(total) - 23, -149))


def drawn(rng: Any, fmt: str, shape: tuple[int, ...], middle: float, spread: float) -> Any:
    kind = FORMATS[fmt][0]
    values = rng.standard_normal(shape) * np.exp2(middle + (rng.random(shape) - 0.5) * spread)
    values = np.where(rng.random(shape) < 0.15, 0, values)
    return values.astype(kind).astype(F32)


# (exponents of operands lie round, over so many binades, and those of accumulators)
REGIMES = {
    "f16": [(0, 0, 0), (0, 20, 30), (-12, 6, -24), (-20, 8, -40), (6, 10, 12)],
    "bf16": [(0, 0, 0), (0, 40, 60), (-63, 10, -126), (-70, 6, -140), (-75, 4, -149), (40, 20, 80)],
}


@pytest.mark.parametrize(("fmt", "regime"), [(f, r) for f, some in REGIMES.items() for r in some])
def test_a_step_is_what_the_rule_says(fmt: str, regime: tuple[float, float, float]) -> None:
    rng = np.random.default_rng([7, *(int(r) + 200 for r in regime)])
    emin = FORMATS[fmt][1]
    for n in (16, 16, 5):
        a, b = drawn(rng, fmt, (6, n), *regime[:2]), drawn(rng, fmt, (n, 5), *regime[:2])
        if n == 16:  # what comes last cancels what came first, nearly
            a[3:, 8:], b[8:] = -a[3:, :8], b[:8]
            b[9] *= F32(1.0078125)
            b = b.astype(FORMATS[fmt][0]).astype(F32)
        c = (rng.standard_normal((6, 5)) * np.exp2(float(regime[2]))).astype(F32)
        c[0] = 0
        made = matrix_unit.step(c, a, b, fmt, fmt)
        for i in range(6):
            for j in range(5):
                want = by_the_rule(c[i, j], a[i], b[:, j], emin)
                assert Fraction(float(made[i, j])) == want, (i, j, made[i, j].hex(), float(want).hex())
                assert made[i, j] or not np.signbit(made[i, j])


def test_small_terms_are_cut_before_they_are_added() -> None:
    """Fifteen products of 2^-26 beside 1 are nothing; of 2^-25 they are kept, and the sum is cut to 24 bits."""
    zero, one = np.zeros((1, 1), F32), np.array([[1.0] + [2.0**-13] * 15], F32)
    assert matrix_unit.step(zero, one, one.T, "f16", "f16")[0, 0] == 1
    other = np.array([[1.0] + [2.0**-12] * 15], F32)
    assert matrix_unit.step(zero, one, other.T, "f16", "f16")[0, 0] == F32(1 + 3 * 2.0**-23)


@pytest.mark.parametrize(
    ("name", "value"), [("FRACTION", 24), ("FRACTION", 26), ("FLOOR", -126), ("FLOOR", -140), ("STEP", 8)]
)
def test_other_parameters_show(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    rng = np.random.default_rng(3)
    differ = 0
    for fmt, some in REGIMES.items():
        for regime in some:
            a, b = drawn(rng, fmt, (8, 64), *regime[:2]), drawn(rng, fmt, (64, 8), *regime[:2])
            want = matrix_unit.chain(a, b, fmt, fmt)
            with monkeypatch.context() as other:
                other.setattr(matrix_unit, name, value)
                differ += int((matrix_unit.chain(a, b, fmt, fmt).view(np.uint32) != want.view(np.uint32)).sum())
    assert differ > 0


def test_infinities_and_nan_are_those_of_ieee_754() -> None:
    def one(c: float, a: list[float], b: list[float]) -> Any:
        arrays = np.array([[c]], F32), np.array([a], F32), np.array([b], F32).T
        return matrix_unit.step(*arrays, "bf16", "bf16")[0, 0]

    inf, nan = np.inf, np.nan
    assert one(0, [inf, 1], [1, 1]) == inf and one(-inf, [1], [1]) == -inf
    assert np.isnan(one(0, [inf], [0])) and np.isnan(one(0, [inf, -inf], [1, 1])) and np.isnan(one(-inf, [inf], [1]))
    assert np.isnan(one(nan, [1], [1])) and np.isnan(one(0, [nan], [0]))
    assert one(0, [2.0**100], [2.0**30]) == inf and one(0, [-(2.0**100)], [2.0**30]) == -inf
    largest = float(np.finfo(F32).max)
    assert one(0, [2.0**127 * 1.9921875, 2.0**119], [1.0, 1.0]) <= largest  # toward zero, short of infinity


def test_a_sum_over_nothing_is_plus_zero() -> None:
    assert matrix_unit.chain(np.zeros((2, 0), F32), np.zeros((0, 3), F32), "f16", "f16").tobytes() == bytes(24)
