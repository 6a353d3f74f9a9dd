"""A soft cap: numbers squeezed smoothly into (-cap, cap), as some models do with scores and logits; each on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import exp, tanh
from ..lang import Contract, HardInput, Matrix, Outputs, operator, outputs, storage

CONTRACT = Contract(
    domain="all values; ±inf give ±cap, and no gradient", defaults={"cap": 30.0}, ranges={"cap": (2.0**-64, 2.0**64)}
)


@operator(contract=CONTRACT)
def softcap(x: Matrix[storage], *, cap: float) -> Outputs:
    """y = cap tanh(x / cap)."""
    return outputs(y=tanh(x * (1 / cap)) * cap)


@operator(contract=CONTRACT, backward_of=softcap)
def softcap_backward(dy: Matrix[storage], x: Matrix[storage], *, cap: float) -> Outputs:
    """dx = dy (1 - tanh(u)**2) with u = x / cap, as 4 e / (1 + e)**2 with e = exp(-2|u|), which does not cancel."""
    u = abs(x * (1 / cap))
    e = exp(-(u + u))
    return outputs(dx=dy * (4 * e / ((1 + e) * (1 + e))))


@softcap.set_textbook
def textbook(x: Any, *, cap: float) -> dict[str, Any]:
    """Gemma Team, "Gemma 2" (2024), section 2: logit soft-capping."""
    return dict(y=cap * np.tanh(x / cap))


@softcap_backward.set_textbook
def textbook_backward(dy: Any, x: Any, *, cap: float) -> dict[str, Any]:
    """The derivative of tanh is 1 / cosh**2."""
    return dict(dx=dy / np.cosh(x / cap) ** 2)


def _hard() -> Iterator[HardInput]:
    yield HardInput("around zero", dict(x=[[0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-126, -(2.0**-140)]]))
    yield HardInput("where tanh changes its form", dict(x=[[16.4, 16.5, -16.5, 16.6, 300.0, -310.0]]))
    yield HardInput("far beyond the cap", dict(x=[[60000.0, -60000.0, 1e30, -3e38]]))
    yield HardInput("a small cap", dict(x=[[2.0**-20, 1.0, -0.25, 2.0**-14]]), dict(cap=2.0**-10))
    yield HardInput("infinity and NaN", dict(x=[[np.inf, -np.inf, np.nan, 1.0]]))


for _op in (softcap, softcap_backward):
    _op.set_hard_inputs(_hard)
