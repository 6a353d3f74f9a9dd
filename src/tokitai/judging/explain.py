"""Why elements are wrong: which arithmetic model has the bits of a kernel, or explains its distance.

Of the wrong cases some small ones are kept. On these every model that the definition's graph offers (`models`), and
combinations of up to three, are evaluated by the interpreter: their bits, their exact value and their rounding-error
bound. A model explains a case where nearly all its elements, right and wrong ones, have its bits or lie within its
bound. Models whose bits are the kernel's come first, then the fewest changes, then the narrowest bound.

Beside them are wrong answers that are no arithmetic (`misplaced`): a tail that is not written, rows that are exchanged,
an answer of another call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..elementary.exact import REAL
from ..errors import TokitaiError, UnknownNameError
from ..lang import Graph, Operator
from ..verification.cases import Array, work_of
from ..verification.compare import patterns
from . import arithmetic, misplaced, special
from .models import Model, models
from .reference import Expected
from .rewrite import Named, named
from .verdict import Cause

LARGEST = 1 << 13  # elements of a case that is evaluated again
CASES = 8  # of a result, for each kind
SCREENED = 3  # of these by which models are chosen that are evaluated on all
KEPT = 200  # wrong results that are kept, in all
RIGHT = 24  # right results of hard cases that are kept
DEPTH = 3  # models that are combined
BEAM = 6
HALF = 0.5
ENOUGH = 8  # wrong elements from which on models are combined: few are soon explained by chance
MOST = 0.95  # share of elements, and of wrong ones, by which a case is explained
MOST_OF_CASES = 0.8  # share of cases, and of wrong ones, that a model must explain
SAME_BITS = 0.9  # share of elements from which on a model is taken for what is computed, and no bound asked
NARROW = 2.0**-5  # part of a model's bound that some element must use, or the bound explains too much
NEARER = 1.0  # powers of two that elements must be nearer to a model's bits than to the definition's, on average


@dataclass(frozen=True)
class Evidence:
    """A wrong result of one call. ``mask``: its wrong elements, ``stale``: earlier answers of this size."""

    case: str
    operator: Operator
    whole: Graph  # the graph of all results
    expected: Expected
    got: Array
    mask: Array
    stale: tuple[Array, ...] = ()

    @property
    def name(self) -> str:
        """The result's."""
        return self.expected.output.name


@dataclass
class Fit:
    """How well a model explains wrong results. ``nearness``: how many powers of two nearer the elements are to its bits
    than to the definition's; ``same``: the share of elements that have its bits, on average over cases; ``explained``:
    the share of cases that it explains; the same of wrong elements, and of wrong cases."""

    names: tuple[str, ...]
    said: tuple[str, ...]
    rank: int = 0
    nearness: float = 0.0
    same: float = 0.0
    same_wrong: float = 0.0
    explained: float = 0.0
    explained_wrong: float = 0.0
    used: float = 0.0
    structural: bool = False
    least: float = NEARER  # that ``nearness`` must be; 0 of approximations, whose bits are not known
    short: bool = False  # whether the result has a 16-bit format
    common: bool = False  # whether a row's elements have one relative error, as what is computed once a row explains
    boundless: bool = False  # whether the model's bound is infinite for some wrong element
    also: tuple[tuple[str, ...], ...] = ()

    @property
    def explains(self) -> bool:
        """Whether nearly all elements have the model's bits or are within its bound, and that is not too wide."""
        if self.exact:
            return True
        if self.short and self.least and self.same_wrong < HALF:
            return False  # by chance: of 16-bit results a model has the bits of most, if it is what is computed
        within = min(self.explained, self.explained_wrong) >= MOST_OF_CASES
        return within and (self.used >= NARROW or self.boundless) and self.nearness >= self.least

    @property
    def exact(self) -> bool:
        """Whether nearly all elements have the model's bits."""
        return self.same >= SAME_BITS and self.same_wrong >= SAME_BITS

    @property
    def order(self) -> tuple[Any, ...]:
        """The better first."""
        cost = (
            len(self.names)
            + 0.3 * self.rank
            - (0 if self.exact else 4 * self.same_wrong)
            - 2 * self.common
            - 10 * self.explained
        )
        return (not self.explains, not self.exact, cost, -self.same, -self.nearness)

    def as_good_as(self, other: Fit) -> bool:
        """Whether it explains as much by as few changes, so that no case tells the two apart."""
        shares = [(f.same_wrong, f.explained_wrong, len(f.names), f.least, f.common) for f in (self, other)]
        again = {n.rpartition(":")[0] for n in self.names} & {n.rpartition(":")[0] for n in other.names} - {""}
        return shares[0] == shares[1] and self.explains and not (again and not self.least)


