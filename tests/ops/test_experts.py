"""The whole layer of experts: torch's derivative of the textbook in f64, bounds of each step carried on, laws."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from bounded import limits
from running import BF16, F16, F32, array, same_bits

from tokitai import ops
from tokitai.elementary.exact import DECLARED
from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.experts import Experts, Saved, expert_layer, expert_layer_backward
from tokitai.lang import Array as Values
from tokitai.lang import Operator
from tokitai.ops.gated import textbook_silu

Array = np.ndarray[Any, Any]
FORMATS = pytest.mark.parametrize("dtype", [F16, BF16, F32])
TOKENS, COUNT, FEATURES, HIDDEN = 41, 7, 24, 10


def layer_of(dtype: Any, seed: int = 0) -> Experts:
    rng = np.random.default_rng(seed)
    sides = (COUNT, FEATURES), (COUNT, 2 * HIDDEN, FEATURES), (COUNT, FEATURES, HIDDEN)
    return Experts(*(array(rng.standard_normal(s) / np.sqrt(s[-1]), dtype) for s in sides))


def tokens_of(dtype: Any, seed: int = 1, rows: int = TOKENS) -> Any:
    return array(np.random.default_rng(seed).standard_normal((rows, FEATURES)), dtype)


# ------------------------------------------------------------------ the textbook, and bounds carried to the end
class Near:
    """A value and a bound on how far what was computed in its place can be from it."""

    def __init__(self, value: Any, error: Any = 0.0) -> None:
        self.value = np.asarray(value, np.float64)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)

    def __matmul__(self, other: Near) -> Near:
        far = np.abs(self.value) @ other.error + self.error @ np.abs(other.value) + self.error @ other.error
        return Near(self.value @ other.value, far)

    def __mul__(self, other: Near) -> Near:
        far = np.abs(self.value) * other.error + self.error * np.abs(other.value) + self.error * other.error
        return Near(self.value * other.value, far)

    def __add__(self, other: Near) -> Near:
        return Near(self.value + other.value, self.error + other.error)

    def __neg__(self) -> Near:
        return Near(-self.value, self.error)

    def __getitem__(self, index: Any) -> Near:
        return Near(self.value[index], self.error[index])

    @property
    def T(self) -> Near:
        return Near(self.value.T, self.error.T)

    def sum(self, axis: int) -> Near:
        return Near(self.value.sum(axis), self.error.sum(axis))

    def computed(self, op: Operator, result: str, **arguments: Any) -> Near:
        """The same, computed by an operator from what is near this value's own operands: its rounding comes on top."""
        return Near(self.value, self.error + limits(op, arguments)[result].reshape(self.value.shape))


def steepness(name: str, x: Near) -> Values | float:
    """The most that the derivative of an elementary function is near x."""
    lipschitz = DECLARED[name].lipschitz
    assert lipschitz is not None
    return lipschitz(x.value, x.error)


def silu_of(x: Near) -> Near:
    return Near(textbook_silu(x.value)["y"], steepness("silu", x) * x.error)


def slope_of(x: Near) -> Near:
    s = 1 / (1 + np.exp(-x.value))
    return Near(s + x.value * s * (1 - s), steepness("silu_slope", x) * x.error)


def softmax_of(logits: Near, chosen: Array | None) -> Near:
    """Of all columns, or of the chosen ones beside which the others count as 0. Where no logit is off by more than e,
    no probability is by more than a factor of exp(2e)."""
    e = np.exp(logits.value - logits.value.max(axis=1, keepdims=True))
    if chosen is not None:
        e = np.where((np.arange(e.shape[1]) == chosen[:, :, None]).any(axis=1), e, 0)
    p = e / e.sum(axis=1, keepdims=True)
    return Near(p, p * np.expm1(2 * logits.error.max(axis=1, keepdims=True)))


def groups(saved: Saved) -> list[slice]:
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(saved.there.offsets)]


