"""What a certificate says in sentences: proofs, claims and non-claims, all of which follow from its other parts.

They are made twice: from a verdict, when a certificate is written, and from the certificate, when it is checked. A
sentence that does not follow from the parts is a false one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..backends import backend_named
from ..backends.backend import Shown
from ..backends.machine_code import MERGED, UNTOLD, MachineCode
from ..emit.counters import proved
from ..errors import DefinitionError
from ..evidence.statement import Proof
from ..formats import FORMATS
from ..lang import Graph, Operator, Sizes, shape_text
from .buffers import GUARD
from .variant import Variant, variants


@dataclass(frozen=True)
class Ran:
    """One case, as far as sentences tell of it: ``split`` where its rows were also computed in two batches."""

    kind: str
    shape: tuple[int, int]
    compared: int
    equal: bool
    layouts: Sequence[str]
    split: bool


@dataclass(frozen=True)
class Facts:
    """What the sentences are made of. ``graphs`` are those of the variants that were run, in order; ``derivative`` is a
    result, its error and the rounding-error bound; ``only`` the id of the one case that was asked for; ``archs``,
    ``warp`` and ``not_run`` are what `backends.backend.Shown` has."""

    operator: Operator
    dtype: str
    target: str
    graphs: Sequence[Graph]
    cases: Sequence[Ran]
    failed: bool
    isolation: Sequence[str] | None = None
    derivative: Sequence[tuple[str, float, float]] = ()
    only: str | None = None
    archs: Sequence[str] = ()
    warp: str = ""
    not_run: str = ""
    code: Sequence[MachineCode] = ()  # what was read of the binaries
    layouts: int = 1  # the version by which layouts are chosen
    sums: Mapping[str, AbstractSet[str]] | None = None  # where sources join pending sums, by what; None: not said
    integers: frozenset[str] = field(init=False)

    @property
    def shown(self) -> Shown:
        """What a backend's own sentences are made of."""
        return Shown(self.graphs, self.archs, self.warp, self.not_run)

    def __post_init__(self) -> None:
        found = {t.name for g in self.graphs for t in g.inputs if not FORMATS[str(t.format)].is_float}
        object.__setattr__(self, "integers", frozenset(found))


def proofs(facts: Facts) -> list[Proof]:
    """What was shown for all inputs, and of the order of sums for every count."""
    return [*_of_all_inputs(facts), *_of_every_count(facts)]


def _of_all_inputs(facts: Facts) -> list[Proof]:
    found = {r.shape for r in facts.cases if r.kind == "structure" and r.equal}
    shapes = sorted(found, key=lambda s: (*s, *((s.inner, s.batch) if isinstance(s, Sizes) else ())))
    if not shapes:
        return []
    sides = "rows x cols x inner" if any(isinstance(s, Sizes) for s in shapes) else "rows x cols"
    listed = ", ".join(map(shape_text, shapes))
    return [
        Proof(
            f"for {_inputs(facts)} at {sides} of {listed}, the kernel evaluates exactly the defined expression",
            "proved",
            f"structure run{backend_named(facts.target).where}: 64-bit hashes in place of numbers, "
            "collision probability below 2**-50",
        )
    ]


SUMS = {"row_sum", "col_sum", "total_sum", "scatter_sum", "matmul", "weighted_sum"}


