"""What an optimizer is made of survives copies, files and other optimizers; a step happens as a whole or not at all."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tokitai.errors import ArgumentError
from tokitai.torch.optim import AdamW, clip_grad_norm_


def weight(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype))


def give_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)


def bits(x: Tensor) -> bytes:
    return bytes(x.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())


def state_bits(optimizer: AdamW) -> list[Any]:
    return [{n: bits(v) if isinstance(v, Tensor) else v for n, v in s.items()} for s in optimizer.state.values()]


def options(optimizer: AdamW) -> list[dict[str, Any]]:
    return [{n: v for n, v in g.items() if n != "params"} for g in optimizer.param_groups]


def reloaded(o: AdamW) -> AdamW:
    """Into an optimizer of other options, through a file's bytes."""
    again = AdamW([torch.nn.Parameter(p.detach().clone()) for g in o.param_groups for p in g["params"]], seed=99)
    again.load_state_dict(pickle.loads(pickle.dumps(o.state_dict())))
    return again


COPIES: dict[str, Callable[[AdamW], AdamW]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda o: pickle.loads(pickle.dumps(o)),
    "state_dict": reloaded,
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"rounding": "stochastic", "seed": 7},
    {"master": False},
    {"maximize": True},
    {"master": True, "rounding": "stochastic"},
]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", VARIANTS, ids=str)
def test_a_copy_steps_on_to_the_same_bits(words: dict[str, Any], dtype: torch.dtype, how: str) -> None:
    params = [weight(3, 5, dtype=dtype), weight(7, dtype=dtype, seed=2)]
    first = AdamW(params, lr=1e-2, **words)
    for step in (1, 2):
        give_gradients(params, step)
        first.step()
    params[0].grad[0, 0] = torch.inf  # type: ignore[index]
    first.step()
    other = COPIES[how](first)
    assert options(other) == options(first) and other.skipped == first.skipped == 1
    assert state_bits(other) == state_bits(first)
    theirs = [p for g in other.param_groups for p in g["params"]]
    for some, o in ((params, first), (theirs, other)):
        give_gradients(some, 3)
        o.step()
    assert [bits(p) for p in theirs] == [bits(p) for p in params]
    assert state_bits(other) == state_bits(first)


def test_options_are_those_of_each_group() -> None:
    plain, up = weight(4096), torch.nn.Parameter(torch.ones(8))
    rounded = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    at_random = {"params": [rounded], "rounding": "stochastic", "master": False}
    optimizer = AdamW([{"params": [plain]}, at_random, {"params": [up], "maximize": True}], lr=1e-3, weight_decay=0.0)
    for p in (plain, rounded, up):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert len(rounded.detach().unique()) == 2 and "master" not in optimizer.state[rounded]
    assert (up > 1).all() and (plain < weight(4096)).all()


@pytest.mark.parametrize(
    ("word", "value", "found"),
    [
        ("amsgrad", True, "amsgrad=True"), ("rounding", "up", "rounding='up'"), ("master", 1, "master=1"),
        ("maximize", None, "maximize=None"), ("lr", -1.0, "lr=-1.0"), ("eps", float("nan"), "eps=nan"),
        ("betas", (0.9, 1.0), "beta2=1.0"), ("betas", 0.9, "betas=0.9"), ("seed", -1, "seed=-1"),
        ("weight_decay", float("inf"), "weight_decay=inf"),
    ],
)  # fmt: skip
def test_options_that_are_not_accepted_are_refused_when_they_are_given(word: str, value: Any, found: str) -> None:
    p = weight(2)
    with pytest.raises(ArgumentError, match=found):
        AdamW([p], **{word: value})
    with pytest.raises(ArgumentError, match=found):
        AdamW([{"params": [p], word: value}])
    optimizer = AdamW([p])
    with pytest.raises(ArgumentError, match=found):
        optimizer.add_param_group({"params": [weight(2)], word: value})
    assert len(optimizer.param_groups) == 1
    saved = optimizer.state_dict()
    saved["param_groups"][0][word] = value
    with pytest.raises(ArgumentError, match=found):
        optimizer.load_state_dict(saved)


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"learning_rate=0.5 in a group of weights; accepted: amsgrad, betas"):
        AdamW([{"params": [weight(2)], "learning_rate": 0.5}])


