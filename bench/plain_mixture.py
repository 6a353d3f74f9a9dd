"""The model of `examples.mixture` in plain torch: its matrix units, fused attention, norms and grouped products.

Parameters have the names that those of the example have. One code serves all blocks: `torch.compile` compiles it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter

from examples.mixture.model import BALANCE, ROTARY_BASE, Z_LOSS, Shape


class Weight(Module):
    """One matrix or vector."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = Parameter(weight)

    def linear(self, x: Tensor) -> Tensor:
        """x weight^T."""
        return F.linear(x, self.weight)

    def norm(self, x: Tensor) -> Tensor:
        """x over the root of its mean square, times the weight."""
        return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of (batch, length, heads, dim)."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, low * sin + high * cos], dim=-1)


class Attention(Module):
    """Causal attention of grouped heads."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.project, self.out = (Weight(weights[f"attention.{n}.weight"]) for n in ("project", "out"))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Of x (batch, length, features)."""
        s, (batch, length, _) = self.shape, x.shape
        heads = self.project.linear(x).view(batch, length, -1, s.dim)
        q, k, v = torch.split(heads, [s.heads, s.key_heads, s.key_heads], dim=2)
        q, k, v = (t.transpose(1, 2) for t in (turned(q, cos, sin), turned(k, cos, sin), v))
        met = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out.linear(met.transpose(1, 2).reshape(batch, length, -1))


class Experts(Module):
    """A layer of experts without capacity, and its losses."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.router, self.gate_up, self.down = (
            Parameter(weights[f"experts.{n}"]) for n in ("router", "gate_up", "down")
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of x (batch, length, features)."""
        s, flat = self.shape, x.reshape(-1, self.shape.features)
        logits = F.linear(flat, self.router).float()
        p = torch.softmax(logits, dim=-1)
        best, chosen = torch.topk(p, s.chosen, dim=-1)
        weight = (best / best.sum(-1, keepdim=True)).reshape(-1, 1).to(x.dtype)
        order = torch.argsort(chosen.reshape(-1), stable=True)
        counts = (chosen.reshape(-1, 1) == torch.arange(s.experts, device=x.device)).sum(0)  # of a size known ahead
        ends = counts.cumsum(0).to(torch.int32)
        brought = flat[order // s.chosen]
        gated = torch._grouped_mm(brought, self.gate_up.transpose(1, 2), offs=ends)
        gate, up = gated.chunk(2, dim=-1)
        made = torch._grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        y = torch.zeros_like(flat).index_add(0, order // s.chosen, made * weight[order])
        uneven = s.experts * (counts / len(order) * p.mean(0)).sum()
        large = (torch.logsumexp(logits, dim=-1) ** 2).mean()
        return y.view(x.shape), (BALANCE * uneven + Z_LOSS * large) / s.layers


class Block(Module):
    """Attention and experts, each behind a norm and beside what it is given."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Shape) -> None:
        super().__init__()
        self.norm, self.norm_experts = (Weight(weights[f"{n}.weight"]) for n in ("norm", "norm_experts"))
        self.attention, self.experts = Attention(weights, shape), Experts(weights, shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Of x (batch, length, features)."""
        x = x + self.attention(self.norm.norm(x), cos, sin)
        y, more = self.experts(self.norm_experts.norm(x))
        return x + y, more


class Plain(Module):
    """The losses of the model, from the weights of `Mixture` by name. Sequences have at most ``length`` tokens."""

    def __init__(self, weights: Mapping[str, Tensor], shape: Shape, length: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding, self.norm, self.logits = (
            Weight(weights[f"{n}.weight"]) for n in ("embedding", "norm", "logits")
        )
        begins = [f"blocks.{i}." for i in range(shape.layers)]
        self.blocks = ModuleList(
            Block({n.removeprefix(b): w for n, w in weights.items() if n.startswith(b)}, shape) for b in begins
        )
        half, w = shape.dim // 2, weights["norm.weight"]
        angle = torch.arange(length)[:, None] * ROTARY_BASE ** (-torch.arange(half) / half)
        self.cos, self.sin = (t[:, None].to(w.device, w.dtype) for t in (angle.cos(), angle.sin()))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to differentiate, and the mean loss of a token, of (batch, length + 1) tokens."""
        x, routed = F.embedding(tokens[:, :-1], self.embedding.weight), torch.zeros((), device=tokens.device)
        for block in self.blocks:
            x, more = block(x, self.cos, self.sin)
            routed = routed + more
        loss = self.cross_entropy(x, tokens[:, 1:])
        return loss + routed, loss.detach()

    def cross_entropy(self, x: Tensor, target: Tensor) -> Tensor:
        """The mean over all tokens."""
        logits = self.logits.linear(self.norm.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    def compile_parts(self, backend: Any) -> None:
        """Have torch compile a block, for all of them, and what follows the last."""
        options: dict[str, Any] = dict(backend=backend, dynamic=False)
        for block in self.blocks:
            block.compile(**options)
        self.cross_entropy = torch.compile(self.cross_entropy, **options)  # type: ignore[method-assign]