@dataclass
class Explainer:
    """Finds the causes of wrong results, until a time. ``base`` gives a graph's nodes their names."""

    until: float
    base: Callable[[Operator, Graph], Named] = named
    tried: int = 0
    out_of_time: bool = False
    right: Sequence[Evidence] = ()
    _graphs: dict[tuple[int, tuple[str, ...]], Named | None] = field(default_factory=dict)
    _offered: dict[tuple[int, tuple[str, ...]], dict[str, Model]] = field(default_factory=dict)
    _hold: list[Graph] = field(default_factory=list)

    def causes(self, every: Sequence[Evidence], right: Sequence[Evidence] = ()) -> list[Cause]:
        """For each result, and for ordinary and special values each, what explains its wrong elements. ``right``: cases
        in which there are none, which a model has to explain as well."""
        self.right = right
        asked = []
        for kinds in ((special.ORDINARY,), tuple(special.KINDS)):
            for name in dict.fromkeys(e.name for e in every):
                some = [self._of(e, kinds) for e in every if e.name == name]
                some = [e for e in some if e.mask.any()]
                asked += [(name, kinds, some)] if some else []
        found: list[Cause] = []
        whole = self.until
        for i, one in enumerate(asked):
            now = time.perf_counter()
            self.until, self.out_of_time = now + (whole - now) / (len(asked) - i), False
            found.append(self._cause(*one, [c.models for c in found if c.models]))
        return found

    @staticmethod
    def _of(e: Evidence, kinds: tuple[int, ...]) -> Evidence:
        return replace(e, mask=e.mask & np.isin(e.expected.kinds, kinds))

    def _cause(
        self, name: str, kinds: tuple[int, ...], every: Sequence[Evidence], others: Sequence[tuple[str, ...]]
    ) -> Cause:
        by_size = sorted(every, key=lambda e: (int(e.mask.sum()) < 4, work_of(e.expected.source.case.shape)))
        many = [e for e in by_size if e.mask.sum() >= 4] or by_size
        some = [many[i] for i in dict.fromkeys(np.linspace(0, len(many) - 1, CASES).round().astype(int).tolist())]
        of = "ordinary values" if kinds == (special.ORDINARY,) else " and ".join(
            said for k, said in special.KINDS.items() if any((e.expected.kinds[e.mask] == k).any() for e in some)
        )  # fmt: skip
        made = Cause(name, of, wrong=sum(int(e.mask.sum()) for e in some), cases=len(some))
        answers = [
            misplaced.Answer(e.got, e.expected.defined, e.mask, _columns(e), e.stale, e.expected.source.case.tensors)
            for e in every
        ]
        ordinary = kinds == (special.ORDINARY,)
        best = self._same_as(some, others, ordinary)
        where = misplaced.find(answers) if best is None else None
        before = [m for m in others if m[0] in misplaced.NAMES]
        if where is None and best is None and before and not ordinary:
            where = before[0][0], "as the others are"
        if where is not None:
            made.models, made.said, made.explained = (where[0],), where[1], 1.0
            return made
        best = best or self._search(some, ordinary, others)
        made.out_of_time = self.out_of_time
        if best is not None:
            made.models, made.said = best.names, "; ".join(best.said)
            made.explained, made.same_bits = best.explained_wrong, best.same_wrong
            made.out_of_time, made.also = False, best.also
        return made

    # ------------------------------------------------------------------ the search
    def _same_as(self, some: Sequence[Evidence], others: Sequence[tuple[str, ...]], ordinary: bool) -> Fit | None:
        """What explains other wrong elements, if it explains these."""
        fits = [self._fit(some, names, True, ordinary) for names in dict.fromkeys(others)]
        return min((f for f in fits if f is not None and f.explains), key=lambda f: f.order, default=None)

    def _search(self, some: Sequence[Evidence], ordinary: bool, others: Sequence[tuple[str, ...]]) -> Fit | None:
        """``others``: combinations that explain other results, which are tried first."""
        few = sorted(some, key=lambda e: work_of(e.expected.source.case.shape))[:SCREENED]
        again = [f for f in (self._fit(few, names, True, ordinary) for names in dict.fromkeys(others)) if f is not None]
        first = self._fits(few, (), True, ordinary)
        found = self._confirmed(some, [*again, *first], ordinary)
        nearest = sorted(again, key=lambda f: -f.nearness)[:2]
        starts = nearest + sorted(first, key=lambda f: -f.nearness)[:BEAM] + [f for f in first if f.structural]
        depth = 1
        enough = sum(int(e.mask.sum()) for e in some) >= ENOUGH
        while enough and depth < DEPTH and not any(f.exact for f in found):
            depth += 1
            more: list[Fit] = []
            for start in {f.names: f for f in starts}.values():
                more += self._fits(few, start.names, False, ordinary)
            unique = {frozenset(f.names): f for f in sorted(more, key=lambda f: f.nearness)}
            ranked = sorted(unique.values(), key=lambda f: -f.nearness)
            bounded = [self._fit(few, f.names, True, ordinary) for f in ranked[:BEAM]]
            found += self._confirmed(some, [f for f in bounded if f is not None], ordinary)
            starts = ranked[:BEAM]
            if self._late():
                break
        if not found:
            return None
        best = min(found, key=lambda f: f.order)
        best.also = tuple(f.names for f in found if f.names != best.names and f.as_good_as(best))
        return best

    def _confirmed(self, some: Sequence[Evidence], fits: Sequence[Fit], ordinary: bool) -> list[Fit]:
        """Those that explain all cases, of those that explain the first."""
        right = sorted((f for f in fits if f.explains), key=lambda f: f.order)[:BEAM]
        counter = [e for e in self.right if e.name == some[0].name and id(e.whole) == id(some[0].whole)]
        again = [self._fit([*some, *counter], f.names, True, ordinary) for f in right]
        return [f for f in again if f is not None and f.explains]

    def _late(self) -> bool:
        self.out_of_time = self.out_of_time or time.perf_counter() > self.until
        return self.out_of_time

    def _fits(self, some: Sequence[Evidence], start: tuple[str, ...], bound: bool, ordinary: bool) -> list[Fit]:
        """Every model that the graph of other models offers, beside them."""
        found = []
        for name in self._models(some[0], start):
            if self._late():
                break
            if name in start:
                continue
            fit = self._fit(some, (*start, name), bound, ordinary)
            if fit is not None:
                found.append(fit)
        return found

    def _models(self, e: Evidence, names: tuple[str, ...]) -> dict[str, Model]:
        key = (id(e.expected.source.graph), names)
        if key not in self._offered:
            graph = self._graph(e, names)
            self._offered[key] = {} if graph is None else models(graph)
        return self._offered[key]

    def _graph(self, e: Evidence, names: tuple[str, ...]) -> Named | None:
        """The graph of a combination of models; None where one has no place in it, or changes nothing."""
        graph = e.expected.source.graph
        key = (id(graph), names)
        if key not in self._graphs:
            self._hold.append(graph)  # so that no other graph gets its id
            if not names:
                self._graphs[key] = replace(self.base(e.operator, e.whole), graph=graph)
            else:
                below, model = self._graph(e, names[:-1]), self._models(e, names[:-1]).get(names[-1])
                self._graphs[key] = None if below is None or model is None else _changed(below, model)
        return self._graphs[key]

    # ------------------------------------------------------------------ one model
    def _fit(self, some: Sequence[Evidence], names: tuple[str, ...], bound: bool, ordinary: bool) -> Fit | None:
        """How well a combination of models explains results; None where it does not apply to one of them."""
        steps = [self._models(some[0], names[:i]).get(n) for i, n in enumerate(names)]
        if any(s is None for s in steps):
            return None
        fit = Fit(names, tuple(s.said for s in steps if s), sum(s.rank for s in steps if s))
        fit.structural = bool(steps) and bool(steps[-1] and steps[-1].structural)
        loose = [s for s in steps if s and (s.unstable or s.name.startswith("approximate:"))]
        fit.least = 0.0 if loose else NEARER
        graphs = [self._graph(e, names) for e in some]
        made = [None if g is None else _bits(e, g.graph) for e, g in zip(some, graphs, strict=True)]
        if any(m is None for m in made):
            return None
        self.tried += 1
        near = [m.nearer[e.mask] for e, m in zip(some, made, strict=True) if m]
        fit.nearness = float(np.concatenate(near).mean())
        shares: list[tuple[float, float, float, float]] = []
        fit.short = some[0].expected.fmt.bits == 16
        for e, graph, m in zip(some, graphs, made, strict=True):
            assert m is not None and graph is not None
            looked = (e.expected.kinds == special.ORDINARY) if ordinary else np.ones(e.mask.shape, bool)
            inside, used = m.equal, np.zeros(e.mask.shape)
            if bound and fit.nearness >= (fit.least or -24.0):
                unstable = any(s and s.unstable for s in steps)
                inside, used = _within(graph.graph, e, m.equal, unstable)
                fit.boundless |= bool(np.isinf(used[e.mask]).any())
                used = np.where(np.isinf(used), 0, used)
            shares.append((_share(m.equal, looked), _share(inside, looked), _share(m.equal, e.mask),
                           _share(inside, e.mask)))  # fmt: skip
            fit.used = max(fit.used, float(used[e.mask].max(initial=0.0)))
        same, there, same_wrong, there_wrong = np.array(shares).T
        hit = np.array([bool(e.mask.any()) for e in some])
        fit.same, fit.same_wrong = float(same.mean()), float(same_wrong[hit].mean())
        good = (there >= MOST) & (there_wrong >= MOST)
        fit.explained, fit.explained_wrong = float(good.mean()), float(good[hit].mean())
        fit.common = any(s and s.once_a_row for s in steps) and all(_common(e) for e in some)
        return fit