@pytest.mark.parametrize(
    ("p", "found"),
    [
        (torch.ones(2, dtype=torch.float64), r"torch.float64; accepted: torch.float16"),
        (torch.ones(1, 2).expand(3, 2), "share memory"),
    ],
)
def test_weights_that_no_step_can_update_are_refused_when_the_optimizer_is_made(p: Tensor, found: str) -> None:
    with pytest.raises(ArgumentError, match=found):
        AdamW([torch.nn.Parameter(p)])


# ------------------------------------------------------------------ states of others
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [{}, {"maximize": True}, {"foreach": True}], ids=str)
def test_a_state_of_torchs_adamw_goes_on(dtype: torch.dtype, words: dict[str, Any]) -> None:
    """Moments and steps are torch's, in f32; the next step of f32 weights is torch's but for a few roundings."""
    params = [weight(3, 5, dtype=dtype), weight(4, dtype=dtype, seed=2)]
    theirs = torch.optim.AdamW(params, lr=1e-2, **words)
    for step in (1, 2):
        give_gradients(params, step)
        theirs.step()
    ours = [torch.nn.Parameter(p.detach().clone()) for p in params]
    optimizer = AdamW(ours)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.load_state_dict(theirs.state_dict())
    assert ["without f32 copies" in str(w.message) for w in said] == [True] * (dtype == torch.bfloat16)
    for p, q in zip(ours, params, strict=True):
        state = optimizer.state[p]
        assert state["step"] == 2 and isinstance(state["step"], int) and state["exp_avg"].dtype == torch.float32
        assert torch.equal(state["exp_avg"], theirs.state[q]["exp_avg"].float())
    (group,) = optimizer.param_groups
    assert group["lr"] == 1e-2 and group["maximize"] == words.get("maximize", False)
    for some, o in ((ours, optimizer), (params, theirs)):
        give_gradients(some, 3)
        o.step()  # type: ignore[no-untyped-call]
    unit = torch.finfo(dtype).eps
    for p, q in zip(ours, params, strict=True):  # each rounds its moments, the step and the weight
        assert ((p - q).abs().double() <= 8 * unit * (q.abs().double() + 1e-2)).all()


def test_states_that_mean_something_else_are_refused_whole() -> None:
    p = weight(2)
    p.grad = torch.ones(2)
    ours = AdamW([p], lr=0.1)
    ours.step()
    before = state_bits(ours)
    for theirs, found in (
        (torch.optim.AdamW([p], amsgrad=True), "amsgrad=True"), (torch.optim.Adam([p]), "not decoupled"),
    ):  # fmt: skip
        theirs.step()  # type: ignore[attr-defined]
        with pytest.raises(ArgumentError, match=found):
            ours.load_state_dict(theirs.state_dict())
        assert state_bits(ours) == before
        assert ours.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(exp_avg=torch.ones(2, 2)), r"weight 0: exp_avg of shape \(2, 2\); accepted: \(3,\)"),
        (dict(exp_avg_sq=None), "weight 0 holds exp_avg, step; accepted: step, exp_avg, exp_avg_sq, and master"),
        (dict(momentum_buffer=torch.ones(3)), "weight 0 holds exp_avg, exp_avg_sq, momentum_buffer, step; accepted"),
        (dict(step=2.5), "weight 0: step=2.5; accepted: a whole number of steps"),
        (dict(step=torch.tensor(-1.0)), "weight 0: step=-1.0; accepted"),
    ],
)
def test_a_state_of_other_weights_is_refused_whole(change: dict[str, Any], message: str) -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([p])
    p.grad = torch.ones(3)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    saved["param_groups"][0]["lr"] = 0.5
    saved["state"][0] = {n: v for n, v in (saved["state"][0] | change).items() if v is not None}
    with pytest.raises(ArgumentError, match=message):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 1e-3 and optimizer.state[p]["step"] == 1
    assert optimizer.state[p]["exp_avg"].shape == (3,)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=4),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=True),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        lambda o: torch.optim.swa_utils.SWALR(o, 0.01),
    ],
)
def test_schedulers_keep_numbers_of_their_own_in_a_group(schedule: Any) -> None:
    """They set what a step reads, and the state with them loads."""
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW([p], lr=1e-3)
    scheduler, rates = schedule(optimizer), set()
    for _ in range(3):
        p.grad = torch.ones(3)
        optimizer.step()
        scheduler.step()
        rates.add(optimizer.param_groups[0]["lr"])
    assert len(rates) > 1
    other = AdamW([torch.nn.Parameter(p.detach().clone())])
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_a_state_that_lacks_the_newer_options_keeps_those_here() -> None:
    """As one that was saved when they were attributes."""
    p = weight(4, dtype=torch.bfloat16)
    first = AdamW([p], rounding="stochastic", seed=5)
    give_gradients([p], 1)
    first.step()
    old = first.state_dict()
    for name in ("rounding", "master", "seed", "skipped", "maximize", "amsgrad"):
        del old["param_groups"][0][name]
    again = AdamW([torch.nn.Parameter(p.detach().clone())], rounding="stochastic", seed=5)
    again.load_state_dict(old)
    assert options(again) == options(first)
    with pytest.warns(UserWarning, match="1 weights of 16 bits were loaded without f32 copies"):
        other = AdamW([torch.nn.Parameter(p.detach().clone())])
        other.load_state_dict(old)
    mine = other.param_groups[0]["params"][0]
    assert torch.equal(other.state[mine]["master"], mine.detach().float())
    mine.grad = torch.full_like(mine, 1e-4)
    for _ in range(40):  # steps below bf16's spacing add up in the copy
        other.step()
    assert not torch.equal(mine, p)


