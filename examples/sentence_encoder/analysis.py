"""How far the vectors of `operators` can be from those of `encoder`: running error analysis over the whole model.

Every operator, at the inputs that it met, gives a result that is off from the real one by three things:

    own roundings      at most `bound`, element by element: from `tokitai.meaning.bounds`, rigorous
    rounded weights    `drift`: the textbook with the weights as they are stored, less that with the weights of the file
    its inputs' errors which are counted where they arose

What an error at one place makes of the vector is its product with the derivative there, which `gradient` computes in
float64. Summed over all places that is the vector's error to first order: products of two errors, and the change of
the derivatives over the errors, are left out. A test holds the sum of the errors that were seen against the vector's
own, which shows how little that is. (One more thing is left out, and is nothing: the mean's share 1/n is rounded to the
storage format, which scales the mean, and the last step takes the scale away.)

`Estimate.bound` holds whatever the roundings do, and is far above what they do: it lets all of them push in one
direction. `Estimate.spread` takes each for a random variable with mean 0, independent of the others, within its bound;
then the sum, along a direction that was not chosen by looking at it, is beyond the spread with a probability of at most
UNLIKELY (Hoeffding, "Probability Inequalities for Sums of Bounded Random Variables" (1963), theorem 2). That is a model
of rounding, not a theorem: Higham and Mary, "A New Approach to Probabilistic Rounding Error Analysis" (2019), say when
it is a good one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from typing import Any

import numpy as np

from tokitai.families import family_of
from tokitai.lang import MATRICES, Node, Operator, Sizes, TensorSpec, extent
from tokitai.meaning import bits, bounds
from tokitai.meaning.interpret import full_size
from tokitai.meaning.product import operands
from tokitai.runtime.binding import bind
from tokitai.runtime.problem import common_shape

from . import encoder, gradient
from .model import Array, Model
from .operators import Call, Encoder

UNLIKELY = 1e-9
FAR = math.sqrt(2 * math.log(2 / UNLIKELY))  # standard deviations


@dataclass(frozen=True)
class Step:
    """What one operator was off by, element by element, given its inputs."""

    site: str
    seen: Array  # result less textbook, at these inputs and with the weights of the file
    drift: Array  # the part of it that the rounding of the weights makes
    bound: Array  # on the magnitude of the rest


@dataclass(frozen=True)
class Estimate:
    """Of an error, to first order."""

    seen: float  # the steps' errors as they were
    drift: float
    bound: float
    spread: float

    @classmethod
    def of(cls, parts: Iterable[tuple[Array | float, Step]]) -> Estimate:
        """The sum over the steps, each with the derivative at its result."""
        seen = drift = bound = square = 0.0
        for slope, step in parts:
            seen += float(np.sum(slope * step.seen))
            drift += float(np.sum(slope * step.drift))
            bound += float(np.sum(np.abs(slope) * step.bound))
            square += float(np.sum((slope * step.bound) ** 2))
        return cls(seen, drift, abs(drift) + bound, abs(drift) + FAR * math.sqrt(square))

    def __add__(self, other: Estimate) -> Estimate:
        """Of two errors whose roundings have nothing to do with each other."""
        drift = self.drift + other.drift
        square = (self.spread - abs(self.drift)) ** 2 + (other.spread - abs(other.drift)) ** 2
        apart = self.bound - abs(self.drift) + other.bound - abs(other.drift)
        return Estimate(self.seen + other.seen, drift, abs(drift) + apart, abs(drift) + math.sqrt(square))


class Analysis:
    """One sentence, encoded on operators and in float64: `vector` and `exact`, both hidden."""

    def __init__(self, model: Model, narrow: Encoder, ids: list[int]) -> None:
        self.model, self.ids = model, ids
        weights = exact_weights(model, narrow.model)
        self.steps: list[Step] = []
        self.vector: Any = narrow.embed([ids], lambda call: self.steps.append(step_of(call, weights)))[0]
        self.tape: gradient.Tape = {}
        self.exact = encoder.embed(model, [ids], self.tape.__setitem__)[0]

    def along(self, direction: Array) -> Estimate:
        """Of the product of the vector's error with `direction`, hidden."""
        slopes: gradient.Tape = {}
        spans = encoder.spans_of([self.ids])
        dx = gradient.embed_backward(self.model, direction[None], spans, self.tape, slopes.__setitem__)
        m = self.model
        looked_up = m.tokens[self.ids] + m.positions[: len(self.ids)] + m.segment
        slopes["positions.dy"] = gradient.layer_norm_backward(dx, looked_up, m.norm)
        return Estimate.of((slopes[place(s.site)].reshape(s.seen.shape), s) for s in self.steps)


