"""The state of an optimizer, as the AdamW tests make it and step it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from running import F32, array

from tokitai import ops

Array = np.ndarray[Any, Any]
State = dict[str, list[Array]]
PLAIN = dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, loss_scale=1.0, seed=0)


def state(sizes: Sequence[int], dtype: Any, seed: int, master: bool = False) -> State:
    """Weights, gradients and moments as they are in the middle of a training run."""
    rng = np.random.default_rng(seed)
    wide = [rng.standard_normal(n, np.float32) for n in sizes]
    made = dict(
        param=[w.astype(dtype) for w in wide],
        grad=[(rng.standard_normal(n, np.float32) * np.float32(1e-2)).astype(dtype) for n in sizes],
        exp_avg=[rng.standard_normal(n, np.float32) * np.float32(1e-3) for n in sizes],
        exp_avg_sq=[rng.random(n, np.float32) * np.float32(1e-4) for n in sizes],
    )
    return made | (dict(master=wide) if master else {})


def copied(s: State) -> State:
    return {n: [a.copy() for a in arrays] for n, arrays in s.items()}


def step(s: State, threads: int = 1, **scalars: Any) -> None:
    ops.adamw(**s, **{**PLAIN, **scalars}, threads=threads)


def one(p: Any, g: Any, dtype: Any = F32, m: Any = 0.0, v: Any = 0.0, **scalars: Any) -> dict[str, Any]:
    """One tensor, one step."""
    values = dict(param=array(p, dtype).reshape(-1), grad=array(g, dtype).reshape(-1))
    moments = {n: np.full(values["param"].shape, x, np.float32) for n, x in (("exp_avg", m), ("exp_avg_sq", v))}
    ops.adamw(**values, **moments, **{**PLAIN, "step": 1, **scalars})
    return {**values, **moments}


def bits_of(s: State) -> list[bytes]:
    return [a.tobytes() for n in sorted(s) for a in s[n] if a.size]
