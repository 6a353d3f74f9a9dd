"""A layer of experts that autograd differentiates: `tokitai.experts`, whose bits it has.

All that the backward pass needs is saved by autograd: hooks for saved tensors see it, checkpointing does without it,
and it is freed with the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError, UnknownNameError
from ..experts import (
    LOGITS,
    Experts,
    Logits,
    Saved,
    check_sizes,
    expert_layer,
    expert_layer_backward,
    run_experts,
    run_experts_backward,
)
from ..routing import Permutation, permutation
from .accumulators import Accumulators
from .assertions import refuse_capture
from .autocast import cast
from .batching import Rule, one_by_one, together
from .custom_ops import plain
from .dispatch import CustomOp, custom_op
from .transforms import refuse_second_derivatives, refuse_transforms

_accumulators = Accumulators(ops.grouped_linear)


Tensors = tuple[Tensor, ...]
INSIDE = ("logits", "experts", "weights", "sorted", "hidden", "made")  # what `Saved` holds beside x and the places


def _as_more_tokens(run: CustomOp, tokens: int, results: int, dropping: tuple[int, ...] = ()) -> Rule:
    """The batching rule of experts: more tokens, which the first arguments and results are of. A batch of weights, and
    tokens of which arguments in the places ``dropping`` may drop some, are taken one by one."""
    each = one_by_one(run)

    def rule(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        moved = together(info.batch_size, [i < tokens for i in range(len(given))], in_dims, given)
        if moved is None or any(given[i] is not None for i in dropping):
            return each(info, in_dims, *given)
        lead = moved[0].shape[:2]
        made = run(*(t.reshape(-1, *t.shape[2:]) for t in moved[:tokens]), *moved[tokens:])
        whole = [t.reshape(*lead, *t.shape[1:]) for t in made[:results]]
        return (*whole, *made[results:]), (0,) * results + (None,) * (len(made) - results)

    return rule


# A choice that is dropped has no place: tensors over places end in rows that nobody reads, so that no size of a result
# depends on what is chosen. How many places there are is a number of the host.
@custom_op("tokitai::experts")
def _layer(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, padding: Tensor | None, k: int, renormalise: bool,
    capacity: int | None, capacity_factor: float | None, logits: str, accumulator: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    y, saved = expert_layer(
        plain(x), Experts(*map(plain, (router, gate_up, down))), k=k, renormalise=renormalise, capacity=capacity,
        capacity_factor=capacity_factor, padding=padding, logits=logits, accumulator=accumulator,  # type: ignore[arg-type]
    )  # fmt: skip
    count, places = saved.weights.numel(), len(saved.there.order)
    order, choice, sorted_, hidden, made = (
        t if len(t) == count > 0 else torch.cat([t[:count], t.new_zeros(count - min(len(t), count), *t.shape[1:])])
        for t in (saved.there.order, saved.there.choice, saved.sorted, saved.hidden, saved.made)
    )
    kept = torch.tensor(places, dtype=torch.int64, device="cpu")
    return (
        y, saved.logits, saved.experts, saved.weights, sorted_, hidden, made, order, choice, saved.there.place,
        saved.there.offsets, kept,
    )  # fmt: skip


def _layer_shapes(
    x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, padding: Tensor | None, k: int, renormalise: bool,
    capacity: int | None, capacity_factor: float | None, logits: str, accumulator: str,
) -> Tensors:  # fmt: skip
    check_sizes(x, Experts(router, gate_up, down))
    tokens, count = x.shape[0], x.shape[0] * k
    of_float = torch.float32 if logits == "f32" else x.dtype
    chosen = x.new_empty((tokens, k), dtype=torch.int32)
    whole = x.new_empty((count,), dtype=torch.int64)
    return (
        x.new_empty(x.shape), x.new_empty((tokens, len(router)), dtype=of_float), chosen,
        x.new_empty((tokens, k), dtype=torch.float32), x.new_empty((count, x.shape[1])),
        x.new_empty((count, down.shape[-1])), x.new_empty((count, x.shape[1])), whole, torch.empty_like(whole),
        whole.new_empty((tokens, k)), whole.new_empty((len(router) + 1,)),
        torch.empty((), dtype=torch.int64, device="cpu"),
    )  # fmt: skip


@custom_op("tokitai::experts_backward")
def _layer_backward(
    dy: Tensor | None, dlogits: Tensor | None, x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor,
    logits: Tensor, chosen: Tensor, weights: Tensor, sorted_: Tensor, hidden: Tensor, made: Tensor, order: Tensor,
    choice: Tensor, place: Tensor, offsets: Tensor, kept: Tensor, k: int, renormalise: bool, accumulator: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    places = int(kept)
    there = Permutation(order[:places], choice[:places], place, offsets)
    inside = (logits, chosen, weights, sorted_[:places], hidden[:places], made[: max(places, 1)])
    saved = Saved(
        x=plain(x), there=there, k=k, renormalise=renormalise, accumulator=accumulator,
        **dict(zip(INSIDE, map(plain, inside), strict=True)),
    )  # fmt: skip
    slope = torch.zeros_like(x) if dy is None else plain(dy)
    layer = Experts(*map(plain, (router, gate_up, down)))
    dx, gradients = expert_layer_backward(slope, layer, saved, dlogits=plain(dlogits))
    return dx, gradients.router, gradients.gate_up, gradients.down


def _keep_layer(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.options = (inputs[5], inputs[6], inputs[10])
    ctx.save_for_backward(*inputs[:4], *output[1:])


def _layer_gradients(ctx: Any, dy: Tensor | None, dlogits: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    for t in (dy, dlogits):
        if t is not None:
            refuse_transforms("experts", t)
    return (*_layer_backward(dy, dlogits, *ctx.saved_tensors, *ctx.options), *[None] * 7)


_layer.register_fake(_layer_shapes)
_layer.register_autograd(_layer_gradients, setup_context=_keep_layer)
_layer.register_vmap(_as_more_tokens(_layer, tokens=1, results=3, dropping=(4, 7, 8)))
_layer_backward.register_fake(lambda dy, dlogits, *kept: tuple(t.new_empty(t.shape) for t in kept[:4]))
_layer_backward.register_autograd(refuse_second_derivatives("experts"))
_layer_backward.register_vmap(one_by_one(_layer_backward))


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
    if logits not in LOGITS:
        raise UnknownNameError("format of logits", logits, LOGITS)
    for t in (x, router, gate_up, down):
        refuse_transforms("experts", t)
    dropping = any(value is not None for value in (capacity, capacity_factor, padding))
    if dropping and x.is_cuda and not torch.compiler.is_compiling():
        refuse_capture("experts", "a capacity or padding, for which the host sorts", "experts without them")
    # Autograd reshapes: what the function itself returns may be written to.
    tokens = x if x.ndim in (0, 2) else x.reshape(-1, x.shape[-1])
    if padding is not None and padding.shape == x.shape[:-1]:
        padding = padding.reshape(-1)
    given = cast("lower", (tokens, router, gate_up, down))
    assert given[0] is not None
    sums = _accumulators.chosen(accumulator, given[0].dtype, "experts")
    made = _layer(*given, padding, k, renormalise, capacity, capacity_factor, logits, sums)
    return made[0].view(x.shape), made[1], made[2]


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
    if x.ndim != 2 or chosen.shape != weights.shape or chosen.ndim != 2 or chosen.shape[0] != x.shape[0]:
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


@custom_op("tokitai::chosen_experts")
def _chosen(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, accumulator: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    there = permutation(plain(chosen), len(gate_up))
    given = (plain(t) for t in (gate_up, down))
    y, brought, hidden, made = run_experts(plain(x), plain(weights), there, *given, accumulator=accumulator)
    return y, brought, hidden, made, there.order, there.choice, there.place, there.offsets


def _shapes(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, _: str) -> Tensors:
    places, features = chosen.shape[0] * chosen.shape[1], x.shape[1]
    whole = chosen.new_empty((), dtype=torch.int64)
    return (
        torch.empty_like(x), x.new_empty((places, features)), x.new_empty((places, down.shape[-1])),
        x.new_empty((places, features)), whole.new_empty((places,)), whole.new_empty((places,)),
        whole.new_empty(chosen.shape), whole.new_empty((len(gate_up) + 1,)),
    )  # fmt: skip


@custom_op("tokitai::chosen_experts_backward")
def _chosen_backward(
    dy: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, brought: Tensor, hidden: Tensor, made: Tensor,
    order: Tensor, choice: Tensor, place: Tensor, offsets: Tensor, accumulator: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    there = Permutation(*map(plain, (order, choice, place, offsets)))
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
_chosen.register_vmap(_as_more_tokens(_chosen, tokens=3, results=1))
_chosen_backward.register_fake(lambda dy, *rest: tuple(torch.empty_like(t) for t in (dy, *rest[:3])))
_chosen_backward.register_autograd(refuse_second_derivatives("chosen_experts"))
_chosen_backward.register_vmap(one_by_one(_chosen_backward))
