"""Where kernels run: a folder for each backend, found by listing this folder and the entry-point group.

A backend is imported when a device of it is asked for, or when a message lists all of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points

from ..errors import UnknownNameError
from .backend import Backend

GROUP = "tokitai.backends"
DEFAULT = "cpu"  # the device where none is picked: the one that every machine has


@lru_cache(maxsize=1)
def places() -> Mapping[str, str]:
    """The object of each backend, as ``module:NAME``, by the backend's name. A folder here precedes an entry point."""
    here = {m.name: f"{__name__}.{m.name}:BACKEND" for m in pkgutil.iter_modules(__path__) if m.ispkg}
    return {e.name: e.value for e in entry_points(group=GROUP)} | here


@lru_cache(maxsize=64)
def backend_named(name: str) -> Backend:
    """The backend of this name. Raises UnknownNameError, and TypeError for an object that is no backend."""
    if name not in places():
        raise UnknownNameError("backend", name, places())
    module, _, attribute = places()[name].partition(":")
    found = getattr(importlib.import_module(module), attribute or "BACKEND")
    if not isinstance(found, Backend) or found.name != name:
        raise TypeError(f"{places()[name]}: is {found!r}; accepted: a Backend whose name is {name!r}")
    return found


def backends() -> list[Backend]:
    """Every backend, in the order of their names."""
    return [backend_named(name) for name in sorted(places())]


def backend_of(device: str) -> Backend:
    """The backend of a device that a user has picked, ``NAME`` or ``NAME:WHICH``. Raises UnknownNameError."""
    name = device.partition(":")[0]
    if name not in places() or not backend_named(name).takes(device):
        raise UnknownNameError("device", device, accepted())
    return backend_named(name)


def accepted() -> list[str]:
    """What a user may pick as a device."""
    return [device for backend in backends() for device in backend.devices]


__all__ = ["DEFAULT", "Backend", "accepted", "backend_named", "backend_of", "backends", "places"]
