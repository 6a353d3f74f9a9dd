"""Layer norm: each row is centred, scaled to unit variance, then weighted and shifted.

A row whose mean lies far above its spread loses nothing: the mean is corrected once. With rough = sum(x)/n, which has
the error of its rounding, slip = sum(x - rough)/n is the error of rough, and the variance about rough is too large by
slip**2. A constant row gives exactly beta.

The backward pass is the derivative of all of that in x, not at the mean that was stored: an f32 mean of 2**24 has an
error up to 1, which may be all of the spread. Its error is measured again, by a row sum beside the others: any number
near the mean serves as `mean`, and none of its error reaches the gradient.
"""

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
    maximum,
    operator,
    outputs,
    row_sum,
    sqrt,
    storage,
)

CONTRACT = Contract(
    domain="rows whose squared deviations from the computed mean do not overflow f32: |mean| below 1e20, and "
    "|x - mean| below 1.8e19/sqrt(columns)",
    defaults={"eps": 1e-5},
    ranges={"eps": (0, LARGEST)},
    draw={"mean": "anchor", "rstd": "saved"},
)


@operator(contract=CONTRACT, gradient=Gradient(autocast="f32"))
def layer_norm(
    x: Matrix[storage], gamma: Cols[storage] | None, beta: Cols[storage] | None, *, eps: float = 1e-5
) -> Outputs:
    """y = (x - mean) / sqrt(var + eps) * gamma + beta, each row on its own."""
    n = columns(x)
    rough = row_sum(x) / n
    d = x - rough
    slip = row_sum(d) / n  # a mean far above the spread costs no accuracy
    var = maximum(fma(-slip, slip, row_sum(d * d) / n), 0)
    rstd = 1 / sqrt(var + eps)
    y = (d - slip) * rstd
    if gamma is not None:
        y = fma(y, gamma, beta) if beta is not None else y * gamma
    elif beta is not None:
        y = y + beta
    return outputs(y=y, mean=rough + slip, rstd=rstd)


@operator(contract=CONTRACT, backward_of=layer_norm)
def layer_norm_backward(
    dy: Matrix[storage], x: Matrix[storage], gamma: Cols[storage] | None, mean: Rows[f32], rstd: Rows[f32]
) -> Outputs:
    """dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy gamma; dgamma and dbeta are sums down the columns."""
    n = columns(x)
    rough = (x - mean) * rstd
    slip = row_sum(rough) / n  # the error of the stored mean, in units of the spread
    xhat = rough - slip
    g = dy if gamma is None else dy * gamma
    shift = row_sum(g) / n
    slope = fma(-slip, shift, row_sum(g * rough) / n)  # the mean of g xhat, from sums that need not wait for slip
    results = dict(dx=fma(-slope, xhat, g - shift) * rstd, dbeta=col_sum(dy))
    if gamma is not None:
        results["dgamma"] = col_sum(dy * xhat)
    return outputs(**results)


@layer_norm.set_textbook
def textbook(x: Any, gamma: Any = 1.0, beta: Any = 0.0, *, eps: float) -> dict[str, Any]:
    """Ba, Kiros and Hinton, "Layer Normalization" (2016), equation 4, in the precision of its arguments."""
    mean = x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True) + eps)
    return dict(y=(x - mean) * rstd * gamma + beta, mean=mean, rstd=rstd)


@layer_norm_backward.set_textbook
def textbook_backward(dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any = 1.0) -> dict[str, Any]:
    """The chain rule through equation 4, at the row's own mean, whatever is given as one, with rstd as given."""
    xhat, g = (x - x.mean(axis=1, keepdims=True)) * rstd, dy * gamma
    dx = rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))
    return dict(dx=dx, dgamma=(dy * xhat).sum(axis=0, keepdims=True), dbeta=dy.sum(axis=0, keepdims=True))


@layer_norm.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Rows that have broken layer norms: means far above the spread, constant rows, squares that overflow f16."""
    steps = np.arange(16) * float.fromhex("0x1.0p-10")
    for mean in ("0x0p+0", "0x1.9p+6", "0x1.f4p+9", "0x1.388p+13", "0x1.e848p+19"):
        yield HardInput(f"mean {mean}", dict(x=(float.fromhex(mean) + steps)[None, :]))
    shifted = [float.fromhex(h) for h in ("0x1.f42p+10", "0x1.f41p+10", "0x1.f3fp+10", "0x1.f448p+10")]
    yield HardInput("noise shifted by 2000", dict(x=[shifted]))
    yield HardInput("constant 1234", dict(x=np.full((2, 256), float.fromhex("0x1.348p+10"))))
    yield HardInput("constant 14, two columns", dict(x=[[14.0, 14.0]]), dict(eps=1e-6))
    yield HardInput("constant 0.1", dict(x=np.full((1, 1000), 0.1)))
    yield HardInput("three columns", dict(x=[[10.0, 11.0, 12.0]]))
    yield HardInput("spread below eps", dict(x=[[float.fromhex("0x1.0p-10"), float.fromhex("-0x1.0p-10")], [0.0, 0.0]]))
    yield HardInput("large eps", dict(x=[[1.0, -1.0, 3.0]]), dict(eps=0.5))
    yield HardInput("squares overflow f16", dict(x=[[300.0, -300.0] * 8]))
    yield HardInput("subnormal inputs", dict(x=[[float.fromhex("0x1.0p-24"), 0.0, float.fromhex("-0x1.8p-23"), 0.0]]))
    yield HardInput("infinity and NaN", dict(x=[[1.0, np.inf, 2.0], [np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]))
    yield HardInput("signed zeros", dict(x=[[0.0, -0.0, 0.0, -0.0]]))
    rows = np.linspace(-1, 1, 40)[None, :] * 2.0 ** (np.arange(20)[:, None] % 14)
    yield HardInput("neighbouring rows of other size", dict(x=rows))


def far_from_zero() -> Iterator[tuple[str, Any]]:
    """Rows whose mean, rounded to f32, has an error of much of their spread; constant ones; of one to many columns."""
    for cols in (1, 2, 3, 4, 17, 300):
        steps = np.arange(cols)[None, :]
        yield "mean 2**24, steps of 2", 2.0**24 + 2 * steps
        yield "mean -3 * 2**22, steps of 1", -3 * 2.0**22 - steps
        yield "one step above 2**20", 2.0**20 + np.where(steps == cols // 2, 0.125, 0.0)
        yield "mean 1000, noise", 1000 + np.sin(steps * 7.0)
        yield "constant 1234", np.full((1, cols), 1234.0)
        yield "constant 0.1", np.full((1, cols), 0.1)


@layer_norm_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """Gradients that show a wrong axis, a narrow accumulator, a dropped tail."""
    noise = np.sin(np.arange(1000 * 5)).reshape(1000, 5)
    yield HardInput("dy = 1, a thousand rows", dict(dy=np.ones((1000, 5)), x=noise))
    yield HardInput("dy = 0", dict(dy=np.zeros((3, 17)), x=noise[:3, :1] + np.arange(17)))
    for name, x in far_from_zero():
        cols = x.shape[1]
        slope = np.cos(np.arange(x.size)).reshape(x.shape)
        yield HardInput(f"{name}, {cols} columns", dict(dy=slope, x=x, gamma=np.linspace(0.5, 1.5, cols)))
    yield HardInput("one large row", dict(dy=np.where(np.arange(70)[:, None] == 33, 2048.0, 1.0) * np.ones((70, 3))))
    yield HardInput("infinity and NaN", dict(dy=[[1.0, np.inf, 2.0], [np.nan, 1.0, 2.0], [1.0, 2.0, 3.0]]))
