"""How far the bits can be from the exact value: running error analysis over the graph.

Every value is carried with a bound on its distance from the exact result of the same mathematics on the same inputs
(Wilkinson; Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3). An operation adds the rounding of
its own result, u |v| with u = 2**-24 (and half the smallest subnormal for products and quotients), to what it makes of
its operands' bounds. Tolerances come from here: no test holds a number of its own.

The bounds are computed in f64; each is widened by 2**-40 of itself, far more than its own few roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..elementary.exact import DECLARED
from ..errors import TokitaiError
from ..formats import FORMATS
from ..lang import COL_SUM_BLOCK, FIXED_BITS, MATMUL_BLOCK, TOTALS, Graph, Node, Sizes, TensorSpec
from . import bits
from .interpret import Array, as_rows_cols, full_size, items_of, joined, load
from .matrix_unit import FRACTION, STEP
from .product import blocks, formats, operands, turned

U = 2.0**-24  # unit roundoff of f32
TINY = 2.0**-150  # half the smallest subnormal
HOST = 2.0**-46  # of a host scalar: up to 64 roundings in f64 before the one to f32
WIDEN = 1 + 2.0**-40


class Bounded:
    """An f32 value as f64, and a bound on its distance from the exact one. A tiny stand-in for an array."""

    def __init__(self, value: Array, error: Array) -> None:
        self.value, self.error = value, error


class Bounds:
    """The domain of values with bounds. It follows the bits: `values` are those of a run of the oracle."""

    def __init__(self, params: Mapping[str, float]) -> None:
        self.bits = bits.Bits(params)
        self.uncertain: dict[Node, Array] = {}  # where a condition's bits may differ from the mathematics

    def height(self, op: str, count: Any) -> Any:
        """The most roundings by additions that a term of a sum of ``count`` terms goes through, for each such count:
        of a chain in every block, then of the tree over the blocks."""
        block = {"row_sum": 1, "total_sum": 1, "matmul": MATMUL_BLOCK}.get(op, COL_SUM_BLOCK)
        count = np.asarray(count)
        levels = np.ceil(np.log2(np.maximum(-(-count // block), 1)))
        return np.minimum(np.maximum(count - 1, 0), block - 1) + levels

    def function_ulps(self, proved: float) -> float:
        """The largest error of an elementary function in ulp of its result: one more than was proved, as what the proof
        takes the ulp of may lie in the next binade."""
        return proved + 1

    def load(self, tensor: TensorSpec, values: Array) -> Any:
        loaded = self.bits.load(tensor, values)
        return Bounded(loaded, np.zeros((1, 1))) if FORMATS[str(tensor.format)].is_float else loaded

    def store(self, values: Any, format_name: str) -> Any:
        if not isinstance(values, Bounded):
            return values
        fmt = FORMATS[format_name]
        return Bounded(bits.round_to(values.value, format_name), _rounded(values, fmt.precision, fmt.emin).error)

    def apply(self, node: Node, args: Sequence[Any], shape: tuple[int, int]) -> Any:
        with np.errstate(all="ignore"):
            if node.type == "host":
                return self.bits.apply(node, args, shape)
            plain = [a.value if isinstance(a, Bounded) else a for a in args]
            if node.op == "matmul":
                return _unless_overflown(self._product(node, plain, shape))
            if node.op == "weighted_sum":
                return _unless_overflown(self._weighted(node, args, plain, shape))
            if node.op in ("row_sum", "col_sum", "row_max", "take_column", "gather", "scatter_sum"):
                return self._across(node, args, plain, shape)
            if node.op == "slots":
                errors = [np.broadcast_to(a.error, (shape[0], 1)) for a in args]
                return Bounded(self.bits.apply(node, plain, shape), np.concatenate(errors, axis=1))
            value = self.bits.apply(node, plain, shape)
            if node.op == "row_first":  # any column, where a condition is in doubt
                doubt = self.uncertain.get(node.args[0], np.zeros((1, 1), bool)).any(axis=1, keepdims=True)
                return Bounded(value, np.where(doubt, float(shape[1]), 0.0))
            e = [np.asarray(a.error) if isinstance(a, Bounded) else np.zeros((1, 1)) for a in args]
            x = [np.asarray(p, np.float64) for p in plain]
            if node.type == "bool" and not node.exact:
                doubts = [self.uncertain[a] for a in node.args if a in self.uncertain]
                doubt = np.abs(x[0] - x[1]) <= e[0] + e[1] if not doubts and len(x) == 2 else np.zeros((1, 1), bool)
                self.uncertain[node] = np.logical_or.reduce(np.broadcast_arrays(doubt & (e[0] + e[-1] > 0), *doubts))
            if node.type != "f32":
                return value
            return Bounded(value, WIDEN * self._error(node, np.asarray(value, np.float64), x, e))

    def _error(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        own = U * np.abs(v)
        match node.op:
            case "const":
                return np.abs(v - float(str(node.data[0]))) + 0 * v if np.isfinite(v).all() else np.zeros((1, 1))
            case "round":
                return own + np.abs(v) * HOST
            case "add" | "sub":
                return e[0] + e[1] + own
            case "mul":
                return np.abs(x[0]) * e[1] + np.abs(x[1]) * e[0] + e[0] * e[1] + own + TINY
            case "fma":
                return np.abs(x[0]) * e[1] + np.abs(x[1]) * e[0] + e[0] * e[1] + e[2] + own + TINY
            case "div":
                below = np.abs(x[1]) - e[1]
                spread = (e[0] + np.abs(x[0] / x[1]) * e[1]) / np.where(below > 0, below, 0)
                return np.where((e[0] == 0) & (e[1] == 0), 0, spread) + own + TINY
            case "sqrt":  # |sqrt a - sqrt b| <= |a - b| / sqrt a, and <= sqrt |a - b|
                return np.minimum(np.where(e[0] == 0, 0, e[0] / np.sqrt(x[0])), np.sqrt(e[0])) + own
            case "neg" | "abs":
                return e[0]
            case "maximum" | "minimum":
                return np.maximum(e[0], e[1])
            case "where":
                doubt = self.uncertain.get(node.args[0], np.zeros((1, 1), bool))
                chosen = np.where(x[0] != 0, e[1], e[2])
                return np.where(doubt, np.maximum(e[1], e[2]) + np.abs(x[1] - x[2]), chosen)
            case "convert":
                return np.where(x[0] == v, 0, own)  # a whole number that fits
            case "round_to":  # part of what is defined, and monotone: a value near a tie may go to the other side
                low, high = (
                    bits.round_to(np.nextafter(x[0] + side * e[0], side * np.inf), str(node.data[0])).astype(np.float64)
                    for side in (-1, 1)
                )
                return np.where(e[0] == 0, 0, np.maximum(high - v, v - low))
            case "round_stochastic":
                fmt = FORMATS[str(node.data[0])]
                return e[0] + 2 * (_rounded(Bounded(x[0], e[0]), fmt.precision, fmt.emin).error - e[0])
            case "call":
                return self._function(node, v, x, e)
        raise TokitaiError(f"{node.op}: no error bound is known")

    def _function(self, node: Node, v: Array, x: Sequence[Array], e: Sequence[Array]) -> Any:
        real = None if node.body is None else node.body.real
        if real is None or real.lipschitz is None or real.ulps is None:
            raise TokitaiError(f"{node.data[0]}: no error bound is known; accepted: {', '.join(sorted(DECLARED))}")
        ulp = _spacing(np.abs(v), 24, -126)
        passed = np.where(e[0] == 0, 0, np.asarray(real.lipschitz(x[0], e[0])) * e[0])
        return passed + self.function_ulps(real.ulps) * ulp

    def _product(self, node: Node, plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        """Operands are exact. A term of the sum goes through all roundings of its chain at most, its own among them,
        and one a level of the tree; each has an error of TINY at least. An f64 sum is rounded to f32 in the end."""
        value = self.bits.apply(node, plain, shape)
        if node.data[1] == "fused16":
            sides = operands(node, *(np.abs(np.asarray(x, np.float64)) for x in plain))
            return Bounded(value, WIDEN * self._fused_steps(*sides, *formats(node)))
        if node.data[1] in FIXED_BITS:
            return Bounded(value, WIDEN * self._fixed_point(node, plain, FIXED_BITS[str(node.data[1])]))
        left, right = operands(node, *(np.abs(x.astype(np.float64)) for x in plain))
        inner, f64 = left.shape[1], node.data[1] == "f64"
        grown = self._grown(inner, U * U * 2**-5 if f64 else U)
        total = (left @ right) * (1 + inner * 2.0**-52)
        error = grown * total + (0 if f64 else inner * TINY * (1 + grown))
        return Bounded(value, WIDEN * (error + (U * np.abs(np.asarray(value, np.float64)) + TINY if f64 else 0)))

    def _fused_steps(self, left: Array, right: Array, left_format: str, right_format: str) -> Array:
        """Of these magnitudes the error of a sum by a matrix unit's steps (`matrix_unit`). A step cuts its n products
        and the accumulator by less than a multiple 2**(E - FRACTION) each, and the sum by less than an ulp of f32,
        which is at most 2**-23 of it, or the smallest subnormal. 2**E is at most the largest product of operands that
        are normal, or the accumulator; where one of these is subnormal, the smallest normal number stands for it. The
        accumulators of a block are at most the sum of its magnitudes and of its errors so far."""
        fa, fb = FORMATS[left_format], FORMATS[right_format]
        errors, totals = [], []
        for start in range(0, left.shape[1], MATMUL_BLOCK):
            error, reach = np.zeros((2, len(left), right.shape[1]))
            for k in range(start, min(start + MATMUL_BLOCK, left.shape[1]), STEP):
                end = min(k + STEP, start + MATMUL_BLOCK)
                a, b = left[:, k:end], right[k:end]
                reach = reach + a @ b
                high = (_raised(a, fa.emin)[:, :, None] * _raised(b, fb.emin)[None]).max(axis=1)
                largest = np.maximum(np.maximum(high, reach + error), 2.0**-126)
                error = error + (a.shape[1] + 1) * 2.0**-FRACTION * largest
                error = error + 2.0**-23 * (reach + error) + 2.0**-149
            errors.append(error)
            totals.append(reach)
        if not errors:
            return np.zeros((len(left), right.shape[1]))
        levels = np.expm1(np.ceil(np.log2(len(errors))) * np.log1p(U))
        both, size = sum(errors[1:], errors[0]), sum(totals[1:], totals[0])
        return np.asarray((both + levels * (size + both)) * (1 + left.shape[1] * 2.0**-52))

    def _fixed_point(self, node: Node, plain: Sequence[Array], bits: int) -> Array:
        """The error of sums of operands in fixed point (`fixed_point`). In a block an element differs by half a unit of
        its line, at most 2**(1 - b) of the line's largest magnitude, or by a whole one next to twice that power of two;
        zeros are exact. So an outlier costs all of its line: a product differs by what each operand does, times
        the other, and by both. The sum is exact, rounded once as f32, and once more where it is subnormal."""
        errors, totals = [], []
        for a, b in blocks(node, *(np.abs(np.asarray(x, np.float64)) for x in plain)):
            wrong, other = _off(a, bits), _off(b.T, bits).T
            error, total = wrong @ b + a @ other + wrong @ other, a @ b
            errors.append(error + U * (total + error) + TINY)
            totals.append(total)
        if not errors:
            return np.zeros((1, 1))
        levels = np.expm1(np.ceil(np.log2(len(errors))) * np.log1p(U))
        both, size = sum(errors[1:], errors[0]), sum(totals[1:], totals[0])
        return np.asarray((both + levels * (size + both)) * (1 + MATMUL_BLOCK * 2.0**-52))

    def _weighted(self, node: Node, args: Sequence[Any], plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        """As for a product in f32, of weights that have errors themselves; what is not met has none."""
        value = self.bits.apply(node, plain, shape)
        wrong = [np.broadcast_to(args[0].error, plain[0].shape), *plain[1:]]
        weights, met, x = turned(node, plain)
        size, error = (np.where(met, np.abs(np.asarray(w, np.float64)), 0) for w in (weights, turned(node, wrong)[0]))
        reach, count = np.abs(x.astype(np.float64)), len(x)
        reach = np.where(met.any(axis=0, keepdims=True).T, reach, 0)
        passed = (error @ reach) * (1 + count * 2.0**-52)
        if node.data[1:] == ("fused16",):
            kinds = (str(node.args[1].data[1]),) * 2
            return Bounded(value, WIDEN * (passed + self._fused_steps(size + error, reach, *kinds)))
        grown = self._grown(count, U)
        total = (size @ reach) * (1 + count * 2.0**-52) + passed
        return Bounded(value, WIDEN * (passed + grown * total + count * TINY * (1 + grown)))

    def _across(self, node: Node, args: Sequence[Any], plain: Sequence[Array], shape: tuple[int, int]) -> Bounded:
        value = self.bits.apply(node, plain, shape)
        first = args[0]
        if node.op == "gather":
            return Bounded(value, np.broadcast_to(first.error, first.value.shape)[plain[1][:, 0]])
        if node.op == "scatter_sum":
            return self._scattered(value, first, plain[1][:, 0])
        full = shape if node.space != "s" else (shape[0], 1)
        x = np.broadcast_to(np.asarray(first.value, np.float64), full)
        e = np.broadcast_to(first.error, full)
        if node.op == "row_max":
            return Bounded(value, e.max(axis=1, keepdims=True, initial=0))
        if node.op == "take_column":
            return Bounded(value, np.take_along_axis(e, plain[1].astype(np.int64), axis=1))
        return self._summed(node.op, value, x, e, 1 if node.op == "row_sum" else 0)

    def total(self, node: Node, x: Any, shape: tuple[int, int]) -> Bounded:
        """A total over the elements of one tensor."""
        with np.errstate(all="ignore"):
            terms, e = (np.broadcast_to(a, shape).reshape(1, -1) for a in (x.value, x.error))
            value = self.bits.total(node, [terms] if terms.size else [])
            if node.op == "total_max":
                return Bounded(value, e.max(axis=1, keepdims=True, initial=0))
            return self._summed(node.op, value, terms.astype(np.float64), e, 1)

    def _summed(self, op: str, value: Array, x: Array, e: Array, axis: int) -> Bounded:
        """A sum of n terms in a tree of height h: (1 + u)**h - 1 of the sum of magnitudes (Higham, section 4.2)."""
        height = self.height(op, x.shape[axis])
        total = np.abs(x).sum(axis=axis, keepdims=True) + e.sum(axis=axis, keepdims=True)
        counted = ((x == np.rint(x)) & (e == 0)).all(axis=axis, keepdims=True) & (total <= 1 / U)  # exact: a count
        rounding = np.where(counted, 0, np.expm1(height * np.log1p(U)) * total)
        return _unless_overflown(Bounded(value, WIDEN * (e.sum(axis=axis, keepdims=True) + rounding)))

    def _scattered(self, value: Array, terms: Any, index: Array) -> Bounded:
        """As for a column sum, of as many terms as an entry has."""
        error, size = np.zeros(value.shape), np.zeros(value.shape)
        np.add.at(error, index, np.broadcast_to(terms.error, terms.value.shape))
        np.add.at(size, index, np.abs(np.asarray(terms.value, np.float64)))
        count = np.bincount(index, minlength=len(value))[: len(value), None]
        height = self.height("scatter_sum", count)
        return _unless_overflown(Bounded(value, WIDEN * (error + np.expm1(height * np.log1p(U)) * (size + error))))

    def _grown(self, count: int, roundoff: float) -> float:
        """What its roundings make of a product's sum of ``count`` terms, relative to them: one of each is its own."""
        return float(np.expm1((self.height("matmul", count) + 1) * np.log1p(roundoff)))