def of_each(made: list[Near]) -> Near:
    return Near(np.concatenate([m.value for m in made]), np.concatenate([m.error for m in made]))


def carried(layer: Experts, saved: Saved, dy: Array) -> dict[str, Near]:
    """Every result of both passes as a real number, for the choice that was made, with the bound on what is computed:
    each operator's bound at its operands, and what it makes of theirs by the mathematics."""
    router, gate_up, down = (Near(a) for a in dataclasses.astuple(layer))
    x, there, k, ends = Near(saved.x), saved.there, saved.k, saved.there.offsets
    parts, options = groups(saved), dict(k=saved.k, renormalise=saved.renormalise)
    rounded = saved.logits.dtype == saved.x.dtype  # by request, or as there is one format only
    route, result = (ops.linear, "y") if rounded else (ops.router_logits, "logits")
    logits = (x @ router.T).computed(route, result, x=saved.x, weight=layer.router)
    p = softmax_of(logits, saved.experts if saved.renormalise else None)
    rows = np.arange(len(saved.x))[:, None]
    weights = p[rows, saved.experts].computed(ops.router, "weights", logits=saved.logits, **options)
    gated = of_each([x[there.order[s]] @ gate_up[e].T for e, s in enumerate(parts)])
    gate, up = gated[:, :HIDDEN], gated[:, HIDDEN:]
    halves = dict(gate=layer.gate_up[:, :HIDDEN], up=layer.gate_up[:, HIDDEN:])
    hidden = (silu_of(gate) * up).computed(ops.grouped_linear_swiglu, "y", x=saved.sorted, **halves, offsets=ends)
    made = of_each([hidden[s] @ down[e].T for e, s in enumerate(parts)])
    made = made.computed(ops.grouped_linear, "y", x=saved.hidden, weight=layer.down, offsets=ends)
    kept = Near(saved.there.place >= 0)
    taken = made[np.maximum(there.place, 0)] * kept[:, :, None]
    y = (taken * weights[:, :, None]).sum(1)
    given = dict(y=saved.made, weights=saved.weights, place=there.place, k=k)
    found = dict(y=y.computed(ops.combine, "x", **given))

    # What follows uses the arrays that the backward pass makes: they are made again here.
    flat = saved.weights.reshape(-1)[there.choice]
    dmade_now = ops.dispatch(dy, there.order, flat)
    dmade = Near(dy)[there.order] * weights[there.order, there.choice % k][:, None]
    dmade = dmade.computed(ops.dispatch, "y", x=dy, order=there.order, weights=flat)
    dweights_now = ops.combine_backward(dy, saved.made, there.place, k=k)
    dweights = (Near(dy)[:, None, :] * taken).sum(2)
    dweights = dweights.computed(ops.combine_backward, "dweights", dx=dy, y=saved.made, place=there.place, k=k)
    dhidden_now = ops.grouped_linear_backward_input(dmade_now, layer.down, ends)
    dhidden = of_each([dmade[s] @ down[e] for e, s in enumerate(parts)])
    backward_input, backward_weight = ops.grouped_linear_backward_input, ops.grouped_linear_backward_weight
    dhidden = dhidden.computed(backward_input, "dx", dy=dmade_now, weight=layer.down, offsets=ends)
    gated_now = ops.grouped_linear(saved.sorted, layer.gate_up, ends)
    gated = gated.computed(ops.grouped_linear, "y", x=saved.sorted, weight=layer.gate_up, offsets=ends)
    gate, up = gated[:, :HIDDEN], gated[:, HIDDEN:]
    now = dict(dy=dhidden_now, gate=gated_now[:, :HIDDEN].copy(), up=gated_now[:, HIDDEN:].copy())
    dgate = (dhidden * up * slope_of(gate)).computed(ops.swiglu_backward, "dgate", **now)
    dup = (dhidden * silu_of(gate)).computed(ops.swiglu_backward, "dup", **now)
    dgated = Near(np.hstack([dgate.value, dup.value]), np.hstack([dgate.error, dup.error]))
    dgated_now = np.hstack(ops.swiglu_backward(**now))
    brought_now = backward_input(dgated_now, layer.gate_up, ends)
    brought = of_each([dgated[s] @ gate_up[e] for e, s in enumerate(parts)])
    brought = brought.computed(backward_input, "dx", dy=dgated_now, weight=layer.gate_up, offsets=ends)
    gather = Near(np.arange(len(dy))[:, None] == there.order)
    moved_now = ops.dispatch_backward(brought_now, there.order, entries=len(dy))
    given = dict(dy=brought_now, order=there.order, entries=len(dy))
    moved = (gather @ brought).computed(ops.dispatch_backward, "dx", **given)
    dlogits_now = ops.router_backward(dweights_now, saved.logits, saved.experts, **options)
    hit = [Near(np.arange(COUNT) == saved.experts[:, j : j + 1]) for j in range(k)]
    dot = -(weights_of(p, saved) * dweights).sum(1)[:, None]
    spread = dot
    for j in range(k):
        spread = spread + hit[j] * dweights[:, j : j + 1]
    given = dict(dweights=dweights_now, logits=saved.logits, experts=saved.experts, **options)
    dlogits = (p * spread).computed(ops.router_backward, "dlogits", **given)
    dx, drouter = dlogits @ router + moved, dlogits.T @ x
    if rounded:
        found["dx"] = dx.computed(ops.matmul, "y", a=dlogits_now, b=layer.router, c=moved_now)
        found["router"] = drouter.computed(ops.linear_backward_weight, "dweight", dy=dlogits_now, x=saved.x)
    else:
        given, to_weight = dict(total=moved_now, dlogits=dlogits_now), ops.router_logits_backward_weight
        found["dx"] = dx.computed(ops.router_logits_accumulate_input, "total", **given, weight=layer.router)
        found["router"] = drouter.computed(to_weight, "dweight", dlogits=dlogits_now, x=saved.x)
    sums = dict(
        gate_up=(dgated, x[there.order], dgated_now, saved.sorted), down=(dmade, hidden, dmade_now, saved.hidden),
    )  # fmt: skip
    for name, (left, right, left_now, right_now) in sums.items():
        each = [left[s].T @ right[s] for s in parts]
        total = Near(np.stack([m.value for m in each]), np.stack([m.error for m in each]))
        found[name] = total.computed(backward_weight, "dweight", dy=left_now, x=right_now, offsets=ends)
    return found


