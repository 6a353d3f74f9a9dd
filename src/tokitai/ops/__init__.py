"""The operators: one file for each family. A new file in this folder is found without editing anything else."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from ..errors import UnknownNameError
from ..lang import Operator


@cache
def registry() -> dict[str, Operator]:
    """Every operator of the package by name."""
    found: dict[str, Operator] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, Operator):
                found[value.name] = value
    return dict(sorted(found.items()))


@cache
def _files() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))


def get(name: str) -> Operator:
    """The operator with this name. Raises UnknownNameError."""
    if name not in registry():
        raise UnknownNameError("operator", name, registry())
    return registry()[name]


def __getattr__(name: str) -> Operator:
    # A file that imports another one of this folder asks here first: it is not finished, and would not be found whole.
    if name.startswith("__") or name in _files() or name not in registry():
        raise AttributeError(f"module {__name__!r} has no operator {name!r}")
    globals()[name] = found = registry()[name]  # from now on it is found without this function
    return found


def __dir__() -> list[str]:
    return [*registry(), "get", "registry"]
