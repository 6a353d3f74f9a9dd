"""The global norm of a list of gradients, and clipping by it.

Each tensor is summed by the balanced tree along its elements, the tensors by the tree over their places in the list;
empty tensors have no place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import Contract, HardInput, Matrix, Outputs, minimum, operator, outputs, sqrt, storage, total_sum

CONTRACT = Contract(
    domain="gradients whose squares add up without overflow in f32",
    lists=True,
    max_cols=2**40,
    defaults={"max_norm": 1.5},
    ranges={"max_norm": (2.0**-126, math.inf)},  # at 0, gradients that are all zero would be scaled by 0/0
)


@operator(contract=CONTRACT)
def global_norm(grad: Matrix[storage]) -> Outputs:
    """norm = sqrt(sum of the squares of all elements of all tensors)."""
    return outputs(norm=sqrt(total_sum(grad * grad)))


@operator(contract=CONTRACT)
def clip_global_norm(grad: Matrix[storage], *, max_norm: float) -> Outputs:
    """Scale all gradients in place so that their global norm is at most max_norm; the norm before is a result."""
    norm = sqrt(total_sum(grad * grad))
    return outputs(grad=grad * minimum(max_norm / norm, 1), norm=norm)


@global_norm.set_textbook
def textbook(grad: Any) -> dict[str, Any]:
    """The Euclidean norm."""
    return dict(norm=np.sqrt((grad * grad).sum(keepdims=True)))


@clip_global_norm.set_textbook
def textbook_clip(grad: Any, *, max_norm: float) -> dict[str, Any]:
    """Pascanu, Mikolov and Bengio (2013), algorithm 1."""
    norm = textbook(grad)["norm"]
    with np.errstate(divide="ignore"):
        return dict(grad=grad * np.minimum(np.float32(max_norm) / norm, 1), norm=norm)


@global_norm.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Squares that overflow f16, zeros, a sum that an f16 accumulator stalls on, non-finite gradients."""
    yield HardInput("squares overflow f16", dict(grad=[[300.0, 400.0]]))
    yield HardInput("zeros", dict(grad=[[0.0, -0.0, 0.0]]), in_domain=False)
    yield HardInput("five thousand ones and a large one", dict(grad=np.concatenate([[64.0], np.ones(5000)])[None, :]))
    yield HardInput("infinity and NaN", dict(grad=[[1.0, math.inf, math.nan]]))


clip_global_norm.set_hard_inputs(hard_inputs)