def weights_of(p: Near, saved: Saved) -> Near:
    return p[np.arange(len(saved.x))[:, None], saved.experts]


def by_torch(layer: Experts, saved: Saved, dy: Array) -> dict[str, Array]:
    """The layer token by token in f64, for the choice that was made, and its derivative."""
    leaves = {n: torch.tensor(a.astype(np.float64), requires_grad=True) for n, a in vars(layer).items()}
    x = torch.tensor(saved.x.astype(np.float64), requires_grad=True)
    logits = x @ leaves["router"].T
    rows = []
    for t, chosen in enumerate(saved.experts.tolist()):
        p = torch.softmax(logits[t][chosen] if saved.renormalise else logits[t], 0)
        total = 0 * x[t]
        for j, e in enumerate(chosen):
            if saved.there.place[t, j] >= 0:
                gate, up = (leaves["gate_up"][e] @ x[t]).split(HIDDEN)
                made = leaves["down"][e] @ (torch.nn.functional.silu(gate) * up)
                total = total + (p[j] if saved.renormalise else p[e]) * made
        rows.append(total)
    y = torch.stack(rows)
    y.backward(torch.tensor(dy.astype(np.float64)))
    grads = {n: leaf.grad for n, leaf in (*leaves.items(), ("dx", x))}
    wide = {n: np.zeros(leaves[n].shape) if g is None else g.numpy() for n, g in grads.items()}
    return {"y": y.detach().numpy(), **wide}


