"""AdamW: laws and cases that tell the formulas apart, lists of tensors, the gate, stochastic rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer import PLAIN, Array, State, bits_of, copied, one, state, step
from running import BF16, F16, F32, U, array, same_bits, textbook

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.formats import format_of
from tokitai.meaning import bounds


# ------------------------------------------------------------------ the formula
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_zero_gradient_moves_nothing(dtype: Any) -> None:
    """C58: eps = 1e-8 is 0 in f16: 0/0 where it is narrowed."""
    got = one([1.0, -2.0, 0.5], [0.0] * 3, dtype)
    assert same_bits(got["param"], array([1.0, -2.0, 0.5], dtype))
    assert not got["exp_avg"].any() and not got["exp_avg_sq"].any()


@pytest.mark.parametrize("t", [1, 2, 10, 1000, 10**6, 2**32 - 1])
def test_the_place_of_eps(t: int) -> None:
    """C60, C61: g = eps from zero state moves by lr/2 at t = 1; with eps before the correction by 0.0307 lr, under the
    root by 1e-4 lr. Later the moments are those that a constant gradient has left."""
    g = float(np.float32(1e-8))
    b1, b2 = 0.9, 0.999
    got = one(0.0, g, m=g * (1 - b1 ** (t - 1)), v=g * g * (1 - b2 ** (t - 1)), step=t, lr=1e-3, eps=1e-8)
    moved = -float(got["param"][0])
    assert abs(moved - 1e-3 * g / (g + 1e-8)) <= 64 * U * 1e-3


def test_decay_is_decoupled() -> None:
    """C62: the decay is no part of the gradient, and of no moment."""
    got = one(2.0, 0.0, lr=0.1, weight_decay=0.1)
    assert got["param"][0] == np.float32(1.98) and got["exp_avg"][0] == 0 and got["exp_avg_sq"][0] == 0


@pytest.mark.parametrize(("t", "m", "v"), [(10, 1 - 0.9**9, 1 - 0.999**9), (1, 0.0, 0.0)])
def test_the_step_is_a_number(t: int, m: float, v: float) -> None:
    """C73: an integer that is read as a float's bits would make beta**t 1."""
    assert abs(one(1.0, 1.0, m=m, v=v, step=t)["param"][0] - np.float32(0.999)) <= 2 * U


@pytest.mark.parametrize(("eps", "loss_scale"), [(1e-8, 1.0), (1e-3, 1.0), (1.0, 2.0**16)])
def test_a_constant_gradient_moves_alike_at_every_step(eps: float, loss_scale: float) -> None:
    """Law: from zero state, without decay, every step is -lr g/(|g| + eps)."""
    g = np.concatenate([np.geomspace(1e-6, 1e3, 40), -np.geomspace(1e-6, 1e3, 40)]).astype(np.float32)
    s: State = dict(
        param=[np.zeros(80, np.float32)], grad=[g * np.float32(loss_scale)],
        exp_avg=[np.zeros(80, np.float32)], exp_avg_sq=[np.zeros(80, np.float32)],
    )  # fmt: skip
    for t in range(1, 301):
        s["param"][0][:] = 0
        step(s, step=t, eps=eps, loss_scale=loss_scale)
        want = -1e-3 * g.astype(float) / (np.abs(g.astype(float)) + eps)
        # A moment is a sum of terms that are rounded as they decay: at most t times, and by no more than 1/(1 - beta)
        # of them at their full size; a dozen roundings more make the step.
        relative = U * (2 * min(t, 10) + min(t, 1000) + 12)
        assert (np.abs(s["param"][0] - want) <= relative * np.abs(want)).all(), t


def test_a_thousand_steps_do_not_freeze_the_step_counter() -> None:
    """C71: a counter held in bf16 stops at 256, and with it the bias correction: p would end at 0.2041."""
    s: State = dict(
        param=[np.ones(1, np.float32)], grad=[np.full(1, 0.1, np.float32)],
        exp_avg=[np.zeros(1, np.float32)], exp_avg_sq=[np.zeros(1, np.float32)],
    )  # fmt: skip
    for t in range(1, 1001):
        step(s, step=t)
    assert abs(float(s["param"][0][0]) - 1e-7) <= 1000 * U


