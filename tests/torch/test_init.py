"""First values from counters: known digests, an independent computation, and the same bits wherever they are drawn."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokitai.errors import ArgumentError
from tokitai.meaning import bits
from tokitai.ops.dropouts import philox_reference
from tokitai.torch import init, nn, replace
from tokitai.torch.counters import draw_normal, draw_uniform

U = 2.0**-24
SHAPE = (37, 65)
KEY = dict(seed=7, name="layers.0.weight")
KNOWN = {  # SHA-256 of the bytes in f32: they may never change
    "uniform_": (init.uniform_, (-0.1, 0.3), "f45682d77d540750e8d2877577204accc695c47ade1a789c34eaeb005620b53c"),
    "normal_": (init.normal_, (0.5, 0.02), "fae65a79bbe4d947cb07d3265b0a20c134aea8140f2196135c3ef395c74d312c"),
    "trunc_normal_": (
        init.trunc_normal_,
        (0.0, 1.0, -1.0, 0.5),
        "312a3d540d8a49aae6d78f69184c7d7e3103ce19952dcff6213f6de53c2454de",
    ),
    "kaiming_uniform_": (
        init.kaiming_uniform_,
        (math.sqrt(5),),
        "682fd46915721d45700c43d511075ee23a43c68380db3efa65c039b1ccc687e1",
    ),
    "kaiming_normal_": (init.kaiming_normal_, (), "32c64aa6995be67c0d0f80193efa0710957e64381de646ef1be1ee4cdad4c087"),
    "xavier_uniform_": (
        init.xavier_uniform_,
        (2.0,),
        "6d4de04ce32b2d4957bdd27d3f59c032648fb62e5bc5d12efc8ef20126f0dfe5",
    ),
    "xavier_normal_": (init.xavier_normal_, (), "7f8b5d5a3c3a87dab76d77ea864b1ea08372ed13d4ddc3ba1b219949ca468985"),
}


def drawn(
    function: Any, *arguments: float, shape: tuple[int, ...] = SHAPE, dtype: Any = torch.float32, **key: Any
) -> Tensor:
    made: Tensor = function(torch.full(shape, math.nan, dtype=dtype), *arguments, **(KEY | key))
    return made


def digest(x: Tensor) -> str:
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("name", list(KNOWN))
def test_digests_are_known(name: str) -> None:
    function, arguments, want = KNOWN[name]
    assert digest(drawn(function, *arguments)) == want


# ------------------------------------------------------------------ an independent computation
def numbers(attempt: int = 0) -> tuple[Any, Any]:
    """u0 and u1 of each place, exactly, from Philox as its paper has it."""
    place = np.arange(math.prod(SHAPE), dtype=np.uint64)
    name = int.from_bytes(hashlib.sha256(KEY["name"].encode()).digest()[:8], "little")  # type: ignore[attr-defined]
    counter = (place, place * 0, place * 0 + np.uint64(name % 2**32), place * 0 + np.uint64(name >> 32))
    words = philox_reference(counter, (KEY["seed"], attempt))
    return tuple((w.astype(np.int64) >> 8).reshape(SHAPE) / 2.0**24 for w in words[:2])  # type: ignore[return-value]


def normal(attempt: int = 0) -> tuple[Any, Any]:
    """z in f64, and how far the defined one may be from it: log is right to 0.82 ulp, which a root halves, and the
    product, the root and the angle round once, the angle from a constant that is rounded; cos is right to 1.81 ulp, and
    changes by no more than its argument. An ulp is at most 2 u of a number's size; second-order terms are below u more.
    """
    u0, u1 = numbers(attempt)
    radius, angle = np.sqrt(-2 * np.log(u0 + U)), 2 * math.pi * u1
    relative = 0.82 + 1 + 1  # of the radius: half of log's, its root, its product with the cosine
    return radius * np.cos(angle), radius * U * ((relative + 2 * 1.81) + 2 * angle + 1)


def test_uniform_numbers_are_those_of_philox() -> None:
    u0, _ = numbers()
    assert (drawn(init.uniform_).numpy() == u0).all()
    assert (drawn(init.uniform_, -0.5, 0.5).numpy() == (u0 - 0.5)).all(), "each is a multiple of 2^-24: exact"


def test_normal_numbers_are_those_of_philox() -> None:
    z, bound = normal()
    error = np.abs(drawn(init.normal_).numpy() - z)
    assert (error <= bound).all() and error.max() > 0
    scaled = drawn(init.normal_, 3.0, 0.125).numpy()
    assert (np.abs(scaled - (3 + z / 8)) <= bound / 8 + np.abs(3 + z / 8) * U * 2).all()


def test_truncated_numbers_are_the_first_attempt_within_the_limits() -> None:
    want, attempt = drawn(init.normal_).numpy().astype(np.float64), 0
    outside, most = np.abs(want) > 1.5, np.zeros(SHAPE)
    assert outside.any()
    while outside.any():
        attempt += 1
        z, bound = normal(attempt)
        far = np.abs(np.abs(z) - 1.5) > bound
        assert far[outside].all(), "an attempt at the limit itself would decide nothing"
        want[outside], most[outside] = z[outside], bound[outside]
        outside &= np.abs(z) > 1.5
    found = drawn(init.trunc_normal_, 0.0, 1.0, -1.5, 1.5).numpy()
    assert (np.abs(found) <= 1.5).all() and (np.abs(found - want) <= most).all()


@pytest.mark.parametrize("operator", [draw_uniform, draw_normal])
def test_the_oracle_has_the_same_bits(operator: Any) -> None:
    scalars = dict(low=-1.0, width=3.0) if operator is draw_uniform else dict(mean=0.25, std=1.5)
    scalars |= dict(seed=2**32 - 1, attempt=2, name=2**32 - 1, more=0)
    x = np.zeros((3, 41), np.float32)
    want = bits.evaluate(operator.trace("f32"), dict(x=x.copy()), x.shape, scalars)["x"]
    operator(x, **scalars)
    assert x.tobytes() == np.asarray(want, np.float32).tobytes()


def test_moments() -> None:
    """Within six deviations of their estimates: of n numbers the mean has std / sqrt(n), the variance sqrt(2 / n)."""
    n = 2**18
    x = drawn(init.normal_, shape=(n,)).double()
    assert abs(float(x.mean())) <= 6 / math.sqrt(n) and abs(float(x.var()) - 1) <= 6 * math.sqrt(2 / n)
    u = drawn(init.uniform_, shape=(n,)).double()
    assert abs(float(u.mean()) - 0.5) <= 6 / math.sqrt(12 * n) and float(u.min()) >= 0 and float(u.max()) < 1


# ------------------------------------------------------------------ what bits depend on
def test_bits_depend_on_seed_name_and_place_alone() -> None:
    x = drawn(init.normal_)
    torch.manual_seed(99)
    assert torch.equal(drawn(init.normal_, shape=(SHAPE[1], SHAPE[0])).flatten(), x.flatten())
    assert torch.equal(drawn(init.normal_, shape=(10,)), x.flatten()[:10])
    for other in (dict(seed=8), dict(name="layers.1.weight")):
        assert (drawn(init.normal_, **other) != x).float().mean() > 0.99
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(drawn(init.normal_, dtype=dtype), x.to(dtype)), "rounded once"
    spread = torch.empty(SHAPE[1], SHAPE[0]).t()
    assert torch.equal(init.normal_(spread, **KEY), x)
    assert torch.equal(drawn(init.normal_, shape=(0, 3)), torch.empty(0, 3))
    assert drawn(init.normal_, shape=()).item() == x[0, 0]


def model() -> torch.nn.Module:
    layers = dict(
        table=nn.Embedding(9, 8, padding_idx=2), norm=torch.nn.LayerNorm(8), experts=nn.Experts(8, 6, 3),
        layer=torch.nn.Linear(8, 4), head=nn.Linear(8, 9, bias=False),
    )  # fmt: skip
    made = torch.nn.ModuleDict(layers)
    made["head"].weight = made["table"].weight
    return made


def test_a_model_is_drawn_by_the_names_of_its_weights() -> None:
    first, second = model(), model()
    replace(second)
    for m in (first, second):
        init.reset(m, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    bound, weights = 1 / math.sqrt(8), dict(first.named_parameters())
    assert torch.equal(
        weights["layer.weight"], init.uniform_(torch.empty(4, 8), -bound, bound, seed=3, name="layer.weight")
    )
    assert torch.equal(weights["layer.bias"], init.uniform_(torch.empty(4), -bound, bound, seed=3, name="layer.bias"))
    table = init.normal_(torch.empty(9, 8), seed=3, name="table.weight")
    assert not weights["table.weight"][2].any() and torch.equal(weights["table.weight"][3:], table[3:])
    assert (weights["norm.weight"] == 1).all() and not weights["norm.bias"].any()


def test_a_model_with_other_weights_is_refused_before_any_is_drawn() -> None:
    other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.PReLU())
    before = [p.clone() for p in other.parameters()]
    with pytest.raises(ArgumentError, match=r"reset: 1.weight belongs to a PReLU; accepted: Embedding, Experts"):
        init.reset(other, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: init.normal_(x, seed=-1, name="w"), "seed=-1; accepted: a whole number from 0"),
        (lambda x: init.normal_(x, seed=2**32, name="w"), "seed=4294967296; accepted"),
        (lambda x: init.normal_(x, seed=1, name=""), "name=''; accepted: the name of the weight"),
        (lambda x: init.normal_(x, std=-1.0, **KEY), "std=-1.0; accepted: finite numbers"),
        (lambda x: init.uniform_(x, 1.0, 0.0, **KEY), "a=1.0, b=0.0; accepted"),
        (lambda x: init.trunc_normal_(x, a=3.0, b=4.0, **KEY), "0.0013 of the numbers lie between"),
        (lambda x: init.kaiming_normal_(x[0], **KEY), r"kaiming_normal_: a tensor of shape \(3,\); accepted"),
        (lambda x: init.kaiming_normal_(x, mode="fan", **KEY), "mode='fan'; accepted: fan_in, fan_out"),
        (lambda x: init.kaiming_normal_(x, nonlinearity="cube", **KEY), "nonlinearity='cube'; accepted"),
        (lambda x: init.uniform_(x.long(), **KEY), "torch.int64; accepted: a tensor of floats"),
    ],
)
def test_wrong_calls_name_what_is_accepted(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(torch.zeros(2, 3))
