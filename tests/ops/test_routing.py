"""Top-k, routing, dispatch and combine; reported faults by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from running import BF16, F16, F32, array, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.routing import Permutation, capacity_of, permutation

Array = np.ndarray[Any, Any]
FORMATS = [F16, BF16, F32]


def drawn(rows: int, cols: int, dtype: Any = F32, seed: int = 0) -> Array:
    return array(np.random.default_rng(seed).standard_normal((rows, cols)), dtype)


# ------------------------------------------------------------------ the choice
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_top_k_is_a_stable_sort(dtype: Any, k: int) -> None:
    """Few distinct values, so that most rows have ties."""
    x = array(np.random.default_rng(k).integers(-3, 4, (40, 19)), dtype)
    values, columns = ops.top_k(x, k=k)
    want = np.argsort(-x.astype(np.float64), axis=1, kind="stable")[:, :k]
    assert columns.dtype == np.int32 and (columns == want).all()
    assert same_bits(values, np.take_along_axis(x, want, 1).astype(F32))


def test_equal_logits() -> None:
    """C143: the lower columns, in order, with equal weights; a tie at the boundary; the same in every run."""
    weights, experts = ops.router(np.zeros((3, 8), F32), k=2, renormalise=True)
    assert experts.tolist() == [[0, 1]] * 3 and weights.tolist() == [[0.5, 0.5]] * 3
    at_the_boundary = array([[1, 3, 2, 2, 2, 0, 2, 1]])
    for threads in range(1, 21):
        got = ops.router(at_the_boundary, k=2, threads=threads)[1]
        assert got.tolist() == [[1, 2]]


def test_softmax_comes_before_the_choice() -> None:
    """C145: weights of all experts; renormalised, those of the chosen."""
    logits = array(np.log([[4.0, 2.0, 2.0]]))
    assert np.allclose(ops.router(logits, k=2)[0], [[0.5, 0.25]], rtol=1e-6)
    assert np.allclose(ops.router(logits, k=2, renormalise=True)[0], [[2 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.parametrize("dtype", FORMATS)
def test_nan_is_an_error(dtype: Any) -> None:
    """C150: it names the first such row; the rows beside it are right on their own."""
    logits = array(np.tile(np.arange(8.0), (2, 1)), dtype)
    assert ops.router(logits, k=2)[1].tolist() == [[7, 6], [7, 6]]
    logits[0] = np.nan
    for op in (ops.router, ops.top_k):
        with pytest.raises(ArgumentError, match=r"\[0\] holds NaN \(1 such rows\)"):
            op(logits, k=2)


def test_more_than_there_are() -> None:
    """C151: refused before anything is launched, by k itself or by the number of experts."""
    logits = drawn(2, 64)
    with pytest.raises(ArgumentError, match="k=17; accepted: 2, 1, 4, 8"):
        ops.router(logits, k=17)
    with pytest.raises(ArgumentError, match="k=4 of 3 columns"):
        ops.router(logits[:, :3], k=4)
    with pytest.raises(ArgumentError, match=r"place: shape \(2, 4\); accepted beside y: \(2, 2\)"):
        ops.combine(drawn(3, 5), np.ones((2, 2), F32), np.zeros((2, 4), np.int64), k=2)


# ------------------------------------------------------------------ places
def routed(tokens: int, experts: int, k: int, seed: int = 0) -> tuple[Array, Array, Permutation]:
    weights, chosen = ops.router(drawn(tokens, experts, F32, seed), k=k)
    return weights, chosen, permutation(chosen, experts)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(50, 8, 2), (7, 16, 4), (1, 2, 1), (0, 4, 2), (200, 3, 2)])
def test_permutation_and_its_inverse(tokens: int, experts: int, k: int) -> None:
    _, chosen, there = routed(tokens, experts, k)
    assert there.counts.sum() == tokens * k == there.order.size
    assert (there.order[there.place] == np.arange(tokens)[:, None]).all()
    assert (chosen.reshape(-1)[there.choice] == np.repeat(np.arange(experts), there.counts)).all()
    ends = np.cumsum(there.counts)
    for begin, end in zip(ends - there.counts, ends, strict=True):
        assert (np.diff(there.order[begin:end]) > 0).all(), "tokens of one expert stay in order"


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_there_and_back(dtype: Any, k: int) -> None:
    """Experts that do nothing, with weights that are powers of two and add up to one, give each token back."""
    x = drawn(33, 17, BF16).astype(dtype)  # few bits, so that parts of a value add up exactly
    _, _, there = routed(33, 9, k)
    y = ops.dispatch(x, there.order)
    assert same_bits(y, x[there.order])
    assert same_bits(ops.combine(y, np.full((33, k), 1 / k, F32), there.place, k=k), x)


def test_no_tokens_at_all() -> None:
    _, _, there = routed(0, 4, 2)
    assert there.counts.tolist() == [0, 0, 0, 0]
    y = ops.dispatch(np.zeros((0, 5), F32), there.order)
    assert y.shape == (0, 5)
    assert ops.combine(y, np.zeros((0, 2), F32), there.place, k=2).shape == (0, 5)


def test_dropped_slots_are_not_looked_at() -> None:
    """C153: selected, not multiplied by 0: their table and weights may hold NaN; they have no gradient."""
    y = np.full((4, 3), np.nan, F32)
    y[:2] = [[1, 2, 3], [4, 5, 6]]
    weights, place = array([[0.5, 2, 0, np.nan]]), np.array([[0, 1, -1, -1]])
    assert ops.combine(y, weights, place, k=4).tolist() == [[8.5, 11, 13.5]]
    dweights = ops.combine_backward(np.ones((1, 3), F32), y, place, k=4)
    assert dweights.tolist() == [[6, 15, 0, 0]]


def test_capacity_keeps_the_largest() -> None:
    """C147: of what was chosen, whatever the sign of the logits."""
    logits = array([[-1, -5], [-2, -5], [-5, -1], [-5, -2]])
    weights, experts = ops.router(logits, k=1)
    there = permutation(experts, 2, capacity=1, weights=weights)
    assert there.order.tolist() == [0, 2] and there.place.tolist() == [[0], [-1], [1], [-1]]
    for capacity in range(6):
        kept = permutation(experts, 2, capacity=capacity, weights=weights)
        assert kept.counts.tolist() == [min(capacity, 2)] * 2
        assert set(kept.choice) <= set(range(4))


def test_capacity_beyond_the_tokens() -> None:
    """C148: nothing is dropped."""
    weights, experts = ops.router(drawn(2, 2), k=1)
    free, roomy = permutation(experts, 2), permutation(experts, 2, capacity=4, weights=weights)
    assert all((getattr(free, n) == getattr(roomy, n)).all() for n in ("order", "choice", "place", "counts"))


def test_padding_takes_no_room() -> None:
    """C154: real tokens keep theirs; what padding chose is not even looked at."""
    experts, weights = np.array([[99], [-1], [0], [0]]), np.full((4, 1), 0.9, F32)
    padding = np.array([True, True, False, False])
    there = permutation(experts, 2, capacity=2, weights=weights, padding=padding)
    assert there.order.tolist() == [2, 3] and there.counts.tolist() == [2, 0]
    assert there.place.tolist() == [[-1], [-1], [0], [1]]


@pytest.mark.parametrize(("factor", "kept"), [(0.0, 0), (0.5, 2), (1, 3), (1.25, 4), (2.0, 6), (1e9, 6)])
def test_a_capacity_factor_is_relative_to_an_even_share(factor: float, kept: int) -> None:
    """Six tokens that count, of one choice each, for two experts: an even share is 3; all choose the first."""
    experts, weights = np.zeros((9, 1), np.int64), np.linspace(0.1, 0.9, 9, dtype=F32)[:, None]
    padding = np.arange(9) % 3 == 0
    there = permutation(experts, 2, capacity_factor=factor, weights=weights, padding=padding)
    assert there.counts.tolist() == [kept, 0] and there.order.tolist() == [1, 2, 4, 5, 7, 8][6 - kept :]


def test_a_capacity_factor_counts_choices() -> None:
    assert [capacity_of(1.0, 10, 8, k=k) for k in (1, 2, 4, 8)] == [2, 3, 5, 10]
    assert [capacity_of(1.1, n, 2, k=2) for n in (0, 10, 11)] == [0, 11, 13]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(experts=np.array([[0, 5]])), r"experts\[0,1\]=5 \(1 such choices\); accepted: 0 to 3"),
        (dict(experts=np.array([[0, -1]])), r"experts\[0,1\]=-1"),
        (dict(experts=np.array([0, 1])), r"shape \(2,\) of int64; accepted: \(tokens, k\)"),
        (dict(experts=np.array([[0.0]])), "of float64"),
        (dict(experts=np.array([[0]]), capacity=1), "weights: none"),
        (dict(experts=np.array([[0]]), capacity=-1, weights=np.ones((1, 1))), "capacity=-1"),
        (dict(experts=np.array([[0]]), capacity=1, weights=np.full((1, 1), np.nan)), "NaN"),
        (dict(experts=np.array([[0]]), capacity=1, capacity_factor=1.0), "capacity=1 and capacity_factor=1.0; acc"),
        (dict(experts=np.array([[0]]), capacity_factor=-0.5), "capacity_factor=-0.5; accepted: a finite number"),
        (dict(experts=np.array([[0]]), capacity_factor=np.inf), "capacity_factor=inf"),
        (dict(experts=np.array([[0]]), capacity_factor=np.nan), "capacity_factor=nan"),
        (dict(experts=np.array([[0]]), capacity_factor=True), "capacity_factor=True"),
        (dict(experts=np.array([[0]]), capacity_factor="1"), "capacity_factor='1'"),
        (dict(experts=np.array([[0]]), padding=np.zeros(3, bool)), r"padding: shape \(3,\)"),
    ],
)
def test_wrong_choices(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        permutation(given.pop("experts"), 4, **given)


# ------------------------------------------------------------------ losses
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_uniform_load_has_loss_one(dtype: Any) -> None:
    logits, experts = np.zeros((64, 8), dtype), np.tile([[0, 1], [2, 3], [4, 5], [6, 7]], (16, 1)).astype(np.int32)
    load, probability = ops.expert_load(logits, experts, k=2)
    assert load.tolist() == probability.tolist() == [0.125] * 8
    assert float(ops.load_balance_loss(load, probability)) == 1
    all_on_one = ops.expert_load(logits, np.zeros((64, 2), np.int32), k=2)[0]
    assert all_on_one.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_z_loss_of_logits_that_sum_to_one() -> None:
    assert float(ops.router_z_loss(np.zeros((3, 1), F32), reduction="mean")) == 0
    assert np.allclose(ops.router_z_loss(np.zeros((3, 8), F32)), np.log(8) ** 2, rtol=1e-6)
    assert float(ops.router_z_loss(np.zeros((0, 8), F32), reduction="mean")) == 0


def test_load_balance_reaches_the_logits() -> None:
    """The chain of backward operators is the slope of the chain of forward ones."""
    logits, step = drawn(6, 5).astype(np.float64), 1e-3
    experts = ops.router(array(logits), k=2)[1]

    def loss(x: Array) -> float:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        p = (e / e.sum(axis=1, keepdims=True)).mean(axis=0)
        return float((np.bincount(experts.reshape(-1), minlength=5) / experts.size * p).sum() * 5)

    load, _ = ops.expert_load(array(logits), experts, k=2)
    slope = ops.expert_load_backward(ops.load_balance_loss_backward(np.array(1, F32), load), array(logits))
    for at in np.ndindex(6, 5):
        moved = np.zeros_like(logits)
        moved[at] = step
        assert abs((loss(logits + moved) - loss(logits - moved)) / (2 * step) - slope[at]) < 1e-5


@pytest.mark.parametrize("renormalise", [False, True])
def test_router_backward_is_the_slope(renormalise: bool) -> None:
    """Also renormalised, where the derivative of the definition is not taken by `verify`."""
    rng = np.random.default_rng(2)
    logits, dweights = rng.standard_normal((4, 6)), rng.standard_normal((4, 2))
    experts = ops.router(array(logits), k=2)[1]
    got = ops.router_backward(array(dweights), array(logits), experts, k=2, renormalise=renormalise)

    def value(x: Array) -> float:
        e = np.exp(x)
        w = np.take_along_axis(e, experts.astype(np.int64), 1)
        return float((dweights * w / (w if renormalise else e).sum(axis=1, keepdims=True)).sum())

    for at in np.ndindex(4, 6):
        moved = np.zeros_like(logits)
        moved[at] = 1e-4
        assert abs((value(logits + moved) - value(logits - moved)) / 2e-4 - got[at]) < 1e-5


# ------------------------------------------------------------------ nobody goes anywhere
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_where_no_token_is_routed_every_step_gives_zeros(dtype: Any) -> None:
    """A capacity of 0: no places, three experts without rows."""
    x, weight = np.ones((5, 4), dtype), np.full((3, 6, 4), np.nan, dtype)
    weights, chosen = ops.router(np.eye(5, 3, dtype=dtype), k=2)
    there = permutation(chosen, count=3, capacity=0, weights=weights)
    brought = ops.dispatch(x, there.order)
    made = ops.grouped_linear(brought, weight, there.offsets)
    assert brought.shape == (0, 4) and made.shape == (0, 6)
    y = ops.combine(made, weights, there.place, k=2)
    assert same_bits(y, np.zeros((5, 6), dtype))
    dy = np.full((5, 6), np.inf, dtype)
    assert same_bits(ops.combine_backward(dy, made, there.place, k=2), np.zeros((5, 2), np.float32))
    dmade = ops.dispatch(dy, there.order, weights.reshape(-1)[there.choice])
    slopes = ops.grouped_linear_backward_weight(dmade, brought, there.offsets)
    assert same_bits(slopes, np.zeros((3, 6, 4), dtype))
    back = ops.grouped_linear_backward_input(dmade, weight, there.offsets)
    assert same_bits(ops.dispatch_backward(back, there.order, entries=5), np.zeros((5, 4), dtype))