def joined(several: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """Where the sources of kernels join pending sums, with all digests of what does."""
    made: dict[str, set[str]] = {}
    for id, digest in itertools.chain.from_iterable(sums.items() for sums in several):
        made.setdefault(id, set()).add(digest)
    return made


def _counters(facts: Facts) -> tuple[list[str], list[str]] | None:
    """Which places join pending sums as was proved for every count, and which do not; None where nothing is summed, or
    the certificate does not say."""
    if facts.sums is None or not any(n.op in SUMS for g in facts.graphs for n in g.nodes):
        return None
    known = {id for id, digests in facts.sums.items() if digests <= proved().get(id, {}).keys()}
    return sorted(known), sorted(facts.sums.keys() - known)


def _by_runs(facts: Facts) -> str:
    """How the order of other sums is known."""
    ran = any(r.kind == "structure" and r.equal for r in facts.cases)
    return (
        f"known at the shapes that were run{backend_named(facts.target).where}" if ran else "shown by no structure run"
    )


def _of_every_count(facts: Facts) -> list[Proof]:
    """How the order of sums is known."""
    counters = _counters(facts)
    if counters is None:
        return []
    joins = "order of sums, for every count: {} joins pending sums to the balanced tree over blocks"
    by_induction = "induction over counts below 2**33, its steps by a solver, of the definition with the digest stated"
    return [
        *(Proof(joins.format(id), "proved", by_induction) for id in counters[0]),
        *(
            Proof(joins.format(id), "not proved", f"{_by_runs(facts)}: it is no definition on record")
            for id in counters[1]
        ),
        Proof("order of sums, for every count: chains, and trees that no counter joins", "not proved", _by_runs(facts)),
    ]


def _order_of_sums(facts: Facts) -> list[str]:
    counters = _counters(facts)
    if counters is None:
        return []
    by = f"for every count, proved, where pending sums are joined by {', '.join(counters[0])}; else "
    return [f"Order of sums: {by if counters[0] else ''}{_by_runs(facts)}."]


def claims(facts: Facts) -> list[str]:
    """What the certificate says."""
    compared = sum(r.compared for r in facts.cases if r.kind != "structure")
    outcome = "not all equal" if facts.failed else "all equal"
    made = backend_named(facts.target).claims(facts.shown)
    if facts.isolation is not None:
        limits = ", ".join(facts.isolation)
        made.append(f"Kernels ran in a worker process, apart from the comparison ({limits}).")
    made += [f"{compared} result elements were compared with the oracle bit for bit, {outcome}."]
    made += map(read_code, _by_listing(facts))
    if _has_variants(facts.operator):
        made.append(f"{RUN_WITH}{'; '.join(in_words(facts.operator, facts.graphs))}.")
    if any(r.kind == "exhaustive" for r in facts.cases):
        made.append(f"Every one of the 65,536 {facts.dtype} inputs was tried.")
    if any(r.kind == "structure" and r.equal for r in facts.cases):
        made.append(
            f"At the shapes listed under proofs the kernel evaluates the defined expression for {_inputs(facts)}, "
            "but for a chance below 2**-50; the arithmetic of its operations is what the other cases compare."
        )
    made += _order_of_sums(facts)
    for name, error, explained in facts.derivative:
        if error <= explained:
            made.append(
                f"At the sampled points {name} is the derivative of the forward definition: reverse mode in extended "
                f"precision is {error:.2g} of the largest element away, where rounding explains {explained:.2g}."
            )
    if not facts.failed:
        made.append(_unchanged(facts))
    return made


def non_claims(facts: Facts) -> list[str]:
    """What it does not say."""
    there = math.prod([*(len(o.accepted) for o in facts.operator.options),
                       *(2 for t in facts.operator.tensors if t.optional)])  # fmt: skip
    backend = backend_named(facts.target)
    others = there > len(in_words(facts.operator, facts.graphs))
    return [
        *backend.non_claims(facts.shown),
        *(f"Machine code of {count} binaries was not read: {why}." for why, count in _unread(facts).items()),
        *([f"The suite was not run: only its case {facts.only}."] if facts.only is not None else []),
        *(["Combinations of optional inputs and options that are not listed were not run."] * others),
        *ALWAYS,
    ]


def _by_listing(facts: Facts) -> list[list[MachineCode]]:
    """What was read, one list for each kind of listing."""
    listings = dict.fromkeys(c.listing for c in facts.code if c.missing is None)
    return [[c for c in facts.code if c.missing is None and c.listing == one] for one in listings]


def _unread(facts: Facts) -> Counter[str]:
    return Counter(c.missing for c in facts.code if c.missing is not None)


def read_code(several: Sequence[MachineCode]) -> str:
    """What one kind of listing says of several binaries."""
    counts: Counter[str] = sum((Counter(c.counts) for c in several), Counter())
    listed = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "no arithmetic on floats"
    found = sum(len(c.findings) for c in several)
    others = " among the others" if counts[MERGED] or counts[UNTOLD] else ""
    outcome = (
        f"{found} instructions may compute something else than the source asks for"
        if found
        else f"no contraction{others}, no flush of subnormal numbers to zero, and no approximate division, square "
        "root, reciprocal or exponential beyond those that the source asks for"
    )
    return f"Machine code of {len(several)} binaries ({several[0].listing}): {listed}; {outcome}."


RUN_WITH = "It was run with: "


def in_words(operator: Operator, graphs: Iterable[Graph]) -> list[str]:
    """The variants of an operator that these graphs are, in words."""
    usual, optional = {o.name: o.default for o in operator.options}, any(t.optional for t in operator.tensors)
    found = []
    for graph in graphs:
        present = sorted(t.name for t in graph.inputs if t.optional)
        chosen = [f"{n}={v}" for n, v in graph.options.items() if v != usual.get(n)]
        found.append(" and ".join([*present, *chosen]) or ("no optional input" if optional else "its defaults"))
    return list(dict.fromkeys(found))


def graphs_of(operator: Operator, dtype: str) -> Iterator[Graph]:
    """Every graph of the operator, each once: first those that a verification takes, then all other combinations."""
    names, optional = [o.name for o in operator.options], [t.name for t in operator.tensors if t.optional]
    others = (
        Variant(frozenset(itertools.compress(optional, there)), tuple(zip(names, values, strict=True)))
        for there in itertools.product((True, False), repeat=len(optional))
        for values in itertools.product(*(o.choices(dtype) for o in operator.options))
    )
    seen = set()
    for v in itertools.chain(variants(operator, dtype), others):
        try:
            graph = operator.trace(dtype, v.present, dict(v.options))
        except DefinitionError:  # a combination that the definition does not have
            continue
        if graph.digest not in seen:
            seen.add(graph.digest)
            yield graph


def as_now(operator: Operator, said: Sequence[str]) -> list[str]:
    """Claims as they are worded now: what had no optional inputs may have got some since, and was run with none."""
    optional = any(t.optional for t in operator.tensors)
    words = [s[len(RUN_WITH) : -1].split("; ") if s.startswith(RUN_WITH) and optional else None for s in said]
    return [
        s if w is None else f"{RUN_WITH}{'; '.join('no optional input' if x == 'its defaults' else x for x in w)}."
        for s, w in zip(said, words, strict=True)
    ]


def stated_graphs(operator: Operator, dtype: str, said: Iterable[str]) -> list[Graph] | None:
    """The graphs that were run, as claims tell; None where they name what there is not."""
    if not _has_variants(operator):
        return [operator.trace(dtype)]
    words = next((s[len(RUN_WITH) : -1].split("; ") for s in said if s.startswith(RUN_WITH)), [])
    known: dict[str, Graph] = {}
    for graph in graphs_of(operator, dtype):
        known.setdefault(in_words(operator, [graph])[0], graph)
    return [known[w] for w in words] if words and all(w in known for w in words) else None


def _has_variants(operator: Operator) -> bool:
    return bool(operator.options) or any(t.optional for t in operator.tensors)


def _inputs(facts: Facts) -> str:
    """What the hashes of a structure run stand for: integers stay numbers in it."""
    return (
        f"all values of float inputs beside the drawn {', '.join(sorted(facts.integers))}"
        if facts.integers
        else "all inputs"
    )


def _unchanged(facts: Facts) -> str:
    names = {name for r in facts.cases for name in r.layouts}
    if facts.layouts > 1:
        tried = f"{len(names)} ways of laying out tensors and work, drawn for each case and listed there"
    else:
        tried = f"every layout that was tried ({', '.join(sorted(names))})"
    split = sum(r.split for r in facts.cases)
    return (
        f"No kernel wrote into the {GUARD} bytes round its tensors or between their rows or changed an input, and "
        f"results had the same bits under {tried}"
        + (f" and, in {split} of the cases, in batches split in two." if split else ".")
    )


ALWAYS = [
    "The compiler and the processor are trusted to execute the IEEE 754 operations that the text asks for; machine "
    "code is not verified.",
    "Shapes that are not listed were not run.",
    "Reads outside the inputs that no result depends on, and writes far from every tensor, were not looked for.",
    "Speed is not a subject of this certificate.",
    "Nothing is said about values outside the operator's stated domain but that the bits equal the definition's.",
]
