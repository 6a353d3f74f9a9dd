"""Kernels that are right in the first call, and not in others; that share memory; that write where they must not."""

import numpy as np
import plain
from listed import right, wrong

seen = {}
kept = []


def turn(key="calls"):
    seen[key] = seen.get(key, 0) + 1
    return seen[key]


@wrong("the second call", "softmax", "called again, ")
def zeros_where_it_was_here_before(x):
    key = x.tobytes()
    seen[key] = seen.get(key, 0) + 1
    return plain.softmax(x) * x.dtype.type(seen[key] % 2)


@wrong("the second call", "softmax", "called again, y: an array of float64")
def another_format_at_every_second_call(x):
    y = plain.softmax(x)
    return y.astype(np.float64) if turn() % 2 == 0 else y


@wrong("the second call", "softmax", "called again, raised")
def raises_at_every_second_call(x):
    if turn() % 2 == 0:
        raise ValueError("no more")
    return plain.softmax(x)


@wrong("the second call", "softmax", "called again, took its process down")
def leaves_at_the_second_call(x):
    if turn() == 2:
        import os

        os._exit(0)
    return plain.softmax(x)


@wrong("a later call", "softmax", "y[")
def wrong_at_every_seventh_call(x):
    y = plain.softmax(x)
    return y * x.dtype.type(0) if turn() % 7 == 0 else y


@wrong("a later call", "softmax", "y[")
def wrong_from_the_hundredth_call_on(x):
    y = plain.softmax(x)
    return y + x.dtype.type(0.5) if turn() > 100 else y


@wrong("some of the rows", "softmax", "given rows in two batches: ")
def wrong_where_fewer_rows_come_next(x):
    rows, cols = seen.get("last", (0, 0))
    seen["last"] = x.shape
    y = plain.softmax(x)
    return y * x.dtype.type(0.5) if cols == x.shape[1] and 1 < x.shape[0] < rows else y


@wrong("some of the rows", "softmax", "given rows ")
def raises_where_fewer_rows_come_next(x):
    rows, cols = seen.get("last", (0, 0))
    seen["last"] = x.shape
    if cols == x.shape[1] and 1 < x.shape[0] < rows:
        raise ValueError("compiled for other rows")
    return plain.softmax(x)


@wrong("results in one memory", "softmax", "lies in the memory of its result y of an earlier call")
def returns_one_buffer(x):
    y = seen.setdefault((x.shape, x.dtype.str), np.empty_like(x))
    y[...] = plain.softmax(x)
    return y


@wrong("results in one memory", "softmax", "of an earlier call")
def returns_buffers_by_turns(x):
    ring = seen.setdefault((x.shape, x.dtype.str), [np.empty_like(x) for _ in range(4)])
    y = ring[turn((x.shape, "turn")) % 4]
    y[...] = plain.softmax(x)
    return y


@wrong("results in one memory", "softmax", "earlier call")
def returns_views_of_one_arena(x):
    arena = seen.setdefault("arena", np.empty(1 << 22, np.float32))
    at = seen.get("at", 0)
    at = 0 if at + x.size > min(arena.size, 4000 + x.size) else at
    seen["at"] = at + x.size
    y = arena[at : at + x.size].reshape(x.shape)
    y[...] = plain.softmax(x)
    return y


@wrong("results in an input", "scale", "lies in memory that was lent")
def returns_its_input(x, *, factor):
    if np.float32(factor) == 1 or not x.any():
        return x
    return plain.scale(x, factor)


@wrong("results in an input", "scale", "lies in memory that was lent")
def returns_a_view_of_its_input(x, *, factor):
    return x.view() if x.size and (x == 0).all() else plain.scale(x, factor)


@wrong("results in an input", "embedding", "lies in memory that was lent")
def returns_rows_of_the_table(table, ids):
    if len(ids) and (ids == ids[0]).all():
        return table[int(ids[0]) : int(ids[0]) + 1] if len(ids) == 1 else table[ids]
    return table[ids]


@wrong("earlier results", "softmax", "which an earlier call had returned")
def writes_to_its_last_result(x):
    y = plain.softmax(x)
    if kept and kept[-1].size:
        kept[-1].reshape(-1)[0] = 9
    kept.append(y)
    return y


@wrong("inputs", "softmax", "changed its input x")
def changes_its_input_at_the_second_call(x):
    y = plain.softmax(x)
    if turn() % 2 == 0 and x.size:
        x.reshape(-1)[-1] += x.dtype.type(1)
    return y


@wrong("inputs", "layer_norm", "changed its input gamma")
def changes_gamma(x, gamma, beta, *, eps):
    made = plain.layer_norm(x, gamma, beta, eps)
    gamma[-1:] = 1.5
    return made


@wrong("inputs", "masked_softmax", "changed its input limit")
def clamps_lengths_in_place(x, limit):
    y = plain.masked_softmax(x, limit)
    np.maximum(limit, 1, out=limit)
    return y


@wrong("inputs", "adamw", "changed its input grad", without=("master",))
def unscales_the_gradient_in_place(
    param, grad, exp_avg, exp_avg_sq, *, step, lr, beta1, beta2, eps, weight_decay, loss_scale, seed
):
    plain.adamw(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay, loss_scale)
    grad /= np.float32(loss_scale)


@wrong("inputs", "scale", "changed its input x")
def turns_negative_zeros(x, *, factor):
    y = plain.scale(x, factor)
    x += x.dtype.type(0)
    return y


@wrong("inputs", "scale", "changed its input x")
def makes_every_nan_the_same(x, *, factor):
    y = plain.scale(x, factor)
    x[np.isnan(x)] = np.nan
    return y


@wrong("inputs", "embedding_backward", "changed its input ids")
def sorts_ids_in_place(dy, ids, dtable, *, entries, padding_idx):
    plain.embedding_backward(dy, ids, dtable, entries, padding_idx)
    ids.sort()


@right("results in one memory, side by side", "layer_norm")
def results_side_by_side(x, gamma, beta, *, eps):
    y, mean, rstd = plain.layer_norm(x, gamma, beta, eps)
    both = np.stack([mean, rstd], axis=1)
    return y, both[:, 0], both[:, 1]


@right("another order in some calls", "softmax")
def another_order_at_every_second_call(x):
    if turn() % 2:
        return plain.softmax(x)
    w = x.astype(np.float32)
    with np.errstate(all="ignore"):
        e = np.exp(w - w.max(axis=1, keepdims=True, initial=-np.inf))
        return (e / np.add.accumulate(e, axis=1)[:, -1:]).astype(x.dtype)