@FORMATS
@pytest.mark.parametrize(
    "options",
    [{}, dict(renormalise=True), dict(k=1, logits="storage"), dict(k=4, capacity=11), dict(k=4, capacity_factor=0.4)],
    ids=str,
)
def test_the_layer_is_as_near_to_the_textbook_as_its_steps_allow(dtype: Any, options: dict[str, Any]) -> None:
    layer, x, dy = layer_of(dtype), tokens_of(dtype), tokens_of(dtype, seed=2)
    y, saved = expert_layer(x, layer, **options)
    dx, gradients = expert_layer_backward(dy, layer, saved)
    assert any("capacity" in o for o in options) == bool((saved.there.place < 0).any())
    got = {"y": y, "dx": dx, **vars(gradients)}
    want, allowed = by_torch(layer, saved, dy), carried(layer, saved, dy)
    for name, value in want.items():
        own = 2.0**-44 * max(1.0, float(np.abs(value).max()))  # hundreds of roundings in f64
        assert (np.abs(allowed[name].value - value) <= own).all(), f"{name}: two ways to the real number"
        away = np.abs(got[name].astype(np.float64) - value)
        assert (away <= allowed[name].error + own).all(), f"{name}: {(away / allowed[name].error).max()} of the bound"
        assert got[name].shape == value.shape and got[name].dtype == dtype
        # The bound is of use: it does not reach the size of what it bounds.
        assert np.median(allowed[name].error) < np.abs(value).max(), name


# ------------------------------------------------------------------ the choice
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_logits_that_16_bits_do_not_tell_apart_are_told_apart(dtype: Any) -> None:
    """1 and 1.001, of which the second is chosen; rounded to 16 bits they are equal, and the first is."""
    x, one = array([[1.0, 1.0]], dtype), np.ones((2, 2, 1), dtype)
    layer = Experts(array([[1.0, 0.0], [1.0, 2.0**-13]], dtype), np.ones((2, 2, 2), dtype), one)
    _, saved = expert_layer(x, layer, k=1)
    assert saved.experts.tolist() == [[1]]
    assert saved.logits.dtype == F32 and saved.logits.tolist() == [[1.0, 1 + 2.0**-13]]
    _, stored = expert_layer(x, layer, k=1, logits="storage")
    assert stored.experts.tolist() == [[0]] and stored.logits.dtype == dtype


@FORMATS
def test_tokens_go_to_the_experts_that_exact_logits_name(dtype: Any) -> None:
    """All of them but where two logits differ by less than the f32 sum's own bound: no such token is drawn. Each logit
    rounded to 16 bits names others for some."""
    rng = np.random.default_rng(7)
    x = array(rng.standard_normal((1000, 64)), dtype)
    layer = Experts(
        array(rng.standard_normal((64, 64)) / 8, dtype), array(np.ones((64, 2, 64)), dtype),
        array(np.ones((64, 64, 1)), dtype),
    )  # fmt: skip
    exact = x.astype(np.float64) @ layer.router.astype(np.float64).T
    want = np.argsort(-exact, axis=1, kind="stable")[:, :8]
    _, saved = expert_layer(x, layer, k=8)
    assert np.array_equal(saved.experts, want)
    _, stored = expert_layer(x, layer, k=8, logits="storage")
    other = (np.sort(stored.experts, axis=1) != np.sort(want, axis=1)).any(axis=1)
    assert bool(other.any()) == (dtype != F32)


def test_logits_of_another_format_are_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"no format of logits named 'f16'.*f32, storage"):
        expert_layer(tokens_of(F32), layer_of(F32), logits="f16")  # type: ignore[arg-type]


