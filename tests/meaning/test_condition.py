"""Errors in roundings of the magnitudes that an element's evaluation adds: the unit, the bounds in it, and the reasons
where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.elementary.exact import REAL
from tokitai.evidence.check import LARGEST_BOUND
from tokitai.families.attention.plan import is_attention
from tokitai.formats import FORMATS
from tokitai.lang import (
    Graph,
    Matrix,
    Operator,
    Outputs,
    Sizes,
    Value,
    fma,
    maximum,
    operator,
    outputs,
    row_max,
    row_sum,
    sqrt,
    storage,
    where,
)  # fmt: skip
from tokitai.meaning import bits, bounds, condition, real
from tokitai.verification import cases
from tokitai.verification.accuracy import exact_results, exactly, measure_error
from tokitai.verification.conditioned import Conditioned, measured
from tokitai.verification.run import CaseResult

Array = np.ndarray[Any, Any]


def units(graph: Graph, shape: tuple[int, int], **tensors: Array) -> tuple[tuple[Array, ...], list[str]]:
    """What is said of the first result: bits, bound, probabilistic bound, unit, number of a sentence; the sentences."""
    why: list[str] = []
    found = condition.evaluate(graph, tensors, shape, {}, {}, why)
    return found[graph.outputs[0].name], why


# ------------------------------------------------------------------ the unit
class Slow:
    """An exact number with its magnitude, by the rules of `meaning.condition` as they are written there."""

    U = Fraction(1, 2**24)
    NORMAL = Fraction(1, 2**126)

    def __init__(self, value: Fraction, magnitude: Fraction | None = None) -> None:
        self.value = value
        self.magnitude = max(abs(value), abs(value) if magnitude is None else magnitude)

    def __add__(self, other: Slow) -> Slow:
        return Slow(self.value + other.value, self.magnitude + other.magnitude)

    def __sub__(self, other: Slow) -> Slow:
        return Slow(self.value - other.value, self.magnitude + other.magnitude)

    def __mul__(self, other: Slow) -> Slow:
        (a, b), (m, n) = (abs(self.value), abs(other.value)), (self.magnitude, other.magnitude)
        return Slow(self.value * other.value, max(a * n + b * m - a * b + self.U * m * n, self.NORMAL))

    def __truediv__(self, other: Slow) -> Slow:
        value = self.value / other.value
        size = (self.magnitude + abs(value) * other.magnitude) / abs(other.value) - abs(value)
        return Slow(value, max(size, self.NORMAL))

    def most(self, other: Slow) -> Slow:
        return Slow(max(self.value, other.value), max(self.magnitude, other.magnitude))


def total(values: list[Slow]) -> Slow:
    return Slow(sum((v.value for v in values), Fraction(0)), sum((v.magnitude for v in values), Fraction(0)))


SMALL: dict[str, tuple[Callable[..., Value], Callable[..., Any]]] = {
    "difference": (lambda a, b: a - b, lambda a, b, row: a - b),
    "polynomial": (lambda a, b: (a - b) * (a + b) * a, lambda a, b, row: (a - b) * (a + b) * a),
    "multiply-add": (lambda a, b: fma(a - b, a, b), lambda a, b, row: (a - b) * a + b),
    "quotient": (lambda a, b: (a - b) / maximum(abs(b), b), lambda a, b, row: (a - b) / b.most(Slow(abs(b.value)))),
    "deviation": (
        lambda a, b: (a - row_sum(a)) * (a - row_sum(a)),
        lambda a, b, row: (a - total(row)) * (a - total(row)),
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_magnitudes_are_those_of_a_slow_computation(name: str) -> None:
    """Of small whole numbers and powers of two, which no operation rounds, in fractions."""
    fast, slow = SMALL[name]

    def definition(a: Matrix[storage], b: Matrix[storage]) -> Outputs:
        return outputs(y=fast(a, b))

    rng = np.random.default_rng(4)
    a = rng.integers(-8, 9, (3, 4)).astype(np.float32)
    b = np.ldexp(rng.choice([-1, 1], (3, 4)), rng.integers(-3, 4, (3, 4))).astype(np.float32)
    graph = operator(definition).trace("f32")
    (value, *_, unit, _), _ = units(graph, a.shape, a=a, b=b)
    for i in range(3):
        row = [Slow(Fraction(float(x))) for x in a[i]]
        for j in range(4):
            want = slow(row[j], Slow(Fraction(float(b[i, j]))), row)
            assert Fraction(float(value[i, j])) == want.value
            assert unit[i, j] == pytest.approx(float(Slow.U * max(want.magnitude, Slow.NORMAL)), rel=2.0**-40)


def test_what_is_measured_is_the_distance_in_units() -> None:
    """The largest error, its bin and that of the row, in fractions; an element without a bound is left out."""
    fmt = FORMATS["f16"]
    got = np.array([[1.0, 2.0, 3.0], [0.0, np.inf, 5.0]], np.float16)
    exact = np.array([[1.001, 2.0, 2.99], [2.0**-26, 65521, 7.0]], REAL)
    unit = np.array([[2.0**-11, 2.0**-10, 2.0**-9], [2.0**-25, 32, 1]])
    limit, reason = np.full((2, 3), 1000.0) * unit, np.array([[0, 0, 0], [0, 0, 1]])
    scale = np.array([[2.99], [7.0]], REAL)
    found = measured(got, exact, (limit, limit / 2, unit, reason), fmt, scale, ["it is hard"])
    distances = [[0.001, 0, 0.01], [2.0**-26, 15]]  # infinity stands for 65536
    errors = [d / u for ds, us in zip(distances, unit, strict=True) for d, u in zip(ds, us, strict=False)]
    assert found.elements == 5 and found.error == pytest.approx(max(errors))
    assert found.of_row == pytest.approx(15 * 2**11 / 7) and (found.bound, found.likely) == (1000, 500)
    bins = [max(round(math.log2(e)), -10) if e else -10 for e in errors]
    assert list(found.counts) == [bins.count(k) for k in range(-10, 21)]
    assert (found.unbounded, found.why) == (1, {"it is hard"})


@operator
def scaled(x: Matrix[storage], y: Matrix[storage]) -> Outputs:
    return outputs(z=x * y)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_results_that_are_subnormal_or_overflow_have_errors_of_a_unit(dtype: str) -> None:
    fmt = FORMATS[dtype]
    graph = scaled.trace(dtype)
    small = np.ldexp(np.linspace(1, 2, 64), fmt.emin + 2)
    large = np.ldexp(np.linspace(1.9, 2.1, 64), fmt.emax - 2)
    x = bits.round_to(np.stack([small, large]), dtype).astype(fmt.dtype)
    y = np.array([[1 / 3], [4]]) * np.ones((2, 64))
    y = bits.round_to(y * np.array([[2.0**-4], [1]]), dtype).astype(fmt.dtype)
    (got, limit, likely, unit, reason), why = units(graph, x.shape, x=x, y=y)
    exact = real.evaluate(graph, dict(x=x, y=y), x.shape, {})["z"]
    assert np.isinf(got[1]).any() and np.isfinite(got[1]).any()
    found = measured(got, exact, (limit, likely, unit, reason), fmt, np.abs(exact).max(axis=1, keepdims=True), why)
    if dtype != "f32":  # whose own overflow leaves no value
        assert found.unbounded == 0
    assert found.elements >= 64 and 0.4 < found.error <= found.bound <= 2.01, "a rounding to f32, and to the format"


# ------------------------------------------------------------------ every operator
def shapes_of(op: Operator, graph: Graph) -> tuple[int, int]:
    if is_attention(graph):
        return Sizes(5, 33, 8)
    return (5, 33) if op.contract.max_rows > 1 else (1, 65)


def measure(op: Operator, graph: Graph, case: cases.Case) -> Mapping[str, Conditioned]:
    """As a verification measures the case. Its definition must hold."""
    result = CaseResult(case.kind, case.name, case.shape, case.seed, case.id, case.params)
    want = bits.evaluate(graph, case.tensors, case.shape, case.params)
    measure_error(graph, case, want, op, result)
    assert result.failure is None
    return result.conditioned


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", list(ops.registry()))
def test_every_bound_is_below_a_million_or_says_why_not(name: str, dtype: str) -> None:
    op = ops.get(name)
    if dtype not in op.contract.formats:
        pytest.skip(f"{name} has no {dtype}")
    graph = op.trace(dtype)
    floats = {o.format for o in graph.outputs if FORMATS[o.format].is_float}
    for how in ("normal", "exponents"):
        found = measure(op, graph, cases.seeded(op, graph, how, shapes_of(op, graph), 1))
        assert found.keys() == floats
        for one in found.values():
            assert one.error <= one.bound <= LARGEST_BOUND and one.likely <= one.bound
            assert sum(one.counts) == one.elements and (one.elements > 0 or how != "normal")
            assert bool(one.why) == (one.unbounded > 0)
            assert how != "normal" or one.unbounded == 0, one.why


TIGHT = {
    "layer_norm": (70, 333), "softmax": (70, 333), "matmul": Sizes(24, 24, 1024), "adamw": (1, 9999),
    "attention": Sizes(33, 70, 16), "attention_backward": Sizes(33, 70, 16),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", TIGHT)
def test_the_bound_is_at_most_four_times_the_largest_error(name: str, dtype: str) -> None:
    """Of results in 16 bits, whose last rounding is most of either; and in hard cases as well."""
    op = ops.get(name)
    graph = op.trace(dtype)
    hard = [c for c in cases.hard(op, graph) if c.in_domain and 0 not in c.shape and np.prod(c.shape) < 1 << 14]
    found = [measure(op, graph, c)[dtype] for c in [cases.seeded(op, graph, "normal", TIGHT[name], 0), *hard]]
    assert max(f.bound for f in found) <= 4 * max(f.error for f in found)
    assert sum(f.unbounded for f in found) <= 0.01 * sum(f.elements for f in found)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("name", ["layer_norm", "softmax", "matmul"])
def test_a_planted_error_is_beyond_the_bound(name: str, dtype: str) -> None:
    """Twice the bound, at the element that has the largest."""
    op = ops.get(name)
    graph = op.trace(dtype)
    case = cases.seeded(op, graph, "normal", Sizes(5, 33, 64) if name == "matmul" else (5, 33), 0)
    why: list[str] = []
    got, *limits = condition.evaluate(graph, case.tensors, case.shape, case.params, {}, why)["y"]
    exact = np.asarray(exact_results(graph, exactly(op, graph, case), op.textbook)["y"], REAL)
    at = np.unravel_index(np.argmax(limits[0] / limits[2]), got.shape)
    scale, fmt = np.abs(exact).max(axis=-1, keepdims=True), FORMATS[dtype]
    right = measured(got, exact, limits, fmt, scale, why)
    assert right.error <= right.bound
    planted = got.astype(np.float64)
    planted[at] = exact[at] + 2 * limits[0][at]
    wrong = measured(bits.round_to(planted, dtype), exact, limits, fmt, scale, why)
    assert wrong.error > wrong.bound == right.bound


def test_the_probabilistic_bound_of_a_long_chain_grows_as_a_root() -> None:
    """Theorem 2.4 at 1,024 roundings of each term; a tree has too few for it to be smaller."""
    graph = ops.get("matmul").trace("f32", options={})
    ratio = {}
    for inner in (256, 1024, 4096):
        case = cases.seeded(ops.get("matmul"), graph, "normal", Sizes(3, 5, inner), 0)
        found = measure(ops.get("matmul"), graph, case)["f32"]
        assert found.error <= found.likely < found.bound
        ratio[inner] = found.likely / found.bound
    assert ratio[4096] < 0.6 * ratio[1024] < 0.6 * 0.6 * ratio[256] * 1.1
    softmax = ops.get("softmax")
    tree = measure(softmax, softmax.trace("f32"), cases.seeded(softmax, softmax.trace("f32"), "normal", (3, 999), 0))
    assert tree["f32"].likely == tree["f32"].bound


# ------------------------------------------------------------------ why there is no bound
LARGE = np.float32(2.0**100)
NEAR = np.float32(1 + 2.0**-23)
REASONS: dict[str, tuple[Callable[..., Value], float, float, str]] = {
    "quotient": (lambda a, b: 1 / (a * a - b), NEAR, NEAR * NEAR, "a divisor may be zero within its error bound"),
    "overflow": (lambda a, b: 1 / (a * a + b), LARGE, 1, "an intermediate result overflows f32"),
    "choice": (
        lambda a, b: where(a * a > b, a, -a), NEAR, NEAR * NEAR,
        "a comparison of values within their error bounds decides",
    ),
    "masked": (
        lambda a, b: row_max(where(a > b, 1 / (a * a - a * a), 1 / (a * a - b))), NEAR, NEAR * NEAR,
        "a divisor may be zero within its error bound",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REASONS)
def test_a_bound_beyond_all_measure_has_a_reason(name: str) -> None:
    f, a, b, said = REASONS[name]

    def definition(a: Matrix[storage], b: Matrix[storage]) -> Outputs:
        return outputs(y=f(a, b))

    graph = operator(definition).trace("f32")
    x, y = (np.full((1, 3), v, np.float32) for v in (a, b))
    x[0, 1], y[0, 1] = 3, 1
    (_, error, _, unit, reason), why = units(graph, x.shape, a=x, b=y)
    assert why == [said]
    assert np.array_equal(reason != 0, ~(error <= LARGEST_BOUND * unit))
    assert name == "masked" or reason[0, 1] == 0, "the other element has a bound"


def test_a_masked_infinity_is_no_magnitude() -> None:
    @operator
    def masked(x: Matrix[storage]) -> Outputs:
        kept = where(x > 0, x, -math.inf)
        return outputs(y=x - row_max(kept))

    x = np.array([[1.0, -2.0, 3.0]], np.float32)
    (_, _, _, unit, reason), _ = units(masked.trace("f32"), x.shape, x=x)
    assert unit.tolist() == [[bounds.U * 4, bounds.U * 5, bounds.U * 6]] and not reason.any()


def test_square_roots_near_zero_are_measured_by_what_cancels() -> None:
    """sqrt(a - b) of what cancels: u m under the root moves it by as much as the root of that."""

    @operator
    def rooted(a: Matrix[storage], b: Matrix[storage]) -> Outputs:
        return outputs(y=sqrt(abs(a * a - b)))

    x = np.array([[NEAR, 3.0]], np.float32)
    (_, error, _, unit, reason), _ = units(rooted.trace("f32"), x.shape, a=x, b=(x * x).astype(np.float32))
    assert not reason.any() and (error / unit < 4).all()
