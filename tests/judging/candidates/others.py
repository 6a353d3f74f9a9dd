"""Right kernels as libraries have them, in NumPy: forms and orders of evaluation that are not the definition's."""

import numpy as np
import plain
from listed import right

F = np.float32


@right("form: running mean and variance", "layer_norm")
def welford(x, gamma, beta, *, eps):
    """Welford's recurrence, one column after another, in f32; rows of subnormals among them."""
    w = x.astype(F)
    with np.errstate(all="ignore"):
        mean, square = np.zeros(len(x), F), np.zeros(len(x), F)
        for k in range(x.shape[1]):
            d = w[:, k] - mean
            mean = mean + d / F(k + 1)
            square = square + d * (w[:, k] - mean)
        rstd = 1 / np.sqrt(square / F(x.shape[1]) + F(eps))
        y = (w - mean[:, None]) * rstd[:, None] * gamma.astype(F) + beta.astype(F)
        return y.astype(x.dtype), mean, rstd


@right("form: unfused decay", "adamw", without=("master",))
def decay_first(param, grad, exp_avg, exp_avg_sq, *, step, lr, beta1, beta2, eps, weight_decay, loss_scale, seed):
    """p (1 - lr wd), moments as m b + g (1 - b)."""
    with np.errstate(all="ignore"):
        if not np.isfinite(grad.astype(F)).all():
            return
        g = grad.astype(F) * F(1 / loss_scale)
        exp_avg[...] = exp_avg * F(beta1) + g * F(1 - beta1)
        exp_avg_sq[...] = exp_avg_sq * F(beta2) + F(1 - beta2) * (g * g)
        size = np.sqrt(exp_avg_sq) / F(np.sqrt(1 - beta2**step)) + F(eps)
        p = param.astype(F) * F(1 - lr * weight_decay) - F(lr / (1 - beta1**step)) * exp_avg / size
        param[...] = p.astype(param.dtype)


@right("order: added to what is there", "embedding_backward")
def adds_rows_to_the_gradient(dy, ids, dtable, *, entries, padding_idx):
    padding = padding_idx + entries if padding_idx < 0 else padding_idx
    total = dtable.astype(F)
    with np.errstate(all="ignore"):
        for row, entry in zip(dy[::-1], ids[::-1], strict=True):
            if entry != padding:
                total[entry] += row.astype(F)
        dtable[...] = total.astype(dtable.dtype)


@right("order: added to what is there", "linear_accumulate_weight")
def adds_products_to_the_gradient(total, dy, x):
    made = total.copy()
    with np.errstate(all="ignore"):
        for k in range(0, len(dy), 16):
            made = made + dy[k : k + 16].astype(F).T @ x[k : k + 16].astype(F)
    total[...] = made


@right("order: bias first", "linear")
def bias_and_residual_first(x, weight, bias, residual):
    with np.errstate(all="ignore"):
        y = bias.astype(F) + residual.astype(F)
        for k in range(0, x.shape[1], 8):
            y = y + x[:, k : k + 8].astype(F) @ weight[:, k : k + 8].astype(F).T
        return y.astype(x.dtype)


@right("form: unfused", "combine")
def combines_backwards(y, weights, place, *, dropped):
    with np.errstate(all="ignore"):
        total = np.zeros((len(place), y.shape[1]), F)
        for slot in range(place.shape[1] - 1, -1, -1):
            some = place[:, slot] != dropped
            rows = y[np.where(some, place[:, slot], 0)].astype(F)
            total = total + np.where(some[:, None], rows * weights[:, slot : slot + 1], 0)
        return total.astype(y.dtype)


@right("order: of the whole list", "global_norm")
def norm_one_after_another(grad):
    w = grad.astype(F).reshape(-1)
    with np.errstate(all="ignore"):
        return np.sqrt(np.add.accumulate(w * w, dtype=F)[-1:]).reshape(1, 1) if w.size else np.zeros((1, 1), F)


@right("order: of the whole list", "clip_global_norm")
def clips_in_f64(grad, *, max_norm):
    wide = grad.astype(np.float64)
    with np.errstate(all="ignore"):
        norm = np.sqrt((wide * wide).sum())
        norm = np.inf if norm > 3e38 else norm
        grad[...] = (wide * np.minimum(1.0, max_norm / norm)).astype(grad.dtype)
    return np.float32(norm)


@right("form: in tiles", "attention")
def attention_in_tiles(q, k, v, limit, *, scale):
    """Flash attention's recurrence: running maximum and sum over tiles of keys."""
    with np.errstate(all="ignore"):
        if not all(np.isfinite(x.astype(F)).all() for x in (q, k, v)):
            return plain.attention(q, k, v, limit, scale)
        some = limit[..., None] > 0
        top = np.full((*q.shape[:-1], 1), -np.inf, F)
        total, y = np.zeros_like(top), np.zeros(q.shape, F)
        for at in range(0, k.shape[-2], 64):
            part, values = k[..., at : at + 64, :].astype(F), v[..., at : at + 64, :].astype(F)
            seen = np.arange(at, at + part.shape[-2]) < limit[..., None]
            s = np.where(seen, (q.astype(F) @ np.swapaxes(part, -1, -2)) * F(scale), -np.inf)
            new = np.maximum(top, s.max(axis=-1, keepdims=True))
            old = np.where(np.isneginf(top), 0, np.exp(top - new))
            e = np.where(seen, np.exp(s - np.where(np.isneginf(new), 0, new)), 0).astype(F)
            total = total * old + e.sum(axis=-1, keepdims=True)
            y = y * old + e @ values
            top = new
        total = np.where(some, total, 1)
        return np.where(some, y / total, 0).astype(q.dtype), np.where(some, top, 0)[..., 0], total[..., 0]


@right("form: f64", "masked_softmax")
def masked_softmax_in_f64(x, limit):
    with np.errstate(all="ignore"):
        seen = np.arange(x.shape[1])[None, :] < limit[:, None]
        w = np.where(seen, x.astype(np.float64), -np.inf)
        top = np.where(limit[:, None] > 0, w.max(axis=1, keepdims=True, initial=-np.inf), 0)
        e = np.where(seen, np.exp(w - top), 0)
        return np.where(seen, e / e.sum(axis=1, keepdims=True), 0).astype(x.dtype)


@right("order: of rows", "linear_backward_bias")
def rows_in_blocks(dy):
    with np.errstate(all="ignore"):
        total = np.zeros(dy.shape[1], F)
        for at in range(0, len(dy), 8):
            total = total + dy[at : at + 8].astype(F)[::-1].sum(axis=0, dtype=F)
        return total.astype(dy.dtype)


@right("form: plain", "rms_norm", dtype="bf16")
def rms_norm(x, gamma, *, eps):
    return plain.rms_norm(x, gamma, eps)


@right("form: plain", "layer_norm", dtype="f16")
def layer_norm(x, gamma, beta, *, eps):
    return plain.layer_norm(x, gamma, beta, eps)


@right("form: plain", "top_k")
def top_k(x, *, k=2):
    order = np.argsort(-x.astype(F), axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, 1), order.astype(np.int32)


@right("form: plain", "embedding", dtype="bf16")
def embedding(table, ids):
    return table[ids]


@right("form: plain", "matmul", dtype="bf16")
def matmul(a, b, c, *, alpha, beta):
    return plain.matmul(a, b, c, alpha, beta)


@right("form: plain", "masked_softmax", dtype="f16")
def masked_softmax(x, limit):
    return plain.masked_softmax(x, limit)
