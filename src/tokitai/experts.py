"""A layer of experts, forward and backward, built from the operators: each token goes through the k experts that a
router chooses for it, and what they make of it is added up with the router's weights.

    layer = Experts(router, gate_up, down)
    y, saved = expert_layer(x, layer, k=2)
    dx, gradients = expert_layer_backward(dy, layer, saved)

An expert is a gated layer: down (silu(gate x) * up x). All arrays are of NumPy, of torch or of CuPy, in host memory or
on one GPU, of one storage format (f16, bf16 or f32), and rounded to it once after each operator. The router's logits
are not: they stay in f32 from the product to the choice. No step depends on which tokens come together: a token has the
same bits in any batch, unless a capacity makes tokens compete.

The ``accumulator`` is that of the products of experts, and of the router's where logits are rounded to the storage
format; the router's other products have operands in f32, or logits in f32, and sums in f32.

On a GPU all operators run there. Nothing waits for the stream, but for CuPy the look for NaN among the logits, and
copies where `permutation` works on the host: with a capacity, with padding, or for CuPy. A backward pass never does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Literal

from . import ops
from .arrays.dlpack import on_gpu
from .arrays.libraries import library_of
from .errors import ArgumentError, UnknownNameError
from .routing import Permutation, permutation

Array = Any  # of NumPy, torch or CuPy
Logits = Literal["f32", "storage"]
"""What the router's logits are rounded to before the choice."""


