"""A residual connection with a norm has the bits of an addition followed by the norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops
from tokitai.lang import Operator

NORMS = {"layer": (ops.add_layer_norm, ops.layer_norm), "rms": (ops.add_rms_norm, ops.rms_norm)}
BACKWARDS = {
    "layer": (ops.add_layer_norm_backward, ops.layer_norm_backward, ["mean", "rstd"]),
    "rms": (ops.add_rms_norm_backward, ops.rms_norm_backward, ["rstd"]),
}


def weights(op: Operator, cols: int, dtype: Any, present: bool) -> dict[str, Any]:
    rng = np.random.default_rng(cols)
    names = [t.name for t in op.tensors if t.space == "c"]
    return {n: array(rng.standard_normal(cols), dtype) for n in names} if present else {}


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("kind", sorted(NORMS))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (3, 1000)])
def test_forward_is_an_addition_and_a_norm(kind: str, dtype: Any, weighted: bool, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(shape)
    x = array(rng.standard_normal(shape) * 3, dtype)
    residual = array(np.ldexp(rng.standard_normal(shape), rng.integers(-8, 9, shape)), dtype)
    both, norm = NORMS[kind]
    given = weights(norm, shape[1], dtype, weighted)
    got = run(both, x=x, residual=residual, **given, eps=1e-3)
    h = (x.astype(np.float32) + residual.astype(np.float32)).astype(dtype)
    assert same_bits(got.pop("h"), h)
    want = run(norm, x=h, **given, eps=1e-3)
    assert set(got) == set(want) and all(same_bits(got[n], want[n]) for n in want)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize("kind", sorted(BACKWARDS))
@pytest.mark.parametrize("passed", [True, False])
def test_backward_is_the_norms_and_what_passes(kind: str, dtype: Any, passed: bool) -> None:
    """dx = dh + the norm's gradient in f32, rounded once: the norm is run in f32 on the same values, widened."""
    shape = (70, 41)
    rng = np.random.default_rng(2)
    dy, dh, h = (array(rng.standard_normal(shape) * s, dtype) for s in (1, 30, 2))
    both, norm, saved = BACKWARDS[kind]
    gamma = array(rng.standard_normal(41), dtype)
    forward = run(NORMS[kind][1], x=h, gamma=gamma, **({"beta": gamma} if kind == "layer" else {}), eps=1e-3)
    kept = {n: forward[n] for n in saved}
    got = run(both, dy=dy, **({"dh": dh} if passed else {}), h=h, gamma=gamma, **kept)
    wide = {n: a.astype(np.float32) for n, a in (("dy", dy), ("x", h), ("gamma", gamma))}
    want = run(norm, **wide, **kept)
    want["dx"] = want["dx"] + dh.astype(np.float32) if passed else want["dx"]
    assert set(got) == set(want) and all(same_bits(got[n], want[n].astype(dtype)) for n in want)


@pytest.mark.parametrize("kind", sorted(NORMS))
def test_the_sum_is_rounded_before_the_norm(kind: str) -> None:
    """2048 + 1 is 2048 in f16: a norm of the unrounded sum would see the one."""
    x, residual = array([[2048.0, 2048.0]], F16), array([[0.0, 1.0]], F16)
    got = run(NORMS[kind][0], x=x, residual=residual, eps=1e-5)
    assert got["h"].tolist() == [[2048.0, 2048.0]] and got["y"][0, 0] == got["y"][0, 1]


@pytest.mark.parametrize("kind", sorted(NORMS))
def test_inputs_are_only_read(kind: str) -> None:
    x = array(np.random.default_rng(1).standard_normal((4, 9)))
    residual = x * 2
    before = (x.tobytes(), residual.tobytes())
    run(NORMS[kind][0], x=x, residual=residual, eps=1e-5)
    assert before == (x.tobytes(), residual.tobytes())
