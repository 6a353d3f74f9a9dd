"""Functions of torch, named and shaped as in `torch.nn.functional`, made of the operators; with gradients.

Results and gradients are what the operators of `tokitai.ops` give, to the last bit. What torch does not have is here
under the operator's own name; `operators` has them all so. A call that is wrong raises ArgumentError, which shows what
is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from . import operators
from .arguments import checked, replayed
from .linear_loss import linear_cross_entropy as linear_cross_entropy
from .masks import limits_of, limits_of_mask, start_of
from .products import embedding as embedding
from .products import linear as linear
from .products import matmul as matmul
from .rotations import rotary as rotary
from .rotations import rotary_heads as rotary_heads
from .scored_attention import scored_attention

F32_EPS = torch.finfo(torch.float32).eps

__all__ = [  # as torch has them
    "attention", "cross_entropy", "dropout", "embedding", "gelu", "layer_norm", "linear", "linear_cross_entropy",
    "log_softmax", "matmul",
    "rms_norm", "rotary", "rotary_heads", "scaled_dot_product_attention", "softmax",
]  # fmt: skip
WITHIN = ("rotate_pairs", "soft_cross_entropy")  # what `rotary` and `cross_entropy` call for other arguments
OWN = {n: f for n, f in operators.FUNCTIONS.items() if n not in (*__all__, *WITHIN)}
"""What torch does not have, or has under this name with these arguments."""

globals().update(OWN)
__all__ += sorted(OWN)


def __getattr__(name: str) -> Callable[..., Any]:
    raise AttributeError(f"module {__name__!r} has no function {name!r}; accepted: {', '.join(__all__)}")


# ------------------------------------------------------------------ softmax
@replayed
def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along ``dim``, as `ops.softmax`; ``dtype`` converts x first.

    Raises ArgumentError.
    """
    return _along("softmax", operators.softmax, x, dim, dtype)


@replayed
def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """x - max - log(sum(exp(x - max))) along ``dim``, as `ops.log_softmax`; ``dtype`` converts x first.

    Raises ArgumentError.
    """
    return _along("log_softmax", operators.log_softmax, x, dim, dtype)


