"""What the results of a call must be: the definition's bits, exact values and bounds, of all elements or of some.

Where rows or columns of a result are apart, as many as a person waits for are computed. A trial may have drawn few
different rows and columns and spread them over a large tensor (`trials.Trial`): then each element of it is judged,
though few are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
class Expected:
    """What one result must be: of the elements at some rows and columns, and those that repeat them."""

    output: Output
    fmt: Format
    defined: Array
    exact: Any
    limit: Array | None
    rows: Side | None
    cols: Side | None

    def hold(self, whole: Array) -> Finding:
        """Compare a result, of all rows and columns."""
        sides: dict[int, Side] = {}
        for letter, s in (("r", self.rows), ("c", self.cols)):
            along = axis_of(self.output.space, self.output.slots, letter)
            if s is not None and along is not None:
                sides[along] = s
        got = whole
        for axis, s in sides.items():
            got = np.take(got, s.places, axis=axis)
        defined = self.defined.reshape(got.shape)
        exact = np.broadcast_to(np.asarray(self.exact), self.defined.shape).reshape(got.shape)
        limit = None if self.limit is None else np.broadcast_to(self.limit, self.defined.shape).reshape(got.shape)

        def place(at: tuple[int, ...]) -> tuple[int, ...]:
            full = list(at)
            for axis, s in sides.items():
                full[axis] = int(s.places[at[axis]])
            return tuple(full)

        name = self.output.name
        found = hold(name, got, defined, exact, limit, self.fmt, place)
        if not sides:
            return found
        return self._others(found, whole, got, defined, exact, limit, sides)

    def _others(
        self, found: Finding, whole: Array, got: Array, defined: Array, exact: Array, limit: Array | None,
        sides: Mapping[int, Side],
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
                self.fmt, place,
            )  # fmt: skip
            found.identical &= more.identical
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
    operator: Operator, graph: Graph, case: Case, spread: Spread | None = None, noise: bool = False
) -> list[Expected]:
    """What each result of a case must be. ``spread``: which rows and columns repeat others; ``noise``: see `allowed`.

    A gradient is that of the whole forward function; the bound allows for the distance of what the forward pass saved
    from its exact values, as a kernel may take that for what it stands for.
    """
    found = []
    for part_of, rows, cols in _groups(graph, case, spread or Spread()):
        places = [None if s is None else s.places for s in (rows, cols)]
        tensors, shape = part(graph, case.tensors, case.shape, *places)
        some = replace(case, tensors=tensors, shape=shape)
        defined = bits.evaluate(part_of, tensors, shape, case.params)
        exact: Mapping[str, Any] = {}
        off: dict[str, Array] = {}
        if 0 not in shape:
            whole = exactly(operator, graph, some) if cols is None else some
            exact = exact_results(part_of, whole, operator.textbook if part_of is graph and cols is None else None)
            off = {n: np.abs(tensors[n] - whole.tensors[n]).astype(np.float64) for n in case.saved}
        limits = dict(_limits(part_of, some, noise, off))
        if case.kind == "hard" and exact and operator.textbook is not None:  # two ways to the exact value, one bound
            with np.errstate(all="ignore"):
                for name, other in exact_results(part_of, whole, None).items():
                    apart_by = np.abs(np.asarray(exact.get(name, other)) - other).astype(np.float64)
                    if name in limits:
                        limits[name] = limits[name] + np.where(np.isfinite(apart_by), apart_by, 0)
        for o in part_of.outputs:
            value = defined[o.name]
            known = exact.get(o.name, value.astype(np.float64))
            found.append(Expected(o, FORMATS[o.format], value, known, limits.get(o.name), rows, cols))
    order = {o.name: i for i, o in enumerate(graph.outputs)}
    return sorted(found, key=lambda e: order[e.output.name])


def _limits(graph: Graph, case: Case, noise: bool, off: Mapping[str, Array]) -> Mapping[str, Array]:
    """Bounds by result; none where no bound is known: such results must have the definition's bits."""
    try:
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
