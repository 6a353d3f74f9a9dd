"""Rotary positions, of halves of heads and of heads as they are.

Halves of heads are views of the last dimension, which kernels read and write where they lie: nothing is put together.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError
from ..lang import Operator
from . import operators
from .arguments import replayed
from .batching import as_more_rows
from .custom_ops import plain, torch_op
from .dispatch import CustomOp
from .integers import narrow
from .transforms import needs_gradient, refuse_second_derivatives, refuse_transforms


@replayed
def rotary(
    x1: Tensor, x2: Tensor, position: Tensor | None = None, frequency: Tensor | None = None, *,
    cos: Tensor | None = None, sin: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(x1 cos - x2 sin, x1 sin + x2 cos) for x1 and x2 of (..., half), the two halves of heads.

    Of the angle position * frequency, as `ops.rotary`: positions of int32 or int64 that broadcast to (...), frequencies
    of (half) in f32. Or of ready-made ``cos`` and ``sin``, as `ops.rotate_pairs`: floats that broadcast to (..., half),
    which are used in f32. All four are constants. Raises ArgumentError.
    """
    first, second = _turns("rotary", x1.shape, position, frequency, cos, sin)
    turn = operators.rotary if position is not None else operators.rotate_pairs
    made: tuple[Tensor, Tensor] = turn(x1, x2, first, second)
    return made


@replayed
def rotary_heads(
    x: Tensor, position: Tensor | None = None, frequency: Tensor | None = None, *, cos: Tensor | None = None,
    sin: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Heads x of (..., dim), turned: `rotary` of the halves of their last dimension, in one contiguous tensor.

    ``position`` and ``frequency``, or ``cos`` and ``sin``, are as `rotary` has them, for a half of dim / 2. An x whose
    rows do not lie at one distance is copied once. Raises ArgumentError, also for an odd dim.
    """
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ArgumentError(f"rotary_heads: x of shape {tuple(x.shape)}; accepted: (..., dim), dim even")
    halves = torch.Size((*x.shape[:-1], x.shape[-1] // 2))
    first, second = _turns("rotary_heads", halves, position, frequency, cos, sin)
    for n, t in dict(frequency=frequency, cos=cos, sin=sin).items():
        if t is not None and needs_gradient(t):
            raise ArgumentError(f"rotary_heads: {n} requires a gradient and has none; accepted: {n}.detach()")
    turn = _by_angle if position is not None else _by_pairs
    made: Tensor = turn(x, narrow("rotary_heads", "position", first), second)
    return made


def _turns(
    name: str, shape: torch.Size, position: Tensor | None, frequency: Tensor | None, cos: Tensor | None,
    sin: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Positions and frequencies, or cosines and sines, as the operators take them beside halves of a shape. Raises
    ArgumentError."""
    if position is not None and frequency is not None and cos is None and sin is None:
        return _expanded(name, "position", position, shape[:-1]), frequency
    if cos is not None and sin is not None and position is None and frequency is None:
        ready = (_expanded(name, n, x, shape).to(torch.float32) for n, x in (("cos", cos), ("sin", sin)))
        return next(ready), next(ready)
    given = dict(position=position, frequency=frequency, cos=cos, sin=sin)
    found = ", ".join(sorted(n for n, x in given.items() if x is not None))
    raise ArgumentError(f"{name}: {found}; accepted: position and frequency, or cos and sin")


def _expanded(name: str, argument: str, x: Tensor, shape: torch.Size) -> Tensor:
    """A tensor in a shape that it broadcasts to. Raises ArgumentError."""
    ones = (1,) * (len(shape) - x.ndim)
    if x.ndim > len(shape) or any(n not in (1, m) for n, m in zip((*ones, *x.shape), shape, strict=True)):
        found = f"{argument} of shape {tuple(x.shape)}"
        raise ArgumentError(f"{name}: {found}; accepted: what broadcasts to {tuple(shape)}")
    return x.expand(shape)


# ------------------------------------------------------------------ heads as they are
def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the first and the second half of each head."""
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _in_rows(x: Tensor) -> Tensor:
    """Heads that lie at one distance from each other; copied if need be."""
    lead = [(n, step) for n, step in zip(x.shape[:-1], x.stride(), strict=False) if n != 1]
    even = all(far == n * near for (_, far), (n, near) in itertools.pairwise(lead))
    return x if even and x.stride(-1) == 1 else x.contiguous()


def _launched(operator: Operator, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """An operator on halves, into the halves of a new tensor."""
    made = x.new_empty(x.shape)
    operator(*_halves(_in_rows(plain(x))), plain(first), plain(second), out=_halves(made))
    return made


def _on_heads(forward: Operator, backward: Operator, rows: tuple[bool, bool, bool]) -> CustomOp:
    """An operator on two halves as a custom op on heads. ``rows`` says which of its arguments have a row for each row
    of the result."""

    def turn(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return _launched(forward, x, first, second)

    def turn_back(dy: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return _launched(backward, dy, first, second)

    def shapes(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        of_halves(*_halves(x), first, second)  # refuses what a call does
        return x.new_empty(x.shape)

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    def differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        refuse_transforms("rotary_heads", dy)
        return back(dy, *ctx.saved_tensors), None, None

    of_halves = torch_op(forward, several=False).shapes
    op, back = CustomOp(f"tokitai::{forward.name}_heads", turn), CustomOp(f"tokitai::{backward.name}_heads", turn_back)
    op.register_fake(shapes)
    op.register_autograd(differentiate, setup_context=keep)
    op.register_vmap(as_more_rows(rows, op))
    back.register_fake(lambda dy, *turns: dy.new_empty(dy.shape))
    back.register_autograd(refuse_second_derivatives("rotary_heads"))
    back.register_vmap(as_more_rows(rows, back))
    return op


_by_angle = _on_heads(ops.rotary, ops.rotary_backward, (True, True, False))
_by_pairs = _on_heads(ops.rotate_pairs, ops.rotate_pairs_backward, (True, True, True))
