"""AdamW over one tensor or a list of any number of tensors, in place and in one pass.

Moments are f32 whatever the weights are stored in. Weights are updated in f32: from an f32 master copy where one is
given, and stored by rounding to nearest or, so that small updates are not lost, to one of the two neighbours at random.
A gradient that is infinite or NaN anywhere in the list leaves everything as it is, to the bit.

Bias corrections are f64 on the host, rounded once: lr/(1 - beta1**step) and 1/sqrt(1 - beta2**step).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..lang import (
    LARGEST,
    Contract,
    HardInput,
    Matrix,
    Outputs,
    convert,
    element_word,
    f32,
    fma,
    operator,
    outputs,
    round_stochastic,
    sqrt,
    storage,
    tensor_index,
    total_max,
    u32,
    where,
)  # fmt: skip
from .dropouts import philox, philox_reference

BELOW_ONE = math.nextafter(1, 0)
CONTRACT = Contract(
    domain="finite weights and moments; second moments of at least 0",
    lists=True,
    max_cols=2**40,
    defaults={"step": 3, "lr": 1e-3, "weight_decay": 0.1, "loss_scale": 8.0, "seed": 7},
    draw={"exp_avg_sq": "positive"},
    ranges={
        "step": (1, 2**32 - 1),
        "lr": (0, LARGEST),
        "beta1": (0, BELOW_ONE),  # at 1 the bias correction divides by zero
        "beta2": (0, BELOW_ONE),
        "eps": (0, LARGEST),
        "weight_decay": (0, LARGEST),
        "loss_scale": (5e-324, sys.float_info.max),  # at infinity every gradient counts as 0
        "seed": (0, 2**32 - 1),
    },
)


@operator(contract=CONTRACT)
def adamw(
    param: Matrix[storage], grad: Matrix[storage], exp_avg: Matrix[f32], exp_avg_sq: Matrix[f32],
    master: Matrix[f32] | None, *, step: int, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999,
    eps: float = 1e-8, weight_decay: float = 0.01, loss_scale: float = 1.0, seed: int = 0,
    rounding: Literal["nearest", "stochastic"] = "nearest",
) -> Outputs:  # fmt: skip
    """p = p - lr weight_decay p - lr m_hat / (sqrt(v_hat) + eps), with moments m and v of the unscaled gradient."""
    finite = total_max(abs(grad)) < math.inf  # false for NaN as well
    g = grad * (1 / loss_scale)
    m = fma(g - exp_avg, 1 - beta1, exp_avg)
    v = fma(exp_avg_sq, beta2, g * g * (1 - beta2))
    size = fma(sqrt(v), 1 / sqrt(1 - beta2**step), eps)
    p = param if master is None else master
    decayed = fma(p, -(lr * weight_decay), p)
    new = fma(m / size, -(lr / (1 - beta1**step)), decayed)
    results = dict(exp_avg=where(finite, m, exp_avg), exp_avg_sq=where(finite, v, exp_avg_sq))
    if master is not None:
        results["master"] = where(finite, new, master)
    if rounding == "stochastic":
        key = (convert(seed, u32), convert(step, u32))
        random = philox(element_word(0), element_word(1), *key, third=tensor_index())
        new = round_stochastic(new, random, storage)
    return outputs(param=where(finite, new, param), **results)


@adamw.set_textbook
def textbook(
    param: Any, grad: Any, exp_avg: Any, exp_avg_sq: Any, master: Any = None, *, step: float, lr: float, beta1: float,
    beta2: float, eps: float, weight_decay: float, loss_scale: float, seed: float = 0, rounding: str = "nearest",
) -> dict[str, Any]:  # fmt: skip
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2, with a schedule of 1."""
    if not np.isfinite(grad).all():
        kept = dict(param=param, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
        return kept if master is None else {**kept, "master": master}
    g = grad / loss_scale
    m = beta1 * exp_avg + (1 - beta1) * g
    v = beta2 * exp_avg_sq + (1 - beta2) * g * g
    p = param if master is None else master
    update = (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + eps)
    new = p - lr * weight_decay * p - lr * update
    return dict(param=new, exp_avg=m, exp_avg_sq=v, **({} if master is None else dict(master=new)))


@adamw.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Inputs that tell the places of eps apart, decay from L2, a step that is skipped from one that is not."""
    zero = dict(exp_avg=[[0.0]], exp_avg_sq=[[0.0]])
    plain = dict(step=1, lr=1e-3, weight_decay=0.0, loss_scale=1.0)
    yield HardInput(
        "zero gradient",
        dict(param=[[1.0, -2.0, 0.5]], grad=[[0.0] * 3], exp_avg=[[0.0] * 3], exp_avg_sq=[[0.0] * 3]),
        plain,
    )
    yield HardInput("gradient of the size of eps", dict(param=[[1.0]], grad=[[1e-8]], **zero), plain)
    yield HardInput("decay alone", dict(param=[[2.0]], grad=[[0.0]], **zero), {**plain, "lr": 0.1, "weight_decay": 0.1})
    yield HardInput(
        "a late step",
        dict(param=[[1.0]], grad=[[0.125]], exp_avg=[[0.125]], exp_avg_sq=[[0.015625]]),
        {**plain, "step": 100000},
    )
    for bad in (math.inf, -math.inf, math.nan):
        yield HardInput(f"gradient {bad}", dict(param=[[1.0, 2.0, 3.0]], grad=[[1.0, bad, 1.0]]), in_domain=False)
    yield HardInput("loss scale", dict(param=[[1.0, -1.0]], grad=[[1024.0, -2048.0]]), dict(loss_scale=1024.0))


def stochastic_bits(tensor: int, element: int, seed: int, step: int) -> int:
    """The 32 random bits of an element, on Python integers: what the definition must draw."""
    return int(philox_reference((element & 0xFFFFFFFF, element >> 32, tensor, 0), (seed, step))[0])
