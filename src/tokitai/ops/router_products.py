"""A router's product: logits in f32 of tokens and weights in the storage format, and its gradients.

A token's experts are chosen by these numbers. Rounded to 16 bits, two logits that differ become equal, and the token
goes to other experts than its logits say. So they stay in f32 from the product to the choice, and so does their
gradient on the way back. The bits are those of `linear` and its gradients on the same values in f32, each result
rounded once to its own format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import (
    Contract,
    Gradient,
    HardInput,
    Matrix,
    Operand,
    Outputs,
    f32,
    matmul,
    operator,
    outputs,
    storage,
    stored,
)
from .products import DOMAIN, WideAccumulator, hard_products, square

CONTRACT = Contract(domain=DOMAIN)


@operator(contract=CONTRACT, gradient=Gradient(autocast="lower"))
def router_logits(x: Operand[storage], weight: Operand[storage], *, accumulator: WideAccumulator = "f32") -> Outputs:
    """logits = x W^T in f32, whatever x and W are stored in: (tokens, features), (experts, features)."""
    return outputs(logits=stored(matmul(x, weight, "NT", accumulator), f32))


@operator(contract=CONTRACT, backward_of=router_logits)
def router_logits_backward_input(
    dlogits: Operand[f32], weight: Operand[storage], *, accumulator: WideAccumulator = "f32"
) -> Outputs:
    """dx = dlogits W."""
    return outputs(dx=matmul(dlogits, weight, "NN", accumulator))


@operator(contract=CONTRACT)
def router_logits_accumulate_input(
    total: Matrix[storage], dlogits: Operand[f32], weight: Operand[storage], *, accumulator: WideAccumulator = "f32"
) -> Outputs:
    """total += dlogits W, in place: the sum is taken in f32 and rounded once. What experts give back to their tokens
    and what their router does meet in it."""
    return outputs(total=total + matmul(dlogits, weight, "NN", accumulator))


@operator(contract=CONTRACT, backward_of=router_logits)
def router_logits_backward_weight(
    dlogits: Operand[f32], x: Operand[storage], *, accumulator: WideAccumulator = "f32"
) -> Outputs:
    """dW = dlogits^T x, a sum over all tokens."""
    return outputs(dweight=matmul(dlogits, x, "TN", accumulator))


# ------------------------------------------------------------------ textbooks
@router_logits.set_textbook
def textbook(x: Any, weight: Any, *, accumulator: str) -> dict[str, Any]:
    """Shazeer et al., "Outrageously Large Neural Networks" (2017), equation 4 without its noise."""
    return dict(logits=x @ weight.T)


@router_logits_backward_input.set_textbook
def textbook_input(dlogits: Any, weight: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule."""
    return dict(dx=dlogits @ weight)


@router_logits_accumulate_input.set_textbook
def textbook_accumulate(total: Any, dlogits: Any, weight: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule, and a sum over the ways that a gradient comes."""
    return dict(total=total + dlogits @ weight)


@router_logits_backward_weight.set_textbook
def textbook_weight(dlogits: Any, x: Any, *, accumulator: str) -> dict[str, Any]:
    """The product rule."""
    return dict(dweight=dlogits.T @ x)


# ------------------------------------------------------------------ hard inputs
@router_logits.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Products; logits that are equal in 16 bits and not in f32."""
    yield from hard_products("x", "weight")
    yield HardInput("equal in 16 bits", dict(x=[[1.0, 2.0**-13]], weight=[[1.0, 1.0, 1.0], [0.0, 1.0, -1.0]]))


@router_logits_backward_input.set_hard_inputs
def hard_input() -> Iterator[HardInput]:
    """Products; a gradient in f32 that 16 bits do not hold."""
    yield from hard_products("dlogits", "weight")
    yield HardInput("not of 16 bits", dict(dlogits=[[1 + 2.0**-20, -1.0]], weight=[[1.0], [1.0]]))


@router_logits_accumulate_input.set_hard_inputs
def hard_accumulate() -> Iterator[HardInput]:
    """The same beside a total that they cancel, and one that they do not change."""
    yield from hard_products("dlogits", "weight")
    ones = np.ones((33, 33))
    yield HardInput("they cancel", dict(total=ones * -33.0, dlogits=ones, weight=ones))
    yield HardInput("too small to change it", dict(total=[[4096.0]], dlogits=[[0.5]], weight=[[1.0]]))
    yield HardInput("not of 16 bits", dict(total=[[0.0]], dlogits=[[1 + 2.0**-20, -1.0]], weight=[[1.0], [1.0]]))


@router_logits_backward_weight.set_hard_inputs
def hard_weight() -> Iterator[HardInput]:
    """Square ones, and a gradient in f32 that 16 bits do not hold."""
    yield from square("dlogits", "x")
    yield HardInput("not of 16 bits", dict(dlogits=[[1 + 2.0**-20], [-1.0]], x=[[1.0], [1.0]]))
