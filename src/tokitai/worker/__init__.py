"""Run code in another process that may crash, hang or run out of memory without harm to this one.

A `Pool` keeps up to so many worker processes warm. A request names a function of some module (an *entry*) and brings
JSON arguments and tensors, which the process sees in shared memory; kernels are run by the entries of `worker.entries`.
Whatever happens in the process, a request ends in its result or in an error of the `WorkerError` family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .isolated import call, isolate
    from .limits import Limits
    from .messages import Status
    from .pool import Pool

_LAZY = {"Pool": "pool", "Limits": "limits", "Status": "messages", "call": "isolated", "isolate": "isolated"}


def __getattr__(name: str) -> Any:  # the worker process itself needs none of them
    if name in _LAZY:
        import importlib

        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Limits", "Pool", "Status", "call", "isolate"]
