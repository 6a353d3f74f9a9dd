"""How far a third-party kernel may be from the exact value: the rounding-error bound of any order of evaluation.

The definition fixes one order of summation; another kernel may take any, may fuse multiplications and additions or take
fused ones apart, and calls functions of a library. So its bound is that of the definition (`meaning.bounds`), widened
in these ways and no other:

* a sum of n terms: each goes through at most n - 1 additions, in whichever order (Higham, "Accuracy and Stability of
  Numerical Algorithms", section 4.2); what is added to a sum may be one of its terms, and a chain of a few additions is
  a sum as well; totals over a list are sums;
* a sum that is divided by the number of its terms may be a running mean, which divides as often as it adds: each
  quotient may underflow;
* a multiply-add may round its product, and a factor p / q of it be divided last. Of x + s x, and of q + s (p - q), the
  factors may be collected, (1 + s) x and (1 - s) q + s p, whose coefficients and products round;
* a quotient or a square root: within 2 ulp, as CUDA's `__fdividef` and `rsqrtf` are;
* an elementary function: within 4 ulp, the most that CUDA's documented single-precision functions of these names take
  (`erfcf`; CUDA C++ Programming Guide, "Mathematical Functions"), or the definition's own error where that is larger.
  At 0, exp and cos are 1 in every library (ISO C, Annex F).

Where the exact result of an operation on exact whole numbers fits f32, nothing is rounded in any order: there the bound
is that of the store alone, and shows a rounding of operands or partial sums to anything less than f32.

Of independent noise the worst case of a long sum does not occur: roundings are then held to Higham and Mary's
probabilistic bound ("A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41 (2019), theorem
2.4), which grows with the square root of n, at a probability of 2**-40 in each case that a right kernel misses it.

Arithmetic in f32 and one rounding at the store are taken for granted: an accumulator or an intermediate result in 16
bits is seen, and so is a formula that cancels where the definition does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..lang import FIXED_BITS, Graph, Node
from ..meaning.bounds import TINY, Bounded, Bounds, U, evaluate
from ..meaning.product import operands, turned
from ..verification.cases import Case

Array = np.ndarray[Any, Any]

FUNCTION_ULPS = 4.0
QUOTIENT_ULPS = 2.0
MISSED = 2.0**-40  # probability that a right kernel is further away than the probabilistic bound, in a case
AT_ZERO = ("exp", "exp_down", "exp_short", "exp2", "cos")  # 1 at 0, exactly
WHOLE = 1 / U  # whole numbers up to here are f32


class AnyOrder(Bounds):
    """The domain of values with bounds on the error of any kernel, as said above. ``noise``: for inputs that are
    independent noise."""

    def __init__(self, params: Mapping[str, float], noise: bool = False, results: int = 1) -> None:
        super().__init__(params)
        self.noise, self.results = noise, results
        self.sums: dict[Node, tuple[Any, Any, Any]] = {}  # as `_parts` has them
        self.plain: dict[Node, Array] = {}  # values, as f64

    def height(self, op: str, count: Any) -> Any:
        """Any tree over the terms, a chain at worst; of noise as many roundings as add up to what a chain's do."""
        worst = np.maximum(np.asarray(count) - 1, 0)
        if not self.noise:
            return worst
        trials = 2 * np.maximum(worst, 1) * max(self.results, 1) / MISSED
        return np.minimum(worst, np.sqrt(2 * np.log(trials) * worst))

    def function_ulps(self, proved: float) -> float:
        """That of a library, or the definition's."""
        return max(FUNCTION_ULPS, super().function_ulps(proved))

    def apply(self, node: Node, args: Sequence[Any], shape: tuple[int, int]) -> Any:
        """One operation, whose values are kept."""
        made = super().apply(node, args, shape)
        if isinstance(made, Bounded):
            self.plain[node] = np.asarray(made.value, np.float64)
        return made

    # ------------------------------------------------------------------ one element
    def _error(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        error = super()._error(node, v, x, e)
        match node.op:
            case "div":
                count, _, _ = self.sums.get(node.args[0], (0, 0, 0))
                return error + (2 * QUOTIENT_ULPS - 1) * U * np.abs(v) + count * TINY
            case "sqrt":  # an ulp of v is at most 2 U |v|; half of one is in the bound already
                return error + (2 * QUOTIENT_ULPS - 1) * U * np.abs(v)
            case "round" if node.args[0].op in ("param", "number"):
                data = node.args[0].data[0]
                given = self.bits.params[str(data)] if node.args[0].op == "param" else float(str(data))
                return np.where(v == given, 0, error)
            case "add" | "fma":
                more = self._rearranged(node, v, x)
                return np.where(self._whole(node, v, x, e), 0, error + more)
            case "sub" | "mul":
                return np.where(self._whole(node, v, x, e), 0, error)
        return error

    def _function(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        error = super()._function(node, v, x, e)
        known = node.data[0] in AT_ZERO and (x[0] == 0) & (e[0] == 0)
        return np.where(known, 0, error)

    def _whole(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        """Where exact whole numbers give one that f32 has, by way of none that it has not."""
        fits = np.abs(v) <= WHOLE
        for operand, error in zip(x, e, strict=True):
            fits = fits & (error == 0) & (operand == np.rint(operand)) & (np.abs(operand) <= WHOLE)
        if node.op == "fma":
            fits = fits & (np.abs(x[0] * x[1]) <= WHOLE)
        if node.op in ("add", "fma"):
            fits = fits & (sum(size for _, size, _ in self._parts(node, x)) <= WHOLE)
        return fits

    def _parts(self, node: Node, x: Sequence[Array]) -> list[tuple[Any, Any, Any]]:
        """The operands of an addition or a multiply-add as sums: terms, sum of magnitudes, what its error has of them
        already."""
        if node.op == "add":
            return [self.sums.get(arg, (1, np.abs(value), 0)) for arg, value in zip(node.args, x, strict=True)]
        product: tuple[Any, Any, Any] = (1, np.abs(x[0] * x[1]), 0)
        for one, other in ((0, 1), (1, 0)):
            if node.args[one] in self.sums:
                terms, size, charged = self.sums[node.args[one]]
                product = terms, size * np.abs(x[other]), charged * np.abs(x[other])
        return [product, self.sums.get(node.args[2], (1, np.abs(x[2]), 0))]

    def _rearranged(self, node: Node, v: Array, x: Sequence[Array]) -> Any:
        """The error that an addition or a multiply-add may have beside its own rounding."""
        parts = self._parts(node, x)
        terms, size, charged = (sum(p[i] for p in parts) for i in range(3))
        own = U * np.abs(v)
        needed = np.expm1(self.height("chain", terms) * np.log1p(U)) * size
        more = np.where(np.asarray(terms) > 2, np.maximum(needed - charged - own, 0), 0)
        self.sums[node] = terms, size, charged + own + more
        if node.op == "add":
            return more
        more = more + U * np.abs(x[0] * x[1]) + TINY
        for a, s in ((0, 1), (1, 0)):
            factor, coefficient = node.args[a], np.abs(x[s])
            if factor is node.args[2]:  # x + s x
                more = more + 2 * U * np.abs(x[2]) * (1 + coefficient) + TINY
            if factor.op == "div":  # s (p / q) as (s p) / q, whose product may underflow
                more = more + TINY / np.abs(self.plain.get(factor.args[1], x[2]))
            if factor.op == "sub" and factor.args[1] is node.args[2]:  # q + s (p - q)
                p = np.abs(self.plain.get(factor.args[0], x[2]))
                more = more + U * (2 * np.abs(1 - x[s]) * np.abs(x[2]) + coefficient * p) + 2 * TINY
        return more

    # ------------------------------------------------------------------ sums
    def _exact(self, size: Any, *terms: Array) -> Any:
        """Whether a sum of these whole numbers is one in any order."""
        return np.asarray(size) <= WHOLE if all((t == np.rint(t)).all() for t in terms) else np.zeros((1, 1), bool)

    def _product(self, node: Node, plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        made = super()._product(node, plain, shape)
        left, right = (np.abs(x.astype(np.float64)) for x in operands(node, *plain))
        size = left @ right
        bits = FIXED_BITS.get(str(node.data[1]), 0)  # of fixed point, in which larger operands are rounded
        rounded = bits and max(float(x.max(initial=0)) for x in (left, right)) >= 2.0 ** (bits - 1)
        error = made.error if rounded else np.where(self._exact(size, left, right), 0, made.error)
        self.sums[node] = left.shape[1], size, error
        return Bounded(made.value, error)

    def _weighted(self, node: Node, args: Sequence[Any], plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        made = super()._weighted(node, args, plain, shape)
        weights, met, x = turned(node, plain)
        weights, reach = np.where(met, np.abs(weights.astype(np.float64)), 0), np.abs(x.astype(np.float64))
        size = weights @ np.where(np.isfinite(reach), reach, 0)
        exact = self._exact(size, weights, reach) & (np.asarray(args[0].error) == 0).all() & np.isfinite(reach).all()
        error = np.where(exact, 0, made.error)
        self.sums[node] = len(x), size, error
        return Bounded(made.value, error)

    def _across(self, node: Node, args: Sequence[Any], plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        made = super()._across(node, args, plain, shape)
        if node.op in ("row_sum", "col_sum"):
            full = shape if node.space != "s" else (shape[0], 1)
            axis = 1 if node.op == "row_sum" else 0
            size = np.broadcast_to(np.abs(np.asarray(args[0].value, np.float64)), full).sum(axis=axis, keepdims=True)
            self.sums[node] = full[axis], size, made.error
        if node.op == "scatter_sum":
            index, terms = plain[1][:, 0], np.broadcast_to(np.asarray(args[0].value, np.float64), args[0].value.shape)
            size = np.zeros(made.value.shape)
            np.add.at(size, index, np.abs(terms))
            exact = self._exact(size, terms) & (np.asarray(args[0].error) == 0).all()
            error = np.where(exact, 0, made.error)
            self.sums[node] = np.bincount(index, minlength=len(size))[: len(size), None], size, error
            return Bounded(made.value, error)
        return made


def allowed(
    graph: Graph, case: Case, noise: bool = False, off: Mapping[str, Array] | None = None
) -> Mapping[str, Array]:
    """For every result that is not a whole number, and each of its elements, the rounding-error bound on its distance
    from the exact value; infinite or NaN where nothing can be said. ``noise``: by the probabilistic bound; ``off``:
    how far inputs are from what they stand for.

    Raises TokitaiError where no bound is known."""
    results = sum(math.prod(case.shape) for _ in graph.outputs)
    domain = partial(AnyOrder, noise=noise, results=results)
    return {n: e for n, (_, e) in evaluate(graph, case.tensors, case.shape, case.params, domain, off).items()}
