"""The custom op of a linear layer, and its gradients, which are put together from several operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from .. import ops
from ..errors import UnknownNameError
from .custom_ops import torch_op
from .transforms import refuse_transforms

ACTIVATIONS = {"none": None, "gelu": ops.gelu_erf_backward, "gelu_tanh": ops.gelu_tanh_backward,
               "silu": ops.silu_backward}  # fmt: skip
linear_op = torch_op(ops.linear, several=False)
ToInput = Callable[[Tensor, Tensor], Tensor]


def gradient(name: str, *tensors: Tensor, **words: Any) -> Tensor:
    """The one result of a backward operator."""
    for x in tensors:
        refuse_transforms(name, x)
    made: Tensor = torch_op(ops.get(name), several=True)(tensors, words)[0]
    return made


def activation_backward(dy: Tensor, x: Tensor, activation: str) -> Tensor:
    """dy times the derivative at x. Raises UnknownNameError."""
    called = ACTIVATIONS.get(activation)
    if called is None:
        raise UnknownNameError("activation", activation, [name for name in ACTIVATIONS if name != "none"])
    return gradient(called.name, dy, x)


def keep_linear(
    ctx: Any, inputs: tuple[Any, ...], output: Tensor, keyword_only_inputs: Mapping[str, Any] | None = None
) -> None:
    """What a backward pass takes of x, weight, bias and residual."""
    x, weight, bias, _ = inputs
    ctx.words = dict(keyword_only_inputs or {})
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, *([bias] if ctx.biased and ctx.words["activation"] != "none" else []))


def linear_gradients(ctx: Any, dy: Tensor, to_input: ToInput | None = None) -> tuple[Tensor | None, ...]:
    """Those of x, weight, bias and residual; ``to_input`` makes that of x from dy and a weight, where it sums more."""
    x, weight, *bias = ctx.saved_tensors
    dh, activation, more = dy, ctx.words["activation"], {"accumulator": ctx.words["accumulator"]}
    if activation != "none":
        h = linear_op([x, weight, *bias], more)
        dh = activation_backward(dy, h, activation)
    to_input = to_input or partial(gradient, "linear_backward_input", **more)
    wanted = (*ctx.needs_input_grad, False, False)  # arguments that a call leaves out have no place in it
    made = (
        to_input(dh, weight) if wanted[0] else None,
        gradient("linear_backward_weight", dh, x, **more) if wanted[1] else None,
        gradient("linear_backward_bias", dh) if wanted[2] else None,
        dy if wanted[3] else None,
    )
    return made[: len(ctx.needs_input_grad)]


linear_op.op.register_autograd(linear_gradients, setup_context=keep_linear)
