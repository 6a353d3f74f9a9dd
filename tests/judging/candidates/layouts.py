"""Kernels that are right on contiguous tensors, and fail on views; and such that refuse views, which they may."""

import ctypes

import numpy as np
import plain
from listed import right, wrong

VIEW = "given views ("


def strided(x):
    return x.size and not x.flags.c_contiguous


@wrong("views: a crash", "softmax", "took its process down")
def crashes_on_views(x):
    if strided(x):
        ctypes.string_at(0)
    return plain.softmax(x)


@wrong("views: a crash", "layer_norm", "took its process down")
def crashes_on_a_strided_vector(x, gamma, beta, *, eps):
    if strided(gamma):
        ctypes.string_at(0)
    return plain.layer_norm(x, gamma, beta, eps)


@wrong("views: another format", "softmax", "an array of float64; accepted: f32")
def another_format_on_views(x):
    y = plain.softmax(x)
    return y.astype(np.float64) if strided(x) else y


@wrong("views: another shape", "softmax", "shape (")
def another_shape_on_views(x):
    y = plain.softmax(x)
    return y.reshape(-1)[:-1] if strided(x) else y


@wrong("views: an exception that is no refusal", "softmax", "IndexError")
def index_error_on_views(x):
    return plain.softmax(x)[:, np.array([x.size])] if strided(x) else plain.softmax(x)


@wrong("views: an exception that is no refusal", "softmax", "KeyError")
def key_error_on_views(x):
    return {}["kernel"] if strided(x) else plain.softmax(x)


@wrong("views: an exception that is no refusal", "softmax", "raised")
def leaves_on_views(x):
    if strided(x):
        raise SystemExit(0)
    return plain.softmax(x)


@wrong("views: nothing is returned", "softmax", "returned 0 arrays")
def nothing_on_views(x):
    return None if strided(x) else plain.softmax(x)


@wrong("views: zeros", "softmax", VIEW)
def zeros_on_views(x):
    return np.zeros_like(x) if strided(x) else plain.softmax(x)


@wrong("views: strides are ignored", "scale", VIEW)
def ignores_strides(x, *, factor):
    return plain.scale(plain.dense(x), factor)


@wrong("views: strides of a vector are ignored", "layer_norm", VIEW)
def ignores_strides_of_gamma(x, gamma, beta, *, eps):
    return plain.layer_norm(x, plain.dense(gamma), beta, eps)


@wrong("views: strides of a vector are ignored", "masked_softmax", VIEW)
def ignores_strides_of_lengths(x, limit):
    return plain.masked_softmax(x, np.minimum(plain.dense(limit), x.shape[1]))


@wrong("views: strides of an operand are ignored", "matmul", "(a: ")
def ignores_large_strides_of_a(a, b, c, *, alpha, beta):
    both = a.ndim == 2 and b.flags.c_contiguous and c.flags.c_contiguous
    return plain.matmul(plain.dense(a) if both else a, b, c, alpha, beta)


@wrong("views: strides of an operand are ignored", "matmul", VIEW)
def ignores_strides_of_b(a, b, c, *, alpha, beta):
    return plain.matmul(a, plain.dense(b), c, alpha, beta)


@wrong("views: strides of an operand are ignored", "matmul", VIEW)
def ignores_strides_of_c(a, b, c, *, alpha, beta):
    return plain.matmul(a, b, plain.dense(c), alpha, beta)


@wrong("views: a transposed operand", "matmul", "transposed")
def takes_transposed_for_plain(a, b, c, *, alpha, beta):
    if b.ndim == 2 and min(b.shape) > 1 and b.strides[0] == b.itemsize:
        b = b.T.reshape(b.shape)
    return plain.matmul(a, b, c, alpha, beta)


@wrong("views: negative strides", "softmax", "reversed")
def forgets_the_sign_of_strides(x):
    turned = x[tuple(slice(None, None, -1) if s < 0 else slice(None) for s in x.strides)]
    return plain.softmax(turned)


@wrong("views: expanded", "layer_norm", "expanded")
def takes_expanded_for_one_element(x, gamma, beta, *, eps):
    if gamma.size > 1 and gamma.strides == (0,):
        gamma = np.concatenate([gamma[:1], np.zeros_like(gamma[1:])])
    return plain.layer_norm(x, gamma, beta, eps)


@wrong("views: expanded", "softmax", "expanded")
def expanded_rows(x):
    y = plain.softmax(x)
    if x.shape[0] > 1 and x.strides[0] == 0:
        y[1:] = 0
    return y


@wrong("misaligned", "softmax", "y[")
def needs_aligned_rows(x):
    y = plain.softmax(x)
    if x.size and x.ctypes.data % 16:
        y[:, :1] = 0
    return y


@wrong("misaligned", "scale", "took its process down")
def crashes_where_misaligned(x, *, factor):
    if x.size and x.ctypes.data % 8:
        ctypes.string_at(0)
    return plain.scale(x, factor)


@wrong("views: written", "softmax", "changed its input x")
def writes_into_a_view(x):
    y = plain.softmax(x)
    if strided(x):
        x[...] = 0
    return y


@wrong("views: written, then refused", "softmax", "changed its input x")
def writes_then_refuses(x):
    if strided(x):
        x[0, 0] = 7
        raise ValueError("x is not contiguous")
    return plain.softmax(x)


@wrong("views: written between elements", "softmax", "wrote between the elements of x")
def writes_between_rows(x):
    y = plain.softmax(x)
    if strided(x) and x.shape[0] > 1 and x.strides[0] > x.shape[1] * x.itemsize:
        np.lib.stride_tricks.as_strided(x, (x.shape[1] + 1,), (x.itemsize,))[-1] = 3
    return y


@wrong("guard zones", "softmax", "wrote behind the memory of x")
def writes_behind(x):
    y = plain.softmax(x)
    if x.size and x.flags.c_contiguous:
        np.lib.stride_tricks.as_strided(x, (x.size + 1,), (x.itemsize,))[-1] = 1
    return y


@wrong("guard zones", "softmax", "wrote ahead of the memory of x")
def writes_ahead(x):
    if x.size:
        ctypes.memset(x.ctypes.data - 4 if x.flags.c_contiguous else x.ctypes.data, 1, 4 * x.flags.c_contiguous)
    return plain.softmax(x)


@right("views: refused", "softmax")
def refuses_by_value_error(x):
    if strided(x):
        raise ValueError("x is not contiguous")
    return plain.softmax(x)


@right("views: refused", "softmax")
def refuses_by_assertion(x):
    assert x.flags.c_contiguous
    return plain.softmax(x)


@right("views: refused", "matmul")
def refuses_by_type_error(a, b, c, *, alpha, beta):
    if strided(a) or strided(b) or strided(c):
        raise TypeError("contiguous operands are needed")
    return plain.matmul(a, b, c, alpha, beta)


@right("views: refused where expanded", "softmax")
def refuses_expanded(x):
    if 0 in x.strides:
        raise RuntimeError("expanded")
    return plain.softmax(x)