@dataclass(frozen=True)
class Experts:
    """The weights of a layer, or their gradients."""

    router: Array  # (experts, features)
    gate_up: Array  # (experts, 2 * hidden, features): the weights of the gate, below them those of its partner
    down: Array  # (experts, features, hidden)


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs of the forward pass."""

    x: Array  # (tokens, features)
    logits: Array  # (tokens, experts), f32 or storage, also for `ops.load_balance_loss` and `ops.router_z_loss`
    weights: Array  # (tokens, k), f32
    experts: Array  # (tokens, k), i32
    there: Permutation
    sorted: Array  # (places, features): tokens in the order of their experts
    hidden: Array  # (places, hidden)
    made: Array  # (places, features): what experts made of them
    k: int
    renormalise: bool
    accumulator: str = "f32"


def expert_layer(
    x: Array, layer: Experts, *, k: int = 2, renormalise: bool = False, capacity: int | None = None,
    capacity_factor: float | None = None, padding: Array | None = None, logits: Logits = "f32",
    accumulator: str = "f32", threads: int | None = None,
) -> tuple[Array, Saved]:  # fmt: skip
    """y = sum over the chosen experts e of weight[e] * down_e (silu(gate_e x) * up_e x), for tokens (..., features).

    The weights are those of the softmax over all experts; with ``renormalise`` they are divided by their sum. Without a
    ``capacity`` or a ``capacity_factor`` no choice is dropped; with one of them, and for ``padding``, (tokens,) or
    (...) of bool, see `permutation`. A token of which all choices are dropped gets 0. The ``logits`` stay in f32;
    ``"storage"`` rounds them to the storage format before the choice, which in 16 bits sends some tokens to other
    experts.

    Raises ArgumentError for shapes that do not match and for NaN logits, those of padding too; UnknownNameError for
    another word for ``logits``. On a GPU nothing waits for a look at torch tensors: a token with NaN logits gets NaN.
    """
    check_sizes(x, layer)
    if logits not in LOGITS:
        raise UnknownNameError("format of logits", logits, LOGITS)
    tokens, more = x.reshape(-1, x.shape[-1]), _words(x, threads)
    if padding is not None and tuple(padding.shape) == tuple(x.shape[:-1]):
        padding = padding.reshape(-1)
    words = dict(accumulator=accumulator) if logits == "storage" else {}
    routed = LOGITS[logits](tokens, layer.router, **words, **more)
    waiting = library_of(x) != "torch" or not on_gpu(x)
    weights, chosen = ops.router(routed, k=k, renormalise=renormalise, **{**more, "check": waiting})
    if not waiting:  # what is chosen by NaN lies behind the last expert
        chosen.clamp_(max=max(len(layer.router) - 1, 0))
    there = permutation(
        chosen, len(layer.router), capacity=capacity, capacity_factor=capacity_factor, weights=weights, padding=padding,
        check=False,
    )  # fmt: skip
    y, brought, hidden, made = run_experts(
        tokens, weights, there, layer.gate_up, layer.down, accumulator=accumulator, threads=threads
    )
    y = y if tuple(y.shape) == tuple(x.shape) else y.reshape(x.shape)
    return y, Saved(tokens, routed, weights, chosen, there, brought, hidden, made, k, renormalise, accumulator)


def expert_layer_backward(
    dy: Array, layer: Experts, saved: Saved, *, dlogits: Array | None = None, threads: int | None = None
) -> tuple[Array, Experts]:
    """The gradients of the tokens, in the shape of ``dy``, and of all weights.

    ``dlogits`` is the gradient of ``saved.logits`` in whatever else was made of them, as the losses that keep experts
    evenly used; it is added to the router's, in the format of the logits. The gate's operands are computed again from
    the sorted tokens. An expert without tokens has gradients of exactly 0.
    """
    flat, more = dy.reshape(-1, dy.shape[-1]), _words(dy, threads)
    kept = (saved.sorted, saved.hidden, saved.made)
    moved, dweights, dgate_up, ddown = run_experts_backward(
        flat, saved.weights, saved.there, layer.gate_up, layer.down, *kept, accumulator=saved.accumulator,
        threads=threads,
    )  # fmt: skip
    routing = dict(k=saved.k, renormalise=saved.renormalise)
    chosen = ops.router_backward(dweights, saved.logits, saved.experts, **routing, **more)
    dlogits = chosen if dlogits is None else chosen + dlogits
    # Through the router, beside what came back from the experts.
    if dlogits.dtype == moved.dtype:
        words = dict(accumulator=saved.accumulator)
        dx = ops.matmul(dlogits, layer.router, moved, **words, **more)
        drouter = ops.linear_backward_weight(dlogits, saved.x, **words, **more)
    else:
        dx = ops.router_logits_accumulate_input(moved, dlogits, layer.router, **more)
        drouter = ops.router_logits_backward_weight(dlogits, saved.x, **more)
    gradients = Experts(router=drouter, gate_up=dgate_up, down=ddown)
    return dx if tuple(dx.shape) == tuple(dy.shape) else dx.reshape(dy.shape), gradients


def run_experts(
    tokens: Array, weights: Array, there: Permutation, gate_up: Array, down: Array, *, accumulator: str = "f32",
    threads: int | None = None,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """y of tokens (tokens, features) by experts that are chosen, with their ``weights`` of (tokens, k) in f32; and what
    `run_experts_backward` takes: the tokens in the order of their experts, what is hidden, what experts made."""
    more, k = _words(tokens, threads), int(weights.shape[-1])
    products = dict(accumulator=accumulator, **more)
    brought = ops.dispatch(tokens, there.order, **more)
    gate, up = _halves(gate_up, axis=1)
    hidden = ops.grouped_linear_swiglu(brought, gate, up, there.offsets, **products)
    made = ops.grouped_linear(hidden, down, there.offsets, **products)
    made = made if len(made) else tokens[:1]  # where no choice is kept, one row to look up in, which nobody does
    return ops.combine(made, weights, there.place, k=k, **more), brought, hidden, made


def run_experts_backward(
    dy: Array, weights: Array, there: Permutation, gate_up: Array, down: Array, brought: Array, hidden: Array,
    made: Array, *, accumulator: str = "f32", threads: int | None = None,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """The gradients of tokens, weights of choices, gate_up and down, for ``dy`` of (tokens, features)."""
    more, k = _words(dy, threads), int(weights.shape[-1])
    products = dict(accumulator=accumulator, **more)
    dmade = ops.dispatch(dy, there.order, weights.reshape(-1)[there.choice], **more)
    dweights = ops.combine_backward(dy, made, there.place, k=k, **more)
    dhidden = ops.grouped_linear_backward_input(dmade, down, there.offsets, **products)
    gated = ops.grouped_linear(brought, gate_up, there.offsets, **products)
    dgated = sys.modules[library_of(gated)].empty_like(gated)
    ops.swiglu_backward(dhidden, *_halves(gated, axis=1), out=_halves(dgated, axis=1), **more)
    back = ops.grouped_linear_backward_input(dgated, gate_up, there.offsets, **products)
    moved = ops.dispatch_backward(back, there.order, entries=len(dy), **more)
    dgate_up = ops.grouped_linear_backward_weight(dgated, brought, there.offsets, **products)
    return moved, dweights, dgate_up, ops.grouped_linear_backward_weight(dmade, hidden, there.offsets, **products)


LOGITS = {"f32": ops.router_logits, "storage": ops.linear}


def _words(x: Array, threads: int | None) -> dict[str, Any]:
    """How operators are called. Places and groups are those of `permutation`: on a GPU nobody need look at them."""
    return dict(threads=threads, check=not on_gpu(x))


def _halves(a: Array, axis: int) -> tuple[Array, Array]:
    """Views of the first and the second half."""
    ahead, half = (slice(None),) * axis, a.shape[axis] // 2
    return a[(*ahead, slice(None, half))], a[(*ahead, slice(half, None))]


def check_sizes(x: Array, layer: Experts) -> None:
    """Raises ArgumentError where sizes do not match; formats are the operators' to check."""
    if x.ndim == 0:
        raise ArgumentError("x: a scalar; accepted: (..., features)")
    features = int(x.shape[-1])
    (count,) = layer.router.shape[:1] or (0,)
    (hidden,) = layer.down.shape[-1:] or (0,)
    wanted = dict(router=(count, features), gate_up=(count, 2 * hidden, features), down=(count, features, hidden))
    for name, shape in wanted.items():
        found = tuple(getattr(layer, name).shape)
        if found != shape:
            beside = f"accepted beside x of {tuple(x.shape)}, {count} experts, {hidden} hidden"
            raise ArgumentError(f"{name}: shape {found}; {beside}: {shape}")


__all__ = ["Experts", "Saved", "expert_layer", "expert_layer_backward", "run_experts", "run_experts_backward"]
