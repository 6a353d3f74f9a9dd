"""What the results of a call must be: the definition's bits, exact values and bounds, of all elements or of some.

Where rows or columns of a result are apart, as many as a person waits for are computed. A trial may have drawn few
different rows and columns and spread them over a large tensor (`trials.Trial`): then each element of it is judged,
though few are computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import TokitaiError
from ..formats import FORMATS, Format
from ..lang import Graph, Operator, Output
from ..meaning import bits
from ..verification.accuracy import exact_results, exactly
from ..verification.cases import Array, Case, rng_for, work_of
from ..verification.compare import patterns
from . import arithmetic, special
from .allowance import allowed
from .elements import Finding, extent, hold
from .sides import apart, axis_of, only, part, taken

REDUCED = 1 << 14  # work from which on some rows and columns are computed in place of all
SAMPLED = 32  # rows or columns, of those that are not repetitions


@dataclass(frozen=True)
class Spread:
    """Which row (column) of those that are different each row (column) of a tensor is."""

    of_row: Array | None = None
    of_column: Array | None = None


@dataclass(frozen=True)
class Side:
    """One side of a result: the places that were computed, and which of them each place is like, or -1."""

    places: Array
    like: Array


@dataclass(frozen=True)
class Source:
    """What a result was computed of: the graph, the case of the rows and columns that were, the same with the exact
    values of what a forward pass saved, and how far these are from those; ``noise``: see `allowed`."""

    graph: Graph
    case: Case
    whole: Case
    off: Mapping[str, Array]
    noise: bool


@dataclass(frozen=True)
class Expected:
    """What one result must be: of the elements at some rows and columns, and those that repeat them. ``kinds``: which
    of them have to do with special values, as `special.KINDS` counts them."""

    output: Output
    fmt: Format
    defined: Array
    exact: Any
    limit: Array | None
    rows: Side | None
    cols: Side | None
    source: Source
    kinds: Array

    def sides(self) -> dict[int, Side]:
        """Along which axes of the result some places alone were computed."""
        found: dict[int, Side] = {}
        for letter, s in (("r", self.rows), ("c", self.cols)):
            along = axis_of(self.output.space, self.output.slots, letter)
            if s is not None and along is not None:
                found[along] = s
        return found

    def computed(self, whole: Array) -> Array:
        """Of a whole result the elements that were computed here, in the size of ``defined``."""
        for axis, s in self.sides().items():
            whole = np.take(whole, s.places, axis=axis)
        return whole.reshape(self.defined.shape)

    def alone(self, got: Array, forgiven: Collection[int] = ()) -> Finding:
        """Compare the elements that were computed here with those of another result."""
        return hold(self.output.name, got, self.defined, self.exact, self.limit, self.fmt, None, self.kinds, forgiven)

    def hold(self, whole: Array, forgiven: Collection[int] = ()) -> Finding:
        """Compare a result, of all rows and columns. ``forgiven``: kinds of special values that do not matter."""
        sides = self.sides()
        got = whole
        for axis, s in sides.items():
            got = np.take(got, s.places, axis=axis)
        defined = self.defined.reshape(got.shape)
        kinds = self.kinds.reshape(got.shape)
        exact = np.broadcast_to(np.asarray(self.exact), self.defined.shape).reshape(got.shape)
        limit = None if self.limit is None else np.broadcast_to(self.limit, self.defined.shape).reshape(got.shape)

        def place(at: tuple[int, ...]) -> tuple[int, ...]:
            full = list(at)
            for axis, s in sides.items():
                full[axis] = int(s.places[at[axis]])
            return tuple(full)

        name = self.output.name
        found = hold(name, got, defined, exact, limit, self.fmt, place, kinds, forgiven)
        if not sides:
            return found
        return self._others(found, whole, got, defined, exact, limit, sides, kinds, forgiven)

    def _others(
        self, found: Finding, whole: Array, got: Array, defined: Array, exact: Array, limit: Array | None,
        sides: Mapping[int, Side], kinds: Array, forgiven: Collection[int],
    ) -> Finding:  # fmt: skip
        """Those that should be like the elements that were computed: where they are not, each is held as well."""
        like, shown, wrong = got, whole, found.mask
        chosen = {axis: np.flatnonzero(s.like >= 0) for axis, s in sides.items()}
        for axis, s in sides.items():
            like, wrong = (np.take(a, s.like[chosen[axis]], axis=axis) for a in (like, wrong))
            if len(chosen[axis]) < len(s.like):
                shown = np.take(shown, chosen[axis], axis=axis)
        other = patterns(shown) != patterns(like)
        other &= ~((shown != shown) & (like != like))
        found.judged = int(found.judged / max(found.compared, 1) * shown.size)
        found.compared = shown.size
        places: tuple[Array, ...] = np.nonzero(other)
        more = Finding()
        if places[0].size:
            index = list(places)
            for axis, s in sides.items():
                index[axis] = s.like[chosen[axis]][places[axis]]
            at = tuple(index)

            def place(i: tuple[int, ...]) -> tuple[int, ...]:
                full = [int(p[i[0]]) for p in places]
                for axis in sides:
                    full[axis] = int(chosen[axis][full[axis]])
                return tuple(full)

            more = hold(
                self.output.name, shown[places], defined[at], exact[at], None if limit is None else limit[at],
                self.fmt, place, kinds[at], forgiven,
            )  # fmt: skip
            found.identical &= more.identical
            for kind, count in more.wrong_of.items():
                found.wrong_of[kind] = found.wrong_of.get(kind, 0) + count
            found.max_ulp, found.share = max(found.max_ulp, more.max_ulp), max(found.share, more.share)
        if found.wrong or more.wrong:
            mask = wrong & ~other
            if places[0].size:
                mask[places] = more.mask
            found.first = found.first or more.first
            found.wrong = int(mask.sum())
            found.where = extent(np.argwhere(mask), mask.shape) if shown.shape == whole.shape else ""
        return found


def expected(
    operator: Operator, graph: Graph, case: Case, spread: Spread | None = None, noise: bool = False,
    accepted: bool = False,
) -> list[Expected]:  # fmt: skip
    """What each result of a case must be. ``spread``: which rows and columns repeat others; ``noise``: see `allowed`;
    ``accepted``: whether the graph is that of models that a user accepts, and not the operator's.

    A gradient is that of the whole forward function; the bound allows for the distance of what the forward pass saved
    from its exact values, as a kernel may take that for what it stands for.
    """
    found = []
    for part_of, rows, cols in _groups(graph, case, spread or Spread()):
        places = [None if s is None else s.places for s in (rows, cols)]
        tensors, shape = part(graph, case.tensors, case.shape, *places)
        some = replace(case, tensors=tensors, shape=shape)
        compute = arithmetic.evaluate if accepted else bits.evaluate
        defined = compute(part_of, tensors, shape, case.params)
        exact: Mapping[str, Any] = {}
        off: dict[str, Array] = {}
        whole = some
        if 0 not in shape:
            whole = exactly(operator, graph, some) if cols is None else some
            textbook = operator.textbook if part_of is graph and cols is None and not accepted else None
            exact = (
                arithmetic.exactly(part_of, whole.tensors, shape, whole.params) if accepted
                else exact_results(part_of, whole, textbook)
            )  # fmt: skip
            off = {n: np.abs(tensors[n] - whole.tensors[n]).astype(np.float64) for n in case.saved}
        limits = dict(_limits(part_of, some, noise, off, accepted))
        if (
            case.kind == "hard" and exact and operator.textbook is not None and not accepted
        ):  # two ways to the exact value, one bound
            with np.errstate(all="ignore"):
                for name, other in exact_results(part_of, whole, None).items():
                    apart_by = np.abs(np.asarray(exact.get(name, other)) - other).astype(np.float64)
                    if name in limits:
                        limits[name] = limits[name] + np.where(np.isfinite(apart_by), apart_by, 0)
        for o in part_of.outputs:
            value = defined[o.name]
            known = exact.get(o.name, value.astype(np.float64))
            fmt = FORMATS[o.format]
            kinds = special.kinds(graph, some, o, value, known, fmt)
            source = Source(part_of, some, whole, off, noise)
            found.append(Expected(o, fmt, value, known, limits.get(o.name), rows, cols, source, kinds))
    order = {o.name: i for i, o in enumerate(graph.outputs)}
    return sorted(found, key=lambda e: order[e.output.name])


def _limits(
    graph: Graph, case: Case, noise: bool, off: Mapping[str, Array], accepted: bool = False
) -> Mapping[str, Array]:
    """Bounds by result; none where no bound is known: such results must have the definition's bits."""
    try:
        if accepted:
            return arithmetic.limits(graph, case.tensors, case.shape, case.params, noise, off)
        return allowed(graph, case, noise, off)
    except TokitaiError:
        return {}


