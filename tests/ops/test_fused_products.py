"""Products with the accumulator fused16: bits on the CPU, bounds, refusals, and slips that must show."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai import ops, verify
from tokitai.errors import ArgumentError
from tokitai.lang import Operator, Sizes
from tokitai.meaning import bits, bounds
from tokitai.ops import registry
from tokitai.toolchain.build import native_isa
from tokitai.verification.verdict import Variant, variants

KINDS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
SCALARS = {"alpha": 1.0, "beta": 1.0}


def drawn(rng: Any, fmt: str, shape: tuple[int, int], middle: float, spread: float) -> Any:
    values = rng.standard_normal(shape) * np.exp2(middle + (rng.random(shape) - 0.5) * spread)
    return np.where(rng.random(shape) < 0.1, 0, values).astype(KINDS[fmt])


def expected(a: Any, b: Any, fmt: str) -> Any:
    graph = ops.matmul.trace(fmt, (), {"accumulator": "fused16"})
    return bits.evaluate(graph, {"a": a, "b": b}, Sizes(len(a), b.shape[1], len(b)), SCALARS)["y"]


@pytest.mark.parametrize("inner", [0, 1, 15, 16, 17, 40, 4096, 4113, 8200, 12300])
@pytest.mark.parametrize("fmt", KINDS)
def test_every_length_has_the_definitions_bits(fmt: str, inner: int) -> None:
    rng = np.random.default_rng(inner)
    a, b = drawn(rng, fmt, (5, inner), 0, 3), drawn(rng, fmt, (inner, 37), 0, 3)
    made = ops.matmul(a, b, accumulator="fused16")
    assert made.tobytes() == expected(a, b, fmt).tobytes()


# Operands near the smallest and the largest numbers, spread wide, in one regime each.
REGIMES = [(0, 24), (-13, 6), (-22, 6), (-64, 8), (-72, 6), (40, 30), (62, 4), (100, 40)]


@pytest.mark.parametrize(("middle", "spread"), REGIMES)
@pytest.mark.parametrize("fmt", KINDS)
def test_every_regime_has_the_definitions_bits(fmt: str, middle: float, spread: float) -> None:
    rng = np.random.default_rng(5)
    a, b = drawn(rng, fmt, (14, 50), middle, spread), drawn(rng, fmt, (50, 70), middle, spread)
    a[3, 20:40], b[20:40] = -a[3, 0:20], b[0:20]  # nearly cancels
    made = ops.matmul(a, b, accumulator="fused16")
    assert made.tobytes() == expected(a, b, fmt).tobytes()


@pytest.mark.parametrize("fmt", KINDS)
def test_special_values_have_the_definitions_bits(fmt: str) -> None:
    rng = np.random.default_rng(1)
    a, b = drawn(rng, fmt, (9, 33), 0, 4), drawn(rng, fmt, (33, 40), 0, 4)
    a[0, 3], a[1, 4], a[2, 30], b[5, 7], b[6, 8] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    b[3, 0] = b[4, 1] = 0
    made = ops.matmul(a, b, accumulator="fused16")
    assert made.tobytes() == expected(a, b, fmt).tobytes()
    assert np.isnan(made.astype(np.float32)).any() and np.isinf(made.astype(np.float32)).any()


@pytest.mark.parametrize("fmt", KINDS)
def test_sums_of_a_step_that_cancel_or_take_33_bits(fmt: str) -> None:
    high = np.nextafter(KINDS[fmt](2), KINDS[fmt](0))
    a, b = np.full((3, 32), high), np.full((32, 40), high)
    a[:2, 1:16], b[0] = 0, 1  # an accumulator next to 2, then 16 products next to 4: above 2^31 units
    a[1] *= KINDS[fmt](-1)
    a[2] = [
        *[0] * 16,
        1,
        -(2**-12),
        -1,
        0,
        2**-12,
        *[0] * 11,
    ]  # units 2^25 and 1 of both signs, one of each at odd places: +0
    b[:, 1] = 1
    b[[17, 20], 1] = 2**-13
    made = ops.matmul(a, b, accumulator="fused16")
    assert made.tobytes() == expected(a, b, fmt).tobytes()
    assert made[0, 0] > 2**6 and made[1, 0] == -made[0, 0]
    assert made[2, 1] == 0 and not np.signbit(made[2, 1])


@pytest.mark.parametrize(("middle", "spread"), [(0, 0), (0, 16), (-14, 4)])
@pytest.mark.parametrize("fmt", KINDS)
def test_errors_are_within_the_derived_bound(fmt: str, middle: float, spread: float) -> None:
    rng = np.random.default_rng(2)
    a, b = drawn(rng, fmt, (6, 4500), middle, spread), drawn(rng, fmt, (4500, 8), middle, spread)
    graph = ops.linear_accumulate_weight.trace(fmt, None, {"accumulator": "fused16"})
    given = {"total": np.zeros((6, 8), np.float32), "dy": np.ascontiguousarray(a.T), "x": b}
    value, error = bounds.evaluate(graph, given, Sizes(6, 8, 4500), {})["total"]
    exact = a.astype(np.float64) @ b.astype(np.float64)
    away = np.abs(value.astype(np.float64) - exact)
    assert (away <= error).all() and (away > 0).any()
    assert (error > 0).all() and np.isfinite(error).all()


def test_operands_of_f32_are_refused_by_name() -> None:
    x = np.ones((2, 2), np.float32)
    with pytest.raises(ArgumentError, match=r"accumulator='fused16' of f32; accepted: 'f32', 'f64'"):
        ops.matmul(x, x, accumulator="fused16")
    with pytest.raises(ArgumentError, match="accepted: 'f32', 'f64', 'fused16'"):
        ops.matmul(x.astype(np.float16), x.astype(np.float16), accumulator="fused8")
    assert not any(v.options == (("accumulator", "fused16"),) for v in variants(ops.matmul, "f32"))


WITH_PRODUCTS = [o for o in registry().values() if any("fused16" in p.accepted for p in o.options)]


def fused(op: Operator) -> Variant:
    return Variant(frozenset(t.name for t in op.tensors if t.optional), (("accumulator", "fused16"),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "fmt"),
    [(o, ("f16", "bf16")[i % 2]) for i, o in enumerate(WITH_PRODUCTS)],
    ids=lambda x: str(getattr(x, "name", x)),
)
def test_every_operator_with_a_product_is_verified(op: Operator, fmt: str) -> None:
    verdict = verify(op, dtype=fmt, variant=fused(op))
    assert verdict.verdict == "verified", verdict.failure
    assert {"structure", "seeded"} <= {r.kind for r in verdict.results}


# Slips in the rule, as the CPU's header and the GPU's have it: what is written, and what is written wrongly.
SLIPS = {
    "steps of eight": ("UNIT_STEP = 16", "UNIT_STEP = 8"),
    "24 fraction bits": ("FRACTION = 25", "FRACTION = 24"),
    "another floor": ("FLOOR = -133", "FLOOR = -126"),
}
CPU_SLIPS = SLIPS | {
    "rounded to nearest": ("_MM_FROUND_TO_ZERO |", "_MM_FROUND_TO_NEAREST_INT |")
    if native_isa() == "avx512"
    else ("& ~((1ull << 29) - 1))", "& ~0ull)"),
    "a product is lost": ("sums[k % 2] +=", "if (k != 7) sums[k % 2] +="),
    "exponents of subnormals are normalised": (
        "field - 127 > min_exponent ? field - 127 : min_exponent",
        "field - 127",
    ),
    "the accumulator has no part in the largest exponent": (
        "larger_of(larger_of(even, odd), exponent_of(c, -126))",
        "larger_of(even, odd)",
    ),
    "exponents of every other product": ("odd = I(both) >> 16", "odd = even"),
    "a chain begins beside zero": ("FRESH && k0 == 0 ? splat(0.0f)", "FRESH && k0 == 0 ? splat(1e-20f)"),
}
SIM_SLIPS = SLIPS | {
    "a product is lost": ("if (products[k]) sum +=", "if (products[k] && k != 7) sum +="),
    "rounded to nearest": ("size >> drop : 0, e += drop", "(size + (1ull << drop >> 1)) >> drop : 0, e += drop"),
    "subnormal results are flushed": ("if (e + drop < -149) drop = -149 - e;", "if (e + drop < -149) return 0.0f;"),
    "elements behind k are not zero": (
        "INLINE P k_padding() { return P{}; }",
        "INLINE P k_padding() { return P{0x3C00}; }",
    ),
}


def refuted(slip: tuple[str, str], device: str) -> bool:
    here = 0

    def edit(text: str) -> str:
        nonlocal here
        here += text.count(slip[0])
        return text.replace(*slip)

    into_f32 = ops.linear_accumulate_weight  # its results show the last bits of a sum
    found = any(
        verify(op, dtype=fmt, device=device, variant=fused(op), edit=edit).verdict == "refuted"
        for op, fmt in ((into_f32, "bf16"), (into_f32, "f16"), (ops.matmul, "bf16"))
    )
    assert here, f"{slip[0]!r} stands nowhere"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", CPU_SLIPS)
def test_slips_are_refuted_on_the_cpu(what: str) -> None:
    assert refuted(CPU_SLIPS[what], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("what", SIM_SLIPS)
def test_slips_are_refuted_on_the_simulated_device(what: str) -> None:
    assert refuted(SIM_SLIPS[what], "sim")
