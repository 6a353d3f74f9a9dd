"""What is timed, and on which inputs: seeded noise, and for a backward pass what its forward pass has saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..formats import format_of
from ..lang import GROUPS, Operator, TensorSpec
from ..meaning.structure import drawn_entries
from ..ops import registry
from ..runtime.kernel import Kernel, host_kernel, is_attention, is_product
from ..runtime.shapes import allowed, in_groups
from ..verification import cases

Array = np.ndarray[Any, Any]

FORMATS = ("f16", "bf16", "f32")
SHAPES = ((4096, 1024), (8192, 4096))  # rows, columns: one that fits into many a last-level cache, one that does not
VOCABULARY = ((2048, 32000),)  # where a row is a distribution over words
LIST = 808  # tensors of 20,000 to 100,000 elements: the parameters of a model
SEED = 0


@dataclass(frozen=True)
class Workload:
    """Inputs by name, each a list of arrays of one or, for an operator on lists, of many; and scalars by name."""

    operator: Operator
    kernel: Kernel
    shapes: tuple[tuple[int, int], ...]
    tensors: Mapping[str, list[Array]]
    scalars: Mapping[str, float]

    @property
    def lists(self) -> bool:
        """Whether the operator takes lists of tensors."""
        return takes_lists(self.operator)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The tensors as the operator's positional arguments; those that are left out are None."""
        found = (self.tensors.get(t.name) for t in self.operator.tensors)
        return tuple(a if a is None or self.lists else a[0] for a in found)


def operators() -> list[Operator]:
    """Those that are timed where none are named: all on rows, elements and lists. The shapes of products, tables and
    groups are their reader's."""
    plain = {"rc", "r", "c", "s"}
    every = ((o, o.trace(o.contract.formats[0])) for o in registry().values())
    return [o for o, graph in every if {t.space for t in o.tensors} | {t.space for t in graph.outputs} <= plain]


def takes_lists(operator: Operator) -> bool:
    """Whether an operator is one of whole lists of tensors, such as an optimizer's step."""
    return operator.contract.lists


def shapes_of(operator: Operator, asked: Sequence[tuple[int, int]] | None) -> list[tuple[tuple[int, int], ...]]:
    """The shapes to time, each as one for every tensor of a list. ``asked`` ones are rows and columns; for an operator
    on lists, so many tensors of so many elements. Raises ArgumentError for one that the contract does not allow."""
    if takes_lists(operator):
        if asked is None:
            drawn = np.random.default_rng(SEED).integers(20_000, 100_001, LIST)
            return [tuple((1, int(n)) for n in drawn)]
        return [((1, cols),) * rows for rows, cols in asked]
    if asked is None:
        vocabulary = "cross_entropy" in operator.name
        return [(shape,) for shape in (VOCABULARY if vocabulary else SHAPES)]
    for rows, cols in asked:
        if not allowed(operator, (rows, cols)):
            c = operator.contract
            raise ArgumentError(
                f"{operator.name}: shape {rows}x{cols}; accepted: at most {c.max_rows} rows, {c.min_cols} to "
                f"{c.max_cols} columns"
            )
    return [(shape,) for shape in asked]


def timed(operator: Operator) -> list[str]:
    """The optional tensors with which an operator is timed: not a f32 copy of weights or a gradient that is added to,
    which are another operator's work, nor weights of classes, which its counterparts do not take."""
    return [t.name for t in operator.tensors if t.optional and t.name not in ("master", "dtable", "weight")]


def workload(operator: Operator, dtype: str, shapes: tuple[tuple[int, int], ...]) -> Workload:
    """Inputs for one operator, of its optional tensors those that `timed` names."""
    kernel = host_kernel(operator, dtype, timed(operator))
    shapes = tuple(in_groups(kernel.graph, s) for s in shapes)
    scalars = _scalars(operator, shapes)
    tensors = {t.name: [_draw(operator, t, s, SEED + i) for i, s in enumerate(shapes)] for t in kernel.graph.inputs}
    forward = operator.backward_of
    if forward is not None and (is_attention(forward) or not is_product(forward)):  # a product saves nothing but inputs
        tensors |= _saved(forward, dtype, shapes, {t.name for t in kernel.graph.inputs}, tensors)
    if takes_lists(operator):
        tensors = {n: [a.reshape(-1) for a in arrays] for n, arrays in tensors.items()}
    return Workload(operator, kernel, shapes, tensors, scalars)


def _scalars(operator: Operator, shapes: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Those without a default: what the operator's contract suggests, and the entries of a table that is drawn."""
    chosen = {**cases.defaults(operator), "entries": drawn_entries(shapes[0][0])}
    return {p.name: int(chosen[p.name]) if p.whole else chosen[p.name] for p in operator.params if p.default is None}


def _saved(
    forward: Operator, dtype: str, shapes: Sequence[tuple[int, int]], wanted: set[str], drawn: Mapping[str, list[Array]]
) -> dict[str, list[Array]]:
    """What a backward pass takes from its forward pass: the same inputs, and results such as a row's mean."""
    graph = forward.trace(dtype)
    given = {
        t.name: drawn[t.name][0] if t.name in drawn else _draw(forward, t, shapes[0], SEED + 1) for t in graph.inputs
    }
    made = forward(*(given.get(t.name) for t in forward.tensors), **_scalars(forward, shapes))
    results = dict(zip((o.name for o in graph.outputs), made if isinstance(made, tuple) else (made,), strict=True))
    return {n: [np.asarray(a)] for n, a in results.items() if n in wanted}


def _draw(operator: Operator, t: TensorSpec, shape: tuple[int, int], seed: int) -> Array:
    """Noise; second moments, positions and the like as the operator's contract wishes; no row is ignored."""
    if t.name in operator.contract.draw or t.space in GROUPS:
        return cases.draw(operator, t, "normal", shape, seed)
    fmt, size, rng = format_of(t.format), cases.size_of(t.space, shape, slots=t.slots), cases.rng_for(seed, t.name)
    if not fmt.is_float:
        index = operator.contract.indices.get(t.name)
        top = drawn_entries(shape[0]) if index and index.entries else shape[1] + bool(index and index.upto)
        return rng.integers(0, max(top, 1), size).astype(fmt.dtype)
    return rng.standard_normal(size, np.float32).astype(fmt.dtype)
