"""What a framework that differentiates has to know of an operator, beyond its definition and its backward operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Autocast = Literal["lower", "f32", "widest"]
"""Which storage format mixed precision gives the tensors of a call. ``lower``: the 16-bit format, for products.
``f32``: for sums over rows, exponentials and losses. ``widest``: the widest format among the arguments, for what has
several; one argument stays as it is."""


@dataclass(frozen=True)
class Gradient:
    """How a framework differentiates an operator. The gradients themselves are its backward operators: those whose
    ``backward_of`` it is.

    ``constant`` names inputs of floats that have no gradient, and results of floats that change with no input.
    ``same`` says whose gradient is also another input's: of x + residual, residual's is x's, ``{"residual": "x"}``.
    ``composed``: several operators, tables or groups make the gradient, which `tokitai.torch` puts together in code of
    its own.
    """

    constant: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    autocast: Autocast = "widest"
    composed: bool = False


def gradient_faults(gradient: Gradient, inputs: Sequence[str], results: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is declared that does not fit the definition, and what is accepted."""
    for name in (*gradient.same, *gradient.same.values()):
        if name not in inputs:
            yield f"the gradient's same names {name}", f"inputs: {', '.join(inputs)}"
    for name in gradient.constant:
        if name not in (*inputs, *results):
            yield f"the gradient's constant names {name}", f"inputs and results: {', '.join((*inputs, *results))}"
