"""The problem that a call poses: its sizes by name, how kernels read its tensors, the shapes of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.adapter import Arrays
from ..errors import ArgumentError
from ..families.arguments import Reading
from ..formats import FORMATS, format_of
from ..lang import Operator, Output, TensorSpec
from .checks import check_chosen, table_entries
from .kernel import KernelBase
from .layout import copied_once, flatten, view_as

Array = np.ndarray[Any, Any]
Copier = Callable[..., Array]
"""A contiguous copy of an array, of the shape to which it broadcasts where one is named."""
INTEGERS = {name: FORMATS[name].dtype for name in ("i32", "i64")}  # which a call takes for one another


@dataclass(frozen=True)
class Problem:
    """The sizes of a call. ``results`` are the shapes of its results as the caller sees them, by name."""

    operator: Operator
    sizes: tuple[int, int]
    entries: int  # of tables; 0 where there are none
    results: Mapping[str, tuple[int, ...]]
    inputs: Mapping[str, Reading] | None = None  # as the family has bound them; None where leading dimensions are rows

    @property
    def rows(self) -> int:
        """Rows of the result, or of each product of a batch."""
        return self.sizes[0]

    @property
    def cols(self) -> int:
        """Columns of the result."""
        return self.sizes[1]

    def as_read(self, tensor: TensorSpec, array: Array, copy: bool, copied: Copier) -> Array:
        """The array as kernels read it, copied only if need be. Raises ArgumentError where a copy is not wanted."""
        if self.inputs is None:
            return flatten(tensor, array, self.sizes, copy, copied)
        reading = self.inputs[tensor.name]
        view = view_as(array, reading.shape, tensor.space) if array.shape == reading.whole else None
        if view is not None:
            return view
        made = copied_once(tensor, array, copy or reading.small, lambda a: copied(a, reading.whole))
        return made.reshape(reading.shape)


def problem_of(
    kernel: KernelBase, arrays: Mapping[str, Array], params: Mapping[str, float], *, readable: bool
) -> Problem:
    """The problem of a call on these arrays, whose elements are in host memory where they are ``readable``. Raises
    ArgumentError where shapes do not agree, and where groups that can be read do not partition their side."""
    operator, graph = kernel.operator, kernel.graph
    bound = kernel.plan.family.bind(operator, graph, arrays, read=readable)
    if bound is not None:
        return Problem(operator, bound.sizes, 0, bound.results, bound.inputs)
    lead, sizes = common_shape(operator, arrays, graph.options)
    check_chosen(operator, graph, sizes)
    entries = table_entries(operator, arrays, params)
    results = {o.name: full_shape(o, lead, sizes, entries) for o in graph.outputs}
    return Problem(operator, sizes, entries, results)


def convert_integers(
    operator: Operator, arrays: Arrays, given: Mapping[str, Any], views: Mapping[str, Array], copy: bool, check: bool
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The caller's arrays and their views, with integers of i32 and i64 in that of both which is declared: an exact
    copy. Raises ArgumentError for a number that is out of its range."""
    given, views = dict(given), dict(views)
    for t in operator.tensors:
        if copy and t.name in views and is_other_integer(operator, t, views[t.name]):
            wanted = FORMATS[str(t.format)].dtype
            given[t.name], views[t.name] = arrays.as_integers(t.name, given[t.name], views[t.name], wanted, check)
    return given, views


def is_other_integer(operator: Operator, t: TensorSpec, array: Array) -> bool:
    """Whether an array is of i32 where i64 is declared, or the other way round, and not also a result."""
    if t.format not in INTEGERS or array.dtype not in INTEGERS.values() or array.dtype == INTEGERS[str(t.format)]:
        return False
    return not any(o.inplace and o.name == t.name for o in operator.trace(operator.contract.formats[0]).outputs)


def storage_format(operator: Operator, arrays: Mapping[str, Array]) -> str:
    """The format that the call's arrays select; every tensor must have the format that the operator declares."""
    chosen: str | None = None
    for t in operator.tensors:
        if t.name not in arrays:
            continue
        array = arrays[t.name]
        name = format_of(array.dtype).name if array.dtype in [f.dtype for f in FORMATS.values()] else str(array.dtype)
        if t.format != "storage":
            if name != t.format:
                raise ArgumentError(f"{t.name}: format {name}; accepted: {t.format}")
        elif name not in operator.contract.formats:
            raise ArgumentError(f"{t.name}: format {name}; accepted: {', '.join(operator.contract.formats)}")
        elif chosen not in (None, name):
            raise ArgumentError(f"{t.name}: format {name} beside {chosen}; accepted: one storage format for all")
        else:
            chosen = name
    return chosen or operator.contract.formats[0]


def common_shape(
    operator: Operator, arrays: Mapping[str, Array], options: Mapping[str, object]
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The leading dimensions, and (rows, cols). Raises ArgumentError where shapes do not agree."""
    given = [t for t in operator.tensors if t.name in arrays]
    for t in given:
        if t.space == "t" and arrays[t.name].ndim != 2:
            raise ArgumentError(f"{t.name}: shape {arrays[t.name].shape}; accepted: (entries, columns)")
    matrices = [t for t in given if t.space == "rc"]
    tables = [t for t in given if t.space == "t"]
    if not matrices and not tables:
        raise ArgumentError(f"{operator.name}: no tensor of rows x cols is given; accepted: one at least")
    named = (matrices or tables)[0].name
    first = arrays[named]
    if first.ndim == 0:
        raise ArgumentError(f"{named}: a scalar; accepted: at least one dimension")
    of_rows = ((arrays[t.name].shape, t.slots) for t in given if t.space == "r")
    lead = first.shape[:-1] if matrices else next((s[:-1] if slots else s for s, slots in of_rows), ())
    cols = first.shape[-1]
    rows = int(np.prod(lead, dtype=np.int64))
    for t in given:
        shape = arrays[t.name].shape
        accepted = {"rc": (*lead, cols), "r": lead, "c": (cols,), "s": (), "t": (*shape[:1], cols)}[t.space]
        if t.slots:
            accepted = (*lead, int(str(options["k"])))
        if shape != accepted:
            raise ArgumentError(f"{t.name}: shape {shape}; accepted beside {named}: {accepted}")
    limits = operator.contract
    if rows > limits.max_rows or not limits.min_cols <= cols <= limits.max_cols:
        raise ArgumentError(
            f"{operator.name}: rows={rows}, cols={cols}; accepted: at most {limits.max_rows} rows, "
            f"{limits.min_cols} to {limits.max_cols} columns"
        )
    return lead, (rows, cols)


def full_shape(o: Output, lead: tuple[int, ...], shape: tuple[int, int], entries: int = 0) -> tuple[int, ...]:
    """The shape of a result as the caller sees it."""
    if o.slots:
        return (*lead, o.slots)
    return {"rc": (*lead, shape[1]), "r": lead, "c": shape[1:], "s": (), "t": (entries, shape[1])}[o.space]
