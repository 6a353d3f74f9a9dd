"""Right kernels in NumPy, which the candidates spoil."""

import numpy as np

F = np.float32


def softmax(x):
    w = x.astype(F)
    with np.errstate(all="ignore"):
        e = np.exp(w - w.max(axis=1, keepdims=True, initial=-np.inf))
        return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)


def scale(x, factor):
    with np.errstate(all="ignore"):
        return (x.astype(F) * F(factor)).astype(x.dtype)


def matmul(a, b, c, alpha, beta):
    with np.errstate(all="ignore"):
        y = F(alpha) * (a.astype(F) @ b.astype(F))
        return (y + F(beta) * c.astype(F) if beta else y).astype(a.dtype)


def layer_norm(x, gamma, beta, eps):
    with np.errstate(all="ignore"):
        w = x.astype(F)
        mean = w.mean(axis=1, keepdims=True, dtype=F)
        d = w - mean
        rstd = 1 / np.sqrt((d * d).mean(axis=1, keepdims=True, dtype=F) + F(eps))
        return (d * rstd * gamma.astype(F) + beta.astype(F)).astype(x.dtype), mean[:, 0], rstd[:, 0]


def rms_norm(x, gamma, eps):
    with np.errstate(all="ignore"):
        w = x.astype(F)
        rstd = 1 / np.sqrt((w * w).mean(axis=1, keepdims=True, dtype=F) + F(eps))
        return (w * rstd * gamma.astype(F)).astype(x.dtype), rstd[:, 0]


def log_softmax(x):
    with np.errstate(all="ignore"):
        w = x.astype(F)
        d = w - w.max(axis=1, keepdims=True)
        return (d - np.log(np.exp(d).sum(axis=1, keepdims=True))).astype(x.dtype)


def masked_softmax(x, limit):
    with np.errstate(all="ignore"):
        seen = np.arange(x.shape[1])[None, :] < limit[:, None]
        w = np.where(seen, x.astype(F), -np.inf)
        top = w.max(axis=1, keepdims=True, initial=-np.inf)
        e = np.where(seen, np.exp(w - np.where(limit[:, None] > 0, top, 0)), 0)
        return np.where(seen, e / e.sum(axis=1, keepdims=True), 0).astype(x.dtype)


def embedding_backward(dy, ids, dtable, entries, padding_idx):
    padding = padding_idx + entries if padding_idx < 0 else padding_idx
    total = np.zeros(dtable.shape, F)
    kept = ids != padding
    with np.errstate(all="ignore"):
        np.add.at(total, ids[kept], dy[kept].astype(F))
        dtable[...] = (dtable.astype(F) + total).astype(dtable.dtype)


def adamw(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay, loss_scale):
    with np.errstate(all="ignore"):
        if not np.isfinite(grad.astype(F)).all():
            return
        g = grad.astype(F) * F(1 / loss_scale)
        exp_avg[...] = exp_avg + (g - exp_avg) * F(1 - beta1)
        exp_avg_sq[...] = exp_avg_sq * F(beta2) + g * g * F(1 - beta2)
        size = np.sqrt(exp_avg_sq) / F(np.sqrt(1 - beta2**step)) + F(eps)
        p = param.astype(F)
        p = p - p * F(lr * weight_decay) - F(lr / (1 - beta1**step)) * (exp_avg / size)
        param[...] = p.astype(param.dtype)


def attention(q, k, v, limit, scale):
    with np.errstate(all="ignore"):
        some = limit[..., None] > 0
        seen = np.arange(k.shape[-2]) < limit[..., None]
        s = np.where(seen, (q.astype(F) @ np.swapaxes(k.astype(F), -1, -2)) * F(scale), -np.inf)
        top = np.where(some, s.max(axis=-1, keepdims=True, initial=-np.inf), 0)
        e = np.where(seen, np.exp(s - top), 0).astype(F)
        total = np.where(some, e.sum(axis=-1, keepdims=True), 1).astype(F)
        wide = v.astype(F)
        if np.isfinite(wide).all():
            y = e @ wide
        else:
            y = np.where(seen[..., None], e[..., None] * wide[..., None, :, :], 0).sum(axis=-2)
        return (y / total).astype(q.dtype), top[..., 0].astype(F), total[..., 0]


def bf16(v):
    """Rounded to 8 bits of significand, to nearest even."""
    u = np.ascontiguousarray(v, F).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).view(F)


def tf32(v):
    """Rounded to 11 bits of significand, to nearest even."""
    u = np.ascontiguousarray(v, F).view(np.uint32)
    return ((u + 0xFFF + ((u >> 13) & 1)) & 0xFFFFE000).view(F)


def dense(v):
    """The memory of a view as if it were contiguous."""
    return np.lib.stride_tricks.as_strided(v, v.shape, np.empty(v.shape, v.dtype).strides)