def _along(name: str, called: Any, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """An operator on rows, along any dimension."""
    last = _dimension(name, x, dim) == x.ndim - 1
    x = x if dtype is None else x.to(dtype)
    made: Tensor = called(x) if last else called(x.movedim(dim, -1)).movedim(-1, dim)
    return made


def _dimension(name: str, x: Tensor, dim: int) -> int:
    """The number of a dimension, from 0. Raises ArgumentError."""
    if not -x.ndim <= dim < x.ndim:
        raise ArgumentError(f"{name}: dim={dim} of {x.ndim} dimensions; accepted: {-x.ndim} to {x.ndim - 1}")
    return dim % x.ndim


# ------------------------------------------------------------------ norms
@replayed
def layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, those of ``normalized_shape``, as
    `ops.layer_norm`.

    Raises ArgumentError.
    """
    rows, (gamma, beta) = _rows("layer_norm", x, normalized_shape, weight=weight, bias=bias)
    made: Tensor = operators.layer_norm(rows, gamma, beta, eps=eps)
    return made if made.shape == x.shape else made.reshape(x.shape)  # no view, where there need not be one


@replayed
def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean of squares + eps) * weight over the last dimensions, those of ``normalized_shape``, as
    `ops.rms_norm`. Without ``eps`` it is the machine epsilon of float32, in which it is computed, as in torch.

    Raises ArgumentError.
    """
    rows, (gamma,) = _rows("rms_norm", x, normalized_shape, weight=weight)
    if not x.is_floating_point():
        raise ArgumentError(f"rms_norm: x of {x.dtype}; accepted: floats of 16 or 32 bits")
    made: Tensor = operators.rms_norm(rows, gamma, eps=F32_EPS if eps is None else eps)
    return made if made.shape == x.shape else made.reshape(x.shape)  # no view, where there need not be one


def _rows(
    name: str, x: Tensor, normalized_shape: Sequence[int], **weights: Tensor | None
) -> tuple[Tensor, list[Tensor | None]]:
    """x with the normed dimensions as one, and the weights. Raises ArgumentError where shapes do not agree."""
    if isinstance(normalized_shape, Tensor):
        raise ArgumentError(f"{name}: normalized_shape is a tensor; accepted: sizes, as (8,); then weight")
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ArgumentError(f"{name}: normalized_shape={shape} of x of {tuple(x.shape)}; accepted: its last dimensions")
    for n, w in weights.items():
        if w is not None and tuple(w.shape) != shape:
            raise ArgumentError(f"{name}: {n} of shape {tuple(w.shape)}; accepted: {shape}")
    if len(shape) == 1:
        return x, list(weights.values())
    columns = math.prod(shape)
    flat = [w if w is None else w.reshape(columns) for w in weights.values()]
    return x.reshape(*x.shape[: -len(shape)], columns), flat


# ------------------------------------------------------------------ activations, dropout
@replayed
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Phi(x), as `ops.gelu_erf`; with ``approximate="tanh"`` as `ops.gelu_tanh`. Raises ArgumentError."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"gelu: approximate={approximate!r}; accepted: 'none', 'tanh'")
    made: Tensor = operators.gelu_erf(x) if approximate == "none" else operators.gelu_tanh(x)
    return made


@checked
def dropout(
    x: Tensor, p: float | Tensor = 0.5, training: bool = True, *, seed: int | Tensor | None = None,
    stream: int | Tensor = 0,
) -> Tensor:  # fmt: skip
    """x / (1 - p) with probability 1 - p, else 0, as `ops.dropout`; x itself where not ``training``.

    The mask follows from ``seed``, ``stream`` (both below 2**32) and an element's place alone: a pair that is used
    twice gives the same mask twice. Under `torch.compile` neither makes a new graph; a ``p`` that changes does, unless
    it is given as a tensor. Raises ArgumentError, also for a missing seed.
    """
    if not training:
        return x
    if seed is None:
        raise ArgumentError(
            "dropout: no seed (torch's generator is not drawn from); accepted: seed, a whole number or a tensor of "
            "one, another one for each call, or another stream"
        )
    made: Tensor = operators.dropout(x, p=p, seed=seed, stream=stream)
    return made


# ------------------------------------------------------------------ loss
@replayed
def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | Tensor = -100,
    reduction: str = "mean", label_smoothing: float | Tensor = 0.0, dim: int | None = None,
    z_loss: float | Tensor = 0.0, return_lse: bool = False, check: bool = True,
) -> Any:  # fmt: skip
    """The cross-entropy of logits against classes, in f32, as `ops.cross_entropy`: (C) and (), (N, C) and (N), or
    (N, C, d1, ...) and (N, d1, ...). Targets of floats in the shape of the input are probabilities of the classes, as
    `ops.soft_cross_entropy`; they are constants.

    The classes are dimension 1 (0 of one row), as torch has it; ``dim=-1`` takes logits of (..., C) with targets of
    (...). ``reduction`` is ``"mean"`` (over targets that are kept), ``"sum"`` or ``"none"``. A mean over no rows is 0
    with a gradient of zeros, where torch gives NaN. ``weight``, of each class, is a constant; a mean is over the
    weights of the targets that are kept. ``z_loss`` adds z_loss log(sum(exp(logits)))**2.

    ``return_lse`` returns (loss, lse), where lse = log(sum(exp(logits))) of each row has no gradient: a backward pass
    through it raises. On a GPU targets are asserted on the device; ``check=False`` leaves that out.
    Raises ArgumentError.
    """
    if input.ndim == 0:
        raise ArgumentError("cross_entropy: input is a scalar; accepted: (C), (N, C) or (N, C, d1, ...)")
    classes = _dimension("cross_entropy", input, (min(input.ndim, 2) - 1) if dim is None else dim)
    shape = tuple(n for i, n in enumerate(input.shape) if i != classes)
    logits = input if classes == input.ndim - 1 else input.movedim(classes, -1)
    words = dict(label_smoothing=label_smoothing, z_loss=z_loss, reduction=reduction)
    if target.is_floating_point():
        if weight is not None:
            raise ArgumentError(
                "cross_entropy: weight beside probabilities of classes; accepted: weight=None, targets times weight"
            )
        loss, lse = _of_probabilities(input, target, ignore_index, classes, logits, words)
        return (loss, lse) if return_lse else loss
    if tuple(target.shape) != shape:
        also = tuple(input.shape[:-1])
        hint = f"; with dim=-1, for classes in the last dimension, {also}" if dim is None and also != shape else ""
        raise ArgumentError(
            f"cross_entropy: target of shape {tuple(target.shape)}; accepted beside input of {tuple(input.shape)}, "
            f"whose dimension {classes} is that of classes: {shape}{hint}"
        )
    if weight is not None and (weight.shape != (input.shape[classes],) or not weight.is_floating_point()):
        found = f"shape {tuple(weight.shape)} of {weight.dtype}"
        raise ArgumentError(f"cross_entropy: weight of {found}; accepted: ({input.shape[classes]},) of floats")
    weight = weight if weight is None else weight.float()
    loss, lse = operators.cross_entropy(logits, target, weight, ignore_index=ignore_index, check=check, **words)
    return (loss, lse) if return_lse else loss


