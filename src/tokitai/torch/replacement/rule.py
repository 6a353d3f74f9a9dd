"""A rule: which class of module is swapped, for what, and when it is left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

ORIGINAL = "_tokitai_original"
"""The attribute of a class that was made here: the class that a module had before."""
ACCUMULATOR = "_tokitai_accumulator"
"""The attribute of a swapped module that holds the accumulator of its products, where `replace` was given one."""


def accumulator_of(module: Module) -> str | None:
    """The accumulator that `replace` chose for a module's products, or None."""
    found: str | None = module.__dict__.get(ACCUMULATOR)
    return found


@dataclass(frozen=True)
class Rule:
    """How modules of one class are swapped.

    ``kind`` is the word of the report. ``of`` is the class by its full name, as ``"torch.nn.modules.linear.Linear"``:
    nothing is imported to look for it. ``forward``, a function of a module's file, takes the place of the class's.
    ``attributes`` gives attributes of the module that are set while it is swapped; ``products`` says that the function
    takes the accumulator of its products from `accumulator_of`; and ``begin`` is called before the first module of the
    class is swapped, or read from a pickle. ``refuse`` returns why a module of the class is left, or None; ``whole``
    leaves the modules inside one that is left as they are. Functions of a rule are found again by name where a model is
    pickled.
    """

    kind: str
    of: str
    forward: Callable[..., Any] | None = None
    attributes: Callable[[Module], Mapping[str, Any]] | None = None
    begin: Callable[[], None] | None = None
    refuse: Callable[[Module], str | None] | None = None
    whole: bool = False
    products: bool = False

    def takes(self, kind: type) -> bool:
        """Whether it is about modules of a class."""
        return f"{kind.__module__}.{kind.__qualname__}" == self.of


@functools.cache
def replaced_class(original: Any, rule: Rule) -> type[Module]:
    """The subclass of a class of modules with the `forward` of a rule. It pickles by both."""
    if rule.begin is not None:
        rule.begin()
    body: dict[str, Any] = {
        ORIGINAL: original, "__reduce_ex__": _reduce, "_tokitai_rule": rule, "__module__": original.__module__,
        "__qualname__": f"Tokitai{original.__qualname__}", "__doc__": original.__doc__,
    }  # fmt: skip
    if rule.forward is not None:
        body["forward"] = rule.forward
    return type(f"Tokitai{original.__name__}", (original,), body)


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    """How copy and pickle make a module again, whose class has no name that could be looked up."""
    made = type(module)
    if ORIGINAL not in vars(made):  # of a class that was made of it, for its own use
        found: tuple[Any, ...] = super(made, module).__reduce_ex__(protocol)
        return found
    state = module.__getstate__() if hasattr(module, "__getstate__") else module.__dict__
    return _blank, (vars(made)[ORIGINAL], made._tokitai_rule), state


def _blank(original: Any, rule: Rule) -> Module:
    """A module without state."""
    made = replaced_class(original, rule)
    return made.__new__(made)
