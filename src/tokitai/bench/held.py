"""What is timed is what is checked: the results of the timed calls themselves, held against the definition.

Our calls must have the definition's bits. A counterpart may differ by the rounding-error bound for a kernel of
any order that computes in f32 (`judging.allowance`), which is derived from the graph and the inputs. One that keeps
intermediate results in the 16-bit format of the tensors is further away, and so is one whose formula cancels, in small
results. It is timed where that explains it (the latter: where no element is further away than the largest bound of any
element), and a flag says so. Results of rows that do not depend on each other are held in some rows of a large tensor,
all others whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..formats import FORMATS
from ..judging.allowance import AnyOrder
from ..lang import TOTALS, Graph, Output, Sizes
from ..lang.graph import topological
from ..meaning import bits, bounds
from ..verification.compare import first_mismatch
from .workload import Array, Workload

ROWS = 8  # of a large tensor
WHOLE = 1 << 26  # elements, or steps of a product, up to which a result is computed again whole
# Operations whose value in a row depends on other rows, or on which row it is.
ACROSS = TOTALS | {
    "rows", "row_index", "element_word", "tensor_index", "col_sum", "gather", "scatter_sum", "matmul", "weighted_sum",
}  # fmt: skip
BEYOND_COPY = 1.5  # a copy writes half of what it moves, and a write may cost a read before it: three moves for two

Results = Mapping[str, Sequence[Array]]
Tensors = Mapping[str, Sequence[Array]]


@dataclass(frozen=True)
class Wanted:
    """Some elements of a result: of which tensor of a list, in which rows (None: in all); their bits; and how far they
    may be from the exact value (None where nobody knows a bound): as defined, in any order, and as defined before they
    are rounded to a 16-bit format."""

    name: str
    tensor: int
    rows: Array | None
    value: Array
    own: Array | None = None
    any_order: Array | None = None
    computed: Array | None = None

    def part_of(self, results: Results) -> Array:
        """These elements of what a call returned. Raises ArgumentError where it returned something else."""
        found = np.asarray(results[self.name][self.tensor])
        found = found if self.rows is None else found[self.rows]
        if found.size != self.value.size:
            accepted = f"{self.value.size}, those of the definition"
            raise ArgumentError(f"{self.name}: {found.size} elements of the timed call; accepted: {accepted}")
        return found.reshape(self.value.shape)


def wanted(work: Workload, tensors: Tensors, params: Mapping[str, float]) -> tuple[list[Wanted], dict[str, str]]:
    """What the results for these inputs must be; and of those that are not held, why."""
    graph, shapes = work.kernel.graph, work.shapes
    if work.lists:
        some = sorted({0, len(shapes) // 2, len(shapes) - 1})
        lists = [{n: _flat(a[i]) for n, a in tensors.items()} for i in range(len(shapes))]
        outputs = list(graph.outputs)
        found = [w for i in some for w in _evaluated(graph, outputs, lists[i], shapes[i], params, i, None)]
        if not any(n.op in TOTALS or n.op == "tensor_index" for n in graph.nodes):
            return found, {}
        every = bits.evaluate_tensors(graph, lists, shapes, params)  # the list's totals, not those of one tensor
        found = [_of_the_list(w, np.asarray(every[w.tensor][w.name])) for w in found]
        alone = {o.name for o in outputs if o.space == "s"}  # one for the whole list
        return [w for w in found if w.name not in alone or w.tensor == 0], {}
    shape = shapes[0]
    given = {n: a[0] for n, a in tensors.items()}
    found = []
    if shape[0] > ROWS:
        rows = np.unique([0, shape[0] - 1, *np.random.default_rng(shape).integers(0, shape[0], ROWS - 2)])
        cut = {t.name: given[t.name][rows] if t.space in ("rc", "r") else given[t.name] for t in graph.inputs}
        found = in_rows(graph, cut, rows, shape[1], params)
    rest = [o for o in graph.outputs if all(o.name != w.name for w in found)]
    plain = _plain(graph)
    size = max(Sizes.of(shape).steps if not plain else 0, max((a.size for a in given.values()), default=0))
    if size > WHOLE:
        return found, {o.name: f"{size} elements or steps are more than {WHOLE}" for o in rest}
    return found + (_evaluated(graph, rest, given, shape, params, 0, None) if rest else []), {}


def in_rows(
    graph: Graph, given: Mapping[str, Array], rows: Array, cols: int, params: Mapping[str, float]
) -> list[Wanted]:
    """What the results must be in these rows, of which ``given`` holds the inputs: those that no other row has part in;
    none of a product, or of tables."""
    local = [o for o in graph.outputs if _plain(graph) and o.space in ("rc", "r") and not _across(o)]
    return _evaluated(graph, local, given, (len(rows), cols), params, 0, rows) if local else []


def _plain(graph: Graph) -> bool:
    return all(t.space in ("rc", "r", "c", "s") for t in graph.inputs)


def _of_the_list(one: Wanted, value: Array) -> Wanted:
    """With the list's bits; the bounds hold where a tensor alone has the same ones."""
    if value.tobytes() == one.value.tobytes():
        return one
    return Wanted(one.name, one.tensor, one.rows, value)


