"""The derived error bounds: never exceeded, rarely far away, and noticed where they are wrong."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokitai import ops, verify
from tokitai.elementary.exact import DECLARED, REAL
from tokitai.errors import TokitaiError
from tokitai.families.attention.plan import is_attention
from tokitai.formats import FORMATS
from tokitai.lang import (
    FIXED_BITS,
    Matrix,
    Node,
    Operator,
    Outputs,
    Sizes,
    Value,
    col_sum,
    columns,
    f32,
    fma,
    function,
    maximum,
    minimum,
    operator,
    outputs,
    round_to,
    row_max,
    row_sum,
    sqrt,
    storage,
    total_max,
    total_sum,
    where,
)  # fmt: skip
from tokitai.lang import f16 as half
from tokitai.meaning import bits, bounds, real
from tokitai.meaning.bounds import Bounded, Bounds
from tokitai.meaning.interpret import as_rows_cols
from tokitai.verification import cases
from tokitai.verification.verdict import Variant, variants

Array = np.ndarray[Any, Any]
EVERY = [
    pytest.param(op, dtype, v, id=f"{op.name} {dtype}{v.flags(op)}")
    for op in ops.registry().values()
    for dtype in op.contract.formats
    for v in variants(op, dtype)
]


def is_fixed(node: Node) -> bool:
    """Whether operands are rounded to fixed point."""
    return node.op == "matmul" and node.data[1] in FIXED_BITS


def exact(op: Operator, graph: Any, case: cases.Case) -> dict[str, Any]:
    """The textbook's results in extended precision."""
    assert op.textbook is not None
    wide = {}
    for t in graph.inputs:
        values = case.tensors[t.name]
        values = values if graph.ragged else as_rows_cols(t, values, case.shape)
        wide[t.name] = values.astype(REAL if FORMATS[str(t.format)].is_float else np.int64)
    scalars: dict[str, Any] = {p: case.params[p] for p in graph.params}
    if "rounded" in inspect.signature(op.textbook).parameters:
        scalars["rounded"] = lambda x: bits.round_to(x.astype(np.float64), graph.dtype).astype(REAL)
    with np.errstate(all="ignore"):
        made: dict[str, Any] = op.textbook(**wide, **scalars, **graph.options)
    return made


@pytest.mark.parametrize(("op", "dtype", "variant"), EVERY)
def test_no_result_is_further_from_the_textbook_than_its_bound(op: Operator, dtype: str, variant: Variant) -> None:
    graph = op.trace(dtype, variant.present, dict(variant.options))
    shapes = [(5, 33), (1, 1), (70, 9), (2, 300)] if op.contract.max_rows > 1 else [(1, 1), (1, 33), (1, 600)]
    if is_attention(graph):  # a score is wrong by as many roundings as it has terms, and so is all that it weighs
        shapes = [Sizes(5, 33, 8), Sizes(1, 1, 1), Sizes(70, 9, 16), Sizes(2, 300, 4)]
    if op.contract.places:  # no more is chosen of a row than it has
        shapes = [s for s in shapes if s[1] >= max(o.slots for o in graph.outputs)]
    parts: dict[str, list[float]] = {}
    for seed, shape in enumerate(shapes):
        case = cases.seeded(op, graph, "normal", shape, seed)
        want = exact(op, graph, case)
        for name, (got, limit) in bounds.evaluate(graph, case.tensors, case.shape, case.params).items():
            value = np.broadcast_to(np.asarray(want[name], REAL), got.shape)
            here = got.astype(np.float64).astype(REAL)
            with np.errstate(invalid="ignore"):  # an infinity is right where the textbook has it
                away = np.where(here == value, 0, np.abs(here - value))
            assert np.isfinite(limit).all() and (limit >= 0).all(), f"{name} at {shape}"
            # The textbook's own roundings: of a hundred operations on sums of so many terms.
            finite = np.where(np.isfinite(value), value, 0)
            own = (100 + sum(shape)) * 2.0 ** (2 - real.PRECISION) * np.maximum(np.abs(finite), limit)
            assert (away <= limit + own).all(), f"{name} at {shape}: {float((away / limit).max())} of the bound"
            smallest = 2.0 ** FORMATS[str(next(o.format for o in graph.outputs if o.name == name))].emin
            sized = np.isfinite(value) & (np.abs(value) > smallest)
            parts.setdefault(name, []).extend((limit[sized] / np.abs(value[sized])).astype(float).ravel())
    for o in graph.outputs:
        if parts.get(o.name):
            # Half an ulp of a stored result is at most 2**-precision of it; a whole one where it is rounded at random,
            # and where the definition rounds half-way and an element may lie on either side of a tie. In f32 before: a
            # few roundings for each of the definition's operations and levels of its sums, ten times that where
            # results cancel. An angle of up to 32768 is rounded to f32. A product rounds at each step of its chain, as
            # long as a row here.
            used = {n.op for n in graph.nodes}
            ulps = {n: 2.0 ** -FORMATS[n].precision if FORMATS[n].precision < 24 else 0 for n in (o.format, dtype)}
            stored = ulps[o.format] * (1 + ("round_stochastic" in used)) + ulps[dtype] * 4 * ("round_to" in used)
            before = 10 * 4 * len(graph.nodes) * bounds.U + ("rotary" in op.name) * 32768 * bounds.U
            before += 10 * sum(n.op == "matmul" for n in graph.nodes) * max(cols for _, cols in shapes) * bounds.U
            # In fixed point both factors of each term move by half a unit, 2**(1 - bits) of the largest of their line,
            # which is four times its root mean square on noise; a sum of noise is as large as the root of its length.
            terms = max(cols for _, cols in shapes) ** 0.5
            before += sum(8 * terms * 2.0 ** (1 - FIXED_BITS[n.data[1]]) for n in graph.nodes if is_fixed(n))
            assert np.median(parts[o.name]) <= stored + before, f"{o.name} is vacuous"


