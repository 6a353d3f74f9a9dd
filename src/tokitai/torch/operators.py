"""The operators of `tokitai.ops` with gradients, by their own names and arguments.

Each is a custom op of `torch.library`, so that autograd takes its gradient and `torch.compile` may carry it through a
graph. All tensors of a call share one storage format; results and gradients are what the operators of the same names
give, to the last bit. `functional` has what torch has too, named and shaped as there.

Every operator with a backward operator is here, made of its definition, but for those whose gradient is composed of
several operators, tables or groups (`lang.Gradient`). A file with such an operator in `tokitai.ops` is all that another
one takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import ops
from .derive import differentiable

FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: differentiable(ops.get(name))
    for name in sorted({o.backward_of.name for o in ops.registry().values() if o.backward_of is not None})
    if not ops.get(name).gradient.composed
}
"""The functions by name."""

globals().update(FUNCTIONS)
__all__ = [*FUNCTIONS]


def __getattr__(name: str) -> Callable[..., Any]:
    raise AttributeError(f"module {__name__!r} has no function {name!r}; accepted: {', '.join(FUNCTIONS)}")
