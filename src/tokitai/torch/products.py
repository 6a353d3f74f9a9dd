"""Linear layers, matrix products and embeddings as functions with gradients."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError, UnknownNameError
from ..ops.embeddings import NO_PADDING
from ..runtime.binding import check_entry
from .arguments import replayed
from .assertions import assert_in_range
from .autocast import cast
from .batching import one_by_one
from .custom_ops import plain, torch_op
from .dispatch import custom_op
from .linears import ACTIVATIONS, gradient, linear_op
from .transforms import refuse_second_derivatives, refuse_transforms

_matmul = torch_op(ops.matmul, several=False)


# ------------------------------------------------------------------ linear layers
@replayed
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None, activation: str = "none",
    accumulator: str | None = None,
) -> Tensor:  # fmt: skip
    """activation(x weight^T + bias) + residual: (..., inputs) -> (..., outputs), as `ops.linear`.

    The gradient through an activation is taken at x weight^T + bias rounded to the storage format, which is computed
    again instead of being kept. ``accumulator`` is one of `ops.linear`'s; None means that of the context `accumulate`,
    else ``"f32"``. Of DTensors see `tensor_parallel.linear`. Raises ArgumentError.
    """
    if activation not in ACTIVATIONS:
        raise UnknownNameError("activation", activation, ACTIVATIONS)
    sharded = sys.modules.get("torch.distributed.tensor")  # which takes long to import
    if sharded is not None and isinstance(weight, sharded.DTensor):  # which torch.compile follows, unlike hasattr
        from . import tensor_parallel

        over_ranks: Tensor = tensor_parallel.linear(x, weight, bias, residual, activation, accumulator)
        return over_ranks
    given = cast("lower", [x, weight, bias, residual])
    assert given[0] is not None
    words = dict(activation=activation, accumulator=linear_op.accumulators.chosen(accumulator, given[0].dtype))
    made: Tensor = linear_op(given, words)
    return made


# ------------------------------------------------------------------ matrix products
@replayed
def matmul(input: Tensor, other: Tensor, accumulator: str | None = None) -> Tensor:
    """input other, shaped as `torch.matmul` shapes it: vectors, matrices, batches of matrices, as `ops.matmul`.

    Batches beside a matrix share it; two batches have the same leading dimensions (``expand`` makes them so: the
    gradient of what is expanded is torch's sum). ``accumulator`` is one of `ops.matmul`'s; None means that of the
    context `accumulate`, else ``"f32"``. Raises ArgumentError.
    """
    a, b = cast("lower", [input, other])
    assert a is not None and b is not None
    if a.ndim == 0 or b.ndim == 0:
        raise ArgumentError(f"matmul: shapes {tuple(a.shape)}, {tuple(b.shape)}; accepted: 1 dimension or more")
    left, right = a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        raise ArgumentError(
            f"matmul: other of shape {tuple(b.shape)}; accepted beside input of {tuple(a.shape)}: {a.shape[-1]} rows"
        )
    lead = left.shape[:-1] if right.ndim == 2 else right.shape[:-2]
    if right.ndim == 2:
        if left.ndim != 2:
            left = left.reshape(math.prod(lead), left.shape[-1])  # one product over all rows: so is its gradient
    elif left.ndim == 2:
        left = left.expand(*lead, *left.shape)
    elif left.shape[:-2] != lead:
        raise ArgumentError(
            f"matmul: shapes {tuple(a.shape)}, {tuple(b.shape)}; accepted: the same leading dimensions, or none in one "
            "of both; expand() makes them the same"
        )
    made: Tensor = _matmul([left, right, None], {"accumulator": _matmul.accumulators.chosen(accumulator, a.dtype)})
    if right.ndim == 2 and len(lead) != 1:
        made = made.reshape(*lead, right.shape[-1])
    if b.ndim == 1:
        made = made.squeeze(-1)
    return made.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else made


def _keep_matmul(
    ctx: Any, inputs: tuple[Any, ...], output: Tensor, keyword_only_inputs: Mapping[str, Any] | None = None
) -> None:
    ctx.more = {"accumulator": (keyword_only_inputs or {})["accumulator"]}
    ctx.save_for_backward(inputs[0], inputs[1])


def _matmul_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    a, b = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    da = gradient("matmul_backward_left", dy, b, **ctx.more) if wanted[0] else None
    db = gradient("matmul_backward_right", dy, a, **ctx.more) if wanted[1] else None
    return (da, db, *([None] * (len(wanted) - 2)))


_matmul.op.register_autograd(_matmul_gradients, setup_context=_keep_matmul)


# ------------------------------------------------------------------ embeddings
@replayed
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """weight[input]: ids of (...) and a table of (entries, columns) -> (..., columns), as `ops.embedding`.

    ``padding_idx`` names an entry that receives no gradient; a negative one counts from the end of the table.
    Raises ArgumentError.
    """
    if input.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"embedding: input of {input.dtype}; accepted: ids of torch.int32 or torch.int64")
    if weight.ndim != 2:
        raise ArgumentError(f"embedding: weight of shape {tuple(weight.shape)}; accepted: (entries, columns)")
    entries = weight.shape[0]
    if padding_idx is not None:
        check_entry("embedding", "padding_idx", padding_idx, entries)
    made: Tensor = _embed(weight, input, padding_idx)
    return made


@custom_op("tokitai::embedding")
def _embed(table: Tensor, ids: Tensor, padding_idx: int | None) -> Tensor:
    unchecked = {}
    if ids.is_cuda:
        assert_in_range("embedding: input", ids, len(table))
        ids, unchecked = ids.to(torch.int64), {"check": False}
    made: Tensor = ops.embedding(plain(table), ids, **unchecked)
    return made


@custom_op("tokitai::embedding_backward")
def _embedding_backward(dy: Tensor, ids: Tensor, entries: int, padding_idx: int | None) -> Tensor:
    """As `ops.embedding_backward`: for each entry the sum of dy over the rows that chose it."""
    padding = NO_PADDING if padding_idx is None else padding_idx
    unchecked = {"check": False} if dy.is_cuda else {}  # the forward pass looked at the ids; that waits for a GPU
    made: Tensor = ops.embedding_backward(plain(dy), ids, entries=entries, padding_idx=padding, **unchecked)
    return made


_embed.register_fake(lambda table, ids, _: table.new_empty((*ids.shape, table.shape[1])))
_embedding_backward.register_fake(lambda dy, ids, entries, _: dy.new_empty((entries, dy.shape[-1])))


def _keep_embedding(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, ids, ctx.padding_idx = inputs
    ctx.entries = table.shape[0]
    ctx.save_for_backward(ids)


def _embedding_gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (ids,) = ctx.saved_tensors
    refuse_transforms("embedding", dy)
    return _embedding_backward(dy, ids, ctx.entries, ctx.padding_idx), None, None


_embed.register_autograd(_embedding_gradients, setup_context=_keep_embedding)
_embed.register_vmap(one_by_one(_embed))
_embedding_backward.register_autograd(refuse_second_derivatives("embedding"))
_embedding_backward.register_vmap(one_by_one(_embedding_backward))
