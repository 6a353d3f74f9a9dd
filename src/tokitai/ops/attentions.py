"""Attention: scores of queries against keys, softmax, the weighted sum of the values; one head at a time, or a batch.

The maximum is taken first, then one sum: no running rescaling, whose bits would depend on how the keys are cut. What
lies between queries and result is f32: scores, exponentials and probabilities are never rounded to the storage format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..elementary import exp, exp_down, exp_short
from ..lang import (
    LARGEST,
    Contract,
    Gradient,
    HardInput,
    Index,
    Operand,
    Outputs,
    Rows,
    column_index,
    f32,
    i32,
    matmul,
    operator,
    outputs,
    round_to,
    row_max,
    row_sum,
    storage,
    weighted_sum,
    where,
)  # fmt: skip

Accumulator = Literal["f32", "fused16"]
Rounded = Callable[[Any], Any]  # to the storage format

DOMAIN = (
    "finite operands whose scores and sums stay finite in f32; a query that sees nothing gives zeros, one that sees "
    "only -inf, or +inf or NaN, NaN"
)
CONTRACT = Contract(
    domain=DOMAIN, batched=True, defaults={"scale": 0.125}, indices={"limit": Index(upto=True)},
    draw={"limit": "lengths"}, ranges={"scale": (-LARGEST, LARGEST)},
)  # fmt: skip
SAVED = replace(CONTRACT, draw={"limit": "lengths", "top": "saved", "total": "saved"})


@operator(contract=CONTRACT, gradient=Gradient(autocast="lower"))
def attention(
    q: Operand[storage], k: Operand[storage], v: Operand[storage], limit: Rows[i32] | None, *, scale: float,
    accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """y = softmax(scale q k^T) v, where query r sees the first limit[r] keys, or all: limit = length of a padded
    sequence, query's position + 1 for a causal mask, or the smaller of both. What is not seen is not read.

    ``top``, the largest score of each query, and ``total``, its sum of exp(score - top), are what the backward pass
    needs to come to the same probabilities; 0 and 1 where nothing is seen.

    With the accumulator fused16 both products are chains of steps of a matrix unit. The weights exp(score - top) are
    rounded to the storage format, which the second one takes, so a short exponential does; ``total`` is the sum of the
    rounded ones: so they add up to 1.
    """
    scores = matmul(q, k, "NT", accumulator) * scale
    seen = None if limit is None else column_index() < limit
    shown = scores if seen is None else where(seen, scores, -np.inf)
    top = row_max(shown)
    wide = accumulator == "f32"
    e = exp_down(shown - top) if wide else round_to(exp_short(shown - top), storage)
    e = e if seen is None else where(seen, e, 0)
    nothing = row_sum(e) == 0  # where anything is seen, the largest score adds 1
    total = where(nothing, 1, row_sum(e))
    y = weighted_sum(e, v, limit, accumulator=accumulator) / total
    return outputs(y=y, top=where(nothing, 0, top), total=total)


@operator(contract=SAVED, backward_of=attention)
def attention_backward(
    dy: Operand[storage], q: Operand[storage], k: Operand[storage], v: Operand[storage], top: Rows[f32],
    total: Rows[f32], limit: Rows[i32] | None, *, scale: float, accumulator: Accumulator = "f32",
) -> Outputs:  # fmt: skip
    """The gradients of queries, keys and values: dv = p^T dy, and with ds = p (dp - sum(p dp)), dp = dy v^T,
    dq = scale ds k, dk = scale ds^T q. The probabilities p are those of the forward pass, computed again.

    The sum is taken over the probabilities, not over dy y: y was rounded to the storage format. With the accumulator
    fused16 p and ds are rounded to it where they meet dy, k and q.
    """
    z = matmul(q, k, "NT", accumulator) * scale - top
    p = (exp(z) if accumulator == "f32" else exp_short(z)) * (1 / total)
    dp = matmul(dy, v, "NT", accumulator)
    weighted = p * dp if limit is None else where(column_index() < limit, p * dp, 0)
    ds, given = p * (dp - row_sum(weighted)), p
    if accumulator != "f32":
        ds, given = round_to(ds, storage), round_to(given, storage)
    return outputs(
        dq=weighted_sum(ds, k, limit, accumulator=accumulator) * scale,
        dk=weighted_sum(ds, q, limit, "rows", accumulator) * scale,
        dv=weighted_sum(given, dy, limit, "rows", accumulator),
    )


def _seen(scores: Any, limit: Any) -> Any:
    """Which keys a query sees."""
    keys = np.arange(scores.shape[-1])
    return np.broadcast_to(True if limit is None else keys < limit, scores.shape)


def _probabilities(scores: Any, seen: Any) -> tuple[Any, Any, Any]:
    """(exp(scores - top), top, total) of what is seen."""
    shown = np.where(seen, scores, -np.inf)
    top = shown.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.where(seen, np.exp(shown - top), 0)
    total = e.sum(axis=-1, keepdims=True)
    return e, np.where(total == 0, 0, top), np.where(total == 0, 1, total)


def _met(weights: Any, seen: Any, x: Any) -> Any:
    """weights x over what is seen, whatever else x holds: one row of weights at a time where x is not all finite."""
    if np.isfinite(x).all():
        return np.where(seen, weights, 0) @ x
    terms = np.where(seen[..., None], weights[..., None] * x[..., None, :, :], 0)
    return terms.sum(axis=-2)


@attention.set_textbook
def textbook(
    q: Any, k: Any, v: Any, *, scale: float, accumulator: str = "f32", rounded: Rounded = np.asarray, limit: Any = None
) -> dict[str, Any]:
    """Vaswani et al., "Attention Is All You Need" (2017), equation 1; of weights that are rounded, where they are."""
    scores = scale * (q @ np.swapaxes(k, -1, -2))
    seen = _seen(scores, limit)
    e, top, total = _probabilities(scores, seen)
    if accumulator != "f32":
        e = rounded(e)
        total = np.where(seen.any(axis=-1, keepdims=True), e.sum(axis=-1, keepdims=True), 1)
    return dict(y=_met(e, seen, v) / total, top=top, total=total)


@attention_backward.set_textbook
def textbook_backward(
    dy: Any, q: Any, k: Any, v: Any, top: Any, total: Any, *, scale: float, accumulator: str = "f32",
    rounded: Rounded = np.asarray, limit: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Dao et al., "FlashAttention" (2022), appendix B.2: the chain rule, with the Jacobian of softmax."""
    scores = scale * (q @ np.swapaxes(k, -1, -2))
    seen = _seen(scores, limit)
    z = scores - top
    if accumulator != "f32":  # whose short exponential has no argument above 0, where ``top`` was rounded down
        z = np.minimum(z, 0)
    p = np.where(seen, np.exp(z) / total, 0)
    dp = dy @ np.swapaxes(v, -1, -2)
    ds = p * (dp - np.where(seen, p * dp, 0).sum(axis=-1, keepdims=True))
    ds, p = (ds, p) if accumulator == "f32" else (rounded(ds), rounded(p))
    back, given = np.swapaxes(ds, -1, -2), np.swapaxes(p, -1, -2)
    seen_back = np.swapaxes(seen, -1, -2)
    return dict(dq=_met(ds, seen, k) * scale, dk=_met(back, seen_back, q) * scale, dv=_met(given, seen_back, dy))


