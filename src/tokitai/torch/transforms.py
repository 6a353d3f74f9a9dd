"""Transforms of torch that the functions have no rule for: refused by name, never ignored."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad

from ..errors import ArgumentError

REVERSE = "accepted: gradients by backward() or torch.autograd.grad"
_BATCHED: Any = torch._C._parse_dispatch_key("Batched")  # of the vmap that torch had before torch.vmap


def refuse_transforms(name: str, x: Tensor) -> None:
    """Raise ArgumentError for a tensor of `torch.func.jvp`, `jacfwd`, `grad` or `vjp`, or a dual number.

    Below a custom op torch would take the tangent of its result for zero."""
    if torch._C._are_functorch_transforms_active():
        if torch.compiler.is_compiling():
            _refuse_traced(name)
        else:
            _refuse_levels(name, x)
    elif torch._C._dispatch_keys(x).has(_BATCHED):
        raise ArgumentError(
            f"{name}: gradients in a batch by is_grads_batched=True (or jacobian(vectorize=True)) are not defined; "
            "accepted: torch.vmap of a function that calls torch.autograd.grad"
        )
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
        raise ArgumentError(f"{name}: forward-mode differentiation is not defined for it; {REVERSE}")


def _refuse_levels(name: str, x: Tensor) -> None:
    """Raise ArgumentError where a tensor, or one that it wraps, belongs to a transform that is going on."""
    going_on = {i.level(): i.key().name for i in _functorch.get_interpreter_stack() or ()}
    found = set()
    while _functorch.is_functorch_wrapped_tensor(x):
        found.add(going_on.get(_functorch.maybe_get_level(x)))
        x = _functorch.get_unwrapped(x)
    if "Jvp" in found:
        raise ArgumentError(f"{name}: forward-mode differentiation (torch.func.jvp, jacfwd) is not defined; {REVERSE}")
    if "Grad" in found:
        raise ArgumentError(f"{name}: torch.func.grad and vjp do not pass through custom operators of torch; {REVERSE}")


def _refuse_traced(name: str) -> None:
    """As `_refuse_levels`, of what `torch.compile` can trace: the innermost transform, and that there is no other."""
    innermost = retrieve_current_functorch_interpreter()
    if innermost.key() != _functorch.TransformType.Vmap or innermost.level() != 1:
        raise ArgumentError(f"{name}: a transform of torch.func inside of torch.compile; accepted: one torch.vmap")


def needs_gradient(x: Tensor) -> bool:
    """Whether a tensor, or one that it wraps under a transform, requires a gradient."""
    if torch._C._are_functorch_transforms_active() and not torch.compiler.is_compiling():
        while _functorch.is_functorch_wrapped_tensor(x):
            x = _functorch.get_unwrapped(x)
    return x.requires_grad


def refuse_vmap(name: str) -> Any:
    """What torch calls instead of a batching rule of a function over ranks."""

    def refused(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ArgumentError(
            f"{name}: torch.vmap of a function over ranks is not defined; accepted: leading dimensions, of which it "
            "takes any number"
        )

    return refused


class _NoGradient(torch.autograd.Function):
    """A result as it is, in a graph that no backward pass goes through."""

    @staticmethod
    def forward(result: Tensor, needing: Tensor, message: str) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.message = inputs[2]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int | None]:
        return _NoGradient.apply(*given), in_dims[0]  # type: ignore[no-untyped-call]

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
