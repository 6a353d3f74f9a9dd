"""RMS norm: each row divided by its root mean square, then weighted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import (
    LARGEST,
    Cols,
    Contract,
    Gradient,
    HardInput,
    Matrix,
    Outputs,
    Rows,
    col_sum,
    columns,
    f32,
    fma,
    operator,
    outputs,
    row_sum,
    sqrt,
    storage,
)

CONTRACT = Contract(
    domain="rows whose squares do not overflow f32: |x| below 1.8e19/sqrt(columns)",
    defaults={"eps": 1e-6},
    ranges={"eps": (0, LARGEST)},
    draw={"rstd": "positive"},
)


@operator(contract=CONTRACT, gradient=Gradient(autocast="f32"))
def rms_norm(x: Matrix[storage], gamma: Cols[storage] | None, *, eps: float = 1e-6) -> Outputs:
    """y = x / sqrt(mean(x**2) + eps) * gamma, each row on its own; rounded once, at the store."""
    rstd = 1 / sqrt(row_sum(x * x) / columns(x) + eps)
    xhat = x * rstd
    return outputs(y=xhat if gamma is None else xhat * gamma, rstd=rstd)


@operator(contract=CONTRACT, backward_of=rms_norm)
def rms_norm_backward(dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage] | None, rstd: Rows[f32]) -> Outputs:
    """dx = rstd (g - xhat mean(g xhat)) with g = dy gamma; dgamma is a sum down the columns."""
    xhat = x * rstd
    g = dy if gamma is None else dy * gamma
    slope = row_sum(g * xhat) / columns(x)
    results = dict(dx=fma(-slope, xhat, g) * rstd)
    if gamma is not None:
        results["dgamma"] = col_sum(dy * xhat)
    return outputs(**results)


@rms_norm.set_textbook
def textbook(x: Any, gamma: Any = 1.0, *, eps: float) -> dict[str, Any]:
    """Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019), equation 4, with eps under the root."""
    rstd = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps)
    return dict(y=x * rstd * gamma, rstd=rstd)


@rms_norm_backward.set_textbook
def textbook_backward(dy: Any, x: Any, rstd: Any, gamma: Any = 1.0) -> dict[str, Any]:
    """The chain rule through equation 4, with rstd as given."""
    xhat, g = x * rstd, dy * gamma
    dx = rstd * (g - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dict(dx=dx, dgamma=(dy * xhat).sum(axis=0, keepdims=True))


@rms_norm.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Rows that have broken RMS norms: squares that overflow f16, odd widths, values below eps."""
    for n in (1, 3, 7, 3420, 3585):
        signs = np.where(np.arange(n) % 2, -1.0, 1.0)
        yield HardInput(f"plus and minus one, {n} columns", dict(x=[signs, signs]))
    yield HardInput("squares overflow f16", dict(x=np.full((1, 8), 300.0)))
    yield HardInput("squares overflow f32", dict(x=np.full((1, 4), float.fromhex("0x1.0p+83"))), in_domain=False)
    yield HardInput("one rounding, at the store", dict(x=[[0.546875, 0.890625]], gamma=[2.015625, 1.0]))
    yield HardInput("zero row", dict(x=[[0.0, -0.0, 0.0]]))
    yield HardInput("spread below eps", dict(x=[[2.0**-10, -(2.0**-10)]]), dict(eps=0.25))
    yield HardInput("infinity and NaN", dict(x=[[1.0, np.inf, 2.0], [np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]))


@rms_norm_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """A weight applied twice shows only where weights differ; a narrow accumulator only where many ones are added."""
    row = dict(dy=[[1.0, 1.0]], x=[[1.0, 2.0]], gamma=[2.0, 3.0], rstd=[0.6324555320336759])
    yield HardInput("weights two and three", row)
    yield HardInput("a thousand ones", dict(dy=np.ones((1000, 4)), x=np.ones((1000, 4)), rstd=np.ones(1000)))
    yield HardInput("infinity and NaN", dict(dy=[[1.0, np.inf, 2.0], [np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]))
    for name, x in whole_rows():
        dy = np.cos(np.arange(x.size)).reshape(x.shape)
        yield HardInput(f"{name}, rstd of the forward pass", dict(dy=dy, x=x), saved=("rstd",))


def whole_rows() -> Iterator[tuple[str, Any]]:
    """Rows whose gradient is held against that of the whole function: what cancels, few columns, what eps outweighs."""
    for cols in (1, 2, 3, 300):
        steps = np.arange(cols)[None, :]
        yield f"{cols} columns", np.sin(steps * 7.0 + 1)
        yield f"{cols} equal columns", np.full((1, cols), 1234.0)
        yield f"{cols} columns of 2**-12", np.where(steps % 2, -(2.0**-12), 2.0**-12)
