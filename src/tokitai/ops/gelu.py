"""GELU, by the normal distribution and by its tanh approximation. Element by element.

The definitions avoid cancellation: the exact one goes through erfc for negative x, the approximation is x sigmoid(2u).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..elementary import gelu, gelu_slope, gelu_tanh_slope
from ..elementary import gelu_tanh as gelu_by_tanh
from ..lang import Contract, HardInput, Matrix, Outputs, operator, outputs, storage

CONTRACT = Contract(domain="all values; in the limit of -inf the result is -0")


@operator(contract=CONTRACT)
def gelu_erf(x: Matrix[storage]) -> Outputs:
    """y = x Phi(x), Phi the standard normal distribution function."""
    return outputs(y=gelu(x))


@operator(contract=CONTRACT, backward_of=gelu_erf)
def gelu_erf_backward(dy: Matrix[storage], x: Matrix[storage]) -> Outputs:
    """dx = dy (Phi(x) + x phi(x)), phi the standard normal density."""
    return outputs(dx=dy * gelu_slope(x))


@operator(contract=CONTRACT)
def gelu_tanh(x: Matrix[storage]) -> Outputs:
    """y = x (1 + tanh u) / 2 = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x**3)."""
    return outputs(y=gelu_by_tanh(x))


@operator(contract=CONTRACT, backward_of=gelu_tanh)
def gelu_tanh_backward(dy: Matrix[storage], x: Matrix[storage]) -> Outputs:
    """dx = dy (s + x s (1 - s) 2u') with s = sigmoid(2u)."""
    return outputs(dx=dy * gelu_tanh_slope(x))


_erfc = np.frompyfunc(math.erfc, 1, 1)


@gelu_erf.set_textbook
def textbook(x: Any) -> dict[str, Any]:
    """Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), with Phi(x) = erfc(-x/sqrt 2)/2."""
    cdf = _erfc((-x / math.sqrt(2)).astype(np.float64)).astype(x.dtype) / 2
    return dict(y=np.where(np.isneginf(x), -0.0, x * cdf))


@gelu_erf_backward.set_textbook
def textbook_backward(dy: Any, x: Any) -> dict[str, Any]:
    """The product rule: d(x Phi)/dx = Phi + x phi."""
    cdf = _erfc((-x / math.sqrt(2)).astype(np.float64)).astype(x.dtype) / 2
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return dict(dx=dy * (cdf + np.where(np.isinf(x), 0.0, x * density)))


def _tanh_parts(x: Any) -> tuple[Any, Any]:
    """(1 + tanh u)/2 without cancellation, and du/dx."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    e = np.exp(-2 * np.abs(u))
    return np.where(u >= 0, 1 / (1 + e), e / (1 + e)), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)


@gelu_tanh.set_textbook
def textbook_tanh(x: Any) -> dict[str, Any]:
    """Hendrycks and Gimpel (2016), equation 2."""
    s, _ = _tanh_parts(x)
    return dict(y=np.where(np.isneginf(x), -0.0, x * s))


@gelu_tanh_backward.set_textbook
def textbook_tanh_backward(dy: Any, x: Any) -> dict[str, Any]:
    """The product rule; 1 - tanh(u)**2 = 4 s (1 - s)."""
    s, slope = _tanh_parts(x)
    other, _ = _tanh_parts(-x)  # 1 - s
    return dict(dx=dy * (s + np.where(np.isinf(x), 0.0, 2 * x * s * other * slope)))


def _hard() -> Iterator[HardInput]:
    zero_of_slope = float.fromhex("-0x1.80e8p-1")  # the derivative vanishes near here
    yield HardInput("around zero", dict(x=[[0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-126, -(2.0**-140)]]))
    yield HardInput("tails", dict(x=[[-3.0, -5.5, -8.0, -10.0, -12.9, -13.5, -14.2, 5.0, 13.0, 100.0]]))
    near = [[zero_of_slope, zero_of_slope + 2.0**-11, zero_of_slope - 2.0**-11]]
    yield HardInput("zero of the derivative", dict(x=near), in_domain=False)
    yield HardInput("infinity and NaN", dict(x=[[np.inf, -np.inf, np.nan, 1.0, 3e4, -3e4]]))


for _op in (gelu_erf, gelu_erf_backward, gelu_tanh, gelu_tanh_backward):
    _op.set_hard_inputs(_hard)