def test_what_has_no_bound_says_so() -> None:
    @function
    def bent(x: Value) -> Value:
        return x * x + 1

    @operator
    def unproved(x: Matrix[f32]) -> Outputs:
        return outputs(y=bent(x))

    with pytest.raises(TokitaiError, match=r"^bent: no error bound is known"):
        bounds.evaluate(unproved.trace("f32"), dict(x=np.ones((1, 3), np.float32)), (1, 3), {})


def test_totals_are_bounded_and_what_is_compared_with_them() -> None:
    """A total was taken for a gate that is open: a bound of 0, and comparisons with 0 in its place."""

    @operator
    def above(x: Matrix[f32]) -> Outputs:
        total = total_sum(x)
        return outputs(y=where(x > total, x, total), total=total, most=total_max(x * x))

    graph, x = above.trace("f32"), np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)
    found = bounds.evaluate(graph, dict(x=x), (5, 7), {})
    want, exact = bits.evaluate(graph, dict(x=x), (5, 7), {}), real.evaluate(graph, dict(x=x), (5, 7), {})
    for name, (value, error) in found.items():
        assert np.array_equal(value, want[name])
        distance = np.abs(want[name].astype(REAL) - exact[name])
        assert (distance <= error).all() and (distance > 0).any(), name


# ------------------------------------------------------------------ one operation at a time
def _binary(f: Callable[..., Any]) -> Operator:
    def definition(a: Matrix[f32], b: Matrix[f32], c: Matrix[f32]) -> Outputs:
        return outputs(y=f(a, b, c))

    return operator(definition)


SINGLE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda a, b, c: a + b, lambda a, b, c: a + b),
    "sub": (lambda a, b, c: a - b, lambda a, b, c: a - b),
    "mul": (lambda a, b, c: a * b, lambda a, b, c: a * b),
    "div": (lambda a, b, c: a / b, lambda a, b, c: a / b),
    "fma": (fma, lambda a, b, c: a * b + c),
    "sqrt": (lambda a, b, c: sqrt(abs(a)), lambda a, b, c: np.sqrt(np.abs(a))),
    "neg": (lambda a, b, c: -a, lambda a, b, c: -a),
    "abs": (lambda a, b, c: abs(a), lambda a, b, c: np.abs(a)),
    "maximum": (lambda a, b, c: maximum(a, b), lambda a, b, c: np.maximum(a, b)),
    "minimum": (lambda a, b, c: minimum(a, b), lambda a, b, c: np.minimum(a, b)),
    "where": (lambda a, b, c: where(a < b, b, c), lambda a, b, c: np.where(a < b, b, c)),
    "not": (lambda a, b, c: where(~(a < b) & (b < c), b, c), lambda a, b, c: np.where(~(a < b) & (b < c), b, c)),
    "round_to": (lambda a, b, c: round_to(a, half), lambda a, b, c: _f16(a)),
    "row_sum": (lambda a, b, c: row_sum(a) + 0 * b, lambda a, b, c: a.sum(axis=1, keepdims=True) + 0 * b),
    "row_max": (lambda a, b, c: row_max(a) + 0 * b, lambda a, b, c: a.max(axis=1, keepdims=True) + 0 * b),
    "col_sum": (lambda a, b, c: col_sum(a) + 0 * b, lambda a, b, c: a.sum(axis=0, keepdims=True) + 0 * b),
}


def _f16(a: Array) -> Array:
    with np.errstate(over="ignore"):
        return bits.round_to(a.astype(np.float64), "f16").astype(REAL)