# ------------------------------------------------------------------ all or nothing
def test_a_step_with_an_error_in_one_list_changes_nothing() -> None:
    a, b = weight(3), weight(4, seed=2)
    optimizer = AdamW([{"params": [a]}, {"params": [b]}], lr=0.1)
    give_gradients([a, b], 1)
    optimizer.step()
    before = bits(a), bits(b), state_bits(optimizer)
    optimizer.param_groups[1]["lr"] = float("nan")
    for _ in range(2):
        with pytest.raises(ArgumentError, match="lr=nan"):
            optimizer.step()
        assert (bits(a), bits(b), state_bits(optimizer)) == before
    optimizer.param_groups[1]["lr"] = 0.1
    b.grad = torch.ones(4).to_sparse()
    with pytest.raises(ArgumentError, match="sparse"):
        optimizer.step()
    assert (bits(a), bits(b), state_bits(optimizer)) == before


@pytest.mark.parametrize("scale", [float("inf"), 0.0, -1.0, float("nan")])
def test_a_loss_scale_out_of_range_is_no_step(scale: float) -> None:
    p = weight(3)
    give_gradients([p], 1)
    optimizer, before = AdamW([p]), bits(p)
    with pytest.raises(ArgumentError, match="loss_scale="):
        optimizer.step(loss_scale=scale)
    assert bits(p) == before and optimizer.state[p]["step"] == 0 and not optimizer.state[p]["exp_avg"].any()


# ------------------------------------------------------------------ how weights lie
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "channels last": lambda x: x.reshape(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
}


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits_do_not_know_how_weights_lie(layout: str, dtype: torch.dtype, rounding: Any) -> None:
    first = weight(4, 6, dtype=dtype)
    other = torch.nn.Parameter(LAYOUTS[layout](first.detach()))
    assert not other.is_contiguous()
    optimizers = [AdamW([p], lr=0.1, rounding=rounding) for p in (first, other)]
    for step in (1, 2, 3):
        give_gradients([first], step)
        other.grad = first.grad.reshape(other.shape)  # type: ignore[union-attr]
        for o in optimizers:
            o.step()
        clip_grad_norm_([first], 0.5)
        clip_grad_norm_([other], 0.5)
    assert bits(first) == bits(other) and bits(first.grad) == bits(other.grad)  # type: ignore[arg-type]


# ------------------------------------------------------------------ clipping
def test_one_weight_is_clipped_as_a_list_of_one() -> None:
    p = weight(2)
    p.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm_(p, 1.0) == 5
    assert torch.allclose(p.grad, torch.tensor([0.6, 0.8]), rtol=2**-22)
    assert clip_grad_norm_((q for q in [p]), 10.0) <= 1.0000002


