"""Which accumulator products take where a call names none: the one of the context `accumulate`, else f32.

`torch.compile` guards on the choice: it reads it through a property of C, so that a graph holds for one choice, and
another choice makes another graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from ..errors import ArgumentError, UnknownNameError
from ..lang import Operator
from ..lang.graph import ACCUMULATORS
from . import recomputation
from .shapes import DTYPES

DEFAULT = "f32"
OPTION = "accumulator"
F = TypeVar("F", bound=Callable[..., Any])
_chosen: ContextVar[str | None] = ContextVar("tokitai.accumulator")
_before: ContextVar[tuple[str | None, ...]] = ContextVar("tokitai.accumulator.before", default=())


class _Choice:
    """The choice of this thread or task; where there was never one, the object itself."""

    accumulator = property(_chosen.get)


CHOICE = _Choice()


def in_force() -> str | None:
    """The accumulator of the innermost context of this thread or task, or None outside of all."""
    found: Any = CHOICE.accumulator
    return found if isinstance(found, str) else None


class accumulate(ContextDecorator):  # noqa: N801
    """Inside of ``with accumulate("fused16"):`` products take this accumulator, where a call or a module names none.

    It holds for functions and modules of `tokitai.torch`, forward and backward: what a forward pass chose, its backward
    pass has, wherever that runs. Contexts nest, and each thread or task has its own. ``@accumulate("fused16")`` does
    the same for a function. Products of operands that the accumulator does not take stay in f32: of operands in f32
    under ``"fused16"``, as the gradients of a router's logits are. (A call that names such an accumulator is refused.)

    `torch.compile` makes a graph for each choice. Inside of a function that is compiled with ``fullgraph=True`` there
    can be no context; around its call there can. `torch.utils.checkpoint` computes again with the choice of the forward
    pass; with ``use_reentrant=True`` a function must enter the context itself, as one with the decorator does, and
    what does not is refused. Raises UnknownNameError for another word, ArgumentError for a coroutine or a generator.
    """

    def __init__(self, accumulator: str) -> None:
        check(accumulator)
        self.accumulator = accumulator

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            raise ArgumentError(
                "accumulate: inside of a function that torch.compile traces; accepted: around the call of the compiled "
                "function, or accumulator= of functions and modules"
            )
        _before.set((*_before.get(), in_force()))
        _chosen.set(self.accumulator)
        recomputation.enter()

    def __exit__(self, *_: object) -> None:
        *before, last = _before.get()
        _before.set(tuple(before))
        _chosen.set(last)
        recomputation.leave()

    def __call__(self, func: F) -> F:
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(of(func) for of in kinds):
            raise ArgumentError(
                f"accumulate: {func.__name__} runs after its call has returned; accepted: a plain function, or `with "
                "accumulate(...)` inside of it"
            )
        return super().__call__(func)


def check(accumulator: str | None) -> None:
    """Raises UnknownNameError for what is neither an accumulator nor None."""
    if accumulator is not None and accumulator not in ACCUMULATORS:
        raise UnknownNameError("accumulator", accumulator, ACCUMULATORS)


class Accumulators:
    """What an operator's option ``accumulator`` takes for operands of each dtype."""

    def __init__(self, operator: Operator) -> None:
        self.name = operator.name
        option = next((o for o in operator.options if o.name == OPTION), None)
        formats = operator.contract.formats
        self.taken = {} if option is None else {DTYPES[f]: tuple(map(str, option.choices(f))) for f in formats}

    def __bool__(self) -> bool:
        return bool(self.taken)

    def chosen(self, given: str | None, dtype: torch.dtype, name: str | None = None) -> str:
        """The accumulator of a call: ``given``, else that of the context where it takes the operands, else f32. Raises
        ArgumentError for one that is given and does not take them; it calls the product ``name``."""
        if dtype not in self.taken:  # which the operator refuses
            return DEFAULT
        taken = self.taken[dtype]
        if given is None:
            found = in_force()
            if not torch.compiler.is_compiling():
                found = recomputation.checked(name or self.name, found, accumulate)
            return found if found is not None and found in taken else DEFAULT
        if given not in taken:
            raise ArgumentError(
                f"{name or self.name}: accumulator={given!r} of operands of {dtype}; accepted: "
                f"{', '.join(map(repr, taken))}"
            )
        return given
