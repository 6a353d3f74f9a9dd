"""What a call's values must be: indices within their range, no NaN where that is an error, tables of one length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..lang import Graph, Index, Operator

Array = np.ndarray[Any, Any]
UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}


def check_no_nan(operator: Operator, arrays: Mapping[str, Array], shape: tuple[int, int]) -> None:
    """No NaN lies where the operator takes none, arrays of ``shape`` but for leading dimensions. Raises ArgumentError
    that names the first bad row."""
    for name in (n for n in operator.contract.no_nan if n in arrays):
        nan: Array = np.isnan(arrays[name].reshape(shape).astype(np.float32))
        check_nan_rows(name, np.asarray(nan.any(axis=1)))


def check_chosen(operator: Operator, graph: Graph, shape: tuple[int, int]) -> None:
    """No more is chosen of a row than it has. Raises ArgumentError."""
    chosen = max((o.slots for o in graph.outputs if o.name in operator.contract.places), default=0)
    if chosen > shape[1]:
        raise ArgumentError(f"{operator.name}: k={chosen} of {shape[1]} columns; accepted: at most {shape[1]}")


def check_nan_rows(name: str, found: Array) -> None:
    """``found`` says of each row whether it holds NaN. Raises ArgumentError for the first that does."""
    if found.any():
        row = int(found.argmax())
        raise ArgumentError(f"{name}[{row}] holds NaN ({int(found.sum())} such rows); accepted: rows without NaN")


def table_entries(operator: Operator, arrays: Mapping[str, Array], params: Mapping[str, float]) -> int:
    """The number of entries of the call's tables; 0 where it has none. Raises ArgumentError where they differ."""
    found = {t.name: len(arrays[t.name]) for t in operator.tensors if t.space == "t" and t.name in arrays}
    if "entries" in params:
        found["entries"] = int(params["entries"])
    if len(set(found.values())) > 1:
        words = ", ".join(f"{name}: {count}" for name, count in found.items())
        raise ArgumentError(f"{operator.name}: entries differ ({words}); accepted: as many in all")
    return next(iter(found.values()), 0)


def index_count(index: Index, columns: int, entries: int) -> int:
    """How many values an index may have, from 0 on."""
    return entries if index.entries else columns + index.upto


def check_indices(
    operator: Operator, arrays: Mapping[str, Array], params: Mapping[str, float], shape: tuple[int, int],
    entries: int = 0,
) -> None:  # fmt: skip
    """Integer inputs that choose a column lie within the row, those that choose an entry within the table. Raises
    ArgumentError that names the first bad row."""
    for name, index in operator.contract.indices.items():
        if name not in arrays or arrays[name].size == 0:
            continue
        values = arrays[name].reshape(-1)
        count = index_count(index, shape[1], entries)
        if values.dtype.kind == "i" and values.view(UNSIGNED[values.itemsize]).max() < count:  # nothing negative
            continue
        bad = (values < 0) | (values >= count)
        if index.besides is not None:
            bad &= values != int(params[index.besides])
        if bad.any():
            row = int(bad.argmax())
            also = f"{index.besides}={int(params[index.besides])}" if index.besides else ""
            if index.entries and count == 0:
                found = f"{name}: {int(bad.sum())} indices of a table without entries"
                raise ArgumentError(f"{found}; accepted: {also or 'none'}")
            found = f"{name}[{row}]={values[row]} ({int(bad.sum())} such rows)"
            raise ArgumentError(f"{found}; accepted: 0 to {count - 1}{f', or {also}' if also else ''}")