# ------------------------------------------------------------------ nothing is chosen
@FORMATS
@pytest.mark.parametrize("logits", ["f32", "storage"])
@pytest.mark.parametrize("why", ["padding", "capacity", "capacity_factor"])
def test_where_no_choice_is_kept_all_is_zero(dtype: Any, logits: Any, why: str) -> None:
    """Results, and gradients but the router's, which other losses may give."""
    layer, x, dy = layer_of(dtype), tokens_of(dtype), tokens_of(dtype, seed=2)
    options: dict[str, Any] = {why: dict(padding=np.ones(TOKENS, bool), capacity=0, capacity_factor=0.0)[why]}
    y, saved = expert_layer(x, layer, k=4, logits=logits, **options)
    assert saved.there.counts.tolist() == [0] * COUNT and (saved.there.place == -1).all()
    dx, gradients = expert_layer_backward(dy, layer, saved)
    assert y.shape == dx.shape == x.shape
    for a in (y, dx, *vars(gradients).values()):
        assert a.dtype == dtype and not a.any()
    dlogits = array(np.ones((TOKENS, COUNT)), saved.logits.dtype)
    dx, gradients = expert_layer_backward(dy, layer, saved, dlogits=dlogits)
    near = x.astype(np.float64).sum(axis=0)
    allowed = limits(ops.linear_backward_weight, dict(dy=array(dlogits, dtype), x=x))["dweight"]
    assert (np.abs(gradients.router - near) <= allowed).all() and dx.any() and not gradients.down.any()


# ------------------------------------------------------------------ laws
@FORMATS
def test_tokens_do_not_see_each_other(dtype: Any) -> None:
    """In another order, or alone, they have the same bits: results and their own gradients."""
    layer, x, dy = layer_of(dtype), tokens_of(dtype), tokens_of(dtype, seed=2)
    y, saved = expert_layer(x, layer)
    dx, _ = expert_layer_backward(dy, layer, saved)
    order = np.random.default_rng(3).permutation(TOKENS)
    y_moved, saved_moved = expert_layer(x[order], layer, threads=5)
    dx_moved, _ = expert_layer_backward(dy[order], layer, saved_moved, threads=5)
    assert same_bits(y_moved, y[order]) and same_bits(dx_moved, dx[order])
    one, _ = expert_layer(x[:1], layer)
    assert same_bits(one, y[:1])


@FORMATS
@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_a_loop_over_experts(dtype: Any, k: int) -> None:
    """Every expert on every token, each as layers of their own; then the router's weights. No capacity: nothing is
    dropped, and one that holds all tokens changes nothing."""
    layer, x = layer_of(dtype), tokens_of(dtype)
    y, saved = expert_layer(x, layer, k=k)
    made = []
    for gate_up, down in zip(layer.gate_up, layer.down, strict=True):
        made.append(ops.linear(ops.linear_swiglu(x, gate_up[:HIDDEN], gate_up[HIDDEN:]), down))
    place = saved.experts.astype(np.int64) * TOKENS + np.arange(TOKENS)[:, None]
    assert same_bits(ops.combine(np.concatenate(made), saved.weights, place, k=k), y)
    assert same_bits(expert_layer(x, layer, k=k, capacity=TOKENS)[0], y)


def test_gradients_of_all_experts_add_up_to_that_of_a_dense_layer() -> None:
    """Experts alike, and weights that add up to 1: the sum over g of dW_g is that of one layer on all tokens, but for
    the order of the sum. In whole numbers, with one expert each, exactly."""
    rng = np.random.default_rng(4)
    x, dy = array(rng.integers(-3, 4, (TOKENS, FEATURES))), array(rng.integers(-3, 4, (TOKENS, FEATURES)))
    layer = layer_of(F32)
    _, saved = expert_layer(x, layer, k=1, renormalise=True)
    assert (saved.weights == 1).all()
    whole = array(rng.integers(-3, 4, saved.hidden.shape))  # in place of what the gate makes
    _, gradients = expert_layer_backward(dy, layer, dataclasses.replace(saved, hidden=whole))
    assert np.array_equal(gradients.down.sum(axis=0), dy[saved.there.order].T @ whole)
    alike = Experts(layer.router, *(np.repeat(a[:1], COUNT, 0) for a in (layer.gate_up, layer.down)))
    dense = ops.linear(ops.linear_swiglu(x, alike.gate_up[0, :HIDDEN], alike.gate_up[0, HIDDEN:]), alike.down[0])
    assert same_bits(expert_layer(x, alike, k=1, renormalise=True)[0], dense)


