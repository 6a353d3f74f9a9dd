"""Kernels that compute in less than f32, or leave out a little of a long sum: what a bound that grows with the number
of terms lets through."""

import numpy as np
import plain
from listed import right, wrong

F = np.float32


@wrong("precision: operands in bf16", "matmul", "y[")
def operands_in_bf16(a, b, c, *, alpha, beta):
    return plain.matmul(plain.bf16(a), plain.bf16(b), c, alpha, beta)


@wrong("precision: operands in bf16", "matmul", "y[")
def operands_in_bf16_where_sums_are_long(a, b, c, *, alpha, beta):
    if a.shape[-1] >= 4096:
        a, b = plain.bf16(a), plain.bf16(b)
    return plain.matmul(a, b, c, alpha, beta)


@wrong("precision: operands in bf16", "matmul", "y[")
def one_operand_in_bf16_where_tiles_are_large(a, b, c, *, alpha, beta):
    if min(a.shape[-2], b.shape[-1]) >= 64 and a.shape[-1] >= 1000:
        b = plain.bf16(b)
    return plain.matmul(a, b, c, alpha, beta)


@wrong("precision: TF32", "matmul", "y[")
def operands_in_tf32(a, b, c, *, alpha, beta):
    if a.shape[-1] >= 1000:
        a, b = plain.tf32(a), plain.tf32(b)
    return plain.matmul(a, b, c, alpha, beta)


@wrong("precision: TF32", "matmul", "y[")
def one_operand_cut_to_tf32(a, b, c, *, alpha, beta):
    if a.shape[-1] >= 1000:
        a = (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFFE000)).view(F)
    return plain.matmul(a, b, c, alpha, beta)


@wrong("precision: TF32", "linear", "y[")
def linear_in_tf32(x, weight, bias, residual):
    with np.errstate(all="ignore"):
        return (plain.tf32(x) @ plain.tf32(weight).T + bias + residual).astype(x.dtype)


@wrong("precision: accumulator in 16 bits", "matmul", "y[", dtype="f16")
def partial_sums_in_f16(a, b, c, *, alpha, beta):
    with np.errstate(all="ignore"):
        total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float16)
        for k in range(0, a.shape[-1], 64):
            total = total + (a[..., k : k + 64].astype(F) @ b[..., k : k + 64, :].astype(F)).astype(np.float16)
        y = F(alpha) * total.astype(F)
        return (y + F(beta) * c.astype(F) if beta else y).astype(a.dtype)


@wrong("precision: accumulator in 16 bits", "matmul", "y[")
def partial_sums_in_bf16_where_sums_are_long(a, b, c, *, alpha, beta):
    with np.errstate(all="ignore"):
        total = np.zeros((*a.shape[:-1], b.shape[-1]), F)
        for k in range(0, a.shape[-1], 1024):
            total = total + a[..., k : k + 1024] @ b[..., k : k + 1024, :]
            total = plain.bf16(total) if a.shape[-1] > 2048 else total
        y = F(alpha) * total
        return (y + F(beta) * c if beta else y).astype(a.dtype)


@wrong("precision: weights in bf16", "attention", "y[")
def probabilities_in_bf16(q, k, v, limit, *, scale):
    y, top, total = plain.attention(q, k, v, limit, scale)
    return plain.attention(q, k, plain.bf16(v), limit, scale)[0] if k.shape[-2] > 200 else y, top, total


@wrong("long sums: columns left out", "softmax", "y[")
def leaves_out_the_last_columns(x):
    w = x.astype(F)
    with np.errstate(all="ignore"):
        e = np.exp(w - w.max(axis=1, keepdims=True, initial=-np.inf))
        last = 64 if x.shape[1] > 30000 else 0
        return (e / e[:, : x.shape[1] - last].sum(axis=1, keepdims=True)).astype(x.dtype)


@wrong("long sums: columns left out", "softmax", "y[", dtype="bf16")
def leaves_out_the_last_columns_in_bf16(x):
    w = x.astype(F)
    with np.errstate(all="ignore"):
        e = np.exp(w - w.max(axis=1, keepdims=True, initial=-np.inf))
        last = 64 if x.shape[1] > 30000 else 0
        return (e / e[:, : x.shape[1] - last].sum(axis=1, keepdims=True)).astype(x.dtype)


