"""Intervals of values: what the oracle computes lies in its node's, and those that checks lean on are narrow."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tokitai.elementary import __all__ as names
from tokitai.elementary.common import at_most
from tokitai.emit.gpu_printer import LARGE, SMALL
from tokitai.lang import Function, Matrix, Outputs, Value, fma, operator, outputs, storage, where
from tokitai.lower.ranges import ALL, ranges
from tokitai.meaning.bits import Bits
from tokitai.meaning.interpret import apply
from tokitai.ops import registry

FUNCTIONS: dict[str, Function] = {
    f.name: f for o in registry().values() if "f32" in o.contract.formats for f in o.trace("f32").functions
}


def inputs() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """All exponents and signs with random significands, and numbers as they usually are."""
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, 40_000, dtype=np.uint32).view(np.float32)
    usual = (rng.standard_normal(20_000) * 10.0 ** rng.integers(-3, 3, 20_000)).astype(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, -104.0, -110.0, 14.6, 2.0**-149], np.float32)
    values: np.ndarray[tuple[int, int], np.dtype[np.float32]] = np.concatenate([anything, usual, edges])[None, :]
    return values[:, ~np.isnan(values[0])]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_value_lies_in_its_interval(name: str) -> None:
    f = FUNCTIONS[name]
    if len(f.params) != 1:
        pytest.skip("of several values")
    domain, intervals, x = Bits({}), ranges(f.nodes), inputs()
    values = {f.params[0]: x}
    narrow = 0
    for n in f.nodes:
        if n not in values:
            values[n] = apply(domain, n, [values[a] for a in n.args], (1, x.size))
        if n.type != "f32":
            continue
        low, high = intervals[n]
        finite = values[n][~np.isnan(values[n])]
        assert ((finite >= low) & (finite <= high)).all(), (n.op, low, high, finite.min(), finite.max())
        narrow += (low, high) != ALL
    assert narrow > 1


def test_the_functions_are_those_that_there_are() -> None:
    assert {"silu", "gelu", "gelu_tanh", "exp_down"} <= set(FUNCTIONS) & set(names)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_slope", "silu_slope", "gelu_tanh", "gelu_tanh_slope"])
def test_a_divisor_needs_no_look(name: str) -> None:
    f = FUNCTIONS[name]
    intervals = ranges(f.nodes)
    divisors = [intervals[n.args[1]] for n in f.nodes if n.op == "div"]
    assert divisors and all(low >= SMALL and high <= LARGE for low, high in divisors)


Body = Callable[[Value], Value]


def _dropped(x: Value, c: float | None = None, other: float | None = None) -> Value:
    """What is dropped from x * x, or from x * x + c."""
    return fma(x, x, -(x * x if c is None else fma(x, x, c) - (c if other is None else other)))


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (lambda x: x, ALL),
        (lambda x: abs(x) + 1.0, (1.0, np.inf)),
        (lambda x: x * x + 2.0, (2.0, np.inf)),
        (lambda x: abs(x) * x, ALL),
        (lambda x: 1.0 / (abs(x) + 1.0), (0.0, 1.0)),
        (lambda x: 1.0 / x, ALL),
        (lambda x: (abs(x) + 1.0) * 2.0**-140, (0.0, np.inf)),  # below 2^-126 a product may be 0
        (lambda x: _dropped(at_most(abs(x), 3.0)), (-9 * 2.0**-24, 9 * 2.0**-24)),
        (lambda x: _dropped(at_most(abs(x), 3.0), 2.0), (-20 * 2.0**-24, 20 * 2.0**-24)),  # 11, and 9 beside it
        (lambda x: _dropped(at_most(abs(x), 3.0), 2.0, 1.0), (-10.0, 8.0)),  # of another sum
    ],
)
def test_intervals_of_expressions(body: Body, want: tuple[float, float]) -> None:
    @operator
    def made(x: Matrix[storage]) -> Outputs:
        return outputs(y=body(x))

    graph = made.trace("f32")
    got = ranges(graph.nodes)[graph.outputs[0].node]
    assert got == pytest.approx(want, rel=1e-5, abs=1e-30)


@pytest.mark.parametrize(("most", "absorbed"), [(2.0**-26, True), (2.0**-25, False), (2.0**-24, False)])
def test_what_is_too_small_beside_a_power_of_two_is_absorbed(most: float, absorbed: bool) -> None:
    @operator
    def made(x: Matrix[storage]) -> Outputs:
        return outputs(y=1.0 + at_most(abs(x), most))

    graph = made.trace("f32")
    assert (ranges(graph.nodes)[graph.outputs[0].node] == (1.0, 1.0)) is absorbed


@pytest.mark.parametrize(("low", "high", "want"), [(-2.0, -1.0, (1.0, 2.0)), (1.0, 2.0, (1.0, 2.0)), (-1.0, 1.0, ALL)])
def test_a_choice_that_is_known_counts_alone(low: float, high: float, want: tuple[float, float]) -> None:
    @operator
    def made(x: Matrix[storage]) -> Outputs:
        return outputs(y=where(x < 0.0, 0.0 - x, where(x > 0.0, x, math.inf)))

    graph = made.trace("f32")
    x = next(n for n in graph.nodes if n.op == "input")
    got = ranges(graph.nodes, {x: (low, high)})[graph.outputs[0].node]
    assert got == pytest.approx(want, rel=1e-5) if want != ALL else got[1] == math.inf
