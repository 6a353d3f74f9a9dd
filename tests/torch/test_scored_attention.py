"""Attention whose scores lie in memory: the operators that it is made of, called one by one on arrays; what it shows;
what it is beside in float64; what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.torch.test_as_torch import alike
from tests.torch.test_derived import noise
from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch import accumulate
from tokitai.torch import functional as F

BATCH, HEADS, SHARED, QUERIES, KEYS, DIM, WIDTH = 2, 4, 2, 5, 7, 8, 3
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    sizes = (HEADS, QUERIES, DIM), (SHARED, KEYS, DIM), (SHARED, KEYS, WIDTH)
    q, k, v = (noise(i, BATCH, *size, dtype=dtype).requires_grad_() for i, size in enumerate(sizes))
    return q, k, v


def of_each_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    """Operands of f32 of all heads, each beside its own keys, as arrays."""
    wide = [x.detach().float().numpy() for x in (q, k, v)]
    return wide[0], *(np.repeat(x, HEADS // SHARED, axis=1) for x in wide[1:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_operators(dtype: torch.dtype) -> None:
    """One head at a time, in NumPy."""
    q, k, v = operands(dtype)
    bias, sinks = noise(7, HEADS, 1, KEYS).numpy(), noise(8, HEADS).numpy()
    limit, start = np.arange(2, 2 + QUERIES, dtype=np.int32), np.array([0, 1, 1, 4, 3], np.int32)
    made = F.attention(
        q, k, v, torch.tensor(limit), start=torch.tensor(start), scale=0.3, softcap=1.5, bias=torch.tensor(bias),
        sinks=torch.tensor(sinks), dropout_p=0.25, seed=3, stream=9,
    )  # fmt: skip
    rows = (BATCH, HEADS, QUERIES)
    weights = np.empty((*rows, KEYS), np.float32)
    wide = of_each_head(q, k, v)
    for b, h in np.ndindex(BATCH, HEADS):
        scores = ops.softcap(ops.matmul(wide[0][b, h], wide[1][b, h], layout="NT") * np.float32(0.3), cap=1.5)
        sink = np.full(QUERIES, sinks[h], np.float32)
        weights[b, h] = ops.interval_softmax(scores + bias[h], sink, start, limit)[0]
    weights = ops.dropout(weights, p=0.25, seed=3, stream=9)
    for b, h in np.ndindex(BATCH, HEADS):
        y = torch.from_numpy(ops.matmul(weights[b, h], wide[2][b, h])).to(dtype)
        assert torch.equal(made[b, h], y)


def test_a_query_sees_what_is_said() -> None:
    """Windows, starts and masks that show the same have the same bits, and what is hidden does nothing."""
    q, k, v = (x.detach() for x in operands())
    limit = torch.arange(1, QUERIES + 1)
    window = F.attention(q, k, v, causal=True, window=2)
    columns = torch.arange(KEYS)
    seen = (columns < limit[:, None]) & (columns >= limit[:, None] - 2)
    for same in (
        dict(causal=True, start=(limit - 2).clamp(min=0)), dict(mask=seen), dict(mask=seen.expand(2, 4, 5, 7)),
        dict(causal=True, mask=columns >= limit[:, None] - 2), dict(bias=torch.where(seen, 0, -math.inf)),
        dict(limit=limit, start=(limit - 2).clamp(min=0).view(1, 1, -1), sinks=torch.full((4,), -math.inf)),
    ):  # fmt: skip
        assert torch.equal(F.attention(q, k, v, **same), window), same
    alone = F.attention(q, k, v, causal=True, window=1)
    assert torch.equal(alone, v[:, :, :QUERIES].repeat_interleave(HEADS // SHARED, 1))
    k[:, :, QUERIES:], v[:, :, QUERIES:] = 1e4, -1e4
    assert torch.equal(F.attention(q, k, v, causal=True, window=2), window)
    nothing = seen & (limit != 3)[:, None]
    assert torch.equal(F.attention(q, k, v, mask=nothing)[:, :, 2], torch.zeros(2, 4, 3))
    assert torch.equal(F.attention(q, k, v, mask=nothing)[:, :, 3], window[:, :, 3])
    assert torch.equal(F.attention(q[1], k[1], v[1], causal=True, window=2), window[1])


def beside(q: Tensor, k: Tensor, v: Tensor, *, softcap: float, bias: Tensor, sinks: Tensor, start: Tensor) -> Tensor:
    """In the precision of the operands; the sink is a column without a value."""
    k, v = (x.repeat_interleave(HEADS // SHARED, 1) for x in (k, v))
    scores = softcap * torch.tanh(q @ k.mT / math.sqrt(DIM) / softcap) + bias
    scores = scores.masked_fill(torch.arange(KEYS) < start[:, None], -math.inf)
    with_sink = torch.cat([scores, sinks[:, None, None].expand(BATCH, HEADS, QUERIES, 1)], -1)
    return with_sink.softmax(-1)[..., :-1] @ v


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(HEADS, QUERIES, KEYS), (1, KEYS), (HEADS, 1, 1), (BATCH, 1, QUERIES, 1), ()])
def test_results_and_gradients_are_those_of_the_formula(shape: tuple[int, ...]) -> None:
    bias, sinks = noise(7, *shape).requires_grad_(), noise(8, HEADS).requires_grad_()
    words: dict[str, Any] = dict(softcap=1.5, start=torch.tensor([0, 1, 1, 4, 6]))
    alike(lambda *a: F.attention(*a[:3], bias=a[3], sinks=a[4], **words),
          lambda *a: beside(*a[:3], bias=a[3], sinks=a[4], **words), *operands(), bias, sinks)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_what_is_shared_are_sums_of_operators(dtype: torch.dtype) -> None:
    """Of a bias of each key, over batch, heads and queries in order: and so whatever torch would do."""
    q, k, v = operands(dtype)
    bias = noise(7, KEYS).requires_grad_()
    whole = bias.detach().expand(BATCH, HEADS, QUERIES, KEYS).clone().requires_grad_()
    slope = noise(9, BATCH, HEADS, QUERIES, WIDTH, dtype=dtype)
    (found,), (of_all,) = (torch.autograd.grad(F.attention(q, k, v, bias=b), [b], slope) for b in (bias, whole))
    assert torch.equal(found, torch.from_numpy(ops.linear_backward_bias(of_all.reshape(-1, KEYS).numpy())))


def test_the_accumulator_is_one_for_operands_in_f32() -> None:
    q, k, v = operands(torch.bfloat16)
    want = F.attention(q, k, v, causal=True, window=3)
    with accumulate("fused16"):
        assert torch.equal(F.attention(q, k, v, causal=True, window=3), want)
    assert not torch.equal(F.attention(q, k, v, causal=True, window=3, accumulator="fixed8"), want)
    with pytest.raises(ArgumentError, match=r"accumulator='fused16' of operands of torch.float32; accepted: 'f32'"):
        F.attention(q, k, v, causal=True, window=3, accumulator="fused16")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (dict(window=0), "window=0; accepted: 1 or more keys"),
        (dict(mask=torch.ones(QUERIES, KEYS)), "mask of torch.float32; accepted: torch.bool"),
        (dict(mask=torch.ones(KEYS, QUERIES, dtype=torch.bool)), r"mask of shape \(7, 5\); accepted: what broadcasts"),
        (dict(bias=torch.ones(3, KEYS)), r"bias of shape \(3, 7\); accepted: what broadcasts to \(2, 4, 5, 7\)"),
        (dict(bias=torch.ones(1, 1, 1, 1, 1)), r"bias of shape \(1, 1, 1, 1, 1\)"),
        (dict(bias=torch.ones(KEYS, dtype=torch.float64)), "bias of torch.float64; accepted: floats of 16 or 32"),
        (dict(sinks=torch.ones(SHARED)), r"sinks of shape \(2,\) .*; accepted: a float for each head, \(4,\)"),
        (dict(start=torch.ones(BATCH, dtype=torch.int64)), r"start: shape \(2,\); accepted: \(5,\), of queries"),
        (dict(start=torch.ones(QUERIES)), "start of torch.float32; accepted: counts of keys"),
        (dict(start=torch.full((QUERIES,), KEYS + 1)), r"start\[0\]=8 .*; accepted: 0 to 7"),
        (dict(start=torch.full((QUERIES,), 2**40 + 1)), "start.* holds 1099511627777; accepted: -2147483648 to"),
        (dict(limit=torch.full((QUERIES,), KEYS + 1), mask=torch.ones(KEYS) > 0), r"limit\[0\]=8 .*; accepted: 0 to 7"),
        (dict(softcap=0.0), r"cap=0.0; accepted: 5.4.*e-20 to 1.8.*e\+19"),
        (dict(dropout_p=0.5), "dropout_p without seed; accepted: seed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        F.attention(*operands(), **words)


def test_wrong_operands_are_refused() -> None:
    q, k, v = operands()
    for wrong, message in (
        ((q, k, v[:, :1]), r"q, k and v of shapes .*; accepted: \(\.\.\., heads, queries, dim\)"),
        ((q, k[..., :-1], v), "q, k and v of shapes"),
        ((q, k.half(), v), "q of torch.float32 beside k of torch.float16 and v of torch.float32; accepted: one format"),
        ((q[:, :3], k, v), "2 heads of keys beside 3; accepted: a divisor"),
    ):
        with pytest.raises(ArgumentError, match=message):
            F.attention(*wrong, window=2, causal=True)