def test_moments_are_f32_whatever_the_weights() -> None:
    """C70: 0.999**1000 by a thousand steps without a gradient: bf16 would stay at 1 for ever."""
    s: State = dict(
        param=[array([1.0], BF16)], grad=[array([0.0], BF16)],
        exp_avg=[np.zeros(1, np.float32)], exp_avg_sq=[np.ones(1, np.float32)],
    )  # fmt: skip
    for t in range(1, 1001):
        step(s, step=t)
    assert abs(float(s["exp_avg_sq"][0][0]) - 0.999**1000) <= 2000 * U
    with pytest.raises(ArgumentError, match=r"^exp_avg: format bf16; accepted: f32"):
        ops.adamw(**{**s, "exp_avg": [array([0.0], BF16)]}, step=1)


def test_small_updates_live_in_the_master_copy() -> None:
    """C69."""
    s: State = dict(
        param=[array([1.0], BF16)], grad=[array([1.0], BF16)], exp_avg=[np.zeros(1, np.float32)],
        exp_avg_sq=[np.zeros(1, np.float32)], master=[np.ones(1, np.float32)],
    )  # fmt: skip
    alone = copied({n: a for n, a in s.items() if n != "master"})
    for t in range(1, 101):
        step(s, step=t)
        step(alone, step=t)
    assert abs(float(s["master"][0][0]) - 0.9) <= 200 * U
    assert same_bits(s["param"][0], array(s["master"][0], BF16))
    assert alone["param"][0] == 1, "half an ulp of 1 is more than 1e-3 in bf16"


# ------------------------------------------------------------------ against the textbook, from the kernel's own state
def hold_one_step(before: State, after: State, scalars: dict[str, Any], master: bool, dtype: str) -> float:
    """Every element of every tensor within the derived bound of the textbook's step from the state before; the largest
    part of the bound that was used."""
    graph = ops.adamw.trace(dtype, present={"master"} if master else ())
    params = {n: float(v) for n, v in scalars.items()}
    used = 0.0
    for i, p in enumerate(before["param"]):
        tensors, shape = {n: a[i] for n, a in before.items()}, (1, p.size)
        exact = textbook(ops.adamw, graph, tensors, shape, params)
        if not p.size:
            continue
        for name, (_, limit) in bounds.evaluate(graph, tensors, shape, params).items():
            error = np.abs(after[name][i].astype(np.longdouble)[None, :] - exact[name])
            assert (error <= limit).all(), f"{name} of tensor {i}: {float((error / limit).max())} of the bound"
            used = max(used, float((error / limit).max()))
    return used


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("master", [False, True])
def test_ten_steps_are_the_textbooks(dtype: Any, master: bool) -> None:
    s = state([0, 1, 17, 3000], dtype, 5, master)
    rng, used = np.random.default_rng(6), 0.0
    for t in range(1, 11):
        for g in s["grad"]:
            g[...] = (rng.standard_normal(g.shape) * 10).astype(dtype)
        before, scalars = copied(s), {**PLAIN, "step": t, "weight_decay": 0.1, "loss_scale": 1024.0}
        step(s, **scalars)
        used = max(used, hold_one_step(before, s, scalars, master, format_of(dtype).name))
    assert used > 0.2, "a bound that is never nearly reached says little"


def drift(
    errors: dict[str, Any], exact: dict[str, Any], fresh: dict[str, Array], i: int, t: int, lr: float, wd: float
) -> dict[str, Array]:
    """What a step makes of the state's distances from a run in f64, and the step's own bound added.

    With m, v, p the moments and the weight: dm' = b1 dm, dv' = b2 dv, and the update m_hat/(sqrt(v_hat) + eps) changes
    by dm_hat/(sqrt(w_hat) + eps) + |m_hat| d(sqrt v_hat)/((sqrt(v_hat) + eps)(sqrt(w_hat) + eps)) at most, w the other
    run's v."""
    b1, b2, eps = PLAIN["beta1"], PLAIN["beta2"], PLAIN["eps"]
    dm, dv = b1 * errors["exp_avg"][i], b2 * errors["exp_avg_sq"][i]
    c1, c2 = 1 - b1**t, 1 - b2**t
    v = exact["exp_avg_sq"][i]
    low = np.sqrt(np.maximum(v - dv, 0) / c2)
    droot = np.minimum(np.sqrt(dv / c2), dv / c2 / np.maximum(np.sqrt(v / c2), 1e-300))
    m = np.abs(exact["exp_avg"][i])
    update = dm / c1 / (low + eps) + m / c1 * droot / ((low + eps) * (np.sqrt(v / c2) + eps))
    dp = errors["master"][i] * (1 - lr * wd) + lr * update
    return dict(exp_avg=dm + fresh["exp_avg"], exp_avg_sq=dv + fresh["exp_avg_sq"], master=dp + fresh["master"])


