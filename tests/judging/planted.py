"""Kernels with planted faults, each of one kind, as others have written them."""

import numpy as np

WIDE = np.float32


def _exp(x):
    wide = x.astype(WIDE)
    return np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf))


def _softmax(e, dtype):
    return (e / e.sum(axis=1, keepdims=True)).astype(dtype)


def softmax(x):
    return _softmax(_exp(x), x.dtype)


def exp_stored(x):
    """The exponentials are stored before they are summed."""
    return _softmax(_exp(x).astype(x.dtype).astype(WIDE), x.dtype)


def sum_in_storage(x):
    e = _exp(x)
    total = np.add.accumulate(e.astype(x.dtype), axis=1, dtype=x.dtype)[:, -1:]
    return (e / total.astype(WIDE)).astype(x.dtype)


def without_maximum(x):
    return _softmax(np.exp(x.astype(WIDE)), x.dtype)


def rough_exp(x):
    """An exponential that is good to 2**-10."""
    wide = x.astype(WIDE)
    z = (wide - wide.max(axis=1, keepdims=True, initial=-np.inf)) * WIDE(1.442695)
    n = np.rint(np.maximum(z, -160))
    f = z - n
    e = (1 + f * (WIDE(0.69315) + f * (WIDE(0.2402265) + f * WIDE(0.0555)))).astype(WIDE)
    e = np.where(np.isnan(z), z, np.ldexp(e, np.nan_to_num(n).astype(int))).astype(WIDE)
    return _softmax(e, x.dtype)


def rough_quotient(x):
    e = _exp(x)
    inverse = (1 / e.sum(axis=1, keepdims=True)).view(np.uint32) & np.uint32(0xFFFFFF00)
    return (e * inverse.view(WIDE)).astype(x.dtype)


def truncated(x):
    y = _softmax(_exp(x), WIDE)
    cut = (np.ascontiguousarray(y).view(np.uint32) & np.uint32(0xFFFF0000)).view(WIDE)
    return np.where(np.isnan(y), y, cut).astype(x.dtype)


def through_bf16(x):
    import ml_dtypes

    return _softmax(_exp(x), ml_dtypes.bfloat16).astype(x.dtype)


def flushed(x):
    y = softmax(x)
    return np.where(np.abs(y) < np.finfo(x.dtype).smallest_normal, y * 0, y).astype(x.dtype)


def without_tail(x):
    y, whole = np.zeros_like(x), x.shape[1] // 16 * 16
    y[:, :whole] = softmax(x)[:, :whole]
    return y


def tail_not_summed(x):
    e, whole = _exp(x), x.shape[1] // 8 * 8
    return (e / e[:, :whole].sum(axis=1, keepdims=True)).astype(x.dtype)


def rows_exchanged(x):
    y = softmax(x)
    order = np.minimum(np.arange(len(y)) ^ 1, max(len(y) - 1, 0))
    return y[order]


def columns_reversed(x):
    return np.ascontiguousarray(softmax(x)[:, ::-1])


_BEFORE = {}


def stale(x):
    """Answers are cached by their size."""
    return _BEFORE.setdefault((x.shape, x.dtype), softmax(x)).copy()


def nothing_written(x):
    return np.zeros_like(x)


def last_row_missing(x):
    y = softmax(x)
    if len(y) > 1:
        y[-1] = 0
    return y


def _layer_norm(x, gamma, beta, eps, *, var=None, rstd=None, hat=lambda h: h):
    rows = x.astype(WIDE)
    mean = rows.mean(axis=1, keepdims=True, dtype=WIDE)
    d = rows - mean
    var = (d * d).mean(axis=1, keepdims=True, dtype=WIDE) if var is None else var(rows, mean)
    rstd = 1 / np.sqrt(var + WIDE(eps)) if rstd is None else rstd(var, WIDE(eps))
    y = (hat(d * rstd) * gamma.astype(WIDE) + beta.astype(WIDE)).astype(x.dtype)
    return y, mean[:, 0], rstd[:, 0]


def one_pass(x, gamma, beta, *, eps):
    def var(rows, mean):
        return np.maximum((rows * rows).mean(axis=1, keepdims=True, dtype=WIDE) - mean * mean, 0)

    return _layer_norm(x, gamma, beta, eps, var=var)


def normalized_stored(x, gamma, beta, *, eps):
    return _layer_norm(x, gamma, beta, eps, hat=lambda h: h.astype(x.dtype).astype(WIDE))


def eps_outside(x, gamma, beta, *, eps):
    return _layer_norm(x, gamma, beta, eps, rstd=lambda var, e: 1 / (np.sqrt(var) + e))


def eps_as_floor(x, gamma, beta, *, eps):
    return _layer_norm(x, gamma, beta, eps, rstd=lambda var, e: 1 / np.sqrt(np.maximum(var, e)))


def eps_fixed(x, gamma, beta, *, eps):
    return _layer_norm(x, gamma, beta, 1e-5)


def unbiased(x, gamma, beta, *, eps):
    def var(rows, mean):
        d = rows - mean
        return (d * d).sum(axis=1, keepdims=True, dtype=WIDE) / WIDE(rows.shape[1] - 1)

    return _layer_norm(x, gamma, beta, eps, var=var)


def rough_root(x, gamma, beta, *, eps):
    def rstd(var, e):
        return ((1 / np.sqrt(var + e)).astype(WIDE).view(np.uint32) & np.uint32(0xFFFFF800)).view(WIDE)

    return _layer_norm(x, gamma, beta, eps, rstd=rstd)


def exchanged(x, gamma, beta, *, eps):
    return _layer_norm(x, beta, gamma, eps)


def no_shift(x, gamma, beta, *, eps):
    return _layer_norm(x, gamma, np.zeros_like(beta), eps)


def silu_stored(gate, up):
    wide = gate.astype(WIDE)
    e = np.exp(-np.abs(wide))
    s = wide * np.where(wide < 0, e / (1 + e), 1 / (1 + e))
    s = np.where(np.isneginf(wide), WIDE(-0.0), s)
    return (s.astype(gate.dtype).astype(WIDE) * up.astype(WIDE)).astype(gate.dtype)


def softmax_backward_stored(dy, y):
    """PyTorch's on a GPU: dy * y is stored, and multiplied out."""
    product = (dy.astype(WIDE) * y.astype(WIDE)).astype(dy.dtype).astype(WIDE)
    total = product.sum(axis=1, keepdims=True, dtype=WIDE)
    return (product - y.astype(WIDE) * total).astype(dy.dtype)


def tanh_gelu(x):
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))).astype(x.dtype)


def product_in_storage(x, weight):
    """Each step of the product is rounded to the storage format."""
    total = np.zeros((x.shape[0], weight.shape[0]), WIDE)
    for k in range(x.shape[1]):
        step = x[:, k : k + 1].astype(np.float64) * weight[:, k].astype(np.float64)[None, :]
        total = (total + step).astype(x.dtype).astype(WIDE)
    return total.astype(x.dtype)


def operands_in_bf16(x, weight):
    import ml_dtypes

    a, b = (t.astype(ml_dtypes.bfloat16).astype(WIDE) for t in (x, weight))
    return a @ b.T


def one_too_many(x, limit):
    seen = np.arange(x.shape[1])[None, :] <= limit[:, None]
    shown = np.where(seen, x.astype(WIDE), -np.inf)
    with np.errstate(invalid="ignore"):
        e = np.where(seen, np.exp(shown - shown.max(axis=1, keepdims=True, initial=-np.inf)), 0)
        return np.where(seen, e / e.sum(axis=1, keepdims=True), 0).astype(x.dtype)
