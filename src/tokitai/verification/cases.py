"""The inputs that a kernel is tried on: drawn from a seed, hard ones that the operator names, all there are, yours."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import DefinitionError
from ..families.elementwise.plan import is_flat
from ..formats import FORMATS, Format, format_of
from ..lang import GROUPS, OPERANDS, TOTALS, Graph, HardInput, Operator, Sizes, TensorSpec, extent, shape_text
from ..lang.graph import Space
from ..meaning.bits import evaluate, round_to
from ..meaning.structure import drawn_entries
from ..runtime.shapes import in_groups

Array = np.ndarray[Any, Any]
SAVED = ("saved", "anchor")  # wishes for what the forward pass stores; the error of an anchor is to have no effect


@dataclass(frozen=True)
class Case:
    """One set of inputs. Its `id` is enough to build it again: ``kind/name@ROWSxCOLS#seed``, of products with all of
    their sizes, as `shape_text` writes them."""

    kind: str  # "seeded", "hard", "exhaustive" or "yours"
    name: str
    shape: tuple[int, int]
    seed: int
    tensors: Mapping[str, Array]
    params: Mapping[str, float] = field(default_factory=dict)
    in_domain: bool = True  # the contract's statements on accuracy hold
    saved: tuple[str, ...] = ()  # inputs that are results of the forward pass on the others

    @property
    def id(self) -> str:
        return f"{self.kind}/{self.name}@{shape_text(self.shape)}#{self.seed}"


def work_of(shape: tuple[int, int]) -> int:
    """Elements of a result; of a product, sixteen multiplications count as one."""
    elements = shape[0] * shape[1]
    return max(elements, shape.steps // 16) if isinstance(shape, Sizes) else elements


def size_of(space: Space, shape: tuple[int, int], entries: int | None = None, slots: int = 0) -> tuple[int, ...]:
    """The shape of a tensor of this space, as kernels take it; a table has as many entries as one that is drawn, unless
    it is said how many."""
    return extent(space, shape, drawn_entries(shape[0]) if entries is None else entries, slots)


def to_format(values: Any, fmt: Format) -> Array:
    """float64 or integer values rounded once to a format."""
    array = np.asarray(values)
    return round_to(array.astype(np.float64), fmt.name) if fmt.is_float else array.astype(fmt.dtype)


def rng_for(seed: int, *words: str) -> np.random.Generator:
    """A generator for this seed and purpose, the same on every machine."""
    return np.random.default_rng([seed, *(zlib.crc32(w.encode()) for w in words)])


# ------------------------------------------------------------------ drawing
def _normal(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    return rng.standard_normal(size) * 2 + 0.5


def _wide(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Magnitudes over the whole exponent range whose squares stay finite in f32, subnormals included."""
    top = min(fmt.emax, 60)
    low = max(fmt.emin - fmt.precision, -60)
    return np.ldexp(rng.choice([-1.0, 1.0], size) * rng.uniform(1, 2, size), rng.integers(low, top, size))


