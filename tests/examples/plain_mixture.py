"""The mixture of experts in plain torch, at any precision: the textbook for the one on tokitai's operators."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.mixture.model import BALANCE, ROTARY_BASE, Z_LOSS, Shape


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def turned(x: Tensor) -> Tensor:
    """(batch, length, heads, dim), each by the angle of its position."""
    length, half = x.shape[1], x.shape[-1] // 2
    angle = torch.arange(length, dtype=x.dtype)[:, None] * ROTARY_BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, low * sin + high * cos], dim=-1)


def attended(x: Tensor, project: Tensor, out: Tensor, s: Shape) -> Tensor:
    batch, length, _ = x.shape
    heads = (x @ project.T).view(batch, length, -1, s.dim)
    q, k, v = heads.split([s.heads, s.key_heads, s.key_heads], dim=2)
    shared = s.heads // s.key_heads
    q, k, v = turned(q).transpose(1, 2), turned(k).transpose(1, 2), v.transpose(1, 2)
    k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(s.dim)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    met = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v
    return met.transpose(1, 2).reshape(batch, length, -1) @ out.T


def through_experts(x: Tensor, weights: dict[str, Tensor], s: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Every token through every expert; those that are not chosen weigh nothing."""
    flat = x.reshape(-1, s.features)
    logits = flat @ weights["router"].T
    p = torch.softmax(logits, dim=-1)
    best = torch.topk(p, s.chosen, dim=-1)
    chosen = best.values / best.values.sum(-1, keepdim=True)
    weight = torch.zeros_like(p).scatter(1, best.indices, chosen)
    gate, up = torch.einsum("tf,ehf->teh", flat, weights["gate_up"]).chunk(2, dim=-1)
    made = torch.einsum("teh,efh->tef", F.silu(gate) * up, weights["down"])
    load = torch.zeros_like(p).scatter(1, best.indices, 1.0).sum(0) / (len(flat) * s.chosen)
    uneven = s.experts * (load * p.mean(0)).sum()
    large = (torch.logsumexp(logits, dim=-1) ** 2).mean()
    return (weight[..., None] * made).sum(1).view(x.shape), uneven, large


def loss_of(weights: dict[str, Tensor], s: Shape, tokens: Tensor) -> Tensor:
    """What is minimised, of (batch, length) tokens."""
    x = weights["embedding.weight"][tokens[:, :-1]]
    routed = torch.zeros((), dtype=x.dtype)
    for i in range(s.layers):
        w = {n.removeprefix(f"blocks.{i}."): t for n, t in weights.items() if n.startswith(f"blocks.{i}.")}
        y = normed(x, w["norm.weight"])
        x = x + attended(y, w["attention.project.weight"], w["attention.out.weight"], s)
        of_experts = {n.removeprefix("experts."): t for n, t in w.items() if n.startswith("experts.")}
        y, uneven, large = through_experts(normed(x, w["norm_experts.weight"]), of_experts, s)
        x = x + y
        routed = routed + (BALANCE * uneven + Z_LOSS * large) / s.layers
    logits = normed(x, weights["norm.weight"]) @ weights["logits.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) + routed