@pytest.mark.slow
def test_ten_steps_over_808_tensors_are_the_run_in_float64() -> None:
    """f16 weights, f32 moments and master copies, 808 tensors of 20,000 to 100,000 elements. The run in f64 gets the
    same gradients; the kernel may leave it by what each step's bound adds, carried through the steps after it."""
    rng = np.random.default_rng(808)
    sizes = [int(n) for n in rng.integers(20_000, 100_001, 808)]
    sizes[0], sizes[-1] = 20_000, 100_000
    wide = [rng.standard_normal(n, np.float32) for n in sizes]
    zeros = lambda: [np.zeros(n, np.float32) for n in sizes]  # noqa: E731
    s: State = dict(
        param=[w.astype(F16) for w in wide], grad=[np.zeros(n, F16) for n in sizes],
        exp_avg=zeros(), exp_avg_sq=zeros(), master=wide,
    )  # fmt: skip
    lr, wd = 1e-3, 0.1
    graph = ops.adamw.trace("f16", present={"master"})
    seen = range(0, 808, 101)  # tensors whose whole run is kept beside in f64; all are held step by step on a sample
    exact = {n: {i: s[n][i].astype(np.float64) for i in seen} for n in ("exp_avg", "exp_avg_sq", "master")}
    errors = {n: {i: np.zeros(sizes[i]) for i in seen} for n in exact}
    used = 0.0
    for t in range(1, 11):
        for i, g in enumerate(s["grad"]):
            g[...] = np.random.default_rng([t, i]).standard_normal(sizes[i], np.float32)
        scalars = {**PLAIN, "step": t, "weight_decay": wd, "loss_scale": 4.0, "lr": lr}
        params = {n: float(x) for n, x in scalars.items()}
        every = {n: [a[i][:512].copy() for i in range(808)] for n, a in s.items()}
        fresh = {}
        for i in seen:
            tensors = {n: a[i] for n, a in s.items()}
            fresh[i] = {n: e[0] for n, (_, e) in bounds.evaluate(graph, tensors, (1, sizes[i]), params).items()}
        step(s, **scalars)
        hold_one_step(every, {n: [a[i][:512] for i in range(808)] for n, a in s.items()}, scalars, True, "f16")
        for i in seen:
            made = ops.adamw.textbook(
                s["param"][i].astype(np.float64), s["grad"][i].astype(np.float64), exact["exp_avg"][i],
                exact["exp_avg_sq"][i], exact["master"][i], **params,
            )  # fmt: skip
            for n in exact:
                exact[n][i] = made[n]
            carried = drift(errors, exact, fresh[i], i, t, lr, wd)
            for n in exact:
                errors[n][i] = carried[n]
                away = np.abs(s[n][i].astype(np.float64) - exact[n][i])
                assert (away <= errors[n][i]).all(), f"step {t}: {n} of tensor {i}"
                used = max(used, float((away / np.maximum(errors[n][i], 1e-300)).max()))
            half_ulp = np.spacing(np.abs(s["param"][i])).astype(np.float64) / 2
            assert (np.abs(s["param"][i].astype(np.float64) - s["master"][i]) <= half_ulp).all()
    assert used > 0.2


# ------------------------------------------------------------------ lists
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 99), st.booleans())
def test_a_list_is_a_loop_and_does_not_see_its_order(sizes: list[int], seed: int, master: bool) -> None:
    whole = state(sizes, F16, seed, master)
    loop, shuffled = copied(whole), copied(whole)
    step(whole, step=3, weight_decay=0.1)
    for i in range(len(sizes)):
        step({n: [a[i]] for n, a in loop.items()}, step=3, weight_decay=0.1)
    assert bits_of(whole) == bits_of(loop)
    order = np.random.default_rng(seed).permutation(len(sizes))
    step({n: [a[i] for i in order] for n, a in shuffled.items()}, step=3, weight_decay=0.1)
    assert bits_of(whole) == bits_of(shuffled)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40000), st.integers(1, 40000), st.integers(0, 99))
def test_a_tensor_may_be_cut_in_two(a: int, b: int, seed: int) -> None:
    whole = state([a + b], BF16, seed)
    parts = copied(whole)
    step(whole, step=3)
    step({n: [x[0][:a], x[0][a:]] for n, x in parts.items()}, step=3)
    assert bits_of(whole) == bits_of(parts)


