"""Does this kernel, on this device, compute the definition?

In order of strength: the structure run shows for all inputs at a shape that the defined expression is evaluated; then
every 16-bit value where an operator takes one, hard inputs, seeded noise, your own tensors, each compared with the
oracle bit for bit, which also shows the arithmetic beneath the expression. Round every run: poisoned results, guard
zones, input digests, several thread counts, odd strides and alignments, split batches.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..device import cpu
from ..errors import KernelFaultError, WorkerFaultError
from ..kernel import KernelBase, Scalars
from ..lang import MATRICES, TOTALS, Graph, Output, Sizes, shape_text
from ..lang.graph import Space
from ..lower import Plan, RowPlan
from ..meaning import bits, structure
from .buffers import Buffer, GuardError, digest
from .cases import Case, size_of
from .compare import Mismatch, first_mismatch

Array = np.ndarray[Any, Any]

# More threads than cores are tried on purpose: threads that spin while they wait would take the cores from each other.
# (Read by the OpenMP runtime when the first kernel is loaded.)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@dataclass(frozen=True)
class Layout:
    """How a launch lays out its tensors and its work: none of it may change a bit.

    Where there are gaps, no two tensors have the same: a kernel that takes one's row stride for another's is seen.
    """

    name: str
    threads: int
    offset: int = 0  # elements from a 64-byte boundary
    gap: int = 0  # elements between rows of the first tensor, one more of each that follows
    some: bool = False  # the offset is that of some tensors, which the shape decides on; others begin at the boundary


PLAIN = Layout("plain", 1)

FAULTS = (GuardError, KernelFaultError, WorkerFaultError)
"""What a wrong kernel does beside computing something else."""


def fault_text(error: Exception) -> str:
    """What it did, in one line."""
    return error.reason if isinstance(error, WorkerFaultError) else str(error)


Measure = Callable[[Graph, Case, Mapping[str, Array], "CaseResult"], None]
"""Fills in how far the bits of a case are from the real result."""


@dataclass
class CaseResult:
    """What one case showed."""

    kind: str
    name: str
    shape: tuple[int, int]
    seed: int
    id: str
    params: Mapping[str, float]
    layouts: tuple[str, ...]
    compared: int = 0
    split: bool = False  # its rows were also computed in two batches
    failure: str | None = None
    max_ulp: float | None = None
    max_ulp_of_row: float | None = None
    max_bound: float | None = None
    worst: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    oracle: dict[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.failure is None


class Launch:
    """One set of guarded, poisoned buffers for a kernel, filled with a case's tensors. Tables among the results have as
    many entries as are said, or as those that are drawn have."""

    def __init__(
        self, kernel: KernelBase, shape: tuple[int, int], tensors: Mapping[str, Array], layout: Layout,
        entries: int | None = None,
    ) -> None:  # fmt: skip
        self.kernel, self.shape, self.layout = kernel, shape, layout
        self.made, self.off = 0, zlib.crc32(shape_text(shape).encode()) if layout.some else -1  # a bit for each tensor
        entries = structure.drawn_entries(shape[0]) if entries is None else entries
        self.inputs: dict[str, Buffer] = {}
        self.results: dict[str, Buffer] = {}
        for t in kernel.graph.inputs:
            entries_here = len(tensors[t.name]) if t.space == "t" else None
            size = size_of(t.space, shape, entries_here, t.slots)
            self.inputs[t.name] = self._buffer(t.name, t.space, str(t.format), size)
            self.inputs[t.name].array[...] = tensors[t.name].reshape(size)
        for o in kernel.graph.outputs:
            if o.inplace:
                self.results[o.name] = self.inputs[o.name]
            else:
                size = size_of(o.space, shape, entries, o.slots)
                self.results[o.name] = self._buffer(o.name, o.space, o.format, size)
                self.results[o.name].poison()
        word = kernel.element("f32")  # poison is NaN where numbers are summed there
        need = -(-kernel.workspace_bytes([shape], layout.threads, entries) // word.itemsize)
        self.workspace = Buffer("workspace", (need,), word)
        self.workspace.poison()
        replaced = {o.name for o in kernel.graph.outputs if o.inplace}
        self.before = {n: digest(b.array) for n, b in self.inputs.items() if n not in replaced}

    def _buffer(self, name: str, space: Space, format_name: str, size: tuple[int, ...]) -> Buffer:
        number, self.made = self.made, self.made + 1
        gap = self.layout.gap + number if self.layout.gap and space in MATRICES else 0
        offset = self.layout.offset if self.off >> number % 32 & 1 else 0
        return Buffer(name, size, self.kernel.element(format_name), offset, gap)

    def run(self, scalars: Scalars) -> dict[str, Array]:
        """Launch and check what lies round the results. Raises GuardError."""
        order = self.layout.threads
        self.kernel.launch_buffers([self.inputs], [self.results], [self.shape], scalars, order, self.workspace)
        self.check()
        return {n: b.array for n, b in self.results.items()}

    def check(self) -> None:
        """Look at what lies round the buffers and at inputs that must not change. Raises GuardError."""
        for buffer in (*self.inputs.values(), *self.results.values(), self.workspace):
            buffer.check_guards()
        for name, was in self.before.items():
            if digest(self.inputs[name].array) != was:
                raise GuardError(f"{name}: the kernel changed this input")


def layouts(case_size: int, threads: int) -> tuple[Layout, ...]:
    """Small cases are run under every layout, large ones under two."""
    every = (
        PLAIN,
        Layout("seven threads", 7),
        Layout("one element off", threads, offset=1),
        Layout("gaps between rows", threads, offset=3, gap=5),
        Layout("some tensors one element off", threads, offset=1, some=True),
    )
    return (
        every if case_size <= 1 << 16 else (Layout("plain", threads), Layout("gaps between rows", 1, offset=1, gap=3))
    )


def work_of(shape: tuple[int, int]) -> int:
    """Elements of a result; of a product, sixteen multiplications count as one."""
    elements = shape[0] * shape[1]
    return max(elements, shape.steps // 16) if isinstance(shape, Sizes) else elements


def run_numbers(kernel: KernelBase, case: Case, measure: Measure | None, threads: int) -> CaseResult:
    """Compare a kernel with the oracle on one case, under several layouts, then measure the oracle's distance from the
    real result (the bits are equal, so it is the kernel's as well)."""
    graph = kernel.graph
    want = bits.evaluate(graph, case.tensors, case.shape, case.params)
    chosen = layouts(work_of(case.shape), threads)
    result = _blank(case, chosen)
    result.inputs = {t.name: digest(case.tensors[t.name]) for t in graph.inputs}
    result.oracle = {n: digest(a) for n, a in want.items()}
    scalars = kernel.scalar_table(*case.shape, case.params)
    for layout in chosen:
        got = _launch(kernel, case.shape, case.tensors, layout, scalars, want, result)
        if got is None:
            return result
        result.outputs = {n: digest(a) for n, a in got.items()}
    result.split = rows_are_apart(kernel.plan, case.shape)
    fault = _split(kernel, case, want, scalars, threads) if result.split else None
    if fault is not None:
        result.failure = f"rows computed in two batches: {fault}"
        return result
    if measure is not None and case.in_domain and 0 not in case.shape:
        measure(graph, case, want, result)
    return result


def run_structure(
    kernel: KernelBase,
    shape: tuple[int, int],
    integers: Mapping[str, Array],
    params: Mapping[str, float],
    seed: int,
    threads: int,
) -> CaseResult:
    """Compare which expression a structure build evaluates with the definition: equal means the same one for all values
    of the float inputs and of the scalars that become floats, beside these `integers`."""
    graph = kernel.graph
    tensors, hashes = structure.hashes(graph, shape, seed)
    tensors |= integers
    want = structure.evaluate(graph, tensors, shape, hashes, params)
    scalars = kernel.hash_table(hashes, *shape, params)
    chosen = layouts(work_of(shape), threads)
    result = CaseResult(
        "structure",
        "all inputs",
        shape,
        seed,
        f"structure/all inputs@{shape_text(shape)}#{seed}",
        {},
        tuple(x.name for x in chosen),
    )
    result.inputs = {n: digest(a) for n, a in tensors.items()}
    result.oracle = {n: digest(a) for n, a in want.items()}
    for layout in chosen:
        got = _launch(kernel, shape, tensors, layout, scalars, want, result)
        if got is None:
            break
        result.outputs = {n: digest(a) for n, a in got.items()}
    return result


def _blank(case: Case, chosen: Iterable[Layout]) -> CaseResult:
    return CaseResult(
        case.kind, case.name, case.shape, case.seed, case.id, dict(case.params), tuple(x.name for x in chosen)
    )


def _launch(
    kernel: KernelBase, shape: tuple[int, int], tensors: Mapping[str, Array], layout: Layout, scalars: Scalars,
    want: Mapping[str, Array], result: CaseResult,
) -> dict[str, Array] | None:  # fmt: skip
    try:
        entries = next((len(want[o.name]) for o in kernel.graph.outputs if o.space == "t"), None)
        got = Launch(kernel, shape, tensors, layout, entries).run(scalars)
    except FAULTS as error:
        result.failure = f"{layout.name}: {fault_text(error)}"
        return None
    for name, values in got.items():
        mismatch = first_mismatch(name, values.reshape(want[name].shape), want[name])
        if mismatch is not None:
            result.failure = f"{layout.name}: {mismatch}"
            return None
        result.compared += values.size
    return got


def _of_rows(graph: Graph) -> list[Output]:
    return [o for o in graph.outputs if o.space in ("rc", "r")]


def rows_are_apart(plan: Plan, shape: tuple[int, int]) -> bool:
    """Whether each row is its own affair, and there are some."""
    rows, cols = shape
    early = isinstance(plan, RowPlan) and plan.early
    meets = bool(early) or any(n.op in (*TOTALS, "row_index", "rows", "element_word") for n in plan.graph.nodes)
    batch = isinstance(shape, Sizes) and shape.several
    return rows >= 2 and not meets and not batch and bool(_of_rows(plan.graph)) and rows * cols <= 1 << 20


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
        for o in _of_rows(kernel.graph):
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
