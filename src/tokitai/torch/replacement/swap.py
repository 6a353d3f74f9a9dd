"""Swap the modules of a model by rules, and back."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.utils import parametrize

from ...errors import ArgumentError
from ..accumulators import check
from ..shapes import FORMATS
from . import torch_rules, transformers_rules
from .report import Entry, Report
from .rule import ACCUMULATOR, ORIGINAL, Rule, replaced_class

KEPT = "_tokitai_kept"
"""The attribute of a swapped module that holds its attributes of before: for each whether it had it, and its value."""


def rules() -> tuple[Rule, ...]:
    """The rules that `replace` has."""
    return (*torch_rules.RULES, *transformers_rules.RULES)


def replace(model: Module, more: Iterable[Rule] = (), *, accumulator: str | None = None) -> Report:
    """Swap the modules of a model for this package's, in place, and say what was swapped and what was left.

    Modules of the classes in the `rules` are swapped: norms, linear layers, embeddings, activations, rotary positions,
    attention, experts, dropout and losses of PyTorch and of Hugging Face models. Rules in ``more`` come before them.
    Modules, parameters, `state_dict`, hooks and optimizers stay; `restore` undoes it. A module that is swapped already
    counts as swapped.

    The ``accumulator`` is that of all products of swapped modules, also of those that were swapped before; None leaves
    the choice to the context `accumulate`, or as an earlier call made it. A forward pass refuses one that does not take
    its operands. Raises ArgumentError for what is no module or rule, UnknownNameError for another accumulator.
    """
    if not isinstance(model, Module):
        raise ArgumentError(f"replace: {type(model).__name__}; accepted: a torch.nn.Module")
    check(accumulator)
    more = tuple(more)
    for r in more:
        if not isinstance(r, Rule):
            raise ArgumentError(f"replace: more holds {type(r).__name__}; accepted: tokitai.torch.replacement.Rule")
    every = (*more, *rules())
    swapped: list[Entry] = []
    left: list[Entry] = []
    for name, module, closed in _modules(model, every):
        kind = original_class(module)
        rule = _rule_for(every, kind)
        if rule is not None:
            reason = None if is_swapped(module) else closed or _refused(rule, module)
            entry = Entry(name, kind.__name__, rule.kind, reason)
            (swapped if reason is None else left).append(entry)
            if reason is None and not is_swapped(module):
                _swap(module, rule)
            if reason is None and rule.products and accumulator is not None:
                _keep(module, {ACCUMULATOR: accumulator})
        elif closed or _computes(module):
            left.append(Entry(name, kind.__name__, "", closed or _no_rule(kind, every)))
        for what, reason in transformers_rules.inside(module):
            left.append(Entry(name, what, "inside forward", reason))
    return Report(tuple(swapped), tuple(left))


def restore(model: Module) -> int:
    """Undo `replace`: the same modules, of their classes and with their attributes of before. How many were swapped.

    Raises ArgumentError for what is no module."""
    if not isinstance(model, Module):
        raise ArgumentError(f"restore: {type(model).__name__}; accepted: a torch.nn.Module")
    found = [m for m in model.modules() if is_swapped(m)]
    for module in found:
        kind = type(module)
        if ORIGINAL in vars(kind):
            module.__class__ = vars(kind)[ORIGINAL]
        elif hasattr(kind, ORIGINAL):  # parametrized after it was swapped
            before: type[Module] = getattr(kind, ORIGINAL)
            module.__class__ = type(f"Parametrized{before.__name__}", (before,), _body(kind))
        for name, (had, value) in module.__dict__.pop(KEPT, {}).items():
            if had:
                setattr(module, name, value)
            else:
                delattr(module, name)
    return len(found)


def is_swapped(module: Module) -> bool:
    """Whether a module is swapped."""
    return hasattr(type(module), ORIGINAL) or KEPT in module.__dict__


def original_class(module: Module) -> type[Module]:
    """The class that a module had, or has, without parametrizations."""
    kind = _bare(type(module))
    found: type[Module] = getattr(kind, ORIGINAL, kind)
    return _bare(found)


def _bare(kind: type) -> type:
    """A class, or of one that torch's parametrizations made for a single module, its base."""
    made_there = kind.__name__.startswith("Parametrized") and kind.__module__ == parametrize.__name__
    return kind.__bases__[0] if made_there else kind


def _body(kind: type) -> dict[str, Any]:
    """What a class defines, for a class like it."""
    return {n: v for n, v in vars(kind).items() if n not in ("__dict__", "__weakref__", ORIGINAL)}


def _modules(model: Module, every: tuple[Rule, ...]) -> Iterator[tuple[str, Module, str | None]]:
    """All modules by name, once each, and for those inside one that is left as a whole why they are left."""
    closed: dict[str, str] = {}
    for name, module in model.named_modules():
        reason = next((r for outer, r in closed.items() if name.startswith(outer)), None)
        yield name, module, reason
        rule = _rule_for(every, original_class(module))
        if reason is None and rule is not None and rule.whole and (why := _refused(rule, module)) is not None:
            closed[f"{name}." if name else ""] = f"inside {type(module).__name__}: {why}"


def _rule_for(every: tuple[Rule, ...], kind: type) -> Rule | None:
    return next((r for r in every if r.takes(kind)), None)


def _refused(rule: Rule, module: Module) -> str | None:
    """Why a module that a rule is about is left, or None."""
    sharded = sys.modules.get("torch.distributed.tensor")
    for name, p in module.named_parameters(recurse=False):
        if p.is_floating_point() and p.dtype not in FORMATS:
            return f"{name} of {p.dtype}; taken: {', '.join(map(str, FORMATS))}"
        if type(p.data) is not Tensor or (sharded is not None and isinstance(p, sharded.DTensor)):
            return f"{name} is a {type(p.data).__name__}; replace the model before its tensors are sharded or packed"
    return None if rule.refuse is None else rule.refuse(module)


def _computes(module: Module) -> bool:
    """Whether a module has no modules inside it, or parameters that none of those has."""
    within = {id(p) for child in module.children() for p in child.parameters()}
    return not any(module.children()) or any(id(p) not in within for p in module.parameters(recurse=False))


def _no_rule(kind: type[Module], every: tuple[Rule, ...]) -> str:
    known = next((c for c in kind.__mro__[1:] if _rule_for(every, c) is not None), None)
    return (
        "no rule" if known is None else f"no rule: it is a subclass of {known.__name__}, whose forward may be another"
    )


def _keep(module: Module, given: Mapping[str, Any]) -> None:
    """Set attributes, and hold those of before."""
    kept = module.__dict__.setdefault(KEPT, {})
    for n, value in given.items():
        kept.setdefault(n, (n in module.__dict__, module.__dict__.get(n)))
        setattr(module, n, value)


def _swap(module: Module, rule: Rule) -> None:
    if rule.attributes is not None:
        _keep(module, rule.attributes(module))
    if rule.forward is not None or rule.begin is not None:
        kind = type(module)
        made = replaced_class(_bare(kind), rule)
        if _bare(kind) is not kind:
            made = type(kind.__name__, (made,), {**_body(kind), ORIGINAL: kind})
        module.__class__ = made
