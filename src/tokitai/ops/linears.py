"""Linear layers: y = x W^T + bias with an activation, a gate or a residual in the same pass, and their gradients.

All of it is computed in f32 from the products' sums on, and rounded once, at the store. Leading dimensions of x and dy
flatten into rows. A weight is stored as outputs x inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..elementary import gelu, gelu_tanh, silu
from ..lang import (
    Cols,
    Contract,
    Gradient,
    HardInput,
    Matrix,
    Operand,
    Outputs,
    col_sum,
    f32,
    matmul,
    operator,
    outputs,
    storage,
)
from .gated import textbook_silu
from .gelu import textbook as textbook_gelu
from .gelu import textbook_tanh
from .products import DOMAIN, Accumulator, hard_products, hard_steps, square

Activation = Literal["none", "gelu", "gelu_tanh", "silu"]
CONTRACT = Contract(domain=DOMAIN)


@operator(contract=CONTRACT, gradient=Gradient(composed=True))
def linear(
    x: Operand[storage], weight: Operand[storage], bias: Cols[storage] | None, residual: Matrix[storage] | None,
    *, activation: Activation = "none", accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """y = activation(x W^T + bias) + residual."""
    y = matmul(x, weight, "NT", accumulator)
    y = y if bias is None else y + bias
    y = dict(none=lambda h: h, gelu=gelu, gelu_tanh=gelu_tanh, silu=silu)[activation](y)
    return outputs(y=y if residual is None else y + residual)


@operator(contract=CONTRACT)
def linear_swiglu(
    x: Operand[storage], gate: Operand[storage], up: Operand[storage], *, accumulator: Accumulator = "f32"
) -> Outputs:
    """y = silu(x G^T) (x U^T): both products of one x, and the gate between them, in one pass."""
    return outputs(y=silu(matmul(x, gate, "NT", accumulator)) * matmul(x, up, "NT", accumulator))


@operator(contract=CONTRACT, backward_of=linear)
def linear_backward_input(
    dy: Operand[storage], weight: Operand[storage], *, accumulator: Accumulator = "f32"
) -> Outputs:
    """dx = dy W."""
    return outputs(dx=matmul(dy, weight, "NN", accumulator))


@operator(contract=CONTRACT, backward_of=linear)
def linear_backward_weight(dy: Operand[storage], x: Operand[storage], *, accumulator: Accumulator = "f32") -> Outputs:
    """dW = dy^T x, a sum over all rows of dy and x."""
    return outputs(dweight=matmul(dy, x, "TN", accumulator))


@operator(contract=CONTRACT)
def linear_accumulate_weight(
    total: Matrix[f32], dy: Operand[storage], x: Operand[storage], *, accumulator: Accumulator = "f32"
) -> Outputs:
    """total += dy^T x, in place and in f32, whatever dy and x are stored in: the gradient of a batch in parts."""
    return outputs(total=total + matmul(dy, x, "TN", accumulator))


@operator(contract=CONTRACT, backward_of=linear)
def linear_backward_bias(dy: Matrix[storage]) -> Outputs:
    """dbias, the sum of dy down its columns."""
    return outputs(dbias=col_sum(dy))


# ------------------------------------------------------------------ textbooks
def _activated(h: Any, activation: str) -> Any:
    if activation == "gelu":
        return textbook_gelu(h)["y"]
    if activation == "gelu_tanh":
        return textbook_tanh(h)["y"]
    return textbook_silu(h)["y"] if activation == "silu" else h


@linear.set_textbook
def textbook(
    x: Any, weight: Any, *, activation: str, accumulator: str, bias: Any = 0.0, residual: Any = 0.0
) -> dict[str, Any]:
    """Goodfellow, Bengio and Courville, "Deep Learning" (2016), equation 6.3, with the weights transposed; the residual
    of He, Zhang, Ren and Sun (2015), equation 1."""
    return dict(y=_activated(x @ weight.T + bias, activation) + residual)


@linear_swiglu.set_textbook
def textbook_swiglu(x: Any, gate: Any, up: Any, *, accumulator: str) -> dict[str, Any]:
    """Shazeer, "GLU Variants Improve Transformer" (2020), equation 6."""
    return dict(y=textbook_silu(x @ gate.T)["y"] * (x @ up.T))


@linear_backward_input.set_textbook
def textbook_input(dy: Any, weight: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule."""
    return dict(dx=dy @ weight)


@linear_backward_weight.set_textbook
def textbook_weight(dy: Any, x: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule."""
    return dict(dweight=dy.T @ x)


@linear_accumulate_weight.set_textbook
def textbook_accumulate(total: Any, dy: Any, x: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule, and a sum over the parts of a batch."""
    return dict(total=total + dy.T @ x)


@linear_backward_bias.set_textbook
def textbook_bias(dy: Any) -> dict[str, Any]:
    """The product rule."""
    return dict(dbias=dy.sum(axis=0, keepdims=True))


# ------------------------------------------------------------------ hard inputs
@linear.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Products; sums that a bias or a residual cancels."""
    yield from hard_products("x", "weight")
    ones = np.ones((33, 33))
    yield HardInput("a bias that cancels", dict(x=ones, weight=ones, bias=np.full(33, -33.0)))
    yield HardInput("a residual that cancels", dict(x=ones, weight=ones, residual=ones * -33.0))
    yield HardInput("rounded once", dict(x=[[1.0, 2.0**-11]], weight=[[1.0], [1.0]], bias=[2.0**-12], residual=[[0.0]]))
    tails = np.array([[-3.0, -8.0, -17.0, -30.0, -104.0, 5.0, 100.0]])
    yield HardInput("tails of an activation", dict(x=[[1.0]], weight=tails, bias=tails[0] * 0))


@linear_swiglu.set_hard_inputs
def hard_swiglu() -> Iterator[HardInput]:
    """Products with the gate; gates that vanish."""
    yield from hard_products("x", "gate")
    tails = np.array([[-3.0, -8.0, -17.0, -30.0, -104.0, 5.0, 100.0]])
    yield HardInput("tails of the gate", dict(x=[[1.0]], gate=tails, up=tails[:, ::-1]))


@linear_backward_input.set_hard_inputs
def hard_input() -> Iterator[HardInput]:
    """Products."""
    yield from hard_products("dy", "weight")


@linear_backward_weight.set_hard_inputs
def hard_weight() -> Iterator[HardInput]:
    """Products."""
    yield from hard_products("dy", "x")


@linear_accumulate_weight.set_hard_inputs
def hard_accumulate() -> Iterator[HardInput]:
    """The same beside a total, one of which they do not change and one that they cancel."""
    yield from square("dy", "x")
    for name, a, b in hard_steps():
        yield HardInput(name, dict(total=[[0.0]], dy=a, x=b))
    yield HardInput("512 and one more", dict(total=[[512.0]], dy=[[1.0]], x=[[1.0]]))
    yield HardInput("they cancel", dict(total=np.full((3, 5), -7.0), dy=np.ones((3, 7)), x=np.ones((7, 5))))


@linear_backward_bias.set_hard_inputs
def hard_bias() -> Iterator[HardInput]:
    """A narrow accumulator, and values that are no numbers."""
    yield HardInput("a thousand ones", dict(dy=np.ones((1000, 5))))
    yield HardInput("infinity and NaN", dict(dy=[[1.0, np.inf, 2.0], [np.nan, -np.inf, 2.0]]))