def _share(which: Array, among: Array) -> float:
    """The share of elements that are so; all, where there are none."""
    return float(which[among].mean()) if among.any() else 1.0


def _common(e: Evidence) -> bool:
    """Whether the elements of each row have one relative error, but for their own rounding-error bounds."""
    want = e.expected
    if want.limit is None or want.output.space != "rc" or e.got.ndim != 2:
        return False
    with np.errstate(all="ignore"):
        exact = np.broadcast_to(np.asarray(want.exact, np.float64), e.got.shape)
        limit = np.broadcast_to(want.limit, e.got.shape)
        ratio = np.where((want.kinds == special.ORDINARY) & (exact != 0), e.got.astype(np.float64) / exact, np.nan)
        own = 2 * limit / np.abs(exact)
        low, high = np.nanmax(ratio - own, axis=1, initial=-np.inf), np.nanmin(ratio + own, axis=1, initial=np.inf)
    return bool((low <= high).all())


def _changed(below: Named, model: Model) -> Named | None:
    try:
        made = model.change(below)
    except TokitaiError:
        return None
    return None if str(made.graph) == str(below.graph) else made


def _columns(e: Evidence) -> tuple[Array, int]:
    """Which columns of the whole result those are that were computed, and how many it has."""
    size = e.expected.source.case.shape[1]
    if e.expected.cols is None:
        return np.arange(size), size
    return e.expected.cols.places, len(e.expected.cols.like)


