"""Cross-entropy: reductions, smoothing, z-loss, ignored rows, against torch in f64 within derived bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bounded import hold, limits
from hypothesis import given, settings
from hypothesis import strategies as st
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError

IGNORE = -100
REDUCTIONS = ["none", "sum", "mean"]


def drawn(rows: int, cols: int, dtype: Any, seed: int, scale: float = 3.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, cols, rows)
    target[rng.random(rows) < 0.25] = IGNORE
    return dict(logits=array(rng.standard_normal((rows, cols)) * scale, dtype), target=target)


def torchs(logits: Any, target: Any, reduction: str, label_smoothing: float, z_loss: float) -> dict[str, Any]:
    """torch in f64: the loss, and the gradient of the loss (of the sum of the rows' losses where they are not reduced).
    A mean over no rows is 0 here and NaN there."""
    x = torch.tensor(logits.astype(np.float64), requires_grad=True)
    t = torch.tensor(target)
    lse = torch.logsumexp(x, 1)
    rows = torch.nn.functional.cross_entropy(x, t, reduction="none", label_smoothing=label_smoothing)
    rows = rows + torch.where(t != IGNORE, z_loss * lse**2, 0)
    count = max(int((t != IGNORE).sum()), 1)
    loss = rows if reduction == "none" else rows.sum() / (count if reduction == "mean" else 1)
    loss.sum().backward()
    assert x.grad is not None
    return dict(loss=loss.detach().numpy(), lse=lse.detach().numpy(), dlogits=x.grad.numpy())


FEW = {(F32, "mean", 0.3, 1e-2), (F16, "sum", 0.1, 0.0), (BF16, "none", 0.0, 0.0), (F32, "none", 1.0, 0.0)}
EVERY = [  # each is another kernel to compile
    pytest.param(*case, marks=() if case in FEW else pytest.mark.slow)
    for dtype in (F16, BF16, F32)
    for reduction in REDUCTIONS
    for smoothing, z_loss in [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-3), (0.3, 1e-2), (1.0, 0.0)]
    for case in [(dtype, reduction, smoothing, z_loss)]
]


@pytest.mark.parametrize(("dtype", "reduction", "smoothing", "z_loss"), EVERY)
def test_loss_and_gradient_are_torchs(dtype: Any, reduction: str, smoothing: float, z_loss: float) -> None:
    used = 0.0
    for seed, (rows, cols) in enumerate([(1, 1), (40, 7), (5, 129), (3, 1000)]):
        scalars: dict[str, Any] = dict(label_smoothing=smoothing, z_loss=z_loss)
        given = drawn(rows, cols, dtype, seed) | scalars
        want = torchs(given["logits"], given["target"], reduction, smoothing, z_loss)
        both = hold(ops.cross_entropy, given | dict(reduction=reduction), {n: want[n] for n in ("loss", "lse")})
        grad = hold(
            ops.cross_entropy_with_grad, given | dict(reduction=reduction), {n: want[n] for n in ("loss", "dlogits")}
        )
        used = max(used, grad["dlogits"], both["lse"])
    assert used > 0.05, "a bound that is never nearly reached says little"


@pytest.mark.parametrize(("dtype", "reduction", "smoothing", "z_loss"), EVERY)
def test_one_pass_is_both_passes(dtype: Any, reduction: str, smoothing: float, z_loss: float) -> None:
    """The same bits: 1/count is one f32 division in either."""
    scalars: dict[str, Any] = dict(label_smoothing=smoothing, z_loss=z_loss)
    given = drawn(37, 301, dtype, 5) | scalars
    assert (given["target"] == IGNORE).any()
    before = given["logits"].tobytes()
    fused = run(ops.cross_entropy_with_grad, **given, reduction=reduction)
    assert same_bits(fused["loss"], run(ops.cross_entropy, **given, reduction=reduction)["loss"])
    kept = np.float32((given["target"] != IGNORE).sum())
    dloss = np.full(37, np.float32(1) / kept if reduction == "mean" else 1, np.float32)
    assert same_bits(fused["dlogits"], run(ops.cross_entropy_backward, dloss=dloss, **given)["dlogits"])
    assert given["logits"].tobytes() == before, "logits are read only"


@pytest.mark.parametrize("cols", [1, 127, 128, 129, 1000, 4097])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_uniform_logits_below_zero(cols: int, dtype: Any) -> None:
    """C32: ln V, whatever the tile: phantom zeros in a tail would add e**10 each."""
    given: dict[str, Any] = dict(logits=np.full((2, cols), -10, dtype), target=np.array([0, cols - 1]))
    hold(ops.cross_entropy, given, dict(loss=[math.log(cols)] * 2, lse=[math.log(cols) - 10] * 2))
    assert abs(run(ops.cross_entropy, **given)["loss"][0] - math.log(cols)) <= 4e-7 * max(1, math.log(cols))


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_zero_weight_times_infinity_is_left_out(dtype: Any) -> None:
    """C34: 0 log 0 is 0."""
    given = dict(logits=array([[-math.inf, 0.0]], dtype), target=np.array([1]))
    got = run(ops.cross_entropy_with_grad, **given, reduction="none")
    assert got["loss"].tolist() == [0.0] and got["dlogits"].tolist() == [[0.0, 0.0]]


def test_ignored_rows_are_not_smoothed() -> None:
    """C35: nor is anything else of them counted."""
    for other in ([5.0, -5.0], [0.0, 0.0], [math.nan, math.inf]):
        given = dict(logits=array([[0.0, 0.0], other]), target=np.array([0, IGNORE]), label_smoothing=0.2)
        got = run(ops.cross_entropy_with_grad, **given)
        assert abs(got["loss"] - math.log(2)) <= 1e-7 and got["dlogits"][1].tolist() == [0.0, 0.0]
        backward = run(ops.cross_entropy_backward, dloss=np.ones(2, np.float32), **given)
        assert backward["dlogits"][1].tobytes() == bytes(8), "zeros of either sign would be seen"


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("rows", [0, 1, 70])
def test_no_rows_are_kept(reduction: str, rows: int) -> None:
    """C37: a mean over nothing is 0, with a gradient of zeros."""
    logits = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    given: dict[str, Any] = dict(logits=logits, target=np.full(rows, IGNORE), label_smoothing=0.1)
    got = run(ops.cross_entropy_with_grad, **given, reduction=reduction)
    assert got["loss"].shape == ((rows,) if reduction == "none" else ())
    assert not got["loss"].any() and not got["dlogits"].any()
    assert not run(ops.cross_entropy, **given, reduction=reduction)["loss"].any()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0, -4, 5], r"target\[1\]=-4 \(2 such rows\); accepted: 0 to 4, or ignore_index=-1"),
        ([0, 1, 5], r"target\[2\]=5 \(1 such rows\); accepted: 0 to 4"),
        ([2**40, 1, 1], r"target\[0\]=1099511627776 \(1 such rows\)"),
        ([-(2**63), 1, 1], r"target\[0\]=-9223372036854775808"),
    ],
)
def test_targets_out_of_range_touch_nothing(target: list[int], message: str) -> None:
    """C38: told with the first bad row; nothing is read or written outside."""
    logits = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    before, ids = logits.copy(), np.array(target, np.int64)
    loss, lse, dlogits = (np.full(s, 7, np.float32) for s in ((3,), (3,), (3, 5)))
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.cross_entropy(logits, ids, ignore_index=-1, out=(loss, lse))
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.cross_entropy_backward(np.ones(3, np.float32), logits, ids, ignore_index=-1, out=dlogits)
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.cross_entropy_with_grad(logits, ids, ignore_index=-1, reduction="none", out=(loss, dlogits))
    assert all((a == 7).all() for a in (loss, lse, dlogits)) and same_bits(logits, before)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(label_smoothing=-0.1), "label_smoothing=-0.1; accepted: 0 to 1"),
        (dict(label_smoothing=1.5), "label_smoothing=1.5; accepted: 0 to 1"),
        (dict(label_smoothing=math.nan), "label_smoothing=nan; accepted: 0 to 1"),
        (dict(z_loss=-1e-3), "z_loss=-0.001; accepted: 0 to 3.4028"),
        (dict(z_loss=0.1, penalty=False), "z_loss=0.1 with penalty=False"),
        (dict(reduction="max"), "reduction='max'; accepted: 'none', 'sum', 'mean'"),
    ],
)
def test_wrong_scalars_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^cross_entropy: {message}"):
        ops.cross_entropy(np.zeros((1, 2), np.float32), np.zeros(1, np.int64), **given)


@pytest.mark.parametrize("gap", [5.0, 15.0, 30.0, 60.0, 85.0])
def test_an_almost_certain_row_keeps_its_digits(gap: float) -> None:
    """1 - p is e**-gap: the loss and the gradient at the target keep full relative accuracy, where lse - max and p - 1
    would be multiples of 2**-24."""
    given = dict(logits=array([[gap, 0.0, 1.0]]), target=np.array([0]))
    rest = math.exp(-gap) + math.exp(1 - gap)
    got = run(ops.cross_entropy_with_grad, **given)
    for have, want in ((got["loss"], math.log1p(rest)), (got["dlogits"][0, 0], -rest / (1 + rest))):
        assert abs(float(have) - want) <= 16 * 2.0**-24 * abs(want)
    for allowed, size in zip(limits(ops.cross_entropy_with_grad, given).values(), (rest, rest), strict=True):
        # The bound sees it too: x - max is rounded to 2**-24 of itself, which exp makes a relative error.
        assert allowed.ravel()[0] <= (gap + 64) * 2.0**-24 * size


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 200), st.integers(0, 999), st.sampled_from([0.0, 0.1]), st.booleans())
def test_the_gradient_of_a_row_sums_to_zero(rows: int, cols: int, seed: int, smoothing: float, ties: bool) -> None:
    """Law: the derivative along a shift of all logits, which change no probability. Exactly 0 on ignored rows."""
    given = drawn(rows, cols, F32, seed)
    if ties:
        given["logits"] = np.rint(given["logits"])
    given |= dict(dloss=np.random.default_rng(seed).standard_normal(rows).astype(np.float32), label_smoothing=smoothing)
    got = run(ops.cross_entropy_backward, **given)["dlogits"].astype(np.float64)
    allowed = limits(ops.cross_entropy_backward, given)["dlogits"]
    assert (np.abs(got.sum(axis=1)) <= allowed.sum(axis=1) + 2.0**-50 * np.abs(got).sum(axis=1)).all()
    assert not got[given["target"] == IGNORE].any()


@pytest.mark.parametrize("dtype", [F16, F32])
def test_a_second_use_of_the_logits_gets_its_own_gradient(dtype: Any) -> None:
    """C39: L = CE(z, t) + sum(z**2)/2: a gradient stored into the logits' memory would be seen by the second term."""
    given = drawn(4, 10, dtype, 3) | dict(target=np.array([1, 2, 3, 9]))
    got = run(ops.cross_entropy_with_grad, **given)
    z = torch.tensor(given["logits"].astype(np.float64), requires_grad=True)
    (torch.nn.functional.cross_entropy(z, torch.tensor(given["target"])) + (z**2).sum() / 2).backward()
    assert z.grad is not None
    have = got["dlogits"].astype(np.float64) + given["logits"].astype(np.float64)
    allowed = limits(ops.cross_entropy_with_grad, given)["dlogits"]
    assert (np.abs(have - z.grad.numpy()) <= allowed + 2.0**-48).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_bits_do_not_depend_on_threads(reduction: str) -> None:
    given = drawn(300, 77, F32, 8)
    want = ops.cross_entropy_with_grad(**given, reduction=reduction, threads=1)
    for threads in (2, 3, 7):
        got = ops.cross_entropy_with_grad(**given, reduction=reduction, threads=threads)
        assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


# ------------------------------------------------------------------ weights of the classes
def weighted(given: Any, reduction: str, label_smoothing: float) -> dict[str, Any]:
    """torch in f64, as it weighs."""
    x, w = (torch.tensor(given[n].astype(np.float64), requires_grad=n == "logits") for n in ("logits", "weight"))
    options: Any = dict(weight=w, reduction=reduction, label_smoothing=label_smoothing)
    loss = torch.nn.functional.cross_entropy(x, torch.tensor(given["target"]), **options)
    loss.sum().backward()
    assert x.grad is not None
    return dict(loss=loss.detach().numpy(), dlogits=x.grad.numpy())


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_are_torchs(reduction: str, smoothing: float, dtype: Any) -> None:
    for seed, (rows, cols) in enumerate([(40, 7), (5, 129)]):
        given = drawn(rows, cols, dtype, seed)
        rng = np.random.default_rng(seed)
        given["weight"] = array(np.where(rng.random(cols) < 0.2, 0, rng.random(cols) * 3))
        want, more = weighted(given, reduction, smoothing), dict(label_smoothing=smoothing, reduction=reduction)
        hold(ops.cross_entropy, given | more, {"loss": want["loss"]})
        hold(ops.cross_entropy_with_grad, given | more, want)
        if reduction == "none":
            back = given | dict(dloss=np.ones(rows, np.float32), label_smoothing=smoothing)
            hold(ops.cross_entropy_backward, back, {"dlogits": want["dlogits"]})


def test_weights_of_1_weigh_nothing_and_rows_without_weight_count_nothing() -> None:
    given = drawn(33, 65, F32, 3)
    plain = run(ops.cross_entropy_with_grad, **given)
    ones = run(ops.cross_entropy_with_grad, **given, weight=np.ones(65, np.float32))
    assert all(same_bits(plain[n], ones[n]) for n in plain)
    zeros = run(ops.cross_entropy_with_grad, **given, weight=np.zeros(65, np.float32))
    assert zeros["loss"] == 0 and not zeros["dlogits"].any()
    with pytest.raises(ArgumentError, match=r"^weight: shape \(64,\); accepted beside logits: \(65,\)"):
        ops.cross_entropy(given["logits"], given["target"], np.ones(64, np.float32))


def test_weights_apply_to_the_z_loss() -> None:
    """loss = w_t (loss without weights), all else as it is: of powers of two to the bit."""
    given = drawn(20, 9, F32, 4)
    weight = array(2.0 ** (np.arange(9) % 5 - 2))
    plain = run(ops.cross_entropy, **given, z_loss=0.25)["loss"]
    got = run(ops.cross_entropy, **given, z_loss=0.25, weight=weight)["loss"]
    kept = given["target"] != IGNORE
    assert same_bits(got, np.where(kept, plain * weight[np.where(kept, given["target"], 0)], 0))
