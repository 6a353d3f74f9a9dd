"""Kernels that have a scalar or an option built in, or heed it only in part."""

import numpy as np
import plain
from listed import wrong

F = np.float32


@wrong("scalars", "scale", "y[")
def factor_built_in(x, *, factor):
    return plain.scale(x, 0.37)


@wrong("scalars", "scale", "y[")
def factor_without_its_sign(x, *, factor):
    return plain.scale(x, abs(factor))


@wrong("scalars", "scale", "y[")
def factor_of_the_first_call(x, *, factor, first=[]):  # noqa: B006
    first.append(factor)
    return plain.scale(x, first[0])


@wrong("scalars", "layer_norm", "the rounding-error bound is")
def eps_built_in(x, gamma, beta, *, eps):
    return plain.layer_norm(x, gamma, beta, 1e-5)


@wrong("scalars", "rms_norm", "the rounding-error bound is", dtype="bf16", results=("y",))
def eps_built_in_without_its_statistic(x, gamma, *, eps):
    return plain.rms_norm(x, gamma, 1e-6)[0]


@wrong("scalars", "attention", "[")
def scale_built_in(q, k, v, limit, *, scale):
    return plain.attention(q, k, v, limit, 0.125)


@wrong("scalars", "attention", "[")
def scale_by_the_inner_size(q, k, v, limit, *, scale):
    return plain.attention(q, k, v, limit, 1 / np.sqrt(max(q.shape[-1], 1)))


@wrong("scalars", "clip", "y[")
def lower_limit_built_in(x, *, low, high):
    return np.minimum(np.maximum(x.astype(F), F(-1.5)), F(high)).astype(x.dtype)


@wrong("scalars", "clip", "y[")
def symmetric_limits(x, *, low, high):
    return np.minimum(np.maximum(x.astype(F), F(-high)), F(high)).astype(x.dtype)


@wrong("scalars", "matmul", "y[")
def alpha_built_in(a, b, c, *, alpha, beta):
    return plain.matmul(a, b, c, 0.75, beta)


@wrong("scalars", "matmul", "y[")
def beta_is_on_or_off(a, b, c, *, alpha, beta):
    return plain.matmul(a, b, c, alpha, 0.5 if beta else 0)


def adamw(name, built_in):
    def kernel(param, grad, exp_avg, exp_avg_sq, *, step, lr, beta1, beta2, eps, weight_decay, loss_scale, seed):
        given = dict(
            step=step, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, loss_scale=loss_scale
        )
        plain.adamw(param, grad, exp_avg, exp_avg_sq, **{**given, name: built_in})

    kernel.__name__, kernel.__module__ = f"adamw_with_{name}_built_in", __name__
    globals()[kernel.__name__] = wrong("scalars", "adamw", "[0,", without=("master",))(kernel)


for each, value in (
    ("step", 3),
    ("lr", 1e-3),
    ("beta1", 0.9),
    ("beta2", 0.999),
    ("eps", 1e-8),
    ("weight_decay", 0.1),
    ("loss_scale", 8.0),
):
    adamw(each, value)


@wrong("scalars", "cross_entropy", "loss[", without=("weight",))
def smoothing_ignored(logits, target, *, ignore_index, label_smoothing, z_loss):
    return cross_entropy(logits, target, ignore_index, 0, z_loss)


@wrong("scalars", "cross_entropy", "loss[", without=("weight",))
def z_loss_ignored(logits, target, *, ignore_index, label_smoothing, z_loss):
    return cross_entropy(logits, target, ignore_index, label_smoothing, 0)


@wrong("scalars", "cross_entropy", "", without=("weight",))
def ignored_index_built_in(logits, target, *, ignore_index, label_smoothing, z_loss):
    return cross_entropy(logits, target, -100, label_smoothing, z_loss)


def cross_entropy(logits, target, ignore_index, label_smoothing, z_loss):
    w = logits.astype(np.float64)
    with np.errstate(all="ignore"):
        top = w.max(axis=1, keepdims=True)
        z = w - top
        others = np.exp(z)
        others[np.arange(len(z)), z.argmax(axis=1)] -= 1
        log = np.log1p(others.sum(axis=1, keepdims=True))
        kept = target != ignore_index
        at = np.where(kept, target, 0)
        nll = (log - np.take_along_axis(z, at[:, None], 1))[:, 0]
        if label_smoothing:
            nll = nll * (1 - label_smoothing) + label_smoothing * (log[:, 0] - z.mean(axis=1))
        lse = (top + log)[:, 0]
        return np.where(kept, nll + z_loss * lse * lse, 0).astype(F), lse.astype(F)


@wrong("scalars", "embedding_backward", "dtable[")
def padding_ignored(dy, ids, dtable, *, entries, padding_idx):
    plain.embedding_backward(dy, ids, dtable, entries, 1 << 40)


@wrong("options", "top_k", "")
def k_built_in(x, *, k=2):
    w = x.astype(F)
    order = np.argsort(-w, axis=1, kind="stable")[:, :2]
    return np.take_along_axis(x, order, 1), order.astype(np.int32)


@wrong("options", "matmul", "")
def layout_ignored(a, b, c, *, alpha, beta, layout="NN"):
    return plain.matmul(a, b, c, alpha, beta)
