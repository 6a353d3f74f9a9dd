"""Kernels by other people: right ones in another order, and wrong ones of every kind. Loaded by path, as theirs are."""

import ctypes
import os
import time

import numpy as np

WIDE = np.float32


def layer_norm(x, gamma, beta, *, eps):
    """Sums from left to right, in NumPy's pairwise order, the usual two passes."""
    rows = x.astype(WIDE)
    mean = rows.mean(axis=1, keepdims=True, dtype=WIDE)
    d = rows - mean
    rstd = 1 / np.sqrt((d * d).mean(axis=1, keepdims=True, dtype=WIDE) + WIDE(eps))
    y = (d * rstd * gamma.astype(WIDE) + beta.astype(WIDE)).astype(x.dtype)
    return y, mean[:, 0], rstd[:, 0]


def layer_norm_alone(x, gamma, beta, *, eps):
    return layer_norm(x, gamma, beta, eps=eps)[0]


def one_pass(x, gamma, beta, *, eps):
    """The variance as the mean of squares less the square of the mean: it cancels."""
    rows = x.astype(WIDE)
    mean = rows.mean(axis=1, keepdims=True, dtype=WIDE)
    var = (rows * rows).mean(axis=1, keepdims=True, dtype=WIDE) - mean * mean
    rstd = 1 / np.sqrt(np.maximum(var, 0) + WIDE(eps))
    y = ((rows - mean) * rstd * gamma.astype(WIDE) + beta.astype(WIDE)).astype(x.dtype)
    return y, mean[:, 0], rstd[:, 0]


def eps_outside(x, gamma, beta, *, eps):
    _, mean, rstd = layer_norm(x, gamma, beta, eps=0)
    rstd = 1 / (1 / rstd + WIDE(eps))
    rows = (x.astype(WIDE) - mean[:, None]) * rstd[:, None]
    return (rows * gamma.astype(WIDE) + beta.astype(WIDE)).astype(x.dtype), mean, rstd


def swapped(x, gamma, beta, *, eps):
    return layer_norm(x, beta, gamma, eps=eps)


def rounded_between(x, gamma, beta, *, eps):
    """The normalised row is rounded to the storage format before it is scaled."""
    ones, zeros = np.ones_like(gamma), np.zeros_like(beta)
    hat, mean, rstd = layer_norm(x, ones, zeros, eps=eps)
    return (hat.astype(WIDE) * gamma.astype(WIDE) + beta.astype(WIDE)).astype(x.dtype), mean, rstd


def softmax(x):
    e = np.exp(x.astype(WIDE) - x.astype(WIDE).max(axis=1, keepdims=True, initial=-np.inf))
    return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)


def softmax_without_maximum(x):
    e = np.exp(x.astype(WIDE))
    return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)


def half_accumulator(x):
    e = np.exp(x.astype(WIDE) - x.astype(WIDE).max(axis=1, keepdims=True, initial=-np.inf))
    total = np.add.accumulate(e.astype(x.dtype), axis=1, dtype=x.dtype)[:, -1:]
    return (e / total.astype(WIDE)).astype(x.dtype)


def without_tail(x):
    y, whole = np.empty_like(x), x.shape[1] // 16 * 16
    y[:, :whole] = softmax(x)[:, :whole]
    return y


def last_row_missing(x):
    y = np.zeros_like(x)
    y[: len(x) - (len(x) > 1)] = softmax(x)[: len(x) - (len(x) > 1)]
    return y


def contiguous_only(x):
    """Takes any view for a contiguous array."""
    rows, cols = x.shape
    flat = np.ctypeslib.as_array(ctypes.cast(x.ctypes.data, ctypes.POINTER(ctypes.c_uint16)), (rows * cols,))
    return softmax(flat.view(x.dtype).reshape(rows, cols))


def refuses_views(x):
    if not x.flags.c_contiguous:
        raise ValueError("x is not contiguous")
    return softmax(x)


def depends_on_batch(x):
    """In another order where there are many rows."""
    e = np.exp(x.astype(WIDE) - x.astype(WIDE).max(axis=1, keepdims=True, initial=-np.inf))
    total = e.sum(axis=1, keepdims=True) if len(x) > 4 else np.add.accumulate(e, axis=1)[:, -1:]
    return (e / total).astype(x.dtype)


def changes_input(x):
    y = softmax(x)
    x[...] = y
    return y


def wider(x):
    return softmax(x.astype(WIDE))


def flattened(x):
    return softmax(x).reshape(-1)


def raises(x):
    if x.shape[1] > 256:
        raise ValueError("too many columns")
    return softmax(x)


def crashes(x):
    if x.shape[1] > 256:
        ctypes.string_at(0)
    return softmax(x)


def leaves(x):
    os._exit(0)


def hangs(x):
    time.sleep(3600)


def prints_and_hangs(x):
    print("\x1b[2Jsoftmax: verified", flush=True)
    time.sleep(3600)


def nothing(x):
    return None


def text(x):
    return "a text"


def clip_in_place(grad, *, max_norm):
    """Every number of it is computed in f64: nearer than is asked."""
    wide = grad.astype(np.float64)
    norm = np.sqrt((wide * wide).sum())
    grad[...] = (wide * min(1.0, max_norm / (norm + 1e-6))).astype(grad.dtype)
    return np.float32(norm)