def _flat(array: Array) -> Array:
    return np.asarray(array).reshape(1, -1)


def _across(output: Output) -> bool:
    return any(n.op in ACROSS for n in topological([output.node]))


def _evaluated(
    graph: Graph, outputs: Sequence[Output], given: Mapping[str, Array], shape: tuple[int, int],
    params: Mapping[str, float], tensor: int, rows: Array | None,
) -> list[Wanted]:  # fmt: skip
    with np.errstate(all="ignore"):
        own = bounds.evaluate(graph, given, shape, params)
        other = bounds.evaluate(graph, given, shape, params, AnyOrder)
        wide = replace(graph, outputs=tuple(replace(o, format=_wide(o.format)) for o in graph.outputs))
        computed = bounds.evaluate(wide, given, shape, params)
        value = bits.evaluate(graph, given, shape, params)
    every = (own, other, computed)
    return [
        Wanted(o.name, tensor, rows, value[o.name], *(b[o.name][1] if o.name in b else None for b in every))
        for o in outputs
    ]


def _wide(fmt: str) -> str:
    return "f32" if fmt in ("f16", "bf16") else fmt


def hold_ours(operator: str, call: str, want: Sequence[Wanted], results: Results) -> None:
    """Raise ArgumentError where a timed call of tokitai does not have the definition's bits."""
    for w in want:
        got = w.part_of(results)
        different = first_mismatch(w.name, got, w.value.astype(got.dtype, copy=False))
        if different is not None:
            raise ArgumentError(f"{operator}: the timed {call} is wrong: {different}; accepted: the definition's bits")


def hold_theirs(
    operator: str, who: str, want: Sequence[Wanted], results: Results, names: Sequence[str], dtype: str
) -> dict[str, float]:
    """For each result the largest distance of a counterpart's from the definition's bits, as a part of the
    rounding-error bound in f32. Raises ArgumentError where it is outside the bound in the tensors' format too."""
    shares: dict[str, float] = {}
    coarser = 2.0 ** (FORMATS["f32"].precision - FORMATS[dtype].precision)  # unit roundoffs, one over the other
    for w in want:
        if w.name not in names:
            continue
        got = w.part_of(results).astype(np.float64)
        apart = np.abs(got - w.value.astype(np.float64))
        same = (got == w.value) | (np.isnan(got) & np.isnan(w.value.astype(np.float64)))
        if w.own is None or w.any_order is None or w.computed is None:
            limit = most = np.zeros(apart.shape)
        else:
            stored = _half_spacing(got, dtype) if coarser > 1 else 0.0
            limit = w.own + w.any_order
            known = limit[np.isfinite(limit)]
            most = np.maximum(limit + coarser * w.computed + stored, known.max(initial=0.0))
        with np.errstate(all="ignore"):
            share = np.where(same, 0.0, apart / limit)
            wrong = ~same & ~(apart <= most)
        if wrong.any():
            at = np.unravel_index(int(np.argmax(np.where(wrong, apart, -1))), got.shape)
            raise ArgumentError(
                f"{operator}: {w.name} of the timed call of {who} is {got[at]:.9g} where the definition gives "
                f"{float(w.value[at]):.9g}: {share[at]:.3g} times the rounding-error bound; accepted: the same function"
            )
        shares[w.name] = max(shares.get(w.name, 0.0), float(share.max(initial=0.0)))
    return shares


def _half_spacing(values: Array, dtype: str) -> Array:
    """What one more rounding to a format may add."""
    fmt = FORMATS[dtype]
    return np.asarray(np.maximum(np.abs(values), 2.0**fmt.emin) * 2.0**-fmt.precision)


def flags(times: Mapping[str, Any], moved: int, shares: Mapping[str, float]) -> list[str]:
    """What a reader of the times should know: rates that memory does not allow, and counterparts that compute less."""
    found = []
    copy = times["copy"].median
    for name, t in times.items():
        if name != "copy" and copy > BEYOND_COPY * t.median:
            rate = moved / t.median / 1e9
            found.append(f"{name}: {rate:.0f} GB/s, {copy / t.median:.2f} times the rate of a copy of as many bytes")
    for name, share in shares.items():
        if share > 1:
            found.append(f"torch: {name} is {share:.3g} times the rounding-error bound of f32 away")
    return found
