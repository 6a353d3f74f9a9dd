"""Does this kernel, on this device, compute the definition?

In order of strength: the structure run shows for all inputs at a shape that the defined expression is evaluated; then
every 16-bit value where an operator takes one, hard inputs, seeded noise, your own tensors, each compared with the
oracle bit for bit, which also shows the arithmetic beneath the expression. Round every run: poisoned results, guard
zones, input digests, several thread counts, odd strides and alignments, split batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..backends.cpu import device as cpu
from ..errors import KernelFaultError, WorkerFaultError
from ..families.shapes import LARGE, of_rows
from ..formats import FORMATS
from ..lang import MATRICES, TOTALS, Graph, Sizes, shape_text
from ..lang.graph import Space
from ..meaning import bits, structure
from ..runtime.kernel import KernelBase, Scalars
from .buffers import CANARY, RESULT_CANARY, Buffer, GuardError, digest, workspace_buffer
from .cases import ALL_INPUTS, ENTRIES, IN_THREADS, ROWS_ALIKE, TILE, TILED_NANS, Case, rng_for, size_of, work_of
from .compare import Mismatch, first_mismatch
from .conditioned import ByFormat
from .drawn import MOST_THREADS, Place, place_of, threads_of

Array = np.ndarray[Any, Any]

# More threads than cores are tried on purpose: threads that spin while they wait would take the cores from each other.
# (Read by the OpenMP runtime when the first kernel is loaded.)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@dataclass(frozen=True)
class Layout:
    """How a launch lays out its tensors and its work: none of it may change a bit.

    `draws` are the words from which the place of each tensor is drawn; without any, all lie alike.
    """

    name: str
    threads: int
    offset: int = 0  # elements from a 64-byte boundary
    gap: int = 0  # elements between rows of the first tensor, one more of each that follows
    draws: tuple[str, ...] = ()
    seed: int = 0
    aligned: bool = False  # what is drawn begins at a boundary, and so do its rows
    expanded: bool = False  # all rows of an input are the same memory

    def place(self, number: int, name: str, space: Space, size: tuple[int, ...], itemsize: int) -> Place:
        """Where a tensor lies, the `number`-th that is placed."""
        if self.draws:
            return place_of(rng_for(self.seed, *self.draws, name), space, size, itemsize, self.aligned)
        gap = self.gap + number if self.gap and space in MATRICES else 0
        return Place(self.offset, gap, gap)


PLAIN = Layout("plain", 1)
FIRST_LAYOUTS = (
    ("plain", "seven threads", "one element off", "gaps between rows", "some tensors one element off"),
    ("plain", "gaps between rows"),
)
"""The names of what the first version of the suite ran small cases and large ones under."""
SMALL = 1 << 16  # elements of a case that is run under all layouts

FAULTS = (GuardError, KernelFaultError, WorkerFaultError)
"""What a wrong kernel does beside computing something else."""


def fault_text(error: Exception) -> str:
    """What it did, in one line."""
    return error.reason if isinstance(error, WorkerFaultError) else str(error)


Measure = Callable[[Graph, Case, Mapping[str, Array], "CaseResult"], None]
"""Fills in how far the bits of a case are from the exact value."""


@dataclass
class CaseResult:
    """What one case showed."""

    kind: str
    name: str
    shape: tuple[int, int]
    seed: int
    id: str
    params: Mapping[str, float]
    layouts: tuple[str, ...] = ()  # in words, those that were run
    compared: int = 0
    split: bool = False  # its rows were also computed in two batches
    failure: str | None = None
    max_ulp: float | None = None
    max_ulp_of_row: float | None = None
    max_bound: float | None = None
    worst: str | None = None
    conditioned: ByFormat = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    oracle: dict[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.failure is None


@dataclass(frozen=True)
class Placed:
    """A tensor of a launch: its extent, its dtype, and where it lies."""

    name: str
    size: tuple[int, ...]
    dtype: np.dtype[Any]
    place: Place
    expanded: bool = False

    def buffer(self, canary: int = CANARY) -> Buffer:
        """Guarded memory for it."""
        p = self.place
        return Buffer(self.name, self.size, self.dtype, p.offset, p.gap, p.apart, p.turned, self.expanded, canary)


def placed(
    graph: Graph, structure: bool, shape: tuple[int, int], layout: Layout, tables: Mapping[str, int], entries: int
) -> list[Placed]:
    """The tensors of a launch, inputs first; one that is replaced stands there once. ``tables`` are the entries of the
    tables that are read, ``entries`` those of one that is summed into."""
    replaced = {o.name for o in graph.outputs if o.inplace}
    every = [(t.name, t.space, str(t.format), size_of(t.space, shape, tables.get(t.name), t.slots))
             for t in graph.inputs]  # fmt: skip
    every += [(o.name, o.space, o.format, size_of(o.space, shape, entries, o.slots))
              for o in graph.outputs if not o.inplace]  # fmt: skip
    made = []
    for number, (name, space, fmt, size) in enumerate(every):
        dtype = np.dtype(np.uint64) if structure and FORMATS[fmt].is_float else FORMATS[fmt].dtype
        alike = layout.expanded and number < len(graph.inputs) and space in MATRICES and name not in replaced
        made.append(Placed(name, size, dtype, layout.place(number, name, space, size, dtype.itemsize), alike))
    return made


def in_words(layout: Layout, tensors: Iterable[Placed]) -> str:
    """A layout as a certificate lists it and a failure tells it."""
    where = f": {', '.join(f'{t.name} {t.place}' for t in tensors)}" if layout.draws else ""
    return f"{layout.name}, {layout.threads} thread{'s' * (layout.threads != 1)}{where}"


class Launch:
    """One set of guarded, poisoned buffers for a kernel, filled with a case's tensors. Tables among the results have as
    many entries as are said, or as those that are drawn have."""

    def __init__(
        self, kernel: KernelBase, shape: tuple[int, int], tensors: Mapping[str, Array], layout: Layout,
        entries: int | None = None,
    ) -> None:  # fmt: skip
        self.kernel, self.shape, self.layout = kernel, shape, layout
        entries = structure.drawn_entries(shape[0]) if entries is None else entries
        tables = {t.name: len(tensors[t.name]) for t in kernel.graph.inputs if t.space == "t"}
        self.placed = placed(kernel.graph, kernel.structure, shape, layout, tables, entries)
        given = {t.name for t in kernel.graph.inputs}
        made = {t.name: t.buffer(CANARY if t.name in given else RESULT_CANARY) for t in self.placed}
        self.inputs = {t.name: made[t.name] for t in kernel.graph.inputs}
        self.results = {o.name: made[o.name] for o in kernel.graph.outputs}
        for name, buffer in self.inputs.items():
            buffer.array[...] = tensors[name].reshape(buffer.shape)
        for o in kernel.graph.outputs:
            if not o.inplace:
                self.results[o.name].poison()
        need = kernel.workspace_bytes([shape], layout.threads, entries)
        self.workspace = workspace_buffer(need, kernel.element("f32"))  # poison is NaN where numbers are summed there
        replaced = {o.name for o in kernel.graph.outputs if o.inplace}
        self.before = {n: b.raw.tobytes() for n, b in self.inputs.items() if n not in replaced}

    def told(self) -> str:
        """The layout in words."""
        return in_words(self.layout, self.placed)

    def run(self, scalars: Scalars) -> dict[str, Array]:
        """Launch and check what lies round the results. Raises GuardError."""
        order = self.layout.threads
        self.kernel.launch_buffers([self.inputs], [self.results], [self.shape], scalars, order, self.workspace)
        self.check()
        return {n: b.array for n, b in self.results.items()}

    def check(self) -> None:
        """Look at what lies round the buffers and at inputs that must not change. Raises GuardError."""
        changed = [n for n, was in self.before.items() if self.inputs[n].raw.tobytes() != was]  # guard zones as well
        replaced = [b for n, b in self.inputs.items() if n not in self.before]
        for buffer in (*(self.inputs[n] for n in changed), *replaced, *self.results.values(), self.workspace):
            buffer.check_guards()
        if changed:
            raise GuardError(f"{changed[0]}: the kernel changed this input")


def layouts(case: str, work: int, seed: int) -> tuple[Layout, ...]:
    """Those of a case, by its id and its elements: small ones are run under four, larger ones under two, and
    those whose results are stored past the caches under one in which these are aligned. One case is run in every number
    of threads that others may draw."""
    how = case.partition("/")[2].partition("@")[0]
    if how == IN_THREADS:
        return tuple(replace(PLAIN, threads=n) for n in range(1, MOST_THREADS + 1))
    work = max(work, ENTRIES.get(how, 0))
    rng = rng_for(seed, "threads", case)
    drawn = [
        Layout(f"drawn {i}", threads_of(rng), draws=(case, str(i)), seed=seed, aligned=i == 2) for i in (1, 2, 3)
    ]  # fmt: skip
    return (PLAIN, *drawn) if work <= SMALL else tuple(drawn[:2]) if work < LARGE // 4 else (drawn[1],)


def run_numbers(kernel: KernelBase, case: Case, measure: Measure | None, threads: int) -> CaseResult:
    """Compare a kernel with the oracle on one case, under several layouts, then measure the oracle's distance from the
    exact value (the bits are equal, so it is the kernel's as well)."""
    graph = kernel.graph
    want = _oracle(graph, case)
    chosen = layouts(case.id, work_of(case.shape), case.seed)
    result = CaseResult(case.kind, case.name, case.shape, case.seed, case.id, dict(case.params))
    result.inputs = {t.name: digest(case.tensors[t.name]) for t in graph.inputs}
    result.oracle = {n: digest(a) for n, a in want.items()}
    scalars = kernel.scalar_table(*case.shape, case.params)
    for layout in chosen:
        got = _launch(kernel, case.shape, case.tensors, layout, scalars, want, result)
        if got is None:
            return result
        result.outputs = result.outputs or {n: digest(a) for n, a in got.items()}  # every layout's are the same bits
    result.split = kernel.plan.rows_are_apart(case.shape)
    fault = _split(kernel, case, want, scalars, threads) if result.split else None
    if fault is not None:
        result.failure = f"rows computed in two batches: {fault}"
        return result
    if measure is not None and case.in_domain and 0 not in case.shape:
        measure(graph, case, want, result)
    return result


def _oracle(graph: Graph, case: Case) -> dict[str, Array]:
    """The defined results. Of a tiled tensor, whose rows do not know each other, the first rows' stand for all."""
    if case.name not in ("tiled", TILED_NANS) or case.shape[0] <= TILE or not _tiles(graph, case):
        return bits.evaluate(graph, case.tensors, case.shape, case.params)
    few = {t.name: part_of(t.space, case.tensors[t.name], slice(0, TILE)) for t in graph.inputs}
    want = bits.evaluate(graph, few, (TILE, case.shape[1]), case.params)
    return {n: np.resize(a, (case.shape[0], *a.shape[1:])) for n, a in want.items()}


def _tiles(graph: Graph, case: Case) -> bool:
    """Whether the results of TILE rows are those of the next: their elements are, and nothing looks further."""
    looks = {*TOTALS, "rows", "row_index", "element_word", "col_sum", "scatter_sum", "matmul", "weighted_sum"}
    if len(graph.outputs) > len(of_rows(graph)) or any(n.op in looks for n in graph.nodes):
        return False
    of_each = [case.tensors[t.name] for t in graph.inputs if "r" in t.space]
    return all(first_mismatch("", a, np.resize(a[:TILE], a.shape)) is None for a in of_each)


def run_structure(
    kernel: KernelBase,
    shape: tuple[int, int],
    integers: Mapping[str, Array],
    params: Mapping[str, float],
    seed: int,
    name: str = ALL_INPUTS,
) -> CaseResult:
    """Compare which expression a structure build evaluates with the definition: equal means the same one for all values
    of the float inputs and of the scalars that become floats, beside these `integers`, which follow from the ``name``.
    Of inputs in ``ROWS_ALIKE`` all rows are the same memory."""
    graph, expanded = kernel.graph, name == ROWS_ALIKE
    tensors, hashes = structure.hashes(graph, shape, seed)
    tensors |= integers
    if expanded:
        tensors = rows_alike(graph, tensors)
    want = structure.evaluate(graph, tensors, shape, hashes, params)
    scalars = kernel.hash_table(hashes, *shape, params)
    case = f"structure/{name}@{shape_text(shape)}#{seed}"
    result = CaseResult("structure", name, shape, seed, case, {})
    chosen = layouts(case, work_of(shape), seed)
    if expanded:
        chosen = tuple(replace(x, expanded=True) for x in chosen)
    result.inputs = {n: digest(a) for n, a in tensors.items()}
    result.oracle = {n: digest(a) for n, a in want.items()}
    for layout in chosen:
        got = _launch(kernel, shape, tensors, layout, scalars, want, result)
        if got is None:
            break
        result.outputs = result.outputs or {n: digest(a) for n, a in got.items()}  # every layout's are the same bits
    return result


def rows_alike(graph: Graph, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The same inputs, whose matrices have their first row everywhere; but those that results replace."""
    kept = {o.name for o in graph.outputs if o.inplace}
    alike = {t.name for t in graph.inputs if t.space in MATRICES and t.name not in kept}
    return {n: np.broadcast_to(a[..., :1, :], a.shape) if n in alike else a for n, a in tensors.items()}


def _launch(
    kernel: KernelBase, shape: tuple[int, int], tensors: Mapping[str, Array], layout: Layout, scalars: Scalars,
    want: Mapping[str, Array], result: CaseResult,
) -> dict[str, Array] | None:  # fmt: skip
    try:
        entries = next((len(want[o.name]) for o in kernel.graph.outputs if o.space == "t"), None)
        launch = Launch(kernel, shape, tensors, layout, entries)
        result.layouts += (launch.told(),)
        got = launch.run(scalars)
    except FAULTS as error:
        result.failure = f"{result.layouts[-1]}: {fault_text(error)}"
        return None
    for name, values in got.items():
        mismatch = first_mismatch(name, values.reshape(want[name].shape), want[name])
        if mismatch is not None:
            result.failure = f"{result.layouts[-1]}: {mismatch}"
            return None
        result.compared += values.size
    return got


def _split(
    kernel: KernelBase, case: Case, want: Mapping[str, Array], scalars: Scalars, threads: int
) -> Mismatch | str | None:
    """Rows do not know their batch: computed in two parts they have the same bits. (Column sums do: left out.)"""
    rows, cols = case.shape
    cut = rows // 3 + 1
    for part in (slice(0, cut), slice(cut, rows)):
        some = {t.name: part_of(t.space, case.tensors[t.name], part) for t in kernel.graph.inputs}
        count = len(range(rows)[part])
        shape = Sizes(count, cols, case.shape.inner) if isinstance(case.shape, Sizes) else (count, cols)
        try:
            got = Launch(kernel, shape, some, Layout("split", threads)).run(scalars)
        except FAULTS as error:
            return fault_text(error)
        for o in of_rows(kernel.graph):
            mismatch = first_mismatch(
                o.name, got[o.name].reshape(shape[0], -1), want[o.name][part].reshape(shape[0], -1)
            )
            if mismatch is not None:
                return mismatch
    return None


def part_of(space: Space, values: Array, rows: slice) -> Array:
    """Some rows of a tensor, or all of one that knows no rows."""
    if "r" not in space:
        return values
    return values[:, rows] if space == "kr" else values[rows]


def default_threads() -> int:
    """Threads of an ordinary launch."""
    return cpu.default_threads()
