"""Attention whose scores lie in memory, for all that the kernels of `ops.attention` do not take: intervals, masks of
any form, biases, soft caps, sinks, dropout, values of another width.

It is made of operators, on operands in f32: matmul, softcap, interval_softmax, dropout, matmul. What is between them,
scaling and adding a bias, is one rounding an element. So its bits are defined on every device; they are not those of
`ops.attention`, and which of both a call takes follows from its arguments' names, never from their values. It needs
memory for scores and weights, of four bytes times queries times keys each.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError
from ..families.attention.arguments import check_limit
from . import operators
from .autocast import cast, chosen_by
from .batching import one_by_one
from .custom_ops import torch_op
from .dispatch import custom_op
from .masks import check_counts
from .products import matmul
from .shapes import FORMATS


@custom_op("tokitai::added")
def _added(x: Tensor, other: Tensor) -> Tensor:
    return x + other


_added.register_fake(lambda x, other: x + other)
_added.register_vmap(one_by_one(_added))


def _gradients_of_added(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None]:
    return slope, _summed(slope, ctx.shape) if ctx.needs_input_grad[1] else None


def _keep_shape(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.shape = inputs[1].shape


_added.register_autograd(_gradients_of_added, setup_context=_keep_shape)


def _summed(x: Tensor, shape: torch.Size) -> Tensor:
    """x, summed to a shape that broadcasts to its own: the terms in order of their places, as `ops` sums over rows."""
    ones = (1,) * (x.ndim - len(shape)) + tuple(shape)
    over = [i for i, (n, m) in enumerate(zip(ones, x.shape, strict=True)) if n == 1 and m != 1]
    if not over:
        return x.reshape(shape)
    rest = [i for i in range(x.ndim) if i not in over]
    rows = x.permute(*over, *rest).reshape(math.prod(x.shape[i] for i in over), -1)
    made: Tensor = torch_op(ops.linear_backward_bias, several=True)((rows,), {})[0]
    return made.reshape(shape)


def scored_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | Tensor, limit: Tensor | None, start: Tensor | None,
    mask: Tensor | None, bias: Tensor | None, softcap: float | Tensor | None, sinks: Tensor | None,
    dropout_p: float | Tensor, seed: int | Tensor | None, stream: int | Tensor, check: bool, accumulator: str | None,
) -> Tensor:  # fmt: skip
    """As `functional.attention` says. Raises ArgumentError."""
    q, k, v = (x for x in cast("lower", [q, k, v]) if x is not None)
    heads, lead, keys = _sizes(q, k, v)
    whole = (*lead, keys)
    for name, x, accepted in (("mask", mask, torch.bool), ("bias", bias, None)):
        if x is not None and (x.dtype != accepted if accepted else x.dtype not in FORMATS):
            raise ArgumentError(f"attention: {name} of {x.dtype}; accepted: {accepted or 'floats of 16 or 32 bits'}")
        if x is not None and not _broadcasts(tuple(x.shape), whole):
            raise ArgumentError(f"attention: {name} of shape {tuple(x.shape)}; accepted: what broadcasts to {whole}")
    if sinks is not None and (sinks.dtype not in FORMATS or tuple(sinks.shape) != lead[-2:-1]):
        found = f"shape {tuple(sinks.shape)} of {sinks.dtype}"
        raise ArgumentError(f"attention: sinks of {found}; accepted: a float for each head, {lead[-2:-1]}")
    if start is not None:
        check_counts("start", start)
        check_limit("attention: start", tuple(start.shape), lead)
    dropped = isinstance(dropout_p, Tensor) or dropout_p != 0
    if dropped and seed is None:
        raise ArgumentError("attention: dropout_p without seed; accepted: seed, another one for each call")
    plain = chosen_by("lower", [q]) is None
    with contextlib.nullcontext() if plain else torch.autocast(q.device.type, enabled=False):
        scores = matmul(_by_heads(q.float(), heads), k.float().transpose(-1, -2), accumulator).view(whole) * scale
        scores = scores if softcap is None else operators.softcap(scores, cap=softcap)
        scores = scores if bias is None else _added(scores, bias.float())
        if mask is not None:
            some = _within(mask, start, limit, keys).any(-1)  # else a row of -inf, of which softmax makes NaN
            scores = scores.masked_fill(~mask, -torch.inf)
            limit = torch.where(some, keys if limit is None else limit, 0)
        start, limit = (b if b is None else b.expand(lead).contiguous() for b in (start, limit))
        given = scores.new_full(lead, 0 if sinks is not None else -torch.inf)
        given = given if sinks is None else _added(given, sinks.float().unsqueeze(-1))
        weights = operators.interval_softmax(scores, given, start, limit, check=check)
        if dropped:
            weights = operators.dropout(weights, p=dropout_p, seed=seed, stream=stream)
        y = matmul(_by_heads(weights, heads), v.float(), accumulator)
        return y.reshape(*lead, v.shape[-1]).to(q.dtype)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, tuple[int, ...], int]:
    """How many heads share a head of keys, the dimensions of queries, the number of keys. Raises ArgumentError."""
    if not q.dtype == k.dtype == v.dtype or q.dtype not in FORMATS:
        raise ArgumentError(
            f"attention: q of {q.dtype} beside k of {k.dtype} and v of {v.dtype}; accepted: one format for all, floats "
            "of 16 or 32 bits"
        )
    shapes = [tuple(x.shape) for x in (q, k, v)]
    of_heads = slice(-3, -2) if q.ndim > 2 else slice(0, 0)
    same = all(a[:-3] == b[:-3] and len(a) == len(b) for a, b in ((shapes[0], shapes[1]), (shapes[1], shapes[2])))
    if not same or shapes[1][:-1] != shapes[2][:-1] or shapes[0][-1] != shapes[1][-1]:
        raise ArgumentError(
            f"attention: q, k and v of shapes {shapes}; accepted: (..., heads, queries, dim), (..., heads, keys, dim) "
            "and (..., heads, keys, width)"
        )
    (ours,), (theirs,) = ((s[of_heads] or (1,)) for s in shapes[:2])
    if theirs == 0 or ours % theirs != 0:
        raise ArgumentError(f"attention: {theirs} heads of keys beside {ours}; accepted: a divisor")
    return ours // theirs, shapes[0][:-1], shapes[1][-2]


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """Queries, or rows of weights, of heads that share a head of keys one after another."""
    return x if heads == 1 else x.reshape(*x.shape[:-3], x.shape[-3] // heads, heads * x.shape[-2], x.shape[-1])


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in zip(shape[::-1], whole[::-1], strict=False))


def _within(mask: Tensor, start: Tensor | None, limit: Tensor | None, keys: int) -> Tensor:
    """What a mask and an interval both show."""
    columns = torch.arange(keys, device=mask.device)
    seen = mask if limit is None else mask & (columns < limit.unsqueeze(-1))
    return seen if start is None else seen & (columns >= start.unsqueeze(-1))
