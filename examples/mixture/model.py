"""The model: blocks of attention and of experts between an embedding and the logits of the next token.

Tokens of (batch, length); each block adds two updates to a residual stream, which is normed as it is added to. Every
operation that rounds is one of tokitai's operators, but for the sum of the three losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from tokitai.errors import ArgumentError
from tokitai.experts import Logits
from tokitai.torch import functional
from tokitai.torch.nn import Embedding, Experts, Linear, RMSNorm

BALANCE, Z_LOSS = 0.01, 1e-3  # what the losses of a router weigh, as in the Switch and ST-MoE papers
ROTARY_BASE = 10_000.0
EPS = 1e-6  # of the norms


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    vocabulary: int
    features: int
    layers: int
    heads: int
    key_heads: int  # each is shared by heads / key_heads of the heads
    experts: int
    hidden: int  # of an expert
    chosen: int = 2  # experts of a token

    def __post_init__(self) -> None:
        if self.features % (2 * self.heads) or self.heads % self.key_heads:
            raise ArgumentError(
                f"{self.features} features, {self.heads} heads, {self.key_heads} of keys; accepted: features that are "
                "a multiple of 2 heads, heads that are a multiple of those of keys"
            )

    @property
    def dim(self) -> int:
        """Features of a head."""
        return self.features // self.heads


class Attention(Module):
    """Each token looks at itself and at those before it."""

    def __init__(self, shape: Shape, **more: Any) -> None:
        super().__init__()
        self.shape = shape
        wide = shape.heads + 2 * shape.key_heads
        self.project = Linear(shape.features, wide * shape.dim, bias=False, **more)
        self.out = Linear(shape.heads * shape.dim, shape.features, bias=False, **more)

    def forward(self, x: Tensor, place: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """(batch, length, features) -> the same; ``place`` as `Mixture.places` gives it."""
        s = self.shape
        position, frequency, limit = place
        batch, length, _ = x.shape
        heads = self.project(x).view(batch, length, -1, s.dim)
        # As attention reads them, (batch, heads, length, dim) in rows that follow one another: each is copied once.
        parts = torch.split(heads.transpose(1, 2), [s.heads, s.key_heads, s.key_heads], dim=1)
        q, k = (functional.rotary_heads(t, position, frequency) for t in parts[:2])
        v = parts[2].contiguous()
        met = functional.attention(q, k, v, limit, scale=1 / math.sqrt(s.dim), check=False)  # limits are at most length
        mixed: Tensor = self.out(met.transpose(1, 2).reshape(batch, length, -1))
        return mixed


class Block(Module):
    """Attention, then experts; each reads the normed stream, and the next norm adds what it gives."""

    def __init__(self, shape: Shape, logits: Logits, **more: Any) -> None:
        super().__init__()
        self.norm, self.norm_experts = (RMSNorm(shape.features, EPS, **more) for _ in range(2))
        self.attention = Attention(shape, **more)
        self.experts = Experts(shape.features, shape.hidden, shape.experts, shape.chosen, logits=logits, **more)

    def forward(
        self, stream: Tensor, update: Tensor | None, place: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The stream, what is still to be added to it, and the two losses of the router."""
        if update is None:
            y = self.norm(stream)
        else:
            stream, y = self.norm(update, stream)
        stream, y = self.norm_experts(self.attention(y, place), stream)
        update, routed, chosen = self.experts(y)
        return stream, update, self.experts.losses(routed, chosen)


class Mixture(Module):
    """Logits of the next token, or the losses. ``router_logits`` as `Experts` has ``logits``."""

    def __init__(
        self, shape: Shape, dtype: torch.dtype, device: torch.device | str, seed: int = 0, router_logits: Logits = "f32"
    ) -> None:
        super().__init__()
        self.shape = shape
        self._places: dict[tuple[int, torch.device], tuple[Tensor, Tensor, Tensor]] = {}
        more: dict[str, Any] = dict(dtype=dtype, device="meta")
        self.embedding = Embedding(shape.vocabulary, shape.features, **more)
        self.blocks = ModuleList(Block(shape, router_logits, **more) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.features, EPS, **more)
        self.logits = Linear(shape.features, shape.vocabulary, bias=False, **more)
        self.to_empty(device=device)
        if torch.device(device).type != "meta":
            self._draw(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw(self, generator: torch.Generator) -> None:
        """The first weights, from normal distributions: of standard deviation 1 for the embedding, 1/sqrt(inputs) for
        products; norms begin with 1. A generator of the host draws them in f32: the same bits on any device."""
        for name, p in self.named_parameters():
            if p.ndim == 1:
                p.fill_(1)
            else:
                std = 1.0 if name == "embedding.weight" else 1 / math.sqrt(p.shape[-1])
                p.copy_((torch.randn(p.shape, generator=generator, dtype=torch.float32) * std).to(p.dtype))

    def places(self, length: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Of each token its position, (length,), and how many it sees, (length,); the frequencies of rotation.
        Tensors of one length and device are made once, as a copy to a GPU waits for it."""
        made = self._places.get((length, device))
        if made is not None:
            return made
        position = torch.arange(length, dtype=torch.int32, device=device)
        steps = torch.arange(self.shape.dim // 2, dtype=torch.float64) / (self.shape.dim // 2)
        frequency = (ROTARY_BASE**-steps).to(torch.float32).to(device)  # powers on the host: the same on every device
        self._places[length, device] = made = (position, frequency, position + 1)
        return made

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """(batch, length) -> logits (batch, length, vocabulary), and of each block the two losses of its router."""
        place = self.places(tokens.shape[1], tokens.device)
        stream, update, losses = self.embedding(tokens), None, []
        for block in self.blocks:
            stream, update, of_router = block(stream, update, place)
            losses.append(of_router)
        _, y = self.norm(update, stream)
        return self.logits(y), losses

    def loss(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimised, and the mean cross-entropy of each token but the first, in nats."""
        logits, losses = self(tokens[:, :-1])
        loss: Tensor = functional.cross_entropy(logits, tokens[:, 1:], dim=-1)
        total = loss
        for uneven, large in losses:
            total = total + BALANCE / len(losses) * uneven + Z_LOSS / len(losses) * large
        return total, loss.detach()
