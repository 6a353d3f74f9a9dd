"""Dividends that need no look: tried with all numbers of 16 bits, by the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from tokitai.emit.gpu_printer import SMALL, QuotientPrinter
from tokitai.formats import FORMATS
from tokitai.lang import Function, Node
from tokitai.lower.dividends import never_small
from tokitai.meaning.bits import Bits
from tokitai.meaning.interpret import apply
from tokitai.ops import registry

ONE = {f.name: f for o in registry().values() for f in o.trace("f16").functions if len(f.params) == 1}
SHOWN = {
    "f16": {"silu", "silu_slope", "gelu", "gelu_slope", "gelu_tanh", "gelu_tanh_slope"},
    "bf16": {"silu_slope", "gelu", "gelu_slope", "gelu_tanh_slope"},  # silu(x) is x / 2 for 2^-130, which is no f16
}


def quotients(f: Function, fmt: str) -> dict[Node, tuple[np.ndarray, np.ndarray]]:
    """Dividends and divisors for every argument of a format but NaN."""
    patterns = np.arange(1 << 16, dtype=np.uint16).view(FORMATS[fmt].dtype)
    with np.errstate(invalid="ignore"):  # of the patterns that are left out
        x = patterns[~np.isnan(patterns)].astype(np.float32)[None, :]
    domain, values = Bits({}), {f.params[0]: x}
    for n in f.nodes:
        if n not in values:
            values[n] = apply(domain, n, [values[a] for a in n.args], (1, x.size))
    return {n: (values[n.args[0]], values[n.args[1]]) for n in f.nodes if n.op == "div"}


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
@pytest.mark.parametrize("name", sorted(ONE))
def test_what_is_shown_holds_for_every_argument(name: str, fmt: str) -> None:
    shown = never_small(ONE[name], fmt, SMALL)
    for n, (dividend, divisor) in quotients(ONE[name], fmt).items():
        size = np.abs(np.broadcast_to(dividend, divisor.shape))
        fine = (size >= SMALL) | (size == 0) | (divisor == 1)
        assert fine.all() or n not in shown
        assert n in shown or name not in SHOWN[fmt]


def test_functions_are_those_that_there_are() -> None:
    assert SHOWN["f16"] <= set(ONE)
    assert never_small(ONE["silu"], "bf16", SMALL) == frozenset()


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_what_does_not_hold_is_not_shown(name: str) -> None:
    for small in (2.0**-23, 2.0**-10, 1.0):
        dividend, divisor = next(iter(quotients(ONE[name], "f16").values()))
        size = np.abs(dividend)
        assert ((size < small) & (size > 0) & (divisor != 1)).any()
        assert never_small(ONE[name], "f16", small) == frozenset()
    assert never_small(ONE[name], "f16", 2.0**-26)
    assert never_small(ONE[name], "f32", SMALL) == frozenset()


def test_an_argument_that_is_computed_is_any_number() -> None:
    op = registry()["linear_swiglu"]
    assert QuotientPrinter(op.trace("f16")).never_small == frozenset()
    assert QuotientPrinter(registry()["swiglu"].trace("f16")).never_small