def _noise(seed: int, *size: int) -> Any:
    return np.random.default_rng(seed).standard_normal(size)


@attention.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Keys and values are named as inner x keys, as operands of products are."""
    q, k, v = _noise(1, 5, 8), _noise(2, 8, 7), _noise(3, 8, 7)
    yield HardInput("nothing seen, one key, all", dict(q=q, k=k, v=v, limit=[0, 1, 7, 0, 2]))
    dirty = [np.where(np.arange(7) < 3, x, wrong) for x, wrong in ((k, np.nan), (v, np.inf))]
    yield HardInput("NaN and infinity behind the mask", dict(q=q, k=dirty[0], v=dirty[1], limit=[3, 2, 0, 1, 3]))
    tidy = [np.where(np.arange(7) < 3, x, 60000.0) for x in (k, v)]
    yield HardInput("large values behind the mask", dict(q=q, k=tidy[0], v=tidy[1], limit=[3, 2, 0, 1, 3]))
    yield HardInput("causal", dict(q=_noise(4, 19, 4), k=_noise(5, 4, 19), v=_noise(6, 4, 19), limit=np.arange(1, 20)))
    yield HardInput("equal scores", dict(q=np.ones((3, 4)), k=np.ones((4, 9)), v=_noise(7, 4, 9), limit=[9, 5, 1]))
    yield HardInput("one key, one dimension", dict(q=[[2.0], [-3.0]], k=[[0.5]], v=[[7.0]], limit=[1, 0]))
    large = [[200.0, 0.0], [0.0, 200.0]]
    yield HardInput("large scores", dict(q=large, k=np.array(large).T, v=[[1.0, 2.0], [3.0, 4.0]], limit=[2, 2]))
    infinite = np.array([[np.inf, 1.0, -np.inf], [1.0, 1.0, 1.0]])
    yield HardInput("infinite scores", dict(q=[[1.0, 1.0], [-1.0, 1.0]], k=infinite, v=_noise(8, 2, 3), limit=[3, 3]))
    yield HardInput("only -inf", dict(q=[[1.0], [-1.0]], k=np.full((1, 3), -np.inf), v=np.ones((1, 3)), limit=[2, 2]))
    yield HardInput("NaN in a query", dict(q=[[np.nan, 1.0], [1.0, 2.0]], k=_noise(9, 2, 3), v=_noise(10, 2, 3)))
    yield HardInput("no keys", dict(q=np.ones((2, 3)), k=np.zeros((3, 0)), v=np.zeros((3, 0)), limit=[0, 0]))
    zeros = np.array([[-0.0, 0.0, -0.0]])
    yield HardInput("zeros of both signs", dict(q=[[1.0], [-1.0]], k=zeros, v=-zeros, limit=[3, 1]))


@attention_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """The same, of gradients; what lies behind the mask must not matter, whatever it is."""
    q, k, v, dy = _noise(1, 5, 8), _noise(2, 8, 7), _noise(3, 8, 7), _noise(4, 5, 8)
    yield HardInput("nothing seen, one key, all", dict(dy=dy, q=q, k=k, v=v, limit=[0, 1, 7, 0, 2]))
    dirty = [np.where(np.arange(7) < 3, x, wrong) for x, wrong in ((k, np.nan), (v, np.inf))]
    yield HardInput("NaN behind the mask", dict(dy=dy, q=q, k=dirty[0], v=dirty[1], limit=[3, 2, 0, 1, 3]))
    blind = np.where(np.arange(5)[:, None] == 2, np.nan, dy)
    yield HardInput(
        "NaN in the gradient of a query that sees nothing", dict(dy=blind, q=q, k=k, v=v, limit=[7, 3, 0, 1, 3])
    )
    yield HardInput(
        "equal scores", dict(dy=np.eye(3, 4), q=np.ones((3, 4)), k=np.ones((4, 9)), v=_noise(7, 4, 9), limit=[9, 5, 1])
    )
    single = dict(dy=[[1.0], [2.0]], q=[[2.0], [-3.0]], k=[[0.5]], v=[[7.0]], limit=[1, 0])
    yield HardInput("one key, one dimension", single)
    large = [[200.0, 0.0], [0.0, 200.0]]
    yield HardInput(
        "large scores", dict(dy=np.eye(2), q=large, k=np.array(large).T, v=[[1.0, 2.0], [3.0, 4.0]], limit=[2, 2])
    )
    yield HardInput("no keys", dict(dy=np.ones((2, 3)), q=np.ones((2, 3)), k=np.zeros((3, 0)), v=np.zeros((3, 0))))