def similarity(one: Analysis, other: Analysis, narrow: Encoder) -> tuple[float, float, Estimate]:
    """Of two sentences: the cosine on operators, that in float64, and how far they are apart."""
    last: list[Step] = []
    found = narrow.similarities(one.vector[None], other.vector[None], lambda call: last.append(step_of(call, {})))
    estimate = reduce(Estimate.__add__, (one.along(other.exact), other.along(one.exact), Estimate.of([(1.0, last[0])])))
    return float(found[0, 0]), float(one.exact @ other.exact), estimate


def place(site: str) -> str:
    """The name under which `gradient` records the derivative with respect to the result of a call, of one sentence."""
    ahead, _, name = site.rpartition(".")
    return f"{ahead}.sentence0.{name}.dy" if name == "context" else f"{site}.dy"


def exact_weights(model: Model, narrow: Model) -> dict[int, Array]:
    """By the identity of every stored weight: that of the file."""
    pairs = zip(arrays(narrow), arrays(model), strict=True)
    return {id(stored): exact for stored, exact in pairs}


def arrays(part: Any) -> Iterator[Any]:
    """The arrays of a part of a model, in order."""
    if is_dataclass(part):
        part = [getattr(part, f.name) for f in fields(part)]
    if isinstance(part, (list, tuple)):
        for item in part:
            yield from arrays(item)
    elif hasattr(part, "shape"):
        yield part


def step_of(call: Call, weights: Mapping[int, Array]) -> Step:
    """A call's own errors. ``weights`` maps the identity of a stored weight to that of the file."""
    tensors, params, options = bind(call.operator, (), {**call.tensors, **call.settings})
    exact = {name: weights.get(id(array), array) for name, array in tensors.items()}
    tensors, exact = _used(call.operator, tensors), _used(call.operator, exact)
    stored = next(a.dtype for a in tensors.values() if a.dtype.kind not in "iu")
    graph = call.operator.trace(stored, tensors, options)
    shape: tuple[int, int]
    found = family_of(graph).bind(call.operator, graph, tensors)
    if found is not None:
        shape = found.sizes
        tensors |= {n: np.broadcast_to(tensors[n], r.whole) for n, r in found.inputs.items() if r.small}
        exact |= {n: np.broadcast_to(exact[n], r.whole) for n, r in found.inputs.items() if r.small}
    else:
        shape = common_shape(call.operator, tensors, graph.options)[1]
    entries = {t.name: len(tensors[t.name]) if t.space == "t" else 0 for t in graph.inputs}
    sizes = {  # a matrix without dimensions ahead is that of all products of a batch
        t.name: extent(t.space, shape, entries[t.name], t.slots, tensors[t.name].ndim > 2) for t in graph.inputs
    }
    flat = {name: tensors[name].reshape(size) for name, size in sizes.items()}
    name = graph.outputs[0].name
    bound = bounds.evaluate(graph, flat, shape, params, _QuickBounds)[name][1]

    def textbook(given: Mapping[str, Any]) -> Array:
        assert call.operator.textbook is not None
        wide = {t.name: _widened(t, given[t.name].reshape(sizes[t.name]), shape) for t in graph.inputs}
        made: Array = call.operator.textbook(**wide, **params, **graph.options)[name]
        return made.reshape(call.result.shape)

    wanted = textbook(exact)
    seen = call.result.astype(np.float64) - wanted
    return Step(call.site, seen, textbook(tensors) - wanted, bound.reshape(seen.shape))


def _used(called: Operator, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same with no more of a table than the entries that are looked up."""
    chosen = next((name for name, index in called.contract.indices.items() if index.entries), None)
    if chosen is None:
        return dict(tensors)
    ids = tensors[chosen]
    entries, places = np.unique(ids, return_inverse=True)
    tables = {t.name: tensors[t.name][entries] for t in called.tensors if t.space == "t"}
    return {**tensors, **tables, chosen: places.reshape(ids.shape)}


def _widened(t: TensorSpec, array: Any, shape: tuple[int, int]) -> Any:
    """A tensor as a textbook takes it: in float64, with two dimensions at least."""
    wide = array if array.dtype.kind in "iu" else array.astype(np.float64)
    if t.space == "r" and isinstance(shape, Sizes):
        return wide[..., None]
    return wide if t.space in MATRICES else wide.reshape(full_size(t.space, wide, shape))


class _QuickBits(bits.Bits):
    """Sums of products by NumPy's own matmul, in float64. They lie within the bound of the real ones, as the bits do;
    what is rounded later is looked at there instead, a difference of second order."""

    @staticmethod
    def product(node: Node, a: Any, b: Any) -> Any:
        left, right = operands(node, a.astype(np.float64), b.astype(np.float64))
        return (left @ right).astype(np.float32)


class _QuickBounds(bounds.Bounds):
    def __init__(self, params: Mapping[str, float]) -> None:
        super().__init__(params)
        self.bits = _QuickBits(params)