@dataclass(frozen=True)
class Bits:
    """Of one result and a model: which elements have its bits, and how many powers of two nearer each is to these than
    to the definition's."""

    equal: Array
    nearer: Array


def _bits(e: Evidence, graph: Graph) -> Bits | None:
    """How near a result is to a model's bits; None where the model cannot be evaluated."""
    want, got, case = e.expected, e.got, e.expected.source.case
    try:
        made = arithmetic.evaluate(graph, case.tensors, case.shape, case.params)[want.output.name]
    except (TokitaiError, ValueError, IndexError, OverflowError):
        return None
    made = _sized(made, got.shape)
    equal = (patterns(made) == patterns(got)) | ((made != made) & (got != got)) | ((made == 0) & (got == 0))
    with np.errstate(all="ignore"):
        value, bits, defined = (a.astype(np.float64) for a in (got, made, want.defined))
        unit = np.maximum(np.abs(np.where(np.isfinite(defined), defined, 0)) * 2.0**-28, 2.0**-160)
        was, now = (np.nan_to_num(np.abs(value - x), nan=2.0**100, posinf=2.0**100) for x in (defined, bits))
        nearer = np.where(equal, 24.0, np.log2((was + unit) / (now + unit)))
    return Bits(equal, np.clip(nearer, -24, 24))


