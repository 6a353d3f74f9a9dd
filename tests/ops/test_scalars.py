"""Scalars that have a range are refused outside of it, in every operator; those that may be anything are named here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.lang import Operator
from tokitai.runtime.binding import bind, check_params
from tokitai.verification import cases

ANY = {"factor", "alpha", "beta", "ignore_index", "dropped"}  # plain factors, and whole numbers beside all indices
EVERY = [(op, p.name) for op in ops.registry().values() for p in op.params]
NAN, INF = math.nan, math.inf


def call(op: Operator, **scalars: float) -> None:
    """The checks of a call on tensors that do not matter."""
    needed = {t.name: np.zeros((1, 1)) for t in op.tensors if not t.optional}
    usual = {"entries": 3, **{p.name: cases.defaults(op)[p.name] for p in op.params if p.name != "entries"}}
    _, params, _ = bind(op, (), {**needed, **{p.name: usual[p.name] for p in op.params}, **scalars})
    check_params(op, params)


@pytest.mark.parametrize(("op", "name"), EVERY, ids=lambda x: getattr(x, "name", x))
def test_every_scalar_has_a_range_or_may_be_anything(op: Operator, name: str) -> None:
    whole = next(p.whole for p in op.params if p.name == name)
    known = name in op.contract.ranges or name in op.contract.entry
    assert known != (name in ANY)
    if known:
        with pytest.raises(ArgumentError, match=f"{op.name}: {name}=nan; accepted"):
            call(op, **{name: NAN})
    low, high = op.contract.ranges.get(name, (-INF, INF))
    for value in (
        math.nextafter(low, -INF) if not whole else low - 1,
        math.nextafter(high, INF) if not whole else high + 1,
    ):
        if name in op.contract.ranges and not low <= value <= high:
            with pytest.raises(ArgumentError, match=f"{op.name}: {name}="):
                call(op, **{name: value})


@pytest.mark.parametrize("eps", [-1e-5, -5e-324, NAN, INF, -INF, 1e39])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm", "adamw"])
def test_eps_is_a_finite_number_of_at_least_0(name: str, eps: float) -> None:
    op, x = ops.get(name), np.ones((2, 3), np.float32)
    given: dict[str, Any] = {t.name: x.copy() for t in op.tensors if not t.optional}
    more = dict(step=1) if name == "adamw" else {}
    for _ in range(2):  # no call of the kind is known, and one is
        with pytest.raises(ArgumentError, match=rf"{name}: eps=.*; accepted: 0 to 3\.4"):
            op(**given, **more, eps=eps)
        op(**given, **more, eps=0)


@pytest.mark.parametrize(
    ("name", "scalars"),
    [
        ("clip", dict(low=NAN, high=1.0)), ("clip", dict(low=0.0, high=NAN)), ("adamw", dict(step=1, loss_scale=INF)),
        ("adamw", dict(step=1, lr=INF)), ("adamw", dict(step=1, lr=-1.0)), ("adamw", dict(step=1, weight_decay=INF)),
        ("attention", dict(scale=NAN)), ("attention", dict(scale=-INF)), ("cross_entropy", dict(z_loss=INF)),
        ("cross_entropy", dict(label_smoothing=NAN)), ("dropout", dict(p=1.0, seed=1)),
    ],
)  # fmt: skip
def test_scalars_out_of_their_range(name: str, scalars: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=f"{name}: .*; accepted: "):
        call(ops.get(name), **scalars)


def test_a_clip_to_one_side_is_none_of_them() -> None:
    x = np.array([[-3.0, 0.5, 3.0]], np.float32)
    assert ops.clip(x, low=-INF, high=1.0).tolist() == [[-3.0, 0.5, 1.0]]
