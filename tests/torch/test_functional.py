"""Operators with gradients for torch: beside the operators themselves, to the bit, and beside torch in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokitai import ops
from tokitai.arrays.dlpack import as_numpy
from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.lang import Operator, Sizes
from tokitai.meaning import bounds
from tokitai.torch.linears import activation_backward
from tokitai.torch.products import embedding, linear

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS, INNER, COLS = (3, 5), 40, 24
SLOPE_OF_SLOPE = 0.8  # of GELU: |(2 - x^2) pdf(x)| <= 2 pdf(0)
BACKWARD = {"gelu": ops.gelu_erf_backward, "gelu_tanh": ops.gelu_tanh_backward, "silu": ops.silu_backward}


def noise(seed: int, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def layer(dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "x": noise(1, dtype, *ROWS, INNER), "weight": noise(2, dtype, COLS, INNER), "bias": noise(3, dtype, COLS),
        "residual": noise(4, dtype, *ROWS, COLS),
    }  # fmt: skip


def equal(a: Tensor | None, b: Any) -> bool:
    """To the bit."""
    assert a is not None
    return a.dtype == b.dtype and torch.equal(a.detach().view(torch.uint8), b.detach().view(torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "activation", "accumulator"),
    [(dtype, "gelu", "f32") for dtype in DTYPES]
    + [(torch.float16, activation, "f32") for activation in ("none", "gelu_tanh", "silu")]
    + [(torch.bfloat16, "gelu", "f64")],
)
def test_a_layer_and_its_gradients_are_those_of_the_operators(
    dtype: torch.dtype, activation: str, accumulator: str
) -> None:
    given, dy = layer(dtype), noise(5, dtype, *ROWS, COLS).detach()
    x, weight, bias, residual = (t.detach() for t in given.values())
    y = linear(**given, activation=activation, accumulator=accumulator)
    assert equal(y, ops.linear(x, weight, bias, residual, activation=activation, accumulator=accumulator))
    y.backward(dy)
    dh = dy
    if activation != "none":
        dh = BACKWARD[activation](dy, ops.linear(x, weight, bias, accumulator=accumulator))
    assert equal(given["x"].grad, ops.linear_backward_input(dh, weight, accumulator=accumulator))
    assert equal(given["weight"].grad, ops.linear_backward_weight(dh, x, accumulator=accumulator))
    assert equal(given["bias"].grad, ops.linear_backward_bias(dh))
    assert equal(given["residual"].grad, dy)


def limit(called: Operator, shape: tuple[int, int], tensors: Mapping[str, Any], present: tuple[str, ...] = ()) -> Any:
    """The bound on the rounding errors of an operator's first result."""
    arrays = {name: as_numpy(name, t.detach()) for name, t in tensors.items()}
    graph = called.trace(next(iter(arrays.values())).dtype, present)
    return bounds.evaluate(graph, arrays, shape, {})[graph.outputs[0].name][1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_beside_torch_in_float64(dtype: torch.dtype) -> None:
    """Through GELU. Its slope is taken at h, which is off by the rounding of h; what dh is off by passes through the
    last product with |weight|; the product rounds as well."""
    given, dy = layer(dtype), noise(5, dtype, *ROWS, COLS).detach()
    linear(**given, activation="gelu").backward(dy)
    wide = {name: t.detach().double().requires_grad_() for name, t in given.items()}
    h = torch.nn.functional.linear(wide["x"], wide["weight"], wide["bias"])
    (torch.nn.functional.gelu(h) + wide["residual"]).backward(dy.double())

    rows = ROWS[0] * ROWS[1]
    x, weight, bias, _ = (t.detach() for t in given.values())
    x, dy = x.reshape(rows, INNER), dy.reshape(rows, COLS)
    operands = {"x": x, "weight": weight, "bias": bias}
    of_h = limit(ops.linear, Sizes(rows, COLS, INNER), operands, ("bias",))
    stored = ops.linear(x, weight, bias)
    of_dh = limit(ops.gelu_erf_backward, (rows, COLS), {"dy": dy, "x": stored})
    of_dh = of_dh + np.abs(dy.double().numpy()) * SLOPE_OF_SLOPE * of_h
    dh = ops.gelu_erf_backward(dy, stored)
    of_dx = limit(ops.linear_backward_input, Sizes(rows, INNER, COLS), {"dy": dh, "weight": weight})
    of_dx = of_dx + of_dh @ np.abs(weight.double().numpy())

    got, want = (t["x"].grad.double().reshape(rows, INNER).numpy() for t in (given, wide))  # type: ignore[union-attr]
    assert (np.abs(got - want) <= of_dx).all()
    # A wrong activation would show: the bound is far below what the slope of another one makes.
    assert of_dx.max() < np.abs(want).max()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids_are", [torch.int32, torch.int64])
@pytest.mark.parametrize("padding", [None, 3, -2])
def test_an_embedding_and_its_gradient(dtype: torch.dtype, ids_are: torch.dtype, padding: int | None) -> None:
    table, dy = noise(6, dtype, 12, 8), noise(7, dtype, 4, 6, 8).detach()
    ids = torch.randint(0, 12, (4, 6), generator=torch.Generator().manual_seed(8)).to(ids_are)
    ids[0, :3], ids[1, :2] = 3, 10
    y = embedding(ids, table, padding)
    assert equal(y, table.detach()[ids.long()])
    y.backward(dy)
    more = {} if padding is None else {"padding_idx": padding}
    assert equal(table.grad, ops.embedding_backward(dy, ids, entries=12, **more))
    assert table.grad is not None
    for entry in () if padding is None else (padding % 12,):
        assert (ids == entry).any() and not table.grad[entry].any()


@pytest.mark.slow
def test_only_what_is_wanted_gets_a_gradient() -> None:
    x, weight = noise(1, torch.float32, 5, INNER).detach(), noise(2, torch.float32, COLS, INNER)
    linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None
    expanded = torch.ones(1).expand(5, COLS)  # the gradient of a sum: no memory of its own
    assert equal(weight.grad, ops.linear_backward_weight(expanded, x))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_knows_the_ops(dtype: torch.dtype) -> None:
    """Their schemas, shapes without values, gradients, and what a traced graph makes of them."""
    x, weight, bias, residual = layer(dtype).values()
    tight = {"rtol": 0.0, "atol": 0.0}
    several = {"activation": "gelu", "accumulator": "f64"}
    for given, words in (((x, weight), {}), ((x, weight, None, residual), {}), ((x, weight, bias, residual), several)):
        torch.library.opcheck(torch.ops.tokitai.linear.default, given, words, **tight)
    table, ids = noise(6, dtype, 12, 8), torch.tensor([[1, 11, 1], [0, 3, 3]])
    torch.library.opcheck(torch.ops.tokitai.embedding.default, (table, ids, None), **tight)
    torch.library.opcheck(torch.ops.tokitai.embedding.default, (table, ids, 3), **tight)


def test_wrong_arguments_are_named() -> None:
    x, weight, *_ = layer(torch.float32).values()
    with pytest.raises(ArgumentError, match="weight: shape"):
        linear(x, weight[:, :3])
    with pytest.raises(UnknownNameError, match="activation named 'relu'"):
        linear(x, weight, activation="relu")
    with pytest.raises(UnknownNameError, match="relu"):
        activation_backward(x, x, "relu")
    with pytest.raises(ArgumentError, match=r"ids\[1\]=12"):
        embedding(torch.tensor([0, 12]), noise(6, torch.float32, 12, 8))
    for padding_idx in (12, -13):
        with pytest.raises(ArgumentError, match=rf"padding_idx={padding_idx}; accepted: -12 to 11"):
            embedding(torch.tensor([0, 11]), noise(6, torch.float32, 12, 8), padding_idx)


@pytest.mark.slow
def test_gradients_of_gradients_are_refused() -> None:
    x, weight, *_ = layer(torch.float32).values()
    (dx,) = torch.autograd.grad(linear(x, weight).sum(), x, create_graph=True)
    with pytest.raises(ArgumentError, match="linear: the gradient of a gradient is not defined"):
        torch.autograd.grad(dx.sum(), weight)
