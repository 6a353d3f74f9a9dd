"""How far a kernel by somebody else may be from the real result: what rounding explains, whatever the kernel's order.

The definition fixes one order of summation; another kernel may take any, may fuse multiplications and additions, and
calls functions of a library. So its allowance is the bound of the definition (`meaning.bounds`), widened in three ways
and no other:

* a sum of n terms: each goes through at most n - 1 additions, in whichever order (Higham, "Accuracy and Stability of
  Numerical Algorithms", section 4.2). A fused operation rounds less often than the two that it replaces;
* a quotient or a square root: within 2 ulp, as CUDA's `__fdividef` and `rsqrtf` are;
* an elementary function: within 4 ulp, the most that CUDA's documented single-precision functions of these names take
  (`erfcf`; CUDA C++ Programming Guide, "Mathematical Functions"), or the definition's own error where that is larger.

Arithmetic in f32 and one rounding at the store are taken for granted: an accumulator or an intermediate result in 16
bits is seen, and so is a formula that cancels where the definition does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..lang import Graph, Node
from ..meaning.bounds import Bounds, U, evaluate
from ..verification.cases import Case

Array = np.ndarray[Any, Any]

FUNCTION_ULPS = 4.0
QUOTIENT_ULPS = 2.0


class AnyOrder(Bounds):
    """The domain of values with bounds on the error of any kernel, as said above."""

    def height(self, op: str, count: Any) -> Any:
        """Any tree over the terms, a chain at worst."""
        return np.maximum(np.asarray(count) - 1, 0)

    def function_ulps(self, name: str) -> float:
        """That of a library, or the definition's."""
        return max(FUNCTION_ULPS, super().function_ulps(name))

    def _error(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        error = super()._error(node, v, x, e)
        # An ulp of v is at most 2 U |v|; half of one is in the bound already.
        return error + (2 * QUOTIENT_ULPS - 1) * U * np.abs(v) if node.op in ("div", "sqrt") else error


def allowed(graph: Graph, case: Case) -> Mapping[str, Array]:
    """For every result that is not a whole number, and each of its elements, the largest distance from the real result
    that rounding explains; infinite or NaN where nothing can be said. Raises TokitaiError where no bound is known."""
    return {n: e for n, (_, e) in evaluate(graph, case.tensors, case.shape, case.params, AnyOrder).items()}
