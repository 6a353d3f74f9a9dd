"""A layer of experts that autograd differentiates: `tokitai.experts`, whose bits it has.

All that the backward pass needs is saved by autograd: hooks for saved tensors see it, checkpointing does without it,
and it is freed with the graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ..experts import Experts, Logits, Saved, expert_layer, expert_layer_backward
from ..routing import Permutation
from .autocast import cast
from .custom_ops import plain
from .transforms import refuse_second_derivatives, refuse_transforms


class _Layer(torch.autograd.Function):
    """What autograd takes as a whole: sizes inside depend on which experts are chosen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = Experts(*map(plain, (router, gate_up, down)))
        y, saved = expert_layer(plain(x), weights, **options)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(saved.experts)
        inside = {n: v for n, v in vars(saved).items() if isinstance(v, Tensor) and n != "x"}
        ctx.inside, ctx.options = tuple(inside), dict(k=saved.k, renormalise=saved.renormalise)
        ctx.save_for_backward(x, router, gate_up, down, *vars(saved.there).values(), *inside.values())
        return y, saved.logits, saved.experts

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dlogits: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        made: tuple[Tensor, ...] = _Gradient.apply(ctx, dy, dlogits, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return (*made, None)


class _Gradient(torch.autograd.Function):
    """The backward pass, which is not differentiated."""

    @staticmethod
    def forward(ctx: Any, of: Any, dy: Tensor | None, dlogits: Tensor | None, *kept: Tensor) -> tuple[Tensor, ...]:
        x, router, gate_up, down, *rest = map(plain, kept)
        places = len(dataclasses.fields(Permutation))
        there, inside = Permutation(*rest[:places]), dict(zip(of.inside, rest[places:], strict=True))
        saved = Saved(x=x.reshape(-1, x.shape[-1]), there=there, **inside, **of.options)
        slope = torch.zeros_like(x) if dy is None else plain(dy)
        dx, made = expert_layer_backward(slope, Experts(router, gate_up, down), saved, dlogits=plain(dlogits))
        return dx, made.router, made.gate_up, made.down

    backward = staticmethod(refuse_second_derivatives("experts"))


# Sizes inside depend on what is chosen: `torch.compile` goes on behind it.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def experts(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, *, k: int = 2, renormalise: bool = False,
    capacity: int | None = None, capacity_factor: float | None = None, padding: Tensor | None = None,
    logits: Logits = "f32",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, logits and chosen experts for tokens x of (..., features); weights as in `tokitai.experts.Experts`, options as
    in `tokitai.experts.expert_layer`.

    y is in the shape of x, the logits are (tokens, experts) of float32 (with ``logits="storage"`` of the dtype of x),
    the chosen ones (tokens, k) of int32. Losses that are made of the logits, as `functional.router_z_loss`, pass their
    gradient on to x and the router. Under autocast all tensors are cast to its dtype. Gradients of gradients are
    refused. Raises ArgumentError and UnknownNameError as `expert_layer`.
    """
    options: dict[str, Any] = dict(
        k=k, renormalise=renormalise, capacity=capacity, capacity_factor=capacity_factor, padding=padding, logits=logits
    )
    for t in (x, router, gate_up, down):
        refuse_transforms("experts", t)
    # Autograd reshapes: what the function itself returns may be written to.
    tokens = x if x.ndim in (0, 2) else x.reshape(-1, x.shape[-1])
    if padding is not None and padding.shape == x.shape[:-1]:
        options["padding"] = padding.reshape(-1)
    given = cast("lower", (tokens, router, gate_up, down))
    y, routed, chosen = _Layer.apply(*given, options)  # type: ignore[no-untyped-call]
    return y.view(x.shape), routed, chosen