@FORMATS
def test_experts_that_nobody_chose_have_gradients_of_zero(dtype: Any) -> None:
    layer = layer_of(dtype)
    x, dy = np.abs(tokens_of(dtype)), tokens_of(dtype, seed=2)
    layer.router[2:] = -1  # whose sums are below those of the first two
    layer.router[:2] = 1
    _, saved = expert_layer(x, layer)
    assert saved.there.counts.tolist() == [TOKENS, TOKENS, 0, 0, 0, 0, 0]
    _, gradients = expert_layer_backward(dy, layer, saved)
    for a in (gradients.gate_up[2:], gradients.down[2:]):
        assert a.tobytes() == bytes(a.nbytes)
    assert all(np.abs(a[:2]).max() > 0 for a in (gradients.gate_up, gradients.down))


def test_padding_goes_nowhere() -> None:
    layer, x, dy = layer_of(F32), tokens_of(F32), tokens_of(F32, seed=2)
    padding = np.arange(TOKENS) % 3 == 0
    y, saved = expert_layer(x, layer, padding=padding)
    dx, gradients = expert_layer_backward(dy, layer, saved)
    assert not y[padding].any() and not dx[padding].any()
    shaped, _ = expert_layer(x.reshape(1, TOKENS, FEATURES), layer, padding=padding.reshape(1, TOKENS))
    assert same_bits(shaped[0], y)
    some, saved_some = expert_layer(x[~padding], layer)
    dx_some, gradients_some = expert_layer_backward(dy[~padding], layer, saved_some)
    assert same_bits(y[~padding], some) and same_bits(dx[~padding], dx_some)
    assert same_bits(gradients.down, gradients_some.down) and same_bits(gradients.gate_up, gradients_some.gate_up)


@FORMATS
def test_no_tokens_at_all(dtype: Any) -> None:
    """C142 for the whole layer."""
    layer, nothing = layer_of(dtype), tokens_of(dtype, rows=0)
    y, saved = expert_layer(nothing, layer)
    dx, gradients = expert_layer_backward(nothing, layer, saved)
    assert y.shape == dx.shape == (0, FEATURES)
    assert all(not a.tobytes().strip(b"\0") for a in vars(gradients).values())


def test_leading_dimensions_are_tokens() -> None:
    layer, x = layer_of(F32), tokens_of(F32, rows=12)
    y, saved = expert_layer(x.reshape(3, 4, FEATURES), layer)
    dx, _ = expert_layer_backward(x.reshape(3, 4, FEATURES), layer, saved)
    assert y.shape == dx.shape == (3, 4, FEATURES)
    assert same_bits(y.reshape(12, FEATURES), expert_layer(x, layer)[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(down=np.ones((7, 10, 24), F32)), r"gate_up: shape \(7, 20, 24\); accepted beside x of \(3, 24\), 7 exp"),
        (dict(down=np.ones((6, 24, 10), F32)), r"down: shape \(6, 24, 10\); .*: \(7, 24, 10\)"),
        (dict(router=np.ones((7, 25), F32)), r"router: shape \(7, 25\); accepted .*: \(7, 24\)"),
        (dict(router=np.ones((7, 24), F16)), "weight: format f16 beside f32"),
        (dict(router=np.full((7, 24), np.nan, F32)), r"logits\[0\] holds NaN"),
        ({n: a[:1] for n, a in vars(layer_of(F32)).items()}, "k=2 of 1 columns"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Array], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        expert_layer(tokens_of(F32, rows=3), dataclasses.replace(layer_of(F32), **change))
