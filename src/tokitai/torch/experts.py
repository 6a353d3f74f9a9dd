"""A layer of experts that autograd differentiates: `tokitai.experts`, whose bits it has.

All that the backward pass needs is saved by autograd: hooks for saved tensors see it, checkpointing does without it,
and it is freed with the graph.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError
from ..experts import (
    Experts,
    Logits,
    Saved,
    expert_layer,
    expert_layer_backward,
    run_experts,
    run_experts_backward,
)
from ..routing import Permutation, permutation
from .accumulators import Accumulators
from .assertions import refuse_capture
from .autocast import cast
from .custom_ops import plain
from .dispatch import custom_op
from .transforms import refuse_second_derivatives, refuse_transforms, refuse_vmap

_accumulators = Accumulators(ops.grouped_linear)


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
        ctx.inside = tuple(inside)
        ctx.options = dict(k=saved.k, renormalise=saved.renormalise, accumulator=saved.accumulator)
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
    logits: Logits = "f32", accumulator: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, logits and chosen experts for tokens x of (..., features); weights as in `tokitai.experts.Experts`, options as
    in `tokitai.experts.expert_layer`.

    y is in the shape of x, the logits are (tokens, experts) of float32 (with ``logits="storage"`` of the dtype of x),
    the chosen ones (tokens, k) of int32. Losses that are made of the logits, as `functional.router_z_loss`, pass their
    gradient on to x and the router. Without an ``accumulator`` it is that of the context `accumulate`, else ``"f32"``;
    it is that of the products of experts, and of the router's with ``logits="storage"``. Under autocast all tensors are
    cast to its dtype. Gradients of gradients are refused. Raises ArgumentError and UnknownNameError as `expert_layer`.
    """
    options: dict[str, Any] = dict(
        k=k, renormalise=renormalise, capacity=capacity, capacity_factor=capacity_factor, padding=padding, logits=logits
    )
    for t in (x, router, gate_up, down):
        refuse_transforms("experts", t)
    if x.is_cuda and any(value is not None for value in (capacity, capacity_factor, padding)):
        refuse_capture("experts", "a capacity or padding, for which the host sorts", "experts without them")
    # Autograd reshapes: what the function itself returns may be written to.
    tokens = x if x.ndim in (0, 2) else x.reshape(-1, x.shape[-1])
    if padding is not None and padding.shape == x.shape[:-1]:
        options["padding"] = padding.reshape(-1)
    given = cast("lower", (tokens, router, gate_up, down))
    assert given[0] is not None
    options["accumulator"] = _accumulators.chosen(accumulator, given[0].dtype, "experts")
    y, routed, chosen = _Layer.apply(*given, options)  # type: ignore[no-untyped-call]
    return y.view(x.shape), routed, chosen


# ------------------------------------------------------------------ experts that are chosen elsewhere
def chosen_experts(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, accumulator: str | None = None
) -> Tensor:
    """y of tokens x, (tokens, features), through the experts ``chosen`` for each, (tokens, k) of int32 or int64, added
    up with their ``weights`` of the same shape, which count in f32; ``gate_up`` and ``down`` as in
    `tokitai.experts.Experts`. No choice is dropped, so sizes do not depend on them: `torch.compile` has it in a graph.

    Gradients are those of x, weights, gate_up and down. ``accumulator`` as in `experts`. Under autocast all but the
    weights of choices are cast to its dtype. Raises ArgumentError for shapes that do not match and for an expert that
    is not there.
    """
    for t in (x, weights, gate_up, down):
        refuse_transforms("chosen_experts", t)
    if x.ndim != 2 or chosen.shape != weights.shape or chosen.ndim != 2 or len(chosen) != len(x):
        found = f"x of {tuple(x.shape)}, chosen of {tuple(chosen.shape)}, weights of {tuple(weights.shape)}"
        raise ArgumentError(f"chosen_experts: {found}; accepted: (tokens, features), (tokens, k), (tokens, k)")
    hidden = down.shape[-1] if down.ndim == 3 else 0
    wanted = dict(gate_up=(len(down), 2 * hidden, x.shape[1]), down=(len(down), x.shape[1], hidden))
    for name, t in (("gate_up", gate_up), ("down", down)):
        if tuple(t.shape) != wanted[name]:
            raise ArgumentError(
                f"chosen_experts: {name} of {tuple(t.shape)}; accepted beside x of {tuple(x.shape)}: {wanted[name]}"
            )
    given = cast("lower", (x, gate_up, down))
    assert given[0] is not None
    sums = _accumulators.chosen(accumulator, given[0].dtype, "chosen_experts")
    made: Tensor = _chosen(given[0], chosen, weights.float(), given[1], given[2], sums)[0]
    return made


Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@custom_op("tokitai::chosen_experts")
def _chosen(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, accumulator: str
) -> Tensors:  # fmt: skip
    there = permutation(plain(chosen), len(gate_up))
    given = (plain(t) for t in (gate_up, down))
    y, brought, hidden, made = run_experts(plain(x), plain(weights), there, *given, accumulator=accumulator)
    return y, brought, hidden, made, there.order, there.choice, there.place, there.counts


def _shapes(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, _: str) -> Tensors:
    places, features = chosen.shape[0] * chosen.shape[1], x.shape[1]
    whole = chosen.new_empty((), dtype=torch.int64)
    return (
        torch.empty_like(x), x.new_empty((places, features)), x.new_empty((places, down.shape[-1])),
        x.new_empty((places, features)), whole.new_empty((places,)), whole.new_empty((places,)),
        whole.new_empty(chosen.shape), whole.new_empty((len(gate_up),)),
    )  # fmt: skip


@custom_op("tokitai::chosen_experts_backward")
def _chosen_backward(
    dy: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, brought: Tensor, hidden: Tensor, made: Tensor,
    order: Tensor, choice: Tensor, place: Tensor, counts: Tensor, accumulator: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    there = Permutation(*map(plain, (order, choice, place, counts)))
    kept = (plain(t) for t in (gate_up, down, brought, hidden, made))
    found: tuple[Tensor, Tensor, Tensor, Tensor]
    found = run_experts_backward(plain(dy.contiguous()), plain(weights), there, *kept, accumulator=accumulator)
    return found


def _keep_chosen(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    *_, ctx.accumulator = inputs
    ctx.save_for_backward(*inputs[2:5], *output[1:])


def _chosen_gradients(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    refuse_transforms("chosen_experts", dy)
    dx, dweights, dgate_up, ddown = _chosen_backward(dy, *ctx.saved_tensors, ctx.accumulator)
    return dx, None, dweights, dgate_up, ddown, None


_chosen.register_fake(_shapes)
_chosen.register_autograd(_chosen_gradients, setup_context=_keep_chosen)
_chosen.register_vmap(refuse_vmap("chosen_experts"))
_chosen_backward.register_fake(lambda dy, *rest: tuple(torch.empty_like(t) for t in (dy, *rest[:3])))
_chosen_backward.register_autograd(refuse_second_derivatives("chosen_experts"))
_chosen_backward.register_vmap(refuse_vmap("chosen_experts"))
