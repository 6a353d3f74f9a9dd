"""Third-party kernels: is each element within the rounding-error bound of the exact value, and if not, which is not?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .judgement import Failure, Judgement, judge

__all__ = ["Failure", "Judgement", "judge"]


def __getattr__(name: str) -> Any:
    """A public name, whose module is imported for it: the process of a kernel has none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import judgement

    return getattr(judgement, name)
