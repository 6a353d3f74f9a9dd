"""A linear layer and the cross-entropy of its results, whose logits are never in memory as a whole.

Rows pass in chunks: logits, loss, and in the backward pass logits again, their gradient and what follows from it.
Results and the gradients of x and bias have the bits of the two functions one after the other. That of the weight is
summed in f32 over blocks of 4,096 rows, aligned with the first, in the balanced tree, and rounded once. A block is a
chain, from -0, of products of 256 rows each. So the size of the chunks shows in no bit; up to 256 rows neither does
that the two functions are one; and calls with 4,096 rows each, or a power of two of them, whose gradients in f32 meet
in the tree, as those of a global batch's blocks do, have the bits of one call.

Of n such blocks up to 1 + log2(n) sums, each as large as the weight in f32, are in memory: 1 for 4,096 rows, 2 for
8,192, 4 for 32,768.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError
from ..lang import MATMUL_BLOCK
from .accumulators import Accumulators
from .arguments import checked
from .assertions import assert_in_range, refuse_capture
from .autocast import cast as autocast
from .batching import one_by_one
from .custom_ops import check_number, plain
from .dispatch import custom_op
from .reductions import Spread, spread_of
from .shapes import FORMATS
from .transforms import needs_gradient, refuse_second_derivatives, refuse_transforms
from .tree import Partial

PRODUCT = 256  # rows of one product of a gradient of the weight
LEAF = MATMUL_BLOCK  # rows of a leaf of its tree: as many as those of `linear` have, and the largest block of a batch
REDUCTIONS = ("mean", "sum", "none")
_accumulators = Accumulators(ops.linear)
_over_rows = cast("Spread", spread_of(ops.cross_entropy))


@checked
def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float | Tensor = 0.0, z_loss: float | Tensor = 0.0, rows: int = 1024,
    accumulator: str | None = None,
) -> Tensor:  # fmt: skip
    """The cross-entropy of input linear_weight^T + linear_bias against classes, without all logits in memory.

    ``input`` of (..., features), ``linear_weight`` of (classes, features), ``target`` of (...), int32 or int64.
    ``weight`` of each class is a constant; options are those of `cross_entropy`. ``rows`` is how many rows have logits
    in memory at once, a multiple of 256 (backwards 4,096 at most): no bit depends on it. The backward pass
    computes logits again. ``accumulator`` is that of all products, as `linear` has it. Raises ArgumentError.
    """
    name = "linear_cross_entropy"
    if input.ndim == 0 or linear_weight.ndim != 2 or input.shape[-1] != linear_weight.shape[1]:
        found = f"input of {tuple(input.shape)}, linear_weight of {tuple(linear_weight.shape)}"
        raise ArgumentError(f"{name}: {found}; accepted: (..., features) and (classes, features)")
    if target.shape != input.shape[:-1] or target.dtype not in (torch.int32, torch.int64):
        found = f"target of {tuple(target.shape)} of {target.dtype}"
        raise ArgumentError(f"{name}: {found}; accepted: {tuple(input.shape[:-1])} of int32 or int64")
    classes = linear_weight.shape[0]
    for n, t in (("linear_bias", linear_bias), ("weight", weight)):
        if t is not None and (tuple(t.shape) != (classes,) or not t.is_floating_point()):
            raise ArgumentError(f"{name}: {n} of {tuple(t.shape)} of {t.dtype}; accepted: ({classes},) of floats")
    if weight is not None and needs_gradient(weight):
        raise ArgumentError(f"{name}: weight requires a gradient and has none; accepted: weight.detach()")
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"{name}: reduction={reduction!r}; accepted: {', '.join(map(repr, REDUCTIONS))}")
    if rows < PRODUCT or rows % PRODUCT:
        raise ArgumentError(f"{name}: rows={rows}; accepted: a multiple of {PRODUCT}")
    numbers: list[Any] = []
    held: list[Tensor | None] = []
    for n, value in (("label_smoothing", label_smoothing), ("z_loss", z_loss)):
        if isinstance(value, Tensor):
            check_number(name, n, value)
        numbers.append(0.0 if isinstance(value, Tensor) else float(value))
        held.append(value if isinstance(value, Tensor) else None)
    x, w, b = autocast("lower", [input, linear_weight, linear_bias])
    assert x is not None and w is not None
    dtypes = {t.dtype for t in (x, w, b) if t is not None}
    if len(dtypes) > 1 or x.dtype not in FORMATS:
        shown = " beside ".join(sorted(map(str, dtypes)))
        raise ArgumentError(f"{name}: {shown}; accepted: one of {', '.join(map(str, FORMATS))} for all")
    loss: Tensor = _loss(
        x, w, b, target, weight if weight is None else weight.float(), *held, ignore_index, reduction, *numbers, rows,
        _accumulators.chosen(accumulator, x.dtype, name),
    )  # fmt: skip
    return loss


def _chunks(whole: slice, rows: int) -> list[slice]:
    return [slice(i, min(i + rows, whole.stop)) for i in range(whole.start, whole.stop, rows)]


@custom_op("tokitai::linear_cross_entropy")
def _loss(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, classes: Tensor | None, smoothing: Tensor | None,
    penalty: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float, z_loss: float, rows: int,
    accumulator: str,
) -> Tensor:  # fmt: skip
    flat, targets, w, b = plain(x).reshape(-1, x.shape[-1]), target.reshape(-1), plain(weight), plain(bias)
    kept = _options(x, ignore_index, label_smoothing, z_loss, smoothing, penalty)
    if x.is_cuda:
        assert_in_range("linear_cross_entropy: target", targets, len(w), ignore_index)
        targets = targets.to(torch.int64)
    each = flat.new_empty(len(flat), dtype=torch.float32)
    for part in _chunks(slice(0, len(flat)), rows):
        logits = ops.linear(flat[part], w, b, accumulator=accumulator)
        each[part], _ = ops.cross_entropy(logits, targets[part], classes, **kept)
    if reduction == "none":
        return cast("Tensor", each.view(target.shape))
    loss = _sum(each)
    return loss / _count(targets, classes, ignore_index) if reduction == "mean" else loss


def _options(
    x: Tensor, ignore_index: int, label_smoothing: float, z_loss: float, smoothing: Tensor | None,
    penalty: Tensor | None,
) -> dict[str, Any]:  # fmt: skip
    """The options of the operators, of which two may be held by tensors; targets on a GPU have been looked at."""
    for n, held in (("label_smoothing", smoothing), ("z_loss", penalty)):
        if held is not None:
            refuse_capture("linear_cross_entropy", f"{n} in a tensor", f"{n} as a number, which each replay has")
    return dict(
        **({"check": False} if x.is_cuda else {}),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing if smoothing is None else smoothing.item(),
        z_loss=z_loss if penalty is None else penalty.item(),
    )


def _sum(each: Tensor) -> Tensor:
    """The operators' sum over rows."""
    made: Tensor = ops.linear_backward_bias(each.reshape(-1, 1)).reshape(())
    return made


