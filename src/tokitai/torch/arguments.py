"""Check how a function is called before torch's dispatcher does: a wrong call shows what is accepted."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from .replays import ReplayedFunction
from .transforms import refuse_transforms

F = TypeVar("F", bound=Callable[..., Any])
EMPTY = inspect.Parameter.empty
WHOLE = (int, np.integer, torch.SymInt)
NUMBERS: dict[Any, tuple[type, ...]] = {int: WHOLE, float: (*WHOLE, float, np.floating, torch.SymFloat)}


def checked(function: F, signature: inspect.Signature | None = None, replayed: bool = False) -> F:
    """The function, with arguments that are checked: by number, name, and type where the annotation is one of tensors,
    numbers, words or truth values.

    ``signature`` is for a function that takes any arguments, ``replayed`` for one whose results depend on elements of
    tensors through operators alone. Raises ArgumentError, also for a tensor that carries a tangent of forward-mode
    differentiation.
    """
    shown = signature or inspect.signature(function)
    name, accepted = function.__name__, f"{function.__name__}{plain_signature(shown)}"
    every = tuple(shown.parameters.values())
    order = tuple(p.name for p in every if p.kind is p.POSITIONAL_OR_KEYWORD)
    required = tuple(p.name for p in every if p.default is EMPTY)
    hints = typing.get_type_hints(function) if signature is None else {p.name: p.annotation for p in every}
    kinds = {p.name: _kinds(hints.get(p.name)) for p in every}

    def refuse(found: str) -> None:
        raise ArgumentError(f"{name}: {found}; accepted: {accepted}")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(order):
            refuse(f"{len(args)} positional arguments")
        given = dict(zip(order, args, strict=False))
        for n, value in kwargs.items():
            if n in given or n not in kinds:
                refuse(f"{n} is given twice" if n in given else f"unknown argument {n}")
            given[n] = value
        for n in required:
            if n not in given:
                refuse(f"missing {n}")
        for n, value in given.items():
            kind = kinds[n]
            if kind and (not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind)):
                shown_value = "a tensor" if isinstance(value, Tensor) else repr(value)
                refuse(f"{n} is {shown_value} of type {type(value).__name__}")
            if isinstance(value, Tensor):
                refuse_transforms(name, value)
        return function(*args, **kwargs)

    def call_again(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs) if torch.compiler.is_compiling() else repeated(args, kwargs)

    repeated = ReplayedFunction(call).__call__
    made: Any = functools.wraps(function)(call_again) if replayed else call
    for each in {call, made}:  # code of its own: torch.compile keeps graphs by code, and no more than a few for each
        each.__code__ = each.__code__.replace(co_name=name)
    made.__signature__ = shown
    return typing.cast("F", made)


def replayed(function: F) -> F:
    """As `checked`, of a function whose calls are repeated as launches."""
    return checked(function, replayed=True)


def _kinds(hint: Any) -> tuple[type, ...]:
    """The types of values that an annotation accepts; none where it is not looked at."""
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    found: list[type] = []
    for m in members:
        if m is Any or not isinstance(m, type):
            return ()
        found += NUMBERS.get(m, (m,))
    return tuple(found)


def plain_signature(signature: inspect.Signature) -> inspect.Signature:
    """The signature without annotations."""
    return inspect.Signature([p.replace(annotation=EMPTY) for p in signature.parameters.values()])
