"""Transforms of torch that the functions have no rule for: refused by name, never ignored."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from ..errors import ArgumentError

REVERSE = "accepted: gradients by backward() or torch.autograd.grad"
BATCHED = (
    "torch.vmap (also inside jacrev, jacfwd and hessian) is not defined for it; accepted: leading dimensions, of which "
    "it takes any number"
)


def refuse_transforms(name: str, x: Tensor, batched: bool = False) -> None:
    """Raise ArgumentError for a tensor of `torch.func.jvp`, `jacfwd`, `grad` or `vjp`, a dual number, or, unless
    the function is ``batched``, one of `vmap`.

    Below a custom op torch would take the tangent of its result for zero."""
    if torch._C._are_functorch_transforms_active():
        _refuse_levels(name, x, batched)
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
        raise ArgumentError(f"{name}: forward-mode differentiation is not defined for it; {REVERSE}")


def _refuse_levels(name: str, x: Tensor, batched: bool) -> None:
    """Raise ArgumentError where a tensor, or one that it wraps, belongs to a transform that is going on."""
    going_on = {i.level(): i.key().name for i in _functorch.get_interpreter_stack() or ()}
    found = set()
    while _functorch.is_functorch_wrapped_tensor(x):
        found.add(going_on.get(_functorch.maybe_get_level(x)))
        x = _functorch.get_unwrapped(x)
    if "Jvp" in found:
        raise ArgumentError(f"{name}: forward-mode differentiation (torch.func.jvp, jacfwd) is not defined; {REVERSE}")
    if "Vmap" in found and not batched:
        raise ArgumentError(f"{name}: {BATCHED}")
    if "Grad" in found:
        raise ArgumentError(f"{name}: torch.func.grad and vjp do not pass through custom operators of torch; {REVERSE}")


def refuse_vmap(name: str) -> Any:
    """What torch calls instead of a batching rule."""

    def refused(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ArgumentError(f"{name}: {BATCHED}")

    return refused


class _NoGradient(torch.autograd.Function):
    """A result as it is, in a graph that no backward pass goes through."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, needing: Tensor, message: str) -> Tensor:
        ctx.message = message
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> NoReturn:
        raise ArgumentError(ctx.message)


def refuse_gradient(result: Tensor, needing: Tensor, message: str) -> Tensor:
    """A result that depends on ``needing`` and has no gradient: a backward pass through it raises ArgumentError."""
    made: Tensor = _NoGradient.apply(result, needing, message)  # type: ignore[no-untyped-call]
    return made


def refuse_second_derivatives(name: str) -> Any:
    """What torch calls to differentiate a gradient."""

    def refused(ctx: Any, *slopes: Any) -> NoReturn:
        raise ArgumentError(
            f"{name}: the gradient of a gradient is not defined for it; accepted: gradients of first order, and of "
            "those what does not differentiate them (.detach())"
        )

    return refused
