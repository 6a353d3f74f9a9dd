"""Products of operands in fixed point: bits on the CPU, bounds, what no order changes, and slips that must show."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai import ops, verify
from tokitai.errors import ArgumentError
from tokitai.lang import (
    FIXED_BITS,
    HardInput,
    Operand,
    Operator,
    Outputs,
    Sizes,
    f32,
    operator,
    outputs,
    storage,
    stored,
)
from tokitai.lang import matmul as product
from tokitai.meaning import bits, bounds, fixed_point
from tokitai.ops.products import Accumulator
from tokitai.verification.verdict import Variant

KINDS: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
SCALARS = {"alpha": 1.0, "beta": 1.0}


def drawn(rng: Any, fmt: str, shape: tuple[int, int], middle: float, spread: float) -> Any:
    values = rng.standard_normal(shape) * np.exp2(middle + (rng.random(shape) - 0.5) * spread)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.1, 0, values).astype(KINDS[fmt])


def expected(a: Any, b: Any, fmt: str, accumulator: str) -> Any:
    graph = ops.matmul.trace(fmt, (), {"accumulator": accumulator})
    return bits.evaluate(graph, {"a": a, "b": b}, Sizes(len(a), b.shape[1], len(b)), SCALARS)["y"]


def by_fractions(a: Any, b: Any, places: int) -> np.float32:
    """The rule for one row and one column of one block, in rational numbers."""

    def units(x: Any) -> tuple[list[int], Fraction]:
        largest = max(abs(Fraction(float(v))) for v in x)
        unit = Fraction(1)
        while largest and not 2 ** (places - 2) <= largest / unit < 2 ** (places - 1):
            unit = unit / 2 if largest / unit < 2 ** (places - 2) else unit * 2
        top = 2 ** (places - 1) - 1
        return [max(-top, min(top, round(Fraction(float(v)) / unit))) for v in x], unit  # round: ties to even

    (left, left_unit), (right, right_unit) = units(a), units(b)
    total = sum(x * y for x, y in zip(left, right, strict=True))
    rounded = Fraction(float(np.int64(total).astype(np.float32)))
    return np.float32(float(rounded * left_unit * right_unit))


@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_the_oracle_is_the_rule_in_rational_numbers(accumulator: str) -> None:
    rng = np.random.default_rng(3)
    places = FIXED_BITS[accumulator]
    for middle, spread in ((0, 4), (0, 30), (-60, 10), (-130, 20), (60, 6)):
        a, b = drawn(rng, "f32", (3, 40), middle, spread), drawn(rng, "f32", (40, 3), middle, spread)
        a[0, 0], a[1, :8] = np.float32(2 - 2**-20) * np.float32(2.0**middle), 2.0**middle
        made = fixed_point.block(a, b, places)
        want = [[by_fractions(x, y, places) for y in b.T] for x in a]
        assert made.tobytes() == np.asarray(want, np.float32).tobytes()


@pytest.mark.parametrize("inner", [0, 1, 2, 3, 15, 40, 255, 257, 4096, 4113, 8200, 12300])
@pytest.mark.parametrize(("fmt", "accumulator"), list(zip(KINDS, FIXED_BITS, strict=True)))
def test_every_length_has_the_definitions_bits(fmt: str, accumulator: str, inner: int) -> None:
    rng = np.random.default_rng(inner)
    a, b = drawn(rng, fmt, (5, inner), 0, 3), drawn(rng, fmt, (inner, 37), 0, 3)
    want = expected(a, b, fmt, accumulator).tobytes()
    for layout, left, right in (("NN", a, b), ("NT", a, b.T.copy()), ("TN", a.T.copy(), b)):
        assert ops.matmul(left, right, layout=layout, accumulator=accumulator, threads=2).tobytes() == want


# Operands near the smallest and the largest numbers, spread wide, in one regime each.
REGIMES = [(0, 24), (-13, 6), (-64, 8), (-72, 6), (-130, 20), (40, 30), (62, 4), (-20, 200)]


@pytest.mark.parametrize(("middle", "spread"), REGIMES)
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_every_regime_has_the_definitions_bits(accumulator: str, middle: float, spread: float) -> None:
    rng = np.random.default_rng(5)
    for fmt in KINDS:
        a, b = drawn(rng, fmt, (14, 50), middle, spread), drawn(rng, fmt, (50, 70), middle, spread)
        a[3, 20:40], b[20:40] = -a[3, 0:20], b[0:20]  # nearly cancels
        made = ops.matmul(a, b, accumulator=accumulator)
        assert made.tobytes() == expected(a, b, fmt, accumulator).tobytes()


@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_what_has_no_unit_is_nan_in_its_row_and_column_alone(accumulator: str) -> None:
    rng = np.random.default_rng(1)
    a, b = drawn(rng, "f32", (9, 33), 0, 4), drawn(rng, "f32", (33, 40), 0, 4)
    a[0, 3], a[1, 4], b[5, 7] = np.inf, np.nan, -np.inf
    b[:, 8], a[4] = 0, 0
    made = ops.matmul(a, b, accumulator=accumulator)
    assert made.tobytes() == expected(a, b, "f32", accumulator).tobytes()
    none = np.isnan(made)
    assert none[:2].all() and none[:, 7].all() and none.sum() == 2 * 40 + 7
    assert made[4, 0] == 0 and not np.signbit(made[4, 0])


@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_whole_numbers_that_fit_are_exact_and_the_largest_saturates(accumulator: str) -> None:
    top = 2 ** (FIXED_BITS[accumulator] - 2)
    a = np.array([[top, -(top // 2), 1.0, 0.0]], np.float32)
    assert ops.matmul(a, np.ones((4, 1), np.float32), accumulator=accumulator)[0, 0] == top - top // 2 + 1
    largest = np.array([[np.nextafter(np.float32(2), np.float32(0))]])
    made = ops.matmul(largest, np.ones((1, 1), np.float32), accumulator=accumulator)[0, 0]
    assert made == (2 * top - 1) / top


@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_no_order_inside_a_block_changes_a_bit(accumulator: str) -> None:
    rng = np.random.default_rng(7)
    a, b = drawn(rng, "bf16", (30, 4096), 0, 9), drawn(rng, "bf16", (4096, 50), 0, 9)
    order = rng.permutation(4096)
    made = ops.matmul(a, b, accumulator=accumulator)
    assert made.tobytes() == ops.matmul(a[:, order], b[order], accumulator=accumulator).tobytes()
    assert made.tobytes() != ops.matmul(a, b).tobytes()


@pytest.mark.parametrize(("middle", "spread"), [(0, 0), (0, 16), (-64, 30)])
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_errors_are_within_the_derived_bound(accumulator: str, middle: float, spread: float) -> None:
    rng = np.random.default_rng(2)
    a, b = drawn(rng, "f32", (6, 4500), middle, spread), drawn(rng, "f32", (4500, 8), middle, spread)
    a[1, 5] *= 2**10  # an outlier, for which the rest of its row pays
    graph = ops.matmul.trace("f32", (), {"accumulator": accumulator})
    value, error = bounds.evaluate(graph, {"a": a, "b": b}, Sizes(6, 8, 4500), SCALARS)["y"]
    away = np.abs(value.astype(np.float64) - a.astype(np.float64) @ b.astype(np.float64))
    assert (away <= error).all() and (away > 0).any()
    assert np.isfinite(error).all() and (error > 0).all() and (error[1] > error[0]).all()


def test_other_numbers_of_bits_are_refused() -> None:
    x = np.ones((2, 2), np.float16)
    with pytest.raises(ArgumentError, match=r"accumulator='fixed12'; accepted: .* 'fixed8', 'fixed16', 'fixed24'"):
        ops.matmul(x, x, accumulator="fixed12")


def of(op: Operator, accumulator: str) -> Variant:
    return Variant(frozenset(t.name for t in op.tensors if t.optional), (("accumulator", accumulator),))


VERIFIED = [
    (ops.matmul, "f16", "fixed8"), (ops.linear_swiglu, "bf16", "fixed16"),
    (ops.linear_backward_weight, "f32", "fixed24"),
    (ops.grouped_linear, "f32", "fixed16"), (ops.grouped_linear_accumulate_weight, "bf16", "fixed8"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("op", "fmt", "accumulator"), VERIFIED, ids=lambda x: str(getattr(x, "name", x)))
def test_operators_are_verified(op: Operator, fmt: str, accumulator: str) -> None:
    verdict = verify(op, dtype=fmt, variant=of(op, accumulator))
    assert verdict.verdict == "verified", verdict.failure
    assert {"structure", "seeded"} <= {r.kind for r in verdict.results}


# ------------------------------------------------------------------ slips
@operator
def wide_product(a: Operand[storage], b: Operand[storage], *, accumulator: Accumulator = "f32") -> Outputs:
    """y = a b^T in f32, so that the last bits of sums are seen."""
    return outputs(y=stored(product(a, b, "NT", accumulator), f32))


@wide_product.set_textbook
def textbook(a: Any, b: Any, *, accumulator: str) -> dict[str, Any]:
    """The definition of a product."""
    return dict(y=a @ b.T)


@wide_product.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """The largest magnitude rounds up to a power of two; lines of subnormal numbers; some without a unit."""
    yield HardInput("next to two", dict(a=[[2 - 2.0**-20, -2 + 2.0**-20], [1.0, 0.25]], b=[[1.0, 0.0], [0.5, 1.0]]))
    yield HardInput("subnormal", dict(a=[[2.0**-130, 2.0**-144]], b=[[2.0**100], [2.0**114]]))
    yield HardInput("no unit", dict(a=[[1.0, 2.0], [1.0, np.inf]], b=[[1.0, 0.0, 3.0], [np.nan, 0.0, -1.0]]))
    two = np.concatenate([np.full((2, 4096), 2.0), np.full((2, 5), 7.3)], axis=1)
    yield HardInput("two blocks", dict(a=two * [[1.0], [0.3]], b=(two[::-1] * [[0.7], [5.0]]).T))


NEXT, SUBNORMAL, NO_UNIT = "hard/next to two@2x2x2#0", "hard/subnormal@1x1x2#0", "hard/no unit@2x3x2#0"
BLOCKS = "hard/two blocks@2x2x4101#0"
# What is written, what is written wrongly, and the case that shows it.
CPU_SLIPS = {
    "a slice is dropped": ("LEFT_SLICES * RIGHT_SLICES; ++s", "LEFT_SLICES * RIGHT_SLICES - 1; ++s", BLOCKS),
    "the unit of a neighbour": ("rows[i] + cols[j], power", "rows[i ? i - 1 : 0] + cols[j], power", BLOCKS),
    "cut toward zero": ("round_even(mul(mul(x, first), second))", "mul(mul(x, first), second)", BLOCKS),
    "the unit of another block": ("if (fresh && k_size)", "if (k0 == 0 && k_size)", BLOCKS),
    "no saturation": ("splat(-TOP)", "splat(-TOP - 1.0f)", NEXT),
    "units of subnormal numbers": ("? -118 - __builtin_clz(uint32_t(largest)) :", "? -127 :", SUBNORMAL),
    "a column without a unit": ("WITHOUT || cols[j] == WITHOUT;", "WITHOUT;", NO_UNIT),
}
SIM_SLIPS = {
    "a digit is dropped": ("f(Slices<1, 0>{}), f(Slices<1, 1>{});", "f(Slices<1, 0>{});", BLOCKS),
    "the unit of a neighbour": (
        "line < count) to.units[line0 + line]",
        "line < count) to.units[line0 + (line ^ 1)]",
        BLOCKS,
    ),
    "cut toward zero": ("round_even(mul(mul(from[i], once), again))", "mul(mul(from[i], once), again)", BLOCKS),
    "the unit of another block": ("left.units[block * left.lines + r]", "left.units[r]", BLOCKS),
    "no saturation": ("x < TOP ? x : TOP : -TOP", "x < TOP ? x : TOP + 1 : -TOP", NEXT),
    "units of subnormal numbers": ("? 127 : 276", "? 127 : 275", SUBNORMAL),
    "the lowest digit is signed": ("SIGNED ? int32_t(int8_t(", "true ? int32_t(int8_t(", BLOCKS),
    "what fills a K-tile": ("x[e] = S{};", "x[e] = constant(1.0f, S{});", BLOCKS),
}


def refuted(slip: tuple[str, str, str], device: str) -> bool:
    here = 0

    def edit(text: str) -> str:
        nonlocal here
        here += text.count(slip[0])
        return text.replace(*slip[:2])

    chosen: dict[str, Any] = dict(dtype="f32", device=device, variant=of(wide_product, "fixed16"), case=slip[2])
    assert verify(wide_product, **chosen).verdict == "verified"
    found = verify(wide_product, **chosen, edit=edit)
    assert here, f"{slip[0]!r} stands nowhere"
    return found.verdict == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("what", CPU_SLIPS)
def test_slips_are_refuted_on_the_cpu(what: str) -> None:
    assert refuted(CPU_SLIPS[what], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("what", SIM_SLIPS)
def test_slips_are_refuted_on_the_simulated_device(what: str) -> None:
    assert refuted(SIM_SLIPS[what], "sim")