def _sized(values: Array, shape: tuple[int, ...]) -> Array:
    """Values in the size of a result; those of a model that has become a constant are repeated."""
    return values.reshape(shape) if values.size == np.prod(shape) else np.broadcast_to(values, shape)


def _within(graph: Graph, e: Evidence, equal: Array, unstable: bool) -> tuple[Array, Array]:
    """Which elements have a model's bits or lie within its bound, and what part of the bound they use: infinity where
    an ``unstable`` formula has none, as it may cancel altogether."""
    value = e.got.astype(np.float64).astype(REAL)
    source, name = e.expected.source, e.expected.output.name
    whole, case = source.whole, source.case
    try:
        limit = arithmetic.limits(graph, case.tensors, case.shape, case.params, source.noise, source.off)[name]
        exact = arithmetic.exactly(graph, whole.tensors, whole.shape, whole.params)[name]
    except (TokitaiError, ValueError, IndexError, OverflowError):
        return equal.copy(), np.zeros(value.shape)
    limit, exact = _sized(limit, value.shape), _sized(np.asarray(exact), value.shape)
    with np.errstate(all="ignore"):  # of infinities, which lie outside or are not asked about
        distance = np.abs(value - exact)
        part = distance / np.maximum(limit, 5e-324)
    boundless = unstable & ~np.isfinite(limit) & np.isfinite(exact)
    own = np.full(equal.shape, np.inf) if e.expected.limit is None else np.broadcast_to(e.expected.limit, equal.shape)
    free = ~np.isfinite(limit) & ~np.isfinite(own)  # nothing is required there
    inside = equal | (np.isfinite(limit) & (distance <= limit)) | boundless | free
    used = np.where(inside & np.isfinite(limit), part, 0)
    used = np.where(boundless & ~equal, np.inf, used)
    return inside, np.where(equal, 1.0, used).astype(np.float64)


class Accepted:
    """Puts models that a user accepts into the graphs of an operator. Raises UnknownNameError for others."""

    def __init__(self, operator: Operator, graph: Graph, names: Sequence[str]) -> None:
        self.operator, self.names = operator, names
        self._made: dict[int, tuple[Graph, Named]] = {}  # by the id of the graph that is changed, which is kept
        if names:
            self(graph)

    def __call__(self, graph: Graph) -> Graph:
        """The graph with the models in it."""
        if id(graph) not in self._made:
            self._made[id(graph)] = graph, _accepted(named(self.operator, graph), self.names)
        return self._made[id(graph)][1].graph

    def named(self, operator: Operator, graph: Graph) -> Named:
        """A graph that was made here, or one of the operator's, with the names of its nodes."""
        there = next((n for _, n in self._made.values() if n.graph is graph), None)
        return named(operator, graph) if there is None else there


def _accepted(some: Named, names: Sequence[str]) -> Named:
    for name in names:
        offered: Mapping[str, Model] = {n: m for n, m in models(some).items() if not m.fault}
        if name not in offered:
            raise UnknownNameError("arithmetic model", name, [*offered, *special.ACCEPTED])
        some = offered[name].change(some)
    return some
