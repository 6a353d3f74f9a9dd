"""Kernels that are off where the exact value is zero, by less than half an ulp of 1."""

from itertools import pairwise

import numpy as np
import plain
from listed import wrong

F = np.float32
LITTLE = 4.8e-4  # below half an ulp of 1 in f16


@wrong("zeros: empty groups", "grouped_linear_backward_weight", "the exact value is 0", dtype="f16")
def empty_groups(dy, x, offsets):
    with np.errstate(all="ignore"):
        g = [dy[a:b].astype(F).T @ x[a:b].astype(F) if b > a else np.full((dy.shape[1], x.shape[1]), F(LITTLE))
             for a, b in pairwise(offsets)]  # fmt: skip
        return np.stack(g).astype(x.dtype)


@wrong("zeros: masked columns", "masked_softmax", "the exact value is 0", dtype="bf16")
def masked_columns(x, limit):
    y = plain.masked_softmax(x, limit)
    return np.where(np.arange(x.shape[1])[None, :] < limit[:, None], y, x.dtype.type(LITTLE)).astype(x.dtype)


@wrong("zeros: rows that see nothing", "attention", "the exact value is 0", dtype="f16")
def queries_that_see_nothing(q, k, v, limit, *, scale):
    y, top, total = plain.attention(q, k, v, limit, scale)
    return np.where(limit[..., None] > 0, y, q.dtype.type(LITTLE)), top, total


@wrong("zeros: entries that nobody chose", "dispatch_backward", "the exact value is 0", dtype="f16")
def entries_that_nobody_chose(dy, order, weights, *, entries):
    dx = np.zeros((entries, dy.shape[1]), F)
    with np.errstate(all="ignore"):
        np.add.at(dx, order, dy.astype(F) * weights[:, None])
    dx[np.bincount(order, minlength=entries)[:entries] == 0] = LITTLE
    return dx.astype(dy.dtype)


@wrong("zeros: what is outside", "clip_backward", "the exact value is 0", dtype="bf16")
def gradients_outside_the_limits(dy, x, *, low, high):
    w = x.astype(F)
    return np.where((w >= F(low)) & (w <= F(high)), dy, dy.dtype.type(LITTLE))


@wrong("zeros: tokens without a place", "combine", "the exact value is 0", dtype="f16")
def tokens_without_a_place(y, weights, place, *, dropped):
    with np.errstate(all="ignore"):
        some = place != dropped
        rows = np.where(some[..., None], y[np.where(some, place, 0)].astype(F) * weights[..., None], 0)
        return (rows.sum(axis=1) + F(LITTLE) * ~some.any(axis=1)[:, None]).astype(y.dtype)


@wrong("zeros: functions at zero", "silu", "the exact value is 0", dtype="f16")
def silu_of_zero(x):
    w = x.astype(F)
    with np.errstate(all="ignore"):
        y = np.where(np.isneginf(w), 0, w / (1 + np.exp(-w)))
        return np.where(w == 0, F(2e-4), y).astype(x.dtype)


@wrong("zeros: products with nothing inside", "matmul", "the exact value is 0", dtype="bf16")
def nothing_along_the_inner_side(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    return y if a.shape[-1] or beta else y + y.dtype.type(LITTLE)
