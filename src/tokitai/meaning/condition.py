"""In what the error of an element is measured: roundings of the magnitudes that its evaluation adds.

Where a sum cancels, any error is large beside the result, and says nothing of the arithmetic. So each value x^ is
carried with a *magnitude* m >= |x^|: for a sum that of its terms. m / |x^| is the condition number of the sum (Higham,
"Accuracy and Stability of Numerical Algorithms", sections 1.6 and 4.2); of the other operations m follows the first
order of the running error (sections 1.5 and 3.3), in which a rounding of the magnitude stands for the operand's error:

* an input, a constant, a host scalar: |x|; of what a forward pass saved at least how far it is off in roundings;
* a + b, a - b, sums and totals over elements: the sum of the terms' magnitudes;
* a b: |a| m_b + |b| m_a - |a b| + u m_a m_b, so that condition numbers c of factors make 1 + (c_a - 1) + (c_b - 1);
  a / b: (m_a + |a / b| m_b) / |b| - |a / b|. An fma is both of these rules, a matrix product the sum of |a| |b|
  (section 3.5), a weighted sum that of the weights' magnitudes times |x|;
* sqrt a: m_a / (2 sqrt a), and at most sqrt(m_a / u); f(a): m_a times the largest |f'| within u m_a of a;
* a maximum: the largest of the magnitudes; what is chosen, gathered, negated or rounded: its own;
* in fixed point every element counts as the largest of its line, in whose unit it was rounded.

An infinity has the magnitude 0, as nothing was rounded: that of a masked score, say. No other magnitude is below its
value, nor, behind what may underflow, below the smallest normal number, of which a rounding
is half the smallest subnormal one. The unit of a result is the rounding u of its format, of the magnitude or of the
format's smallest normal number: an operation that rounds once has an error of at most one such unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..evidence.check import LARGEST_BOUND
from ..formats import FORMATS
from ..lang import FIXED_BITS, Graph, Node
from .bits import Bits
from .bounds import Bounded, Bounds, Result, U, by_item, results_of, walk
from .interpret import Array, as_rows_cols
from .product import blocks, operands, turned

NORMAL = 2.0**-126  # the smallest normal number of f32
MISSED = 2.0**-20  # probability that the roundings of an element exceed the probabilistic bound
UNDERFLOWS = ("mul", "fma", "div", "call", "matmul", "weighted_sum")
CHAINS = ("matmul", "weighted_sum")


class Likely(Bounds):
    """The probabilistic bound: n roundings that are independent in the mean add up to as much as L sqrt(n), but for a
    chance of 2 n exp(-L**2 / 2) an element (Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis",
    SIAM J. Sci. Comput. 41 (2019), theorems 2.4 and 3.1). Values are those that another domain has found."""

    def __init__(self, known: Mapping[Node, Any], params: Mapping[str, float]) -> None:
        super().__init__(params)
        self.bits = _Known(known, params)

    def height(self, op: str, count: Any) -> Any:
        """As many roundings as those of a term amount to."""
        certain = super().height(op, count)
        return np.minimum(certain, np.sqrt(2 * np.log(2 * np.maximum(count, 1) / MISSED) * certain))


class _Known(Bits):
    """Bits that are known."""

    def __init__(self, known: Mapping[Node, Any], params: Mapping[str, float]) -> None:
        super().__init__(params)
        self.known = known

    def apply(self, node: Node, args: Sequence[Array], shape: tuple[int, int]) -> Array:
        found = self.known[node]
        return np.asarray(found.value if isinstance(found, Bounded) else found)

    def total(self, node: Node, parts: Sequence[Array]) -> Array:
        return self.apply(node, parts, (1, 1))


def evaluate(
    graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Mapping[str, float],
    off: Mapping[str, Array], why: list[str],
) -> dict[str, Result]:  # fmt: skip
    """For every result its stored bits and, per element: the bound, the probabilistic bound and the unit of both, as
    absolute numbers; and 0, or, where the bound is beyond LARGEST_BOUND units, the number of the sentence in
    ``why`` that says from which operation on it is. New sentences are appended.

    Raises TokitaiError as `bounds.evaluate` does.
    """
    chained = any(n.op in CHAINS for n in graph.nodes)

    def one(some: Mapping[str, Array], away: Mapping[str, Array], sizes: tuple[int, int]) -> dict[str, Result]:
        domain = Bounds(params)
        values = walk(graph, domain, some, away, sizes)
        found = likely = results_of(graph, domain, values, sizes)
        if chained:
            other = Likely(values, params)
            likely = results_of(graph, other, walk(graph, other, some, away, sizes), sizes)
        made: dict[str, Result] = {}
        with np.errstate(all="ignore"):
            reach = magnitudes(graph, domain, values, away, sizes)
            for o in (o for o in graph.outputs if o.name in found):
                fmt, (value, error) = FORMATS[o.format], found[o.name]
                unit = np.broadcast_to(2.0**-fmt.precision * np.maximum(reach[o.node], 2.0**fmt.emin), value.shape)
                reason = np.zeros(value.shape, np.int64)
                small = (error <= LARGEST_BOUND * unit) & (unit < np.inf) & ~np.isnan(value)
                for some_of in (np.isfinite(value), ~np.isfinite(value)):
                    beyond = some_of & ~small
                    if beyond.any():
                        said = _reason(o.node, beyond, values, reach)
                        why.extend([said] if said not in why else [])
                        reason[beyond] = why.index(said) + 1
                made[o.name] = value, error, likely[o.name][1], unit, reason
        return made

    return by_item(one, graph, tensors, off, shape)


def magnitudes(
    graph: Graph, domain: Bounds, values: Mapping[Node, Any], off: Mapping[str, Array], shape: tuple[int, int]
) -> dict[Node, Array]:
    """The magnitude of every f32 value of a walk of ``domain``, in the shape of the value or one that broadcasts."""
    specs = {t.name: t for t in graph.inputs}
    found: dict[Node, Array] = {}
    for node in graph.nodes:
        if not isinstance(values[node], Bounded):
            continue
        v = np.abs(np.asarray(values[node].value, np.float64))
        if node.op == "input":
            name = str(node.data[0])
            away = as_rows_cols(specs[name], off[name], shape) if name in off else 0
            found[node] = np.maximum(v, away * 2.0 ** FORMATS[str(node.data[1])].precision)
            continue
        args = [values[a] for a in node.args]
        plain = [a.value if isinstance(a, Bounded) else a for a in args]
        m = [found.get(a, np.zeros((1, 1))) for a in node.args]
        size = np.maximum(_magnitude(node, v, plain, m, domain, shape), v)
        size = np.maximum(size, NORMAL) if node.op in UNDERFLOWS else size
        found[node] = np.where(np.isfinite(v), size, 0)
    return found


def _magnitude(
    node: Node, v: Array, plain: Sequence[Array], m: Sequence[Array], domain: Bounds, shape: tuple[int, int]
) -> Any:
    x = [np.abs(np.asarray(p, np.float64)) for p in plain]
    full = shape if node.space != "s" else (shape[0], 1)
    match node.op:
        case "const" | "round" | "convert" | "row_first":
            return v
        case "neg" | "abs" | "round_to" | "round_stochastic":
            return m[0]
        case "add" | "sub":
            return m[0] + m[1]
        case "mul":
            return _of_product(x, m)
        case "fma":
            return _of_product(x, m) + m[2]
        case "div":
            return (m[0] + v * m[1]) / x[1] - v
        case "sqrt":
            return np.minimum(np.where(m[0] == 0, 0, m[0] / (2 * v)), np.sqrt(m[0] / U))
        case "maximum" | "minimum":
            return np.maximum(m[0], m[1])
        case "where":
            doubt = domain.uncertain.get(node.args[0], np.zeros((1, 1), bool))
            return np.where(doubt, np.maximum(m[1], m[2]), np.where(x[0] != 0, m[1], m[2]))
        case "call":
            assert node.body is not None and node.body.real is not None and node.body.real.lipschitz is not None
            steep = node.body.real.lipschitz(np.asarray(plain[0], np.float64), U * m[0])
            return np.where(m[0] == 0, 0, np.asarray(steep) * m[0])
        case "matmul":
            if node.data[1] in FIXED_BITS:
                lines = [(_largest(a), _largest(b.T).T) for a, b in blocks(node, *x)]
                return sum((a @ b for a, b in lines), np.zeros((1, 1)))
            left, right = operands(node, *x)
            return left @ right
        case "weighted_sum":
            weights, met, other = turned(node, [np.broadcast_to(m[0], plain[0].shape), x[1], *plain[2:]])
            return np.where(met, weights, 0) @ np.where(met.any(axis=0, keepdims=True).T, other, 0)
        case "row_sum" | "col_sum":
            return np.broadcast_to(m[0], full).sum(axis=int(node.op == "row_sum"), keepdims=True)
        case "row_max":
            return np.broadcast_to(m[0], full).max(axis=1, keepdims=True, initial=0)
        case "total_sum":
            return np.broadcast_to(m[0], shape).sum(keepdims=True)
        case "total_max":
            return np.broadcast_to(m[0], shape).max(keepdims=True, initial=0)
        case "take_column":
            return np.take_along_axis(np.broadcast_to(m[0], full), plain[1].astype(np.int64), axis=1)
        case "gather":
            return np.broadcast_to(m[0], plain[0].shape)[plain[1][:, 0]]
        case "scatter_sum":
            total = np.zeros(v.shape)
            np.add.at(total, plain[1][:, 0], np.broadcast_to(m[0], plain[0].shape))
            return total
        case "slots":
            return np.concatenate([np.broadcast_to(a, (shape[0], 1)) for a in m], axis=1)
    raise AssertionError(f"{node.op}: a bound is known, but no magnitude")


def _of_product(x: Sequence[Array], m: Sequence[Array]) -> Array:
    return np.asarray(x[0] * m[1] + x[1] * m[0] - x[0] * x[1] + U * m[0] * m[1])


def _largest(lines: Array) -> Array:
    """In place of each element that is not zero the largest of its line."""
    return np.where(lines == 0, 0, lines.max(axis=1, keepdims=True, initial=0))


# ------------------------------------------------------------------ why a bound is beyond all measure
def _reason(node: Node, at: Array, values: Mapping[Node, Any], reach: Mapping[Node, Array]) -> str:
    """The operation behind which the bounds on these elements of a value are beyond all measure, in a sentence."""
    before: Node | None = node
    while before is not None:
        node, before = before, None
        for place, operand in enumerate(node.args):
            if not isinstance(values[operand], Bounded):
                continue
            error = np.asarray(values[operand].error)
            beyond = ~(error <= LARGEST_BOUND * U * np.maximum(reach[operand], NORMAL))
            there = _onto(_chosen(node, place, values) & at if node.op == "where" else at, beyond.shape) & beyond
            if there.any():
                before, at = operand, there
                break
    if node.op == "div":
        divisor = values[node.args[1]]
        if (at & (np.abs(np.asarray(divisor.value, np.float64)) <= 2 * divisor.error)).any():
            return "a divisor may be zero within its error bound"
    value = np.asarray(values[node].value)
    if not np.isfinite(value[_onto(at, value.shape)]).all():
        return "an intermediate result overflows f32"
    return {
        "sqrt": "the square root is taken of what may be zero within its error bound",
        "where": "a comparison of values within their error bounds decides",
        "mul": "a product of factors whose error bounds are as large as the factors",
        "fma": "a product of factors whose error bounds are as large as the factors",
        "call": f"{node.data[0] if node.data else ''} is steep within the error bound of its argument",
    }.get(node.op, f"the error bound of {node.op} is as large as its operands")


def _chosen(node: Node, place: int, values: Mapping[Node, Any]) -> Array:
    """Where a choice takes the operand at this place."""
    return np.asarray(np.equal(values[node.args[0]], place == 1))


def _onto(at: Array, shape: tuple[int, ...]) -> Array:
    """Elements of a result as those of an operand of this shape; all of one that is arranged otherwise."""
    if any(1 not in (a, b) and a != b for a, b in zip(at.shape, shape, strict=True)):
        return np.ones(shape, bool)
    lines = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return np.broadcast_to(at.any(axis=lines, keepdims=True), shape)
