"""Custom ops that are called past torch's dispatcher where nothing but autograd would see them.

A custom op costs the host several times what the launch of its kernel does: the dispatcher calls back into Python at
each of its keys. Where a call is plain, that is on tensors of no subclass, in no mode and under no transform, the
function behind the op is called, within an autograd function where a gradient is wanted. Results, gradients and what is
saved for them are the same.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import ArgumentError
from ..runtime.launch_cache import CURRENT

PLAIN: set[type] = {Tensor, torch.nn.Parameter}  # tensors that are their elements
_others = {types.NoneType, bool, int, float, str, list, tuple}  # arguments that are no tensors

_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transforms, _traced = torch._C._are_functorch_transforms_active, torch._C._get_tracing_state


def is_watched() -> bool:
    """Whether something looks at each operation of torch: a graph that is traced, a mode, a transform."""
    return torch.compiler.is_compiling() or is_intercepted()


def is_intercepted() -> bool:
    """The same where `torch.compile` does not trace: a mode, a transform, a trace of TorchScript."""
    return bool(
        _dispatch_modes()
        or _function_modes()
        or _transforms()
        or forward_ad._current_level >= 0
        or _traced() is not None
    )


class CustomOp:
    """A custom op of torch, and the function ``run`` behind it.

    Arguments are positional; those that ``defaults`` names, with their values, are given by name.
    """

    def __init__(
        self, name: str, run: Callable[..., Any], schema: str | None = None, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.run, self.defaults = run, defaults
        self.op = torch.library.custom_op(name, run, mutates_args=(), schema=schema)
        self.register_fake, self.register_vmap = self.op.register_fake, self.op.register_vmap
        self.keep: Callable[..., None] | None = None
        self.differentiate: Callable[..., Any] | None = None

    def register_autograd(
        self, differentiate: Callable[..., Any], setup_context: Callable[..., None] | None = None
    ) -> None:
        """As that of torch's custom ops."""
        self.op.register_autograd(differentiate, setup_context=setup_context)
        self.keep, self.differentiate = setup_context, differentiate

    def __call__(self, *args: Any, **words: Any) -> Any:
        """What the op gives."""
        if is_watched():
            return self.op(*args, **words)
        sloped = False
        for x in args:
            kind = type(x)
            if kind in PLAIN:
                if not (x.is_cuda or x.is_cpu):
                    return self.op(*args, **words)
                sloped = sloped or x.requires_grad
            elif kind not in _others:
                self._refuse_shards(x)
                return self.op(*args, **words)
        if not sloped or not torch.is_grad_enabled():
            return self.run(*args, **words)
        if self.keep is None:
            return self.op(*args, **words)
        return _Plain.apply(*args, self, words)  # type: ignore[no-untyped-call]

    def _refuse_shards(self, x: Any) -> None:
        """Raises ArgumentError for a tensor of which each rank has a part, for which torch has no rule."""
        sharded = sys.modules.get("torch.distributed.tensor")  # which takes long to import
        if sharded is not None and isinstance(x, sharded.DTensor):
            name = self.op._qualname.partition("::")[2]
            raise ArgumentError(
                f"{name}: a DTensor with placements {x.placements}; accepted: tensors, as .to_local() and "
                ".full_tensor() give them; linear takes DTensors"
            )


class _Plain(torch.autograd.Function):
    """A call of a custom op that autograd alone sees."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        *args, ctx.called, words = given
        op: CustomOp = ctx.called
        made = op.run(*args, **words)
        recorder: Any = CURRENT.recorder
        if recorder is not None:
            recorder.ops.append((op, tuple(args), words, made))
        assert op.keep is not None
        if op.defaults is None:
            op.keep(ctx, tuple(args), made)
        else:
            op.keep(ctx, tuple(args), made, keyword_only_inputs={**op.defaults, **words})
        return made

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> tuple[Any, ...]:
        made = ctx.called.differentiate(ctx, *slopes)
        made = made if isinstance(made, tuple) else (made,)
        return (*made, *[None] * (len(ctx.needs_input_grad) - len(made)))


def custom_op(name: str) -> Callable[[Callable[..., Any]], CustomOp]:
    """A function as a custom op, whose schema follows from its annotations."""
    return lambda run: CustomOp(name, run)
