"""What a forward pass chose by a context holds where `torch.utils.checkpoint` computes it again in a backward pass.

A backward pass runs in another place than the context, and on a GPU in another thread. Without ``use_reentrant`` torch
keeps, for each region that it will compute again, a frame with the function that does; it is told to enter the context
first. Elsewhere, as with ``use_reentrant``, a call that may be such a computation is refused: none is done with
another choice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch

from ..errors import ArgumentError

MODULE = "torch.utils.checkpoint"
AGAIN = "_recomputation_hook"
_entered: ContextVar[tuple[tuple[int, Any], ...]] = ContextVar("tokitai.entered", default=())
_unsure = False  # whether a context held where a region may be computed again that was not told


def _graph() -> int:
    """The backward pass that runs here, or -1."""
    return int(torch._C._current_graph_task_id())


def _innermost() -> Any:
    """The innermost hook that is called for tensors which a graph saves, or None. Regions have one each."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def enter() -> None:
    """Note in which backward pass and inside of which hook a context begins."""
    _entered.set((*_entered.get(), (_graph(), _innermost())))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def leave() -> None:
    """Behind a context."""
    _entered.set(_entered.get()[:-1])


def checked(name: str, chosen: str | None, context: Callable[[str], AbstractContextManager[None]]) -> str | None:
    """The choice for a call that names none: ``chosen`` by the context of this thread, in a backward pass only by one
    that was entered in it. Raises ArgumentError where a forward pass may have chosen otherwise."""
    global _unsure
    graph = _graph()
    if graph == -1 and chosen is None:
        return None
    hook = _innermost()
    entered, within = _entered.get()[-1] if chosen is not None else (-1, None)
    if graph == -1:
        if hook is not within:
            _unsure = True
            if getattr(hook, "__module__", None) == MODULE:
                _tell(name, hook, str(chosen), context)
        _unsure |= not torch.is_grad_enabled()
        return chosen
    if chosen is not None and entered == graph:
        return chosen
    if _unsure and not getattr(hook, "__qualname__", "").startswith(AGAIN):
        raise ArgumentError(
            f"{name}: called in a backward pass without an accumulator, where the context of the forward pass is not "
            "known; accepted: torch.utils.checkpoint with use_reentrant=False, a function with the decorator "
            "accumulate(...), or accumulator="
        )
    return None  # a region that was not told of a context


def _tell(name: str, region: Any, chosen: str, context: Callable[[str], AbstractContextManager[None]]) -> None:
    """Have the function of a region enter the context, once."""
    frame = inspect.getclosurevars(region).nonlocals.get("frame")
    function = getattr(frame, "recompute_fn", None)
    if frame is None or function is None:
        raise ArgumentError(
            f"{name}: torch.utils.checkpoint of torch {torch.__version__} computes it again outside of the context; "
            "accepted: a function with the decorator accumulate(...), or accumulator="
        )
    if getattr(function, "tokitai_accumulator", None) is not None:
        return

    def again(*args: Any) -> Any:
        with context(chosen):
            return function(*args)

    again.tokitai_accumulator = chosen  # type: ignore[attr-defined]
    frame.recompute_fn = again
