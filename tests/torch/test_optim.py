"""The optimizer: to the bit what `ops.adamw` makes of the same lists; torch's own in f32 within rounding; its state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch.optim import AdamW

SIZES = ((3, 5), (), (700,), (0, 4), (2, 3, 4))
WORDS = {"lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def weights(dtype: torch.dtype, seed: int = 1) -> list[torch.nn.Parameter]:
    g = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(s, generator=g).to(dtype)) for s in SIZES]


def slopes(params: list[torch.nn.Parameter], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)


def bits(tensors: Any) -> list[bytes]:
    return [t.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() for t in tensors]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "master", "rounding"),
    [
        (torch.float32, None, "nearest"),
        (torch.float16, None, "nearest"),
        (torch.bfloat16, False, "nearest"),
        (torch.bfloat16, None, "stochastic"),
    ],
)
def test_steps_are_those_of_the_operator(dtype: torch.dtype, master: bool | None, rounding: Any) -> None:
    params, ours = weights(dtype), weights(dtype)
    moments = [[torch.zeros(s) for s in SIZES] for _ in range(2)]
    kept = rounding == "nearest" if master is None else master
    masters = [p.detach().float() for p in ours] if kept and dtype != torch.float32 else None
    optimizer = AdamW(params, **WORDS, master=master, rounding=rounding, seed=9)  # type: ignore[arg-type]
    for step in (1, 2, 3):
        slopes(params, step)
        slopes(ours, step)
        optimizer.step(loss_scale=8.0)
        beta1, beta2 = WORDS["betas"]  # type: ignore[misc]
        ops.adamw(
            [p.detach() for p in ours], [p.grad for p in ours], *moments, masters, step=step, lr=3e-3, beta1=beta1,
            beta2=beta2, eps=1e-6, weight_decay=0.1, loss_scale=8.0, rounding=rounding, seed=9,
        )  # fmt: skip
        assert bits(params) == bits(ours)
    state = [optimizer.state[p] for p in params]
    assert bits(s["exp_avg_sq"] for s in state) == bits(moments[1])
    assert ("master" in state[0]) == (masters is not None)


@pytest.mark.slow
def test_beside_torch_in_float64() -> None:
    """f32 weights: each step rounds a handful of times, and errors add up over the steps."""
    params = weights(torch.float32)
    wide = [torch.nn.Parameter(p.detach().double()) for p in params]
    optimizers = AdamW(params, **WORDS), torch.optim.AdamW(wide, **WORDS)  # type: ignore[arg-type]
    for step in range(10):
        slopes(params, step)
        for p, w in zip(params, wide, strict=True):
            w.grad = p.grad.double()  # type: ignore[union-attr]
        for optimizer in optimizers:
            optimizer.step()
    eps = np.finfo(np.float32).eps
    for p, w in zip(params, wide, strict=True):
        # At most 8 roundings of a step of at most 2 lr, one of the weight itself.
        assert (p.detach().double() - w.detach()).abs().le(10 * eps * (w.detach().abs() + 16 * 3e-3)).all()


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(value: float, alone: bool) -> None:
    """Also not in another group, whose gradients are finite; and the next step is the one that it would have been."""
    found = []
    for broken in (True, False):
        params, others = weights(torch.float16), [] if alone else weights(torch.float32, 2)
        optimizer = AdamW([{"params": params}, {"params": others, "lr": 1e-2}])
        for step in (1, 2, 3) if broken else (1, 3):
            slopes(params, step)
            slopes(others, 10 + step)
            before = bits([*params, *others])
            if step == 2:
                params[2].grad[13] = value  # type: ignore[index]
            optimizer.step()
            assert (bits([*params, *others]) == before) == (step == 2)
        assert optimizer.skipped == int(broken)
        found.append(bits([*params, *others]))
    assert found[0] == found[1]


def test_gradients_whose_squares_overflow_are_finite() -> None:
    params = weights(torch.float32)
    optimizer = AdamW(params)
    slopes(params, 1)
    for p in params:
        p.grad *= 1e30  # type: ignore[operator]
    before = bits(params)
    optimizer.step()
    assert optimizer.skipped == 0 and bits(params) != before


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_run_that_is_taken_up_again_has_the_same_bits(rounding: Any) -> None:
    """torch would round moments and master weights to the format of the weights, as its `load_state_dict` does."""
    params = weights(torch.bfloat16)
    optimizer = AdamW(params, **WORDS, rounding=rounding)  # type: ignore[arg-type]
    for step in (1, 2):
        slopes(params, step)
        optimizer.step()
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = AdamW(again, **WORDS, rounding=rounding)  # type: ignore[arg-type]
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert all(v.dtype == torch.float32 for s in other.state.values() for v in s.values() if isinstance(v, Tensor))
    for p, o in ((params, optimizer), (again, other)):
        slopes(p, 3)
        o.step()
    assert bits(again) == bits(params)


@pytest.mark.slow
def test_a_state_without_copies_goes_on_beside_new_weights_that_have_them() -> None:
    params = weights(torch.bfloat16)
    first = AdamW(params[:2], rounding="stochastic")
    slopes(params, 1)
    first.step()
    second = AdamW(params[:2])
    second.load_state_dict(first.state_dict())
    second.param_groups[0]["rounding"] = "nearest"  # which is saved with a state
    second.add_param_group({"params": params[2:]})
    second.param_groups[0]["params"] += second.param_groups.pop()["params"]  # one group of both kinds
    before = bits(params)
    for p in params[2:]:
        second.state[p] |= {"step": 1, **{m: torch.zeros(p.shape) for m in ("exp_avg", "exp_avg_sq")}}
        second.state[p]["master"] = p.detach().float()
    slopes(params, 2)
    second.step()
    after = bits(params)
    assert after[0] != before[0] and after[2] != before[2]
    copies = [second.state[p]["master"].to(torch.bfloat16) for p in params[2:]]
    assert bits(copies) == after[2:]  # which went along
    assert [second.state[p]["step"] for p in params] == [2] * 5
    assert [("master" in second.state[p]) for p in params] == [False, False, True, True, True]


@pytest.mark.slow
def test_weights_without_gradients_stay_and_count_steps_of_their_own() -> None:
    params = weights(torch.float32)
    optimizer = AdamW(params)
    slopes(params, 1)
    params[0].grad = None
    before = bits(params[:1])
    optimizer.step()
    assert bits(params[:1]) == before and params[0] not in optimizer.state
    slopes(params, 2)
    optimizer.step()
    assert [optimizer.state[p]["step"] for p in params] == [1, 2, 2, 2, 2]


@pytest.mark.slow
def test_a_closure_is_called_with_gradients() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([p])

    def closure() -> Tensor:
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3 and (p < 1).all()


def test_what_is_not_accepted_is_named() -> None:
    with pytest.raises(ArgumentError, match="rounding='up'"):
        AdamW(weights(torch.float32), rounding="up")  # type: ignore[arg-type]
    p = torch.nn.Parameter(torch.ones(4, 2))
    p.grad = torch.ones(4, 2).to_sparse()
    with pytest.raises(ArgumentError, match=r"sparse gradient of shape \(4, 2\)"):
        AdamW([p]).step()
    wide = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    with pytest.raises(ArgumentError, match=r"torch\.float64; accepted: torch\.float16"):
        AdamW([wide])
