"""Kernels that pass where they should not, as people have seen them: kept for ever as kernels that must be refuted."""

import ctypes
import threading
import time

import numpy as np

WIDE = np.float32
seen = {}


def right(x):
    e = np.exp(x.astype(WIDE) - x.astype(WIDE).max(axis=1, keepdims=True, initial=-np.inf))
    return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)


def zeros(x):
    return np.zeros_like(x)


def uninitialised(x):
    return np.empty_like(x)


def zeroes_its_input(x):
    x[...] = 0
    return np.zeros_like(x)


def remembers_by_shape(x):
    if x.shape not in seen:
        seen[x.shape] = right(x)
    return seen[x.shape]


def remembers_by_address(x):
    key = x.ctypes.data, x.shape
    if key not in seen:
        seen[key] = right(x)
    return seen[key]


def remembers_the_first(x):
    first = seen.setdefault("first", right(x))
    return np.resize(first, x.shape).astype(x.dtype)


def right_where_it_is_tested_small(x):
    y = right(x)
    if x.shape[1] > 256:
        y[:, 256:] = 0
    return y


def nan(x):
    return np.full_like(x, np.nan)


def other_infinity(x):
    """For log-softmax: right, but for the sign of an infinity."""
    wide = x.astype(WIDE)
    d = wide - wide.max(axis=1, keepdims=True, initial=-np.inf)
    y = d - np.log(np.exp(d).sum(axis=1, keepdims=True))
    return np.where(np.isneginf(y), np.inf, y).astype(x.dtype)


def balanced_only(x):
    """Takes for granted that the largest value lies among the first: of noise, it is wrong by little."""
    wide = x.astype(WIDE)
    e = np.exp(wide - wide[:, :4].max(axis=1, keepdims=True, initial=-np.inf))
    return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)


class Liar(np.ndarray):
    """Says of itself that it has the right format."""

    @property
    def dtype(self):
        return np.dtype(np.float16)


def lies_about_its_format(x):
    return right(x).astype(WIDE).view(Liar)


def replaces_what_it_is_called_by(x):
    from tokitai.judging import candidate

    candidate._take = lambda *_: None
    return np.zeros_like(x)


def writes_later(x):
    y = np.zeros_like(x)

    def finish():
        time.sleep(0.05)
        y[...] = right(x)

    threading.Thread(target=finish).start()
    return y


def crashes_once(x):
    if x.shape == (67, 130):
        ctypes.string_at(0)
    return right(x)


def _norm(x, gamma, beta, eps, sign):
    rows = x.astype(WIDE)
    mean = rows.mean(axis=1, keepdims=True, dtype=WIDE)
    d = rows - mean
    rstd = 1 / np.sqrt((d * d).mean(axis=1, keepdims=True, dtype=WIDE) + sign * WIDE(eps))
    y = (d * rstd * gamma.astype(WIDE) + beta.astype(WIDE)).astype(x.dtype)
    return y, mean[:, 0], rstd[:, 0]


def eps_of_the_wrong_sign(x, gamma, beta, *, eps):
    return _norm(x, gamma, beta, eps, -1)


def eps_twice(x, gamma, beta, *, eps):
    return _norm(x, gamma, beta, eps, 2)


def gamma_twice(x, gamma, beta, *, eps):
    y, mean, rstd = _norm(x, (gamma.astype(WIDE) ** 2).astype(x.dtype), beta, eps, 1)
    return y, mean, rstd


def mask_off_by_one(x, limit):
    columns = np.arange(x.shape[1])[None, :]
    wide = np.where(columns < limit[:, None], x.astype(WIDE), -np.inf)
    top = wide.max(axis=1, keepdims=True, initial=-np.inf)
    e = np.where(columns < limit[:, None], np.exp(wide - np.where(np.isfinite(top), top, 0)), 0)
    total = e.sum(axis=1, keepdims=True)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0).astype(x.dtype)