@pytest.mark.parametrize("place", [0, 1, 34, 35, 36, 55, 60])
def test_an_empty_tensor_changes_nothing(place: int) -> None:
    """C67: the bookkeeping of a launch has slots, and an empty tensor takes none."""
    s = state([1] * 60, F32, 9)
    with_empty = {n: [*a[:place], np.empty(0, a[0].dtype), *a[place:]] for n, a in copied(s).items()}
    step(s, step=1)
    step(with_empty, step=1)
    assert bits_of(s) == bits_of(with_empty)


def test_an_empty_tensor_at_the_end_stops_nothing() -> None:
    """C66: tensors before an empty one are updated."""
    s: State = dict(
        param=[np.ones(1, np.float32), np.empty(0, np.float32)], grad=[np.ones(1, np.float32), np.empty(0, np.float32)],
        exp_avg=[np.zeros(1, np.float32), np.empty(0, np.float32)],
        exp_avg_sq=[np.zeros(1, np.float32), np.empty(0, np.float32)],
    )  # fmt: skip
    step(s, step=1)
    assert abs(s["param"][0][0] - np.float32(0.999)) <= U


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("tensor", "element"), [(0, 0), (1, 0), (3, 16384), (3, 16383), (3, 20000), (4, 2)])
def test_one_bad_gradient_anywhere_changes_nothing(dtype: Any, bad: float, tensor: int, element: int) -> None:
    """C77: all or nothing, also in the tensors before the bad one."""
    for master in (False, True):
        s = state([5, 1, 0, 20001, 3], dtype, 2, master)
        s["grad"][tensor][element] = bad
        before = bits_of(s)
        for rounding in ("nearest", "stochastic"):
            for threads in (1, 3):
                step(s, step=2, weight_decay=0.1, rounding=rounding, threads=threads)
                assert bits_of(s) == before
        s["grad"][tensor][element] = 1.0
        step(s, step=2)
        assert bits_of(s) != before


def test_formats_are_one_a_list() -> None:
    """C78: lists of one format each equal single steps; a list of several is refused, before anything is written."""
    mixed = {n: [] for n in ("param", "grad", "exp_avg", "exp_avg_sq")}  # type: State
    for dtype in (F32, BF16, F16):
        s = state([16, 16], dtype, 4)
        for n in mixed:
            mixed[n].append(s[n][0].copy())
        single = copied(s)
        step(s, step=2)
        for i in range(2):
            ops.adamw(**{n: a[i] for n, a in single.items()}, **{**PLAIN, "step": 2})
        assert bits_of(s) == bits_of(single)
    before = bits_of(mixed)
    with pytest.raises(ArgumentError, match=r"^param\[1\]: format bfloat16; accepted beside param\[0\]: float32"):
        step(mixed, step=2)
    with pytest.raises(ArgumentError, match=r"^grad: format bf16 beside f32; accepted: one storage format for all"):
        step({n: [a[0] if n != "grad" else a[1]] for n, a in mixed.items()}, step=2)
    assert bits_of(mixed) == before


@pytest.mark.parametrize(
    ("scalar", "value", "accepted"),
    [
        ("step", 0, "1 to 4294967295"), ("step", 2**32, "1 to 4294967295"), ("step", 1.5, "a whole number"),
        ("lr", -1e-3, "0 to 3.4028"), ("lr", math.nan, "0 to 3.4028"), ("beta1", 1.0, "0 to 0.9999999999999999"),
        ("beta2", 1.0, "0 to 0.9999999999999999"), ("beta1", -0.1, "0 to"), ("eps", -1e-8, "0 to 3.4028"),
        ("eps", math.nan, "0 to 3.4028"), ("weight_decay", -0.1, "0 to 3.4028"), ("loss_scale", 0.0, "5e-324 to 1.79"),
        ("loss_scale", math.nan, "5e-324 to 1.79"), ("seed", -1, "0 to 4294967295"), ("seed", 2**32, "0 to 4294967295"),
    ],
)  # fmt: skip
def test_scalars_out_of_range_are_refused(scalar: str, value: float, accepted: str) -> None:
    s = state([3], F32, 1)
    before = bits_of(s)
    with pytest.raises(ArgumentError, match=rf"^adamw: {scalar}=.*; accepted: {accepted}"):
        step(s, **{"step": 1, scalar: value})
    assert bits_of(s) == before
