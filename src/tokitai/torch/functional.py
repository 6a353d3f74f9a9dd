"""Operators as functions of torch, with gradients.

Each is a custom op of `torch.library`, so that autograd takes its gradient and `torch.compile` may carry it through a
graph. All tensors of a call share one storage format; results and gradients are what the operators of `tokitai.ops` of
the same names give, to the last bit. Gradients of gradients are refused.

Most are derived from their definitions; a linear layer and an embedding, whose gradients are put together from several
operators, are written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import UnknownNameError
from ..ops.embeddings import NO_PADDING
from .derive import differentiable, plain

ACTIVATIONS = {"none": None, "gelu": ops.gelu_erf_backward, "gelu_tanh": ops.gelu_tanh_backward,
               "silu": ops.silu_backward}  # fmt: skip


@torch.library.custom_op("tokitai::linear", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, activation: str = "none",
    accumulator: str = "f32",
) -> Tensor:  # fmt: skip
    """activation(x weight^T + bias) + residual: (..., inputs) -> (..., outputs), as `ops.linear`.

    The gradient through an activation is taken at x weight^T + bias rounded to the storage format, which is computed
    again instead of being kept. Raises ArgumentError.
    """
    given = plain(x), plain(weight), plain(bias), plain(residual)
    made: Tensor = ops.linear(*given, activation=activation, accumulator=accumulator)
    return made


@torch.library.custom_op("tokitai::linear_backward_input", mutates_args=())
def linear_backward_input(dy: Tensor, weight: Tensor, accumulator: str) -> Tensor:
    """As `ops.linear_backward_input`."""
    made: Tensor = ops.linear_backward_input(plain(dy), plain(weight), accumulator=accumulator)
    return made


@torch.library.custom_op("tokitai::linear_backward_weight", mutates_args=())
def linear_backward_weight(dy: Tensor, x: Tensor, accumulator: str) -> Tensor:
    """As `ops.linear_backward_weight`: a sum over all rows of dy and x."""
    made: Tensor = ops.linear_backward_weight(plain(dy), plain(x), accumulator=accumulator)
    return made


@torch.library.custom_op("tokitai::linear_backward_bias", mutates_args=())
def linear_backward_bias(dy: Tensor) -> Tensor:
    """As `ops.linear_backward_bias`: a sum over all rows of dy."""
    made: Tensor = ops.linear_backward_bias(plain(dy))
    return made


@torch.library.custom_op("tokitai::activation_backward", mutates_args=())
def activation_backward(dy: Tensor, x: Tensor, activation: str) -> Tensor:
    """dy times the derivative at x. Raises UnknownNameError."""
    called = ACTIVATIONS.get(activation)
    if called is None:
        raise UnknownNameError("activation", activation, [name for name in ACTIVATIONS if name != "none"])
    made: Tensor = called(plain(dy), plain(x))
    return made


@torch.library.custom_op("tokitai::embedding", mutates_args=())
def embedding(table: Tensor, ids: Tensor, padding_idx: int | None = None) -> Tensor:
    """table[ids]: (entries, columns), (...) -> (..., columns), as `ops.embedding`.

    ``padding_idx`` names an entry that receives no gradient; a negative one counts from the end of the table.
    Raises ArgumentError.
    """
    made: Tensor = ops.embedding(plain(table), ids)
    return made


@torch.library.custom_op("tokitai::embedding_backward", mutates_args=())
def embedding_backward(dy: Tensor, ids: Tensor, entries: int, padding_idx: int | None) -> Tensor:
    """As `ops.embedding_backward`: for each entry the sum of dy over the rows that chose it."""
    padding = NO_PADDING if padding_idx is None else padding_idx
    unchecked = {"check": False} if dy.is_cuda else {}  # the forward pass looked at the ids; that waits for a card
    made: Tensor = ops.embedding_backward(plain(dy), ids, entries=entries, padding_idx=padding, **unchecked)
    return made


# ------------------------------------------------------------------ shapes, for tensors without values
linear.register_fake(lambda x, weight, *_, **__: x.new_empty((*x.shape[:-1], weight.shape[0])))
linear_backward_input.register_fake(lambda dy, weight, _: dy.new_empty((*dy.shape[:-1], weight.shape[1])))
linear_backward_weight.register_fake(lambda dy, x, _: dy.new_empty((dy.shape[-1], x.shape[-1])))
linear_backward_bias.register_fake(lambda dy: dy.new_empty(dy.shape[-1:]))
activation_backward.register_fake(lambda dy, x, _: dy.new_empty(dy.shape))
embedding.register_fake(lambda table, ids, *_, **__: table.new_empty((*ids.shape, table.shape[1])))
embedding_backward.register_fake(lambda dy, ids, entries, _: dy.new_empty((entries, dy.shape[-1])))


# ------------------------------------------------------------------ gradients
def _keep_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, _, ctx.activation, ctx.accumulator = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, weight, *([bias] if ctx.biased and ctx.activation != "none" else []))


def _linear_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *bias = ctx.saved_tensors
    dh = dy
    if ctx.activation != "none":
        h = linear(x, weight, *bias, accumulator=ctx.accumulator)
        dh = activation_backward(dy, h, ctx.activation)
    wanted = (*ctx.needs_input_grad, False, False)  # arguments that a call leaves out have no place in it
    made = (
        linear_backward_input(dh, weight, ctx.accumulator) if wanted[0] else None,
        linear_backward_weight(dh, x, ctx.accumulator) if wanted[1] else None,
        linear_backward_bias(dh) if wanted[2] else None,
        dy if wanted[3] else None,
        None,
        None,
    )
    return made[: len(ctx.needs_input_grad)]


def _keep_embedding(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, ids, ctx.padding_idx = inputs
    ctx.entries = table.shape[0]
    ctx.save_for_backward(ids)


def _embedding_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (ids,) = ctx.saved_tensors
    made = embedding_backward(dy, ids, ctx.entries, ctx.padding_idx), None, None
    return made[: len(ctx.needs_input_grad)]


linear.register_autograd(_linear_gradients, setup_context=_keep_linear)
embedding.register_autograd(_embedding_gradients, setup_context=_keep_embedding)


# ------------------------------------------------------------------ what follows from the definitions
def _over_rows(slope: Tensor, named: Mapping[str, Any]) -> Tensor:
    """The gradient of each row of a loss that was summed, or averaged over the rows that are kept."""
    logits = named["logits"]
    rows = logits.shape[:-1]
    if named["reduction"] == "mean":
        target = named.get("target")
        kept = logits[..., 0].numel() if target is None else (target != named["ignore_index"]).sum()
        slope = slope * (1 / torch.as_tensor(kept, device=slope.device).clamp(min=1).to(slope.dtype))
    return slope.expand(rows)


layer_norm = differentiable(ops.layer_norm)
rms_norm = differentiable(ops.rms_norm)
add_layer_norm = differentiable(ops.add_layer_norm, same={"residual": "x"})
add_rms_norm = differentiable(ops.add_rms_norm, same={"residual": "x"})
softmax = differentiable(ops.softmax)
masked_softmax = differentiable(ops.masked_softmax)
log_softmax = differentiable(ops.log_softmax)
cross_entropy = differentiable(ops.cross_entropy, spread=_over_rows)
attention = differentiable(ops.attention)
gelu_erf = differentiable(ops.gelu_erf)
gelu_tanh = differentiable(ops.gelu_tanh)
silu = differentiable(ops.silu)
swiglu = differentiable(ops.swiglu)
geglu = differentiable(ops.geglu)
dropout = differentiable(ops.dropout)
rotary = differentiable(ops.rotary, constant=["frequency"])
scale = differentiable(ops.scale)
clip = differentiable(ops.clip)
router = differentiable(ops.router)
expert_load = differentiable(ops.expert_load)
load_balance_loss = differentiable(ops.load_balance_loss, constant=["load"])
router_z_loss = differentiable(ops.router_z_loss, spread=_over_rows)