def _of_probabilities(
    input: Tensor, target: Tensor, ignore_index: int | Tensor, classes: int, logits: Tensor, words: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Loss and lse beside probabilities of classes. Raises ArgumentError."""
    if target.shape != input.shape:
        raise ArgumentError(
            f"cross_entropy: target of {target.dtype} and shape {tuple(target.shape)}; accepted as probabilities: "
            f"{tuple(input.shape)}, as the input; as classes: int32 or int64"
        )
    if isinstance(ignore_index, Tensor) or ignore_index >= 0:
        raise ArgumentError(f"cross_entropy: ignore_index={ignore_index} beside probabilities; accepted: leave it out")
    last = target if classes == input.ndim - 1 else target.movedim(classes, -1)
    made: tuple[Tensor, Tensor] = operators.soft_cross_entropy(logits, last, **words)
    return made


# ------------------------------------------------------------------ attention
@checked
def attention(
    q: Tensor, k: Tensor, v: Tensor, limit: Tensor | None = None, *, scale: float | Tensor | None = None,
    lengths: Tensor | None = None, causal: bool = False, check: bool = True, accumulator: str | None = None,
    window: int | None = None, start: Tensor | None = None, mask: Tensor | None = None, bias: Tensor | None = None,
    softcap: float | Tensor | None = None, sinks: Tensor | None = None, dropout_p: float | Tensor = 0.0,
    seed: int | Tensor | None = None, stream: int | Tensor = 0,
) -> Tensor:  # fmt: skip
    """softmax(scale q k^T) v for (..., heads, queries, dim) beside (..., heads of keys, keys, dim), as `ops.attention`.

    What each query sees is said by name: ``lengths`` of (batch), the keys of each sequence that are there, the rest
    being padding; ``causal``, query i sees the keys up to i; or ``limit``, how many keys each query sees, of (queries)
    or of all leading dimensions, (..., heads, queries), where any may be 1. int32 or int64. Given together, the
    smallest holds. ``scale`` is 1 / sqrt(dim) by default. On a GPU limits are asserted on the device;
    ``check=False`` leaves that out. With the ``accumulator`` fused16, of f16 and bf16, all products are those of a
    matrix unit, forward and backward; None means that of the context `accumulate` if it is offered here, else f32.

    Any of the following, and values of another width, takes another way: by operators, in f32, with all scores in
    memory (`tokitai.torch.scored_attention`). Its bits are defined as well, and are others. ``window``: each query sees
    the last so many of the keys that it would see; ``start``: the first key that a query sees, as ``limit``; ``mask``
    of bool, True where a key is seen, and ``bias``, added to scores, both of what broadcasts to (..., heads, queries,
    keys); ``softcap``: scores are softcap tanh(score / softcap), before the bias; ``sinks`` of (heads): one score more
    for each query, without a value; ``dropout_p``, ``seed`` and ``stream``: weights are dropped as `dropout` does.
    Keys and values that a query does not see are multiplied by 0 there, and have to be finite.
    Raises ArgumentError.
    """
    limit = limits_of(q, k, limit, lengths, causal)
    if limit is not None and q.is_cpu:  # as its kernels read it, forward and backward
        limit = limit.expand(q.shape[:-1]).contiguous()
    chosen = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dropped = isinstance(dropout_p, Tensor) or dropout_p != 0
    if dropped or q.shape[-1] != v.shape[-1] or any(x is not None for x in (window, start, mask, bias, softcap, sinks)):
        return scored_attention(
            q, k, v, scale=chosen, limit=limit, start=start_of(q, k, limit, start, window), mask=mask, bias=bias,
            softcap=softcap, sinks=sinks, dropout_p=dropout_p, seed=seed, stream=stream, check=check,
            accumulator=accumulator,
        )  # fmt: skip
    made: Tensor = operators.attention(q, k, v, limit, scale=chosen, accumulator=accumulator, check=check)
    return made


@checked
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | Tensor | None = None, enable_gqa: bool = False,
    accumulator: str | None = None, seed: int | Tensor | None = None, stream: int | Tensor = 0,
) -> Tensor:  # fmt: skip
    """As torch's, by `attention`. ``attn_mask`` of floats is its ``bias``; one of bool is taken where each query sees
    the first keys alone (those of padding and causal masks do): which is checked, and waits for a GPU. `attention`
    takes counts in its place, and any other as ``mask``: which of its two ways a call takes, values do not decide.

    A query that sees nothing gives zeros. ``accumulator``, ``seed`` and ``stream`` are as `attention` has them.
    Raises ArgumentError.
    """
    if attn_mask is not None and is_causal:
        raise ArgumentError("scaled_dot_product_attention: attn_mask beside is_causal=True; accepted: one of both")
    if query.ndim > 2 and key.ndim == query.ndim and key.shape[-3] != query.shape[-3] and not enable_gqa:
        raise ArgumentError(
            f"scaled_dot_product_attention: {key.shape[-3]} heads of keys beside {query.shape[-3]}; accepted: as many, "
            "or a divisor with enable_gqa=True"
        )
    bias = attn_mask if attn_mask is not None and attn_mask.is_floating_point() else None
    limit = limits_of_mask(attn_mask, query, key) if attn_mask is not None and bias is None else None
    made: Tensor = attention(
        query, key, value, limit, scale=scale, causal=is_causal, check=attn_mask is None, accumulator=accumulator,
        bias=bias, dropout_p=dropout_p, seed=seed, stream=stream,
    )  # fmt: skip
    return made