def _special(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Noise with zeros of both signs, infinities, NaN and subnormals strewn in."""
    values = rng.standard_normal(size)
    tiny = 2.0 ** (fmt.emin - 1)
    strewn = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny], size)
    return np.where(rng.random(size) < 0.02, strewn, values)


def _equal(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    return np.full(size, rng.standard_normal())


def _tiny(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Rows around the smallest normal number, and rows whose squares lie there: it is seen if those become zero."""
    low = np.where(rng.random(size[:1]) < 0.5, fmt.emin - fmt.precision, fmt.emin // 2 - fmt.precision // 2)
    power = low.reshape(-1, *[1] * (len(size) - 1)) + rng.integers(0, fmt.precision // 2, size)
    return np.ldexp(rng.choice([-1.0, 1.0], size) * rng.uniform(1, 2, size), power)


def _zeros(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Zeros of both signs, whole rows of -0 among them: a sum of those is -0, and +0 where one +0 is mixed in."""
    mixed = rng.choice([0.0, -0.0], size)
    mixed[: (len(mixed) + 1) // 2] = -0.0
    return mixed


def _lengths(rng: np.random.Generator, size: tuple[int, ...], most: int, turn: int) -> Array:
    """How much each row sees: in blocks of 32 rows some see as much as any there, which in turn is all, and is less."""
    ahead, rows = size[:-1], size[-1]
    block = np.arange(rows) // 32
    less = rng.integers(0, max(most, 1), (*ahead, -(-rows // 32) or 1))[..., block]
    in_turn = np.arange(int(np.prod(ahead, dtype=np.int64))).reshape(*ahead, 1) + block + turn
    top = np.where(in_turn % 2 == 0, most, less)
    return np.where(rng.random(size) < 0.5, top, rng.integers(0, top + 1))


def _nans(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Noise in which every fifth element is a NaN, which `draw` makes one of another pattern."""
    return np.where(rng.random(size) < 0.2, np.nan, rng.standard_normal(size))


def _exponents(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Magnitudes over all exponents of the format: in each row two binades that are neighbours, or all there are."""
    low, top = fmt.emin - fmt.precision + 1, fmt.emax + 1
    base = rng.integers(low, top, (*size[:-1], 1))
    power = np.where(rng.random(base.shape) < 0.5, base + rng.integers(0, 2, size), rng.integers(low, top, size))
    return np.ldexp(rng.choice([-1.0, 1.0], size) * rng.uniform(1, 2, size), np.minimum(power, fmt.emax))


TILE = 64  # rows of a tensor that is tiled


def _tiled(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Noise of which every TILE-th row is the same: so is its result where rows do not know each other."""
    few = (min(size[0], TILE), *size[1:])
    return np.resize(_normal(rng, few, fmt), size)


FIRST_DRAWS = {
    "normal": _normal, "wide": _wide, "special": _special, "equal": _equal, "zeros": _zeros, "tiny": _tiny,
    "nans": _nans,
}  # fmt: skip
DRAWS = {**FIRST_DRAWS, "exponents": _exponents, "tiled": _tiled}
# What structure runs are named by: inputs drawn as plain noise, of which all rows are the same memory, or whose rows
# see all that is there.
ALL_INPUTS, ROWS_ALIKE, WHOLE_LENGTHS = "all inputs", "rows alike", "whole lengths"
LENGTHS = ("lengths", "any lengths")  # wishes of contracts: how much each row sees
IN_THREADS = "threads"
"""Plain noise, which is run in every number of threads."""
SEEDS = "seeds"
"""Plain noise with some NaN, and seeds that are drawn as well."""
SEGMENTS = "segments"
"""Plain noise, in which long segments of rows begin at every place in a chain."""
CHAIN = 32  # rows in a chain of a sum over entries
ENTRIES = {f"{n} entries": n for n in (255, 256, 259, 260, 2**16 + 3, 2**16 + 4, 2**24 + 3, 2**24 + 4)}
"""Plain noise for tables of so many entries, whose indices have one to four digits of 8 bits."""


def _nans_last(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    """Noise whose last third has NaN strewn in."""
    values = _normal(rng, size, fmt)
    behind = np.arange(values.size).reshape(size) >= values.size - values.size // 3
    return np.where(behind & (rng.random(size) < 0.2), np.nan, values)


def _tiled_nans(rng: np.random.Generator, size: tuple[int, ...], fmt: Format) -> Array:
    few = (min(size[0], TILE), *size[1:])
    return np.resize(_nans_last(rng, few, fmt), size)


TILED_NANS = "tiled nans"
"""What is tiled, with NaN strewn into the last third of its rows, and of its columns where it has no rows."""
# What more names are drawn by; none of these stands among `DRAWS`, of which a verification chooses.
NAMED_DRAWS = {
    IN_THREADS: _normal, SEEDS: _nans_last, SEGMENTS: _normal, TILED_NANS: _tiled_nans,
    **dict.fromkeys(ENTRIES, _normal),
}  # fmt: skip


def entries_in(how: str, rows: int) -> int:
    """Entries of a table that is drawn."""
    return ENTRIES.get(how, drawn_entries(rows))


def _segments(rng: np.random.Generator, rows: int, entries: int) -> Array:
    """The entry of each row, in any order: sorted, each next segment of 33, 65 or 97 rows begins one place later in a
    chain than the one before."""
    lengths = [CHAIN * (1 + i % 3) + 1 for i in range(entries)]
    sorted_entries = np.repeat(np.arange(entries), lengths)[:rows]
    return rng.permutation(np.resize(sorted_entries, rows))


def other_nans(rng: np.random.Generator, values: Array, fmt: Format) -> Array:
    """The same values with each NaN another one: of either sign, quiet and signalling, whose significand is its lowest
    bit, all of them, or random. Stored results must be canonical nevertheless."""
    most = 2 ** (fmt.precision - 1) - 1
    significand = rng.choice([1, most, int(rng.integers(1, most)), most // 2 + 2], values.shape)
    sign = rng.choice([0, 1 << (fmt.bits - 1)], values.shape)
    infinity = (2 * fmt.emax + 1) << (fmt.precision - 1)
    patterns = (sign | infinity | significand).astype(fmt.pattern)
    return np.where(np.isnan(values), patterns, values.view(fmt.pattern)).view(fmt.dtype)


def draw(operator: Operator, t: TensorSpec, how: str, shape: tuple[int, int], seed: int) -> Array:
    """A seeded tensor, as the contract wishes: "positive", "unit", "above" most noise, "probabilities", "below COUNT",
    "lengths", "any lengths", which follow from nothing, or indices; some of these are the value that is besides them.
    What is "saved", an "anchor" too, is noise until `saved` is called."""
    if t.space in GROUPS:
        return drawn_groups(rng_for(seed, t.name, how), t.space, shape)
    contract = operator.contract
    wish, index = contract.draw.get(t.name), contract.indices.get(t.name)
    fmt = format_of(t.format)
    entries = entries_in(how, shape[0])
    size = size_of(t.space, shape, entries, t.slots)
    rng = rng_for(seed, t.name, how)
    if not fmt.is_float:
        top = int(wish.split()[-1]) if wish and wish not in LENGTHS else shape[1] + bool(index and index.upto)
        if index and index.entries and how == SEGMENTS:
            return _segments(rng, shape[0], entries).reshape(size).astype(fmt.dtype)
        if index and index.entries:  # half of the rows choose one entry
            top = entries
            values = np.where(rng.random(size) < 0.5, top // 2, rng.integers(0, top, size))
            if how in ENTRIES:  # some choose the last ones, whose highest digit is another
                values = np.where(rng.random(size) < 0.2, top - rng.integers(1, 3, size), values)
        else:
            values = rng.integers(0, max(top, 1), size)
        if wish in LENGTHS and how == WHOLE_LENGTHS:
            values = np.full(size, top - 1)
        elif wish == "lengths":
            values = _lengths(rng, size, top - 1, sum(shape))
        if index and index.besides:
            values = np.where(rng.random(size) < 0.1, int(defaults(operator)[index.besides]), values)
        return values.astype(fmt.dtype)
    if wish == "probabilities":
        e = np.exp(rng.standard_normal(size) * 3)
        return to_format(e / np.maximum(e.sum(axis=-1, keepdims=True), 1e-300), fmt)
    if wish == "unit":
        return to_format(rng.random(size), fmt)
    if wish == "above":  # what noise hardly reaches
        return to_format(rng.random(size) * 8 + 12, fmt)
    if wish == "positive":
        return to_format(np.exp(rng.standard_normal(size) * 0.5), fmt)
    values = to_format((DRAWS | NAMED_DRAWS)[how](rng, size, fmt), fmt)
    return other_nans(rng, values, fmt) if how == "nans" else values


def drawn_integers(operator: Operator, graph: Graph, run: str, shape: tuple[int, int], seed: int) -> dict[str, Array]:
    """The integers of a structure run, by its name: what stays a number beside hashes."""
    how = run if run == WHOLE_LENGTHS else "normal"
    return {t.name: draw(operator, t, how, shape, seed) for t in graph.inputs if not format_of(t.format).is_float}


def none_is_whole(operator: Operator, graph: Graph, shape: tuple[int, int], seed: int) -> bool:
    """Whether lengths are drawn, and no row sees all that is there."""
    drawn = [t for t in graph.inputs if operator.contract.draw.get(t.name) in LENGTHS]
    lengths = [draw(operator, t, "normal", shape, seed) for t in drawn]
    return any(a.size > 0 and a.max() < shape[1] for a in lengths)


def drawn_groups(rng: np.random.Generator, space: Space, shape: tuple[int, int]) -> Array:
    """Groups that partition a side unevenly: they end at few places, so that some of them are empty."""
    sizes = Sizes.of(shape)
    count, groups = sizes[0] if space == "gr" else sizes.inner, sizes.batch
    places = rng.integers(0, count + 1, 1 + groups // 2)
    return np.concatenate([[0], np.sort(rng.choice(places, groups - 1)), [count]])


def defaults(operator: Operator) -> dict[str, float]:
    """The scalars that a case uses where it names none."""
    given = {p.name: p.default for p in operator.params if p.default is not None}
    missing = {p.name: 0.5 for p in operator.params if p.default is None}
    return {**missing, **given, **dict(operator.contract.defaults)}


def settled(operator: Operator, graph: Graph, params: Mapping[str, float], entries: int = 0) -> dict[str, float]:
    """Scalars that agree with the options of a graph: 0 where an option that follows from one is off, else not 0; and
    with the number of ``entries`` of the tables."""
    agreed = dict(params)
    if "entries" in agreed:
        agreed["entries"] = entries
    for option, scalar in operator.contract.switches.items():
        agreed[scalar] = (agreed[scalar] or 0.125) if graph.options[option] else 0.0
    return agreed


def seeds_of(operator: Operator) -> list[str]:
    """The whole numbers of 32 bits that an operator takes: each value gives other bits."""
    ranges = operator.contract.ranges
    return [p.name for p in operator.params if p.whole and ranges.get(p.name, (0, 0))[1] == 2**32 - 1]


def drawn_scalars(
    operator: Operator, graph: Graph, shape: tuple[int, int], how: str = "normal", seed: int = 0
) -> dict[str, float]:  # fmt: skip
    """The scalars beside tensors that are drawn."""
    params = defaults(operator)
    if how == SEEDS:
        rng = rng_for(seed, how, operator.name, shape_text(shape))
        params |= {n: int(rng.integers(int(operator.contract.ranges[n][0]), 2**32)) for n in seeds_of(operator)}
    return settled(operator, graph, params, entries_in(how, shape[0]))


def seeded(operator: Operator, graph: Graph, how: str, shape: tuple[int, int], seed: int) -> Case:
    """A case drawn from a seed. Only plain noise is held against the accuracy statements."""
    shape = in_groups(graph, shape)
    tensors = {t.name: draw(operator, t, how, shape, seed) for t in graph.inputs}
    params = drawn_scalars(operator, graph, shape, how, seed)
    made = Case("seeded", how, shape, seed, tensors, params, in_domain=how == "normal")
    return saved(operator, graph, made)


def saved(operator: Operator, graph: Graph, case: Case, given: HardInput | None = None) -> Case:
    """The case with what a backward pass takes from its forward pass, where the contract or a hard input wishes so: the
    results that the oracle gives for the other inputs. What a hard input names is as it says."""
    more, named = (given.saved, given.tensors) if given is not None else ((), {})
    drawn = operator.contract.draw
    wanted = [t.name for t in graph.inputs if (drawn.get(t.name) in SAVED or t.name in more) and t.name not in named]
    if not wanted:
        return case
    _, forward, others = forward_pass(operator, graph, case)
    made = evaluate(forward, others.tensors, others.shape, others.params)
    found = {n: made[n].reshape(case.tensors[n].shape) for n in wanted}
    return replace(case, tensors={**case.tensors, **found}, saved=tuple(wanted))


def forward_pass(operator: Operator, graph: Graph, case: Case) -> tuple[Operator, Graph, Case]:
    """The forward pass of a case of a backward operator: its operator, graph and case."""
    forward, renamed = operator.contract.forward or (operator.backward_of, {})
    if forward is None:
        where = f"{operator.file}:{operator.line}"
        raise DefinitionError(f"{where}: no forward pass saves anything; accepted: a backward_of")
    tensors = {t.name: case.tensors.get(renamed.get(t.name, t.name)) for t in forward.tensors}
    given = {n: a for n, a in tensors.items() if a is not None}
    optional = {t.name for t in forward.tensors if t.optional}
    return forward, forward.trace(graph.dtype, optional & set(given)), replace(case, tensors=given, saved=())


def hard(operator: Operator, graph: Graph) -> Iterator[Case]:
    """The operator's own hard inputs, in the graph's formats; tensors that one does not name are drawn."""
    for h in operator.hard_inputs():
        if _of_another_variant(h, graph):
            continue
        shape = _shape_of(h, graph)
        tensors = {}
        for t in graph.inputs:
            if t.name in h.tensors:
                values = to_format(h.tensors[t.name], format_of(t.format))
                if t.space in ("kr", "ck"):  # operands are named as rows x inner and inner x cols
                    values = values.swapaxes(-1, -2)
                size = values.shape if t.space == "t" else size_of(t.space, shape, slots=t.slots)
                tensors[t.name] = np.broadcast_to(
                    values.reshape(-1) if t.space in ("r", "c") and not t.slots else values, size
                ).copy()
            else:
                tensors[t.name] = draw(operator, t, "normal", shape, 0)
        entries = next((len(tensors[t.name]) for t in graph.inputs if t.space == "t"), drawn_entries(shape[0]))
        entries = int(h.scalars.get("entries", entries))
        params = settled(operator, graph, {**defaults(operator), **h.scalars}, entries)
        made = saved(operator, graph, Case("hard", h.name, shape, 0, tensors, params), h)
        finite = all(np.isfinite(a.astype(np.float64)).all() for n, a in made.tensors.items() if _is_float(graph, n))
        yield replace(made, in_domain=h.in_domain and finite)


def hard_shapes(operator: Operator, graph: Graph) -> Iterator[tuple[str, tuple[int, int]]]:
    """The names and shapes of the same cases."""
    for h in operator.hard_inputs():
        if not _of_another_variant(h, graph):
            yield h.name, _shape_of(h, graph)


def _of_another_variant(h: HardInput, graph: Graph) -> bool:
    """Whether a hard input has another number of slots than the graph."""
    return any(t.slots not in (0, np.shape(h.tensors[t.name])[-1]) for t in graph.inputs if t.name in h.tensors)


def _is_float(graph: Graph, name: str) -> bool:
    return FORMATS[str(next(t.format for t in graph.inputs if t.name == name))].is_float


def _shape_of(h: HardInput, graph: Graph) -> tuple[int, int]:
    if any(t.space in OPERANDS for t in graph.inputs):
        return _sizes_of(h, graph)
    for t in graph.inputs:
        if t.space == "rc" and t.name in h.tensors:
            rows, cols = np.asarray(h.tensors[t.name]).shape
            return int(rows), int(cols)
    named = {t.space: np.asarray(h.tensors[t.name]) for t in graph.inputs if t.name in h.tensors}
    if "t" in named and "r" in named:
        return len(named["r"]), int(named["t"].shape[1])
    raise DefinitionError(
        f"{graph.name}: the hard input {h.name!r} names no tensor of rows x cols; accepted: at least one, "
        "or a table and rows"
    )


def _sizes_of(h: HardInput, graph: Graph) -> Sizes:
    """The sizes that the operands tell, as rows x inner and inner x cols; five where none tells a size."""
    found = {"r": 5, "c": 5, "k": 5}
    for t in graph.inputs:
        if t.name in h.tensors and t.space in (*OPERANDS, "rc"):
            sides = {"kr": "rk", "ck": "kc"}.get(t.space, t.space)
            found |= dict(zip(sides, np.asarray(h.tensors[t.name]).shape[-2:], strict=True))
    groups = 1 if graph.offsets is None else len(h.tensors[graph.offsets.name]) - 1
    return Sizes(found["r"], found["c"], found["k"], groups, graph.ragged)


def exhaustive(operator: Operator, graph: Graph) -> Case | None:
    """All 65,536 values of a 16-bit format, for an operator that takes one tensor element by element; else None."""
    if len(graph.inputs) != 1 or graph.inputs[0].space != "rc":
        return None
    fmt = format_of(graph.inputs[0].format)
    if fmt.bits != 16 or not is_flat(graph) or any(n.op in TOTALS for n in graph.nodes):
        return None
    values = np.arange(65536, dtype=np.uint16).view(fmt.dtype).reshape(256, 256)
    return Case("exhaustive", f"all {fmt}", (256, 256), 0, {graph.inputs[0].name: values}, defaults(operator))
