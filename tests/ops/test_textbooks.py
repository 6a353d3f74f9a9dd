"""Definitions against textbooks, textbooks against SciPy and torch: a definition that is wrong from the start."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from running import textbook
from scipy import special

from tokitai import ops
from tokitai.elementary.exact import REAL
from tokitai.formats import FORMATS
from tokitai.lang import Operator
from tokitai.meaning import real
from tokitai.verification import cases
from tokitai.verification.verdict import Variant, variants

Array = np.ndarray[Any, Any]
EVERY = [
    pytest.param(op, dtype, v, id=f"{op.name} {dtype}{v.flags(op)}")
    for op in ops.registry().values()
    for dtype in op.contract.formats
    for v in variants(op, dtype)
]


@pytest.mark.parametrize(("op", "dtype", "variant"), EVERY)
def test_the_definition_is_what_the_textbook_says(op: Operator, dtype: str, variant: Variant) -> None:
    """Both as real numbers, on noise. Each operation rounds to 2^-53 or better; sums of n terms do so n times. Host
    scalars are f32 numbers, so that it does not matter where they are rounded."""
    graph = op.trace(dtype, variant.present, dict(variant.options))
    for seed, shape in enumerate([(5, 33), (1, 1), (2, 2), (40, 3)]):
        case = cases.seeded(op, graph, "normal", shape, seed)
        params = {name: float(np.float32(value)) for name, value in case.params.items()}
        want = textbook(op, graph, case.tensors, case.shape, params)
        got = real.evaluate(graph, case.tensors, case.shape, params)
        roundings = (len(graph.nodes) + sum(shape)) * 2.0**-53
        for o in graph.outputs:
            expected = np.broadcast_to(np.asarray(want[o.name], REAL), got[o.name].shape)
            # What cancels is as large as the largest operand: an input, or a product with 1/sqrt(eps) of a flat row.
            largest = max(float(np.abs(a.astype(REAL)).max()) for a in (*case.tensors.values(), expected))
            scale = max(1.0, largest) ** 3 * (1 / math.sqrt(params.get("eps", 1.0)) if shape[1] == 1 else 1)
            # A result that the definition rounds, as it goes on with it, is half an ulp away from the textbook's.
            store = 2.0 ** -FORMATS[o.format].precision if o.node.op == "round_to" else 0
            bound = roundings * scale + store * np.abs(expected)
            infinite = np.isinf(expected) & (got[o.name] == expected)
            assert (infinite | (np.abs(got[o.name] - expected) <= bound)).all(), f"{o.name} at {shape}"


def test_every_operator_has_a_textbook_with_a_source() -> None:
    for op in ops.registry().values():
        assert op.textbook is not None and op.textbook.__doc__, op.name


# ------------------------------------------------------------------ SciPy and torch
RNG = np.random.default_rng(11)
ROWS, COLS = 6, 37
X, DY = RNG.standard_normal((ROWS, COLS)) * 2 + 0.5, RNG.standard_normal((ROWS, COLS))
GAMMA, BETA = RNG.standard_normal((1, COLS)), RNG.standard_normal((1, COLS))


def close(got: Any, want: Any) -> None:
    """Within the roundings of a few sums of COLS terms in f64, of the largest element."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 8 * COLS * 2.0**-53 * max(1.0, np.abs(want).max())


def leaf(values: Array) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_softmax_is_scipys_and_its_gradient_is_torchs() -> None:
    y = ops.softmax.textbook(X)["y"]
    close(y, special.softmax(X, axis=1))
    x = leaf(X)
    torch.softmax(x, 1).backward(torch.tensor(DY))
    close(ops.softmax_backward.textbook(DY, y)["dx"], x.grad)


def test_gelu_is_scipys_and_torchs() -> None:
    close(ops.gelu_erf.textbook(X)["y"], X * special.ndtr(X))
    close(ops.gelu_erf.textbook(X)["y"], X * (1 + special.erf(X / math.sqrt(2))) / 2)
    for op, backward, kind in [
        (ops.gelu_erf, ops.gelu_erf_backward, "none"),
        (ops.gelu_tanh, ops.gelu_tanh_backward, "tanh"),
    ]:
        x = leaf(X)
        y = torch.nn.functional.gelu(x, approximate=kind)
        y.backward(torch.tensor(DY))
        close(op.textbook(X)["y"], y.detach())
        close(backward.textbook(DY, X)["dx"], x.grad)


@pytest.mark.parametrize("weighted", [True, False])
def test_layer_norm_is_torchs(weighted: bool) -> None:
    eps = 0.125  # large enough to be seen if it is in the wrong place
    x, gamma, beta = leaf(X), leaf(GAMMA[0]), leaf(BETA[0])
    y = torch.nn.functional.layer_norm(x, (COLS,), gamma if weighted else None, beta if weighted else None, eps)
    y.backward(torch.tensor(DY))
    mine = dict(gamma=GAMMA, beta=BETA) if weighted else {}
    got = ops.layer_norm.textbook(X, **mine, eps=eps)
    close(got["y"], y.detach())
    back = ops.layer_norm_backward.textbook(DY, X, got["mean"], got["rstd"], **({"gamma": GAMMA} if weighted else {}))
    close(back["dx"], x.grad)
    if weighted:
        close(back["dgamma"][0], gamma.grad)
        close(back["dbeta"][0], beta.grad)


@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_is_torchs(weighted: bool) -> None:
    eps = 0.125
    x, gamma = leaf(X), leaf(GAMMA[0])
    y = torch.nn.functional.rms_norm(x, (COLS,), gamma if weighted else None, eps)
    y.backward(torch.tensor(DY))
    mine = {"gamma": GAMMA} if weighted else {}
    got = ops.rms_norm.textbook(X, **mine, eps=eps)
    close(got["y"], y.detach())
    back = ops.rms_norm_backward.textbook(DY, X, got["rstd"], **mine)
    close(back["dx"], x.grad)
    if weighted:
        close(back["dgamma"][0], gamma.grad)
