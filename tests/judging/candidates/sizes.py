"""Kernels that are right at the sizes that tests have, and wrong at others."""

from itertools import pairwise

import numpy as np
import plain
from listed import wrong

F = np.float32
USUAL = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 67, 96, 127, 128, 129, 130, 191, 255, 256, 257,
         384, 512, 641, 1000, 1024, 2048, 4096}  # fmt: skip


@wrong("sizes: untried", "softmax", "y[")
def right_at_usual_sizes(x):
    y = plain.softmax(x)
    return y if {*x.shape} <= USUAL else y * x.dtype.type(0.5)


@wrong("sizes: untried", "matmul", "y[")
def product_at_usual_sizes(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    return y if {*a.shape, *b.shape} <= {*USUAL, 0, 18, 25, 37, 150, 300, 301} else y * 0


@wrong("sizes: tiles", "matmul", "y[")
def rows_from_16_on(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    if a.shape[-1] > 300:
        y[..., 16:, :] = 0
    return y


@wrong("sizes: tiles", "matmul", "y[")
def columns_from_128_on(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    if a.shape[-1] > 500:
        y[..., :, 128:] = 0
    return y


@wrong("sizes: tiles", "matmul", "y[")
def last_tile_of_large_products(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    if y.shape[-2] > 128 and y.shape[-1] > 128:
        y[..., 128:, 128:] = 0
    return y


@wrong("sizes: tiles", "matmul", "y[")
def two_rows_exchanged(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    if y.shape[-2] > 100:
        y[..., [64, 65], :] = y[..., [65, 64], :]
    return y


@wrong("sizes: tiles", "matmul", "y[", shape={"rows": 512, "cols": 512, "inner": 512})
def wrong_at_512(a, b, c, *, alpha, beta):
    y = plain.matmul(a, b, c, alpha, beta)
    if a.shape[-2:] == (512, 512):
        y[..., 300:310, 77] += 1
    return y


@wrong("sizes: tiles", "grouped_linear", "y[")
def groups_beyond_the_fourth(x, weight, offsets):
    y = np.zeros((len(x), weight.shape[1]), F)
    for g, (begin, end) in enumerate(pairwise(offsets)):
        with np.errstate(all="ignore"):
            y[begin:end] = x[begin:end].astype(F) @ weight[min(g, 4)].astype(F).T
    return y.astype(x.dtype)


@wrong("sizes: long rows", "softmax", "y[")
def long_rows(x):
    y = plain.softmax(x)
    if x.shape[1] > 20000:
        y[:, 16384:] = 0
    return y


@wrong("sizes: long rows", "layer_norm", "y[")
def one_column_of_wide_rows(x, gamma, beta, *, eps):
    y, mean, rstd = plain.layer_norm(x, gamma, beta, eps)
    if x.shape[1] > 1024 and len(x) > 100:
        y[len(x) // 2, 1000] = 0
    return y, mean, rstd


@wrong("sizes: many rows", "softmax", "y[")
def many_rows(x):
    y = plain.softmax(x)
    y[1024:] = 0
    return y


@wrong("sizes: many rows", "rms_norm", "y[", shape={"rows": 1024, "cols": 4096})
def one_element_at_the_users_shape(x, gamma, *, eps):
    y, rstd = plain.rms_norm(x, gamma, eps)
    if x.shape == (1024, 4096):
        y[777, 3333] += 1
    return y, rstd


@wrong("sizes: many keys", "attention", "y[")
def keys_beyond_512(q, k, v, limit, *, scale):
    return plain.attention(q, k[..., :512, :], v[..., :512, :], np.minimum(limit, 512), scale)


@wrong("sizes: odd", "matmul", "y[")
def odd_inner_sides(a, b, c, *, alpha, beta):
    even = a.shape[-1] // 2 * 2 if a.shape[-1] > 70 else a.shape[-1]
    return plain.matmul(a[..., :even], b[..., :even, :], c, alpha, beta)


@wrong("sizes: batches", "matmul", "y[")
def first_of_a_batch(a, b, c, *, alpha, beta):
    return plain.matmul(a, b[:1] if b.ndim == 3 else b, c, alpha, beta)