def _unless_overflown(total: Bounded) -> Bounded:
    """The bound on a sum, which is derived for f32 without a largest exponent: there is none where it was exceeded."""
    return Bounded(total.value, np.where(np.isfinite(total.value), total.error, np.inf))


def _off(lines: Array, bits: int) -> Array:
    """How far magnitudes are from their integers in a line's unit, at most: nothing, half a unit or a whole one."""
    power = np.frexp(lines.max(axis=1, keepdims=True, initial=0))[1]
    unit = np.ldexp(1.0, power - 1 - (bits - 2))
    return np.where(lines == 0, 0, np.where(lines >= np.ldexp(1.0, power) - unit / 2, unit, unit / 2))


def _raised(x: Array, emin: int) -> Array:
    """Magnitudes, with the smallest normal number in the place of subnormal ones; zeros as they are."""
    return np.where(x > 0, np.maximum(x, 2.0**emin), 0)


def _rounded(a: Bounded, precision: int, emin: int) -> Bounded:
    """The bound after rounding to nearest: half the spacing at a magnitude that the value cannot exceed; zero stays
    zero."""
    top = np.abs(np.asarray(a.value, np.float64)) + a.error
    half = np.where(top == 0, 0, _spacing(top, precision, emin) / 2)
    return Bounded(a.value, a.error + (half if precision < 24 else 0))