OPERATORS = {name: _binary(f) for name, (f, _) in SINGLE.items()}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(SINGLE)), st.integers(0, 10**6), st.sampled_from([0.0, 2.0**-24, 2.0**-12, 0.1]))
def test_one_operation_on_inexact_operands(name: str, seed: int, size: float) -> None:
    """Operands up to e from the exact ones, at and inside the ends: the result is within its bound of the exact one."""
    rng = np.random.default_rng(seed)
    shape = (3, 40)
    graph = OPERATORS[name].trace("f32")
    x = [np.ldexp(rng.standard_normal(shape), rng.integers(-9, 9, shape)).astype(np.float32) for _ in "abc"]
    if name in ("where", "not"):  # near each other, so that conditions are in doubt
        x[1] = (x[0] * (1 + size * rng.uniform(-3, 3, shape))).astype(np.float32)
    e = [np.abs(v.astype(np.float64)) * size for v in x]
    true = [v.astype(REAL) + s * rng.choice([-1, 1, 0, 0.5], shape) for v, s in zip(x, e, strict=True)]
    domain, values = Bounds({}), {}
    for node in graph.nodes:
        if node.op == "input":
            i = "abc".index(str(node.data[0]))
            values[node] = Bounded(x[i], e[i])
        else:
            values[node] = domain.apply(node, [values[a] for a in node.args], shape)
    got = values[graph.outputs[0].node]
    away = np.abs(np.broadcast_to(got.value, shape).astype(REAL) - SINGLE[name][1](*true))
    assert (away <= got.error * (1 + 2.0**-40)).all(), f"{float((away / np.maximum(got.error, 1e-300)).max())}"


@operator
def summed(x: Matrix[f32]) -> Outputs:
    return outputs(y=row_sum(x))


def test_sums_of_whole_numbers_are_exact() -> None:
    graph = summed.trace("f32")
    for value, exact_sum in ((1.0, True), (2.0**14, True), (2.0**15, False), (0.5, False), (0.1, False)):
        x = np.full((1, 1000), value, np.float32)
        _, limit = bounds.evaluate(graph, dict(x=x), x.shape, {})["y"]
        assert (limit[0, 0] == 0) == exact_sum, value


# ------------------------------------------------------------------ the table of Lipschitz constants
@pytest.mark.parametrize("name", sorted(DECLARED))
def test_lipschitz_constants_hold_and_are_nearly_reached(name: str) -> None:
    """|f(x + t) - f(x)| <= L(x, e) e for |t| <= e, and at least half of it somewhere: a constant of half the size or
    twice the size is seen."""
    f, lipschitz = DECLARED[name].value, DECLARED[name].lipschitz
    assert lipschitz is not None
    x = np.linspace(-6, 6, 2401).astype(REAL)[None, :]
    if name in ("log", "log1p"):
        x = np.geomspace(1e-3, 1e3, 2001).astype(REAL)[None, :] - (0.99 if name == "log1p" else 0)
    reached = REAL(0)
    for e in (REAL(2.0**-20), REAL(2.0**-10), REAL(0.01)):
        inside = (x - e > (-1 if name == "log1p" else 0)) if name in ("log", "log1p") else np.ones_like(x, bool)
        with np.errstate(all="ignore"):
            allowed = np.broadcast_to(np.asarray(lipschitz(x, e), REAL) * e, x.shape)
            for t in (-e, -e / 2, e / 2, e):
                change = np.abs(f(x + t) - f(x))[inside]
                slack = 2.0**-50 / e  # f itself is computed
                beyond = ~(change <= allowed[inside] * (1 + slack))
                assert not beyond.any(), f"{name}: at {x[inside][beyond.argmax()]}"
                reached = max(reached, (change / allowed[inside]).max())
    assert reached > 0.9, f"{name}: the constant is {float(1 / reached):.3g} times too large"


def test_every_elementary_function_has_a_constant_and_a_record() -> None:
    assert all(f.lipschitz is not None and f.ulps is not None for f in DECLARED.values())


# ------------------------------------------------------------------ what verify makes of them
@operator
def scaled_rms(x: Matrix[storage], *, eps: float = 1e-2) -> Outputs:
    """A norm whose textbook has lost its eps."""
    rstd = 1 / sqrt(row_sum(x * x) / columns(x) + eps)
    return outputs(y=x * rstd)


@pytest.mark.slow
def test_a_wrong_textbook_is_refuted() -> None:
    right: Callable[..., Any] = lambda x, eps: dict(y=x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps))  # noqa: E731
    scaled_rms.set_textbook(right)
    assert verify(scaled_rms, dtype="f32").verdict == "verified"
    scaled_rms.set_textbook(lambda x, eps: right(x, 0))
    verdict = verify(scaled_rms, dtype="f32")
    assert verdict.verdict == "refuted" and verdict.failure is not None
    line = r"y\[\d+,\d+\]: the definition gives \S+, the textbook \S+; the rounding-error bound is \S+$"
    assert re.search(line, verdict.failure), verdict.failure


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("name", "how"), [
    ("grouped_linear_backward_weight", "normal"), ("dropout", "normal"), ("masked_softmax", "normal"),
    ("gelu_erf", "zeros"), ("silu", "zeros"),
])  # fmt: skip
def test_an_exact_zero_may_be_off_by_little_more_than_a_subnormal(name: str, how: str, dtype: str) -> None:
    """Empty groups, masked columns, what is dropped, functions at 0: half an ulp of 1 is no rounding of zero."""
    op, fmt = ops.get(name), FORMATS[dtype]
    graph = op.trace(dtype)
    case = cases.seeded(op, graph, how, (4, 9), 0)
    found = bounds.evaluate(graph, case.tensors, case.shape, case.params)
    value, error = next(iter(found.values()))
    assert (value == 0).any()
    assert (error[value == 0] <= 8 * 2.0 ** (fmt.emin - fmt.precision + 1)).all()
