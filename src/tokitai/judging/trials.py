"""The calls that a kernel is judged by: cases with scalars and options of their own, and how their tensors lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import ArgumentError
from ..families import Plan, make_plan
from ..lang import GROUPS, TOTALS, Graph, Operator, Sizes, shape_text
from ..runtime.checks import check_chosen, check_no_nan
from ..runtime.shapes import allowed, in_groups
from ..verification import cases
from ..verification.cases import Case, rng_for, work_of
from . import draws
from .lending import EXPANDED, LAYOUTS, REVERSED, Placement
from .reference import REDUCED, Spread, spread_over
from .sides import apart, axis_of, only

DIFFERENT = 24  # rows or columns of a large trial that differ
HOWS = tuple(cases.FIRST_DRAWS)


@dataclass(frozen=True)
class Trial:
    """One case and what is called with it. ``graph``: the definition for its options; ``named``: options that the
    kernel is given by name; ``spread``: see `reference.Spread`; ``placements``: how its tensors lie in calls beyond the
    first two, ``layouts`` in words; ``noise``: whether its values are independent noise; ``accepted``: whether the
    graph is that of models that a user accepts."""

    case: Case
    graph: Graph
    named: Mapping[str, object]
    spread: Spread = field(default_factory=Spread)
    placements: tuple[tuple[str, Placement], ...] = ()
    noise: bool = False
    accepted: bool = False


@dataclass(frozen=True)
class Ask:
    """What is judged: the operator in a format, which optional tensors are given, options that are fixed and those that
    the kernel takes by name; a shape of the user's; the seed; and the arrays' device."""

    operator: Operator
    dtype: str
    present: frozenset[str]
    options: Mapping[str, object]
    free: Sequence[str]
    shape: tuple[int, int] | None
    seed: int
    device: str

    def graph(self, options: Mapping[str, object]) -> Graph:
        """The definition for some options."""
        return self.operator.trace(self.dtype, self.present, {**self.options, **options})


def trials(ask: Ask, only_one: str | None = None) -> Iterator[Trial]:
    """Every trial, the cheap ones first; or those of which the case has this id."""
    yield from (t for t in _every(ask, only_one) if only_one in (None, t.case.id))


def _every(ask: Ask, only_one: str | None) -> Iterator[Trial]:
    """The same, others than the one that is asked for not drawn where their sizes tell."""
    operator, fixed = ask.operator, ask.graph({})
    plan = make_plan(fixed)
    rng = rng_for(ask.seed, "sizes")
    for case in cases.hard(operator, fixed):
        if _may_call(operator, fixed, case):
            yield Trial(case, fixed, _named(ask, fixed), placements=_usual(case, 1))
    every = cases.exhaustive(operator, fixed)
    if every is not None:
        yield Trial(replace(every, params=draws.scalars(operator, rng, every.shape)), fixed, _named(ask, fixed))
    of_plan = plan.family.shapes
    small = of_plan.small(operator, plan)
    wanted = [(how, shape) for how in HOWS for shape in small]
    wanted += [("normal", s) for s in (*of_plan.edges(operator, plan), *of_plan.unforeseen(operator, plan, rng))]
    nothing = [s for s in of_plan.edges(operator, plan) if isinstance(s, Sizes) and s.inner == 0]
    wanted += [("equal", s) for s in (*nothing, *of_plan.probed(operator, plan, rng))]
    wanted += [(how, s) for s in of_plan.probed(operator, plan, rng) for how in draws.probes(fixed)]
    wanted += [(how, s) for s in of_plan.blocked(operator, plan, rng) for how in draws.BLOCKS]
    if ask.shape is not None:
        wanted += [(how, ask.shape) for how in ("normal", *draws.probes(fixed))]
    ready = [(how, s) for how, s in dict.fromkeys(wanted) if _allowed(operator, s) or s == ask.shape]
    layouts = _layouts(ask, plan)
    for number, (how, shape) in enumerate(sorted(ready, key=lambda w: work_of(w[1]))):
        if work_of(shape) > REDUCED:
            yield from layouts  # once
        if only_one is not None and f"@{shape_text(in_groups(fixed, shape))}#" not in only_one:
            continue
        made = _drawn(ask, how, shape, number)
        if _may_call(operator, made.graph, made.case):
            yield made
    yield from layouts


def _named(ask: Ask, graph: Graph, drawn: Sequence[str] = ()) -> dict[str, object]:
    """Options that a kernel is given by name: those that were asked for, and those that it takes. What follows from a
    scalar is not among them."""
    names = [*ask.options, *drawn]
    return {n: graph.options[n] for n in dict.fromkeys(names) if n not in ask.operator.contract.switches}


def _may_call(operator: Operator, graph: Graph, case: Case) -> bool:
    """Whether a call with these values is one that every kernel takes: no more is chosen of a row than it has, ..."""
    if case.shape[1] == 0:
        return False
    try:
        check_chosen(operator, graph, case.shape)
        check_no_nan(operator, case.tensors, case.shape)
    except ArgumentError:
        return False
    return True


def _drawn(ask: Ask, how: str, shape: tuple[int, int], number: int) -> Trial:
    """A seeded case or an exact probe, with options and scalars of its own."""
    operator = ask.operator
    rng = rng_for(ask.seed, "trial", str(number), how)
    free = [o for o in operator.options if o.name in ask.free and o.name not in ask.options]
    offered = {o.name: o.choices(ask.dtype) for o in free}
    chosen: dict[str, object] = {name: some[int(rng.integers(len(some)))] for name, some in offered.items()}
    switches = [n for n in operator.contract.switches if n not in ask.options]
    chosen |= {n: bool(number >> place & 1) for place, n in enumerate(switches)}  # neighbours differ
    graph = ask.graph(chosen)
    exact = how.startswith(draws.PROBE)
    params = draws.scalars(operator, rng, shape, exact)
    spread, drawn_at = _spread(graph, in_groups(graph, shape), rng)
    case = draws.seeded(operator, graph, how, drawn_at, ask.seed, params)
    if spread.of_row is not None or spread.of_column is not None:
        case = _repeated(operator, graph, case, in_groups(graph, shape), spread)
    named = _named(ask, graph, [o.name for o in free])
    return Trial(case, graph, named, spread, _usual(case, number), noise=how == "normal")


def _usual(case: Case, number: int) -> tuple[tuple[str, Placement], ...]:
    """Layouts of an ordinary trial: rows apart, for all tensors at once."""
    if case.kind != "seeded" or case.shape[0] == 0:
        return ()
    kinds = dict.fromkeys(case.tensors, "rows apart")
    return (("rows apart", Placement(kinds, number % 5, number)),)


def _spread(graph: Graph, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Spread, tuple[int, int]]:
    """Of a large trial, which rows and columns repeat others, and the sizes of what differs."""
    if work_of(shape) <= REDUCED or (isinstance(shape, Sizes) and shape.ragged == "r"):
        return Spread(), shape
    by_rows, by_columns = (any(apart(only(graph, [o]), side, True) for o in graph.outputs) for side in "rc")
    if not any(n.op in ("matmul", "weighted_sum") for n in graph.nodes):  # one side, so that sums see different values
        by_columns = by_columns and (not by_rows or bool(rng.random() < 0.5))
        by_rows = by_rows and not by_columns
    few = [min(DIFFERENT, n) if by else n for n, by in zip(shape, (by_rows, by_columns), strict=True)]
    of = [None if f == n else np.concatenate([rng.permutation(f), rng.integers(0, f, n - f)])[rng.permutation(n)]
          for f, n in zip(few, shape, strict=True)]  # fmt: skip
    if isinstance(shape, Sizes):
        return Spread(*of), Sizes(few[0], few[1], shape.inner, shape.batch, shape.ragged)
    return Spread(*of), (few[0], few[1])


def _repeated(operator: Operator, graph: Graph, case: Case, shape: tuple[int, int], spread: Spread) -> Case:
    """The case with its rows and columns repeated over a larger shape. Places in a table stay in it."""
    tensors = {t.name: spread_over(case.tensors[t.name], t.space, t.slots, spread) for t in graph.inputs}
    made = replace(case, tensors=tensors, shape=shape)
    return cases.saved(operator, graph, made) if case.saved and spread.of_column is not None else made


def _allowed(operator: Operator, shape: tuple[int, int]) -> bool:
    """Whether a shape lies within the operator's contract, and rows have columns: what a mean over nothing is, is for
    each kernel to say."""
    return allowed(operator, shape) and shape[1] > 0


# ------------------------------------------------------------------ layouts
def _layouts(ask: Ask, plan: Plan) -> Iterator[Trial]:
    """Small trials whose tensors lie in every layout: each tensor alone, all together, some of each."""
    operator = ask.operator
    usable = [k for k in LAYOUTS if ask.device == "numpy" or k not in REVERSED]
    shapes = plan.family.shapes.small(operator, plan)[-2:]
    for turn, shape in enumerate(shapes):
        base = _drawn(ask, "normal", shape, 10_000 + turn)
        if not _may_call(operator, base.graph, base.case):
            continue
        names = [t.name for t in base.graph.inputs]
        plain = [k for k in usable if k not in EXPANDED]
        rng = rng_for(ask.seed, "layouts", str(turn))
        every = [(f"{n}: {k}", {n: k}) for n in names for k in plain]
        every += [(f"all {k}", dict.fromkeys(names, k)) for k in plain]
        for _ in range(6):
            mixed = {n: str(rng.choice(plain)) for n in names if rng.random() < 0.7}
            every.append((", ".join(f"{n}: {k}" for n, k in mixed.items()) or "contiguous", mixed))
        placed = [(said, Placement(kinds, int(rng.integers(0, 16)), i, 0xFF if i % 3 == 0 else None))
                  for i, (said, kinds) in enumerate(every)]  # fmt: skip
        placed += [(f"first elements {s} off an aligned address", Placement({}, s, s)) for s in (1, 2, 3, 5, 7)]
        yield replace(base, placements=tuple(placed))
        yield from _expanded(ask, base, turn)


def _expanded(ask: Ask, base: Trial, turn: int) -> Iterator[Trial]:
    """Trials in which one tensor is the same all along an axis, and takes no memory there."""
    replaced = {o.name for o in base.graph.outputs if o.inplace}
    if base.case.saved:
        return
    for number, t in enumerate(base.graph.inputs):
        if t.name in replaced or t.space in GROUPS:
            continue
        for kind, axis in EXPANDED.items():
            values = base.case.tensors[t.name]
            if values.ndim < 2 and axis == -2:
                continue
            like = np.ascontiguousarray(np.broadcast_to(np.take(values, [0], axis=axis), values.shape))
            if t.name in ask.operator.contract.no_nan and not np.isfinite(like.astype(np.float64)).all():
                continue
            name = f"{t.name}, {kind}"
            case = replace(base.case, name=name, tensors={**base.case.tensors, t.name: like})
            said = f"{t.name}: {kind}"
            placements = ((said, Placement({t.name: kind}, number, turn)),)
            yield replace(base, case=case, placements=placements, noise=False)


def rows_are_apart(trial: Trial) -> bool:
    """Whether a call with some of the rows gives those rows of the results."""
    shape = trial.case.shape
    some = [o for o in trial.graph.outputs if axis_of(o.space, o.slots, "r") is not None]
    early = any(n.op in TOTALS for n in trial.graph.nodes)
    batch = isinstance(shape, Sizes) and shape.several
    return shape[0] >= 2 and not early and not batch and bool(some) and apart(only(trial.graph, some), "r")