def _spacing(size: Array, precision: int, emin: int) -> Array:
    """The unit in the last place at values of this size; at 0 the smallest subnormal."""
    _, power = np.frexp(np.where(np.isfinite(size), size, 1))
    return np.asarray(np.ldexp(1.0, np.maximum(np.where(size == 0, emin, power - 1), emin) - (precision - 1)))


Result = tuple[Array, ...]  # the stored bits of one result, and per element what is said of them


def evaluate(
    graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Mapping[str, float],
    domain_of: Callable[[Mapping[str, float]], Bounds] = Bounds, off: Mapping[str, Array] | None = None,
) -> dict[str, Result]:  # fmt: skip
    """For every result its stored bits, and per element a bound on their distance from the exact value.

    ``domain_of`` makes the domain, where it is another one. ``off`` says how far inputs are from what they stand for.
    Totals are those of this one tensor. Raises TokitaiError for a graph with a function whose error is not proved.
    """

    def one(some: Mapping[str, Array], away: Mapping[str, Array], sizes: tuple[int, int]) -> dict[str, Result]:
        domain = domain_of(params)
        return results_of(graph, domain, walk(graph, domain, some, away, sizes), sizes)

    return by_item(one, graph, tensors, off or {}, shape)


def by_item(
    one: Callable[[Mapping[str, Array], Mapping[str, Array], tuple[int, int]], dict[str, Result]], graph: Graph,
    tensors: Mapping[str, Array], off: Mapping[str, Array], shape: tuple[int, int],
) -> dict[str, Result]:  # fmt: skip
    """What ``one`` says of inputs, how far they are off, and sizes: of a batch, of each product, joined."""
    if not (isinstance(shape, Sizes) and shape.several):
        return one(tensors, off, shape)
    there = items_of(graph, {**tensors, **off}, shape)
    made = [
        one(some, {n: away[n] for n in off}, sizes)
        for (some, sizes), (away, _) in zip(items_of(graph, tensors, shape), there, strict=True)
    ]
    spaces = {o.name: o.space for o in graph.outputs if o.name in made[0]}
    return {
        n: tuple(joined(s, parts, shape) for parts in zip(*(item[n] for item in made), strict=True))
        for n, s in spaces.items()
    }


def walk(
    graph: Graph, domain: Bounds, tensors: Mapping[str, Array], off: Mapping[str, Array], shape: tuple[int, int]
) -> dict[Node, Any]:
    """The value of every node with its bound."""
    specs = {t.name: t for t in graph.inputs}
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "input":
            name = str(node.data[0])
            values[node] = load(domain, node, specs[name], tensors, shape)
            if name in off:
                values[node].error = as_rows_cols(specs[name], off[name], shape)
        elif node.op in TOTALS:
            values[node] = domain.total(node, values[node.args[0]], shape)
        else:
            values[node] = domain.apply(node, [values[a] for a in node.args], shape)
    return values


def results_of(graph: Graph, domain: Bounds, values: Mapping[Node, Any], shape: tuple[int, int]) -> dict[str, Result]:
    """What is stored of the values, with bounds; whole numbers have none and are left out."""
    results: dict[str, Result] = {}
    for o in graph.outputs:
        stored = domain.store(values[o.node], o.format)
        if isinstance(stored, Bounded):
            full = full_size(o.space, stored.value, shape)
            results[o.name] = np.broadcast_to(stored.value, full), np.broadcast_to(stored.error, full)
    return results