def _groups(graph: Graph, case: Case, spread: Spread) -> Iterator[tuple[Graph, Side | None, Side | None]]:
    """Results that are computed together: graphs of some results, and the rows and columns of which they are."""
    if work_of(case.shape) <= REDUCED and spread.of_row is None and spread.of_column is None:
        yield graph, None, None
        return
    finite = all(np.isfinite(a.astype(np.float32)).all() for a in case.tensors.values())
    together: dict[tuple[bool, bool], list[Output]] = {}
    for o in graph.outputs:
        one = only(graph, [o])
        together.setdefault((apart(one, "r", finite), apart(one, "c", finite)), []).append(o)
    for (by_rows, by_columns), outputs in together.items():
        rows = _side(case, 0, spread.of_row) if by_rows else None
        cols = _side(case, 1, spread.of_column) if by_columns else None
        yield only(graph, outputs), rows, cols


def _side(case: Case, axis: int, of: Array | None) -> Side | None:
    """Which places of a side are computed."""
    size = case.shape[axis]
    if of is not None:
        _, first, back = np.unique(of, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return Side(first[order], rank[back.reshape(-1)])
    if size <= SAMPLED:
        return None
    rng = rng_for(case.seed, "sampled", str(axis))
    edges = [0, 1, size // 2, size - 2, size - 1]
    places = np.unique([*edges, *rng.integers(0, size, SAMPLED - len(edges))])
    like = np.full(size, -1)
    like[places] = np.arange(len(places))
    return Side(places, like)


def spread_over(values: Array, space: Any, slots: int, spread: Spread) -> Array:
    """A tensor of few different rows and columns, repeated."""
    rows = taken(values, space, slots, "r", spread.of_row)
    return np.ascontiguousarray(taken(rows, space, slots, "c", spread.of_column))