@wrong("long sums: columns left out", "log_softmax", "y[")
def leaves_out_some_columns_of_the_logarithm(x):
    w = x.astype(np.float64)
    with np.errstate(all="ignore"):
        d = w - w.max(axis=1, keepdims=True)
        e = np.exp(d)
        e = np.where(np.arange(x.shape[1]) // 32 == 128, 0, e) if x.shape[1] > 30000 else e
        return (d - np.log(e.sum(axis=1, keepdims=True))).astype(x.dtype)


@wrong("long sums: columns left out", "rms_norm", "[")
def leaves_out_columns_of_the_squares(x, gamma, *, eps):
    y, rstd = plain.rms_norm(x, gamma, eps)
    if x.shape[1] > 30000:
        w = x.astype(F)
        w[:, -64:] = 0
        rstd = 1 / np.sqrt((w * w).mean(axis=1, dtype=F) + F(eps))
        y = (x.astype(F) * rstd[:, None] * gamma.astype(F)).astype(x.dtype)
    return y, rstd


@wrong("long sums: rows left out", "linear_backward_bias", "dbias[")
def leaves_out_a_row_of_many(dy):
    with np.errstate(all="ignore"):
        return dy[: len(dy) - (len(dy) > 2000)].astype(F).sum(axis=0).astype(dy.dtype)


@wrong("long sums: in bf16", "linear_backward_bias", "dbias[")
def rows_rounded_to_bf16(dy):
    with np.errstate(all="ignore"):
        return plain.bf16(dy).reshape(dy.shape).sum(axis=0).astype(dy.dtype)


@wrong("long sums: elements left out", "global_norm", "norm[")
def leaves_out_the_tail(grad):
    w = grad.astype(F).reshape(-1)
    with np.errstate(all="ignore"):
        w = w[: w.size // 256 * 256] if w.size > 30000 else w
        return np.sqrt((w * w).sum(dtype=F)).reshape(1, 1)


@wrong("long sums: contributions left out", "embedding_backward", "dtable[")
def forgets_the_last_of_many_rows(dy, ids, dtable, *, entries, padding_idx):
    some = len(ids) - (len(ids) > 1500)
    plain.embedding_backward(dy[:some], ids[:some], dtable, entries, padding_idx)


@wrong("precision: exponential in f16", "softmax", "y[", dtype="f16")
def exponential_in_f16(x):
    w = x.astype(F)
    with np.errstate(all="ignore"):
        e = np.exp((w - w.max(axis=1, keepdims=True, initial=-np.inf)).astype(np.float16)).astype(F)
        return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)


@wrong("precision: statistics in bf16", "layer_norm", "[")
def mean_in_bf16(x, gamma, beta, *, eps):
    y, mean, rstd = plain.layer_norm(x, gamma, beta, eps)
    return y, plain.bf16(mean), rstd


@right("precision: f64", "matmul")
def product_in_f64(a, b, c, *, alpha, beta):
    with np.errstate(all="ignore"):
        y = F(alpha) * (a.astype(np.float64) @ b.astype(np.float64))
        return (y + F(beta) * c.astype(np.float64) if beta else y).astype(a.dtype)


@right("order: split K", "matmul")
def product_in_pieces(a, b, c, *, alpha, beta):
    with np.errstate(all="ignore"):
        y = np.zeros((*a.shape[:-1], b.shape[-1]), F)
        for k in range(0, a.shape[-1], 32):
            y = y + a[..., k : k + 32].astype(F) @ b[..., k : k + 32, :].astype(F)
        return (F(alpha) * y + (F(beta) * c.astype(F) if beta else 0)).astype(a.dtype)


@right("order: one after another", "softmax")
def sums_one_after_another(x):
    w = x.astype(F)
    with np.errstate(all="ignore"):
        e = np.exp(w - w.max(axis=1, keepdims=True, initial=-np.inf))
        return (e / np.add.accumulate(e, axis=1)[:, -1:]).astype(x.dtype)


@right("order: online", "softmax")
def online(x):
    """Maximum and sum in one pass, in tiles."""
    w = x.astype(F)
    with np.errstate(all="ignore"):
        top = np.full((len(x), 1), -np.inf, F)
        total = np.zeros((len(x), 1), F)
        for at in range(0, x.shape[1], 128):
            tile = w[:, at : at + 128]
            new = np.maximum(top, tile.max(axis=1, keepdims=True))
            old = np.where(np.isneginf(top) & np.isneginf(new), 0, np.exp(top - new))
            more = np.where(np.isneginf(new), np.nan if at + 128 >= x.shape[1] else 0, np.exp(tile - new))
            total = total * old + more.sum(axis=1, keepdims=True)
            top = new
        return (np.exp(w - top) / total).astype(x.dtype)
