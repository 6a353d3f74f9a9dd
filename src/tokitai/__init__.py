"""tokitai: training kernels whose results are defined to the last bit.

An operator is a short *definition* in a small language of typed primitives. From it come its *meanings* (the bits that
every kernel must return, the structure of the expression, its value in high precision), its *kernels* for each target,
and the *evidence* that a kernel computes the definition.

    >>> import numpy as np, tokitai
    >>> from tokitai import ops
    >>> x = np.ones((4, 8), np.float16)
    >>> y, mean, rstd = ops.layer_norm(x, eps=1e-5)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors, formats, lang, ops
from .lang import Operator
from .lang.operator import set_runner
from .numerics import VERSION

if TYPE_CHECKING:
    from .judging import Judgement, judge
    from .judging.reveal import reveal, reveal_product
    from .runtime.compile import compile
    from .runtime.kernel import Kernel
    from .verification import Verdict, verify

__version__ = VERSION

_LAZY = {
    "compile": "runtime.compile", "Kernel": "runtime.kernel", "verify": "verification",
    "Verdict": "verification", "judge": "judging", "Judgement": "judging", "reveal": "judging.reveal",
    "reveal_product": "judging.reveal",
}  # fmt: skip


def _load_and_run(operator: Operator, *args: Any, **kwargs: Any) -> Any:
    """Run the first call of a process, which loads the runtime: later calls go there directly."""
    call = importlib.import_module(f"{__name__}.runtime.call").call
    set_runner(call)
    return call(operator, *args, **kwargs)


set_runner(_load_and_run)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Judgement", "Kernel", "Operator", "Verdict", "compile", "errors", "formats", "judge", "lang", "ops",
    "reveal", "reveal_product", "verify",
]  # fmt: skip
