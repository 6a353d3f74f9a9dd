"""Modules of torch made of the operators: a layer's weights beside the function that uses them.

Weights begin with what a generator of the host gives in f32, rounded once to the format that they are stored in: on a
card a model begins with the bits that it has on its host. (Where there is no AVX2, torch draws other normal numbers.)
Names and shapes of weights are torch's, so that its checkpoints load.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from . import functional
from .experts import experts

Device = torch.device | str


def drawn(*shape: int, std: float, generator: torch.Generator | None, dtype: torch.dtype, device: Device) -> Parameter:
    """Weights from a normal distribution of mean 0."""
    values = torch.randn(shape, generator=generator, dtype=torch.float32) * std
    return Parameter(values.to(dtype).to(device))


class Linear(Module):
    """activation(x weight^T + bias) + residual; weights of standard deviation 1/sqrt(inputs), a bias of 0."""

    def __init__(
        self, inputs: int, outputs: int, bias: bool = True, activation: str = "none", *,
        dtype: torch.dtype = torch.float32, device: Device = "cpu", generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        std = 1 / math.sqrt(max(inputs, 1))
        self.weight = drawn(outputs, inputs, std=std, generator=generator, dtype=dtype, device=device)
        self.bias = Parameter(torch.zeros(outputs, dtype=dtype, device=device)) if bias else None
        self.activation = activation

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        y: Tensor = functional.linear(x, self.weight, self.bias, residual, self.activation)
        return y


class Embedding(Module):
    """Rows of a table, of standard deviation 1."""

    def __init__(
        self, entries: int, features: int, padding_idx: int | None = None, *, dtype: torch.dtype = torch.float32,
        device: Device = "cpu", generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = drawn(entries, features, std=1.0, generator=generator, dtype=dtype, device=device)
        self.padding_idx = padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """(...) of int32 or int64 -> (..., features)."""
        y: Tensor = functional.embedding(ids, self.weight, self.padding_idx)
        return y


class _Norm(Module):
    weight: Parameter

    def __init__(self, features: int, eps: float, dtype: torch.dtype, device: Device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(torch.ones(features, dtype=dtype, device=device))


class LayerNorm(_Norm):
    """Rows of mean 0 and variance 1, times weight, plus bias."""

    def __init__(
        self, features: int, eps: float = 1e-5, *, dtype: torch.dtype = torch.float32, device: Device = "cpu"
    ) -> None:
        super().__init__(features, eps, dtype, device)
        self.bias = Parameter(torch.zeros_like(self.weight))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """y; or with a residual h = x + residual and y, which is made of h, in one pass."""
        if residual is None:
            return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return functional.add_layer_norm(x, residual, self.weight, self.bias, eps=self.eps)


class RMSNorm(_Norm):
    """Rows of mean square 1, times weight."""

    def __init__(
        self, features: int, eps: float = 1e-6, *, dtype: torch.dtype = torch.float32, device: Device = "cpu"
    ) -> None:
        super().__init__(features, eps, dtype, device)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """y; or with a residual h = x + residual and y, which is made of h, in one pass."""
        if residual is None:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return functional.add_rms_norm(x, residual, self.weight, eps=self.eps)


class Experts(Module):
    """Each token through the k experts that a router chooses for it: gated layers of ``hidden`` values."""

    def __init__(
        self, features: int, hidden: int, count: int, k: int = 2, *, renormalise: bool = True,
        dtype: torch.dtype = torch.float32, device: Device = "cpu", generator: torch.Generator | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.k, self.renormalise = k, renormalise
        words: dict[str, Any] = dict(generator=generator, dtype=dtype, device=device)
        std, inner = 1 / math.sqrt(max(features, 1)), 1 / math.sqrt(max(hidden, 1))
        self.router = drawn(count, features, std=std, **words)
        self.gate_up = drawn(count, 2 * hidden, features, std=std, **words)
        self.down = drawn(count, features, hidden, std=inner, **words)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y, logits and chosen experts, as `experts.experts`."""
        made: tuple[Tensor, Tensor, Tensor] = experts(
            x, self.router, self.gate_up, self.down, k=self.k, renormalise=self.renormalise
        )
        return made

    def losses(self, logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How unevenly experts are used, 1 where evenly; and the mean square of log(sum(exp(logits)))."""
        load, probability = functional.expert_load(logits, chosen, k=self.k, check=False)
        return functional.load_balance_loss(load, probability), functional.router_z_loss(logits, reduction="mean")
