"""A layer of experts that autograd differentiates: `tokitai.experts`, whose bits it has."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..experts import Experts, Saved, expert_layer, expert_layer_backward
from .custom_ops import plain


class _Layer(torch.autograd.Function):
    """What autograd takes as a whole: sizes inside depend on which experts are chosen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, words: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = Experts(*map(plain, (router, gate_up, down)))
        y, saved = expert_layer(plain(x), weights, **words)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(saved.experts)
        ctx.save_for_backward(x, router, gate_up, down, saved.logits, saved.experts)
        # What is returned must not be held by the graph that made it; nor what the caller has.
        ctx.saved = dataclasses.replace(saved, x=None, logits=None, experts=None)
        return y, saved.logits, saved.experts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dlogits: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        x, router, gate_up, down, logits, chosen = map(plain, ctx.saved_tensors)
        saved: Saved = dataclasses.replace(ctx.saved, x=x.reshape(-1, x.shape[-1]), logits=logits, experts=chosen)
        slope = torch.zeros_like(x) if dy is None else dy
        dx, of = expert_layer_backward(slope, Experts(router, gate_up, down), saved, dlogits=dlogits)
        return dx, of.router, of.gate_up, of.down, None


# Sizes inside depend on what is chosen: `torch.compile` goes on behind it.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def experts(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, *, k: int = 2, renormalise: bool = False,
    capacity: int | None = None, padding: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, logits and chosen experts for tokens x of (..., features); weights as in `tokitai.experts.Experts`.

    y is in the shape of x, the logits are (tokens, experts), the chosen ones (tokens, k) of int32. Losses that are made
    of the logits, as `functional.router_z_loss`, pass their gradient on to x and the router. Raises ArgumentError.
    """
    words = dict(k=k, renormalise=renormalise, capacity=capacity, padding=padding)
    made: tuple[Tensor, Tensor, Tensor] = _Layer.apply(x, router, gate_up, down, words)  # type: ignore[no-untyped-call]
    return made