def _count(target: Tensor, classes: Tensor | None, ignore_index: int) -> Tensor:
    """What a mean is over, as `ops.cross_entropy` has it."""
    kept = target != ignore_index
    if classes is None:
        return kept.sum().clamp(min=1).float()
    total = _sum(torch.where(kept, classes[torch.where(kept, target, 0).long()], 0))
    return total.masked_fill(total == 0, 1)


@custom_op("tokitai::linear_cross_entropy_backward")
def _backward(
    dloss: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, classes: Tensor | None,
    smoothing: Tensor | None, penalty: Tensor | None, ignore_index: int, label_smoothing: float, z_loss: float,
    rows: int, accumulator: str, wanted: list[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients of x, weight and bias from those of rows' losses; nothing in place of one that is not wanted."""
    flat, targets, w, b = plain(x).reshape(-1, x.shape[-1]), target.reshape(-1), plain(weight), plain(bias)
    kept = _options(x, ignore_index, label_smoothing, z_loss, smoothing, penalty)
    targets = targets.to(torch.int64)
    slopes, more = plain(dloss).reshape(-1).contiguous(), dict(accumulator=accumulator)
    dx, dweight, dbias = (
        t.new_zeros(t.shape if want else 0) for t, want in zip((flat, w, w[:, 0]), wanted, strict=True)
    )
    every = slice(0, len(flat))
    of_weight, of_bias = (Partial[Tensor](len(_chunks(every, n)), 0, Tensor.add_) for n in (LEAF, PRODUCT))
    for leaf in _chunks(every, LEAF):
        total = torch.full_like(dweight, -0.0, dtype=torch.float32)
        for part in _chunks(leaf, rows):
            logits = ops.linear(flat[part], w, b, **more)
            dlogits = ops.cross_entropy_backward(slopes[part], logits, targets[part], classes, **kept)
            if wanted[0]:
                dx[part] = ops.linear_backward_input(dlogits, w, **more)
            for block, here in zip(_chunks(part, PRODUCT), dlogits.split(PRODUCT), strict=True):
                if wanted[1]:
                    ops.linear_accumulate_weight(total, here, flat[block], **more)
                if wanted[2]:
                    of_bias.push(ops.linear_backward_bias(here.float()))
        of_weight.push(total)
    if len(flat):
        dweight = of_weight.whole().to(x.dtype)
        dbias = of_bias.whole().to(x.dtype) if wanted[2] else dbias
    return [dx.view(x.shape) if wanted[0] else dx, dweight, dbias]


def _shapes(x: Tensor, weight: Tensor, bias: Any, target: Tensor, *rest: Any) -> Tensor:
    reduction = rest[4]
    return x.new_empty(target.shape if reduction == "none" else (), dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.ignore_index, ctx.reduction, *ctx.options = inputs[7:]


def _gradients(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
    refuse_transforms("linear_cross_entropy", dloss)
    x, weight, bias, target, classes, *held = ctx.saved_tensors
    named = dict(logits=x, target=target, ignore_index=ctx.ignore_index, reduction=ctx.reduction, weight=classes)
    each = dloss if ctx.reduction == "none" else _over_rows(dloss, named)
    wanted = list(ctx.needs_input_grad[:3])
    made = _backward(each, x, weight, bias, target, classes, *held, ctx.ignore_index, *ctx.options, wanted)
    return (*(g if want else None for g, want in zip(made, wanted, strict=True)), *[None] * 10)


_loss.register_fake(_shapes)
_loss.register_autograd(_gradients, setup_context=_keep)
_loss.register_vmap(one_by_one(_loss))
_backward.register_fake(
    lambda dloss, x, weight, *rest: [
        x.new_empty(shape if want else (0,))
        for shape, want in zip((x.shape, weight.shape, weight.shape[:1]), rest[-1], strict=True)
    ]
)
_backward.register_autograd(refuse_second_derivatives("linear_cross_entropy"))
_backward.register_vmap(one_by_one(_backward))