def test_gradients_of_several_formats_share_one_norm() -> None:
    params = [weight(2), weight(2, dtype=torch.bfloat16), weight(2, dtype=torch.float16)]
    for p, values in zip(params, ([3.0, 0.0], [0.0, 4.0], [0.0, 12.0]), strict=True):
        p.grad = torch.tensor(values, dtype=p.dtype)
    assert clip_grad_norm_(params, 1.0) == 13
    for p, value in zip(params, (3, 4, 12), strict=True):
        scaled = torch.tensor(float(value)) * (torch.tensor(1.0) / 13)  # as the operator does, in f32
        assert torch.equal(p.grad.max(), scaled.to(p.dtype))  # type: ignore[union-attr]


def test_what_clipping_does_not_do_is_named() -> None:
    p = weight(2)
    p.grad = torch.tensor([torch.inf, 1.0])
    with pytest.raises(RuntimeError, match="norm of the gradients is inf"):
        clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    assert p.grad[1] == 1
    with pytest.raises(ArgumentError, match="norm_type=1; accepted: 2"):
        clip_grad_norm_([p], 1.0, norm_type=1)
    p.grad = torch.ones(2).to_sparse()
    with pytest.raises(ArgumentError, match=r"layout torch.sparse_coo"):
        clip_grad_norm_([p], 1.0)
    assert clip_grad_norm_([], 1.0) == 0


# ------------------------------------------------------------------ shards
@pytest.mark.slow
def test_shards_are_updated_as_the_whole(tmp_path: Any) -> None:
    """FSDP2 of one process: the weights are DTensors, in the optimizer and in what it saves."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    from tokitai.torch import nn

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        plain = nn.Linear(4, 4)
        sharded = copy.deepcopy(plain)
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        models = plain, sharded
        optimizers = [AdamW(m.parameters(), lr=0.1) for m in models]
        for step in range(3):
            x = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
            for m, o in zip(models, optimizers, strict=True):
                o.zero_grad()
                m(x).square().sum().backward()
                o.step()
        for p, q in zip(plain.parameters(), sharded.parameters(), strict=True):
            assert isinstance(q, DTensor) and isinstance(optimizers[1].state[q]["exp_avg"], DTensor)
            assert bits(q.full_tensor()) == bits(p)
        next(iter(sharded.parameters())).grad.to_local()[0] = torch.nan  # type: ignore[union-attr]
        optimizers[1].step()
        assert optimizers[1].skipped == 1
        for p, q in zip(plain.parameters(), sharded.parameters(), strict=True):
            assert bits(q.full_tensor()) == bits(p)  # type: ignore[attr-defined]
        (weight, bias), (_, in_shards) = plain.parameters(), sharded.parameters()
        norms = [clip_grad_norm_([weight, other], 1e9) for other in (bias, in_shards)]  # beside one that is whole
        assert norms[0] > 0 and bits(norms[0]) == bits(norms[1])
        with pytest.raises(ArgumentError, match="'stochastic' of a sharded weight"):
            uneven = AdamW(sharded.parameters(), rounding="stochastic")
            uneven.step()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_a_weight_that_autograd_saved_and_a_step_changed_is_noticed() -> None:
    p = weight(3)
    y = (p * p).sum()
    p.grad = torch.ones(3)
    AdamW([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    q = weight(3)
    q.grad = torch.full((3,), 5.0)
    z = (q.grad * weight(3, seed=3)).sum()
    clip_grad_norm_([q], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_options_of_all_groups_are_read_where_they_agree() -> None:
    one = AdamW([weight(3)], rounding="stochastic", seed=5)
    one.load_state_dict(AdamW([weight(3)], rounding="stochastic", seed=6).state_dict())
    assert (one.rounding, one.master, one.seed, one.skipped) == ("stochastic", None, 6, 0)
    two = AdamW([{"params": [weight(3)]}, {"params": [weight(3, seed=1)], "seed": 7}], rounding="stochastic")
    assert two.rounding == "stochastic"
    with pytest.raises(ArgumentError, match=r"seed of groups: \[0, 7\]; accepted: param_groups\[i\]\['seed'\]"):
        two.seed  # noqa: B018
