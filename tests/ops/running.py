"""Operators by name of their results, and their textbooks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from tokitai.elementary.exact import REAL
from tokitai.formats import FORMATS
from tokitai.lang import Graph, Operator
from tokitai.meaning import bits
from tokitai.meaning.interpret import as_rows_cols

Array = np.ndarray[Any, Any]
F16, F32, BF16 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)
U = 2.0**-24  # half an ulp of 1 in f32


def run(op: Operator, **arguments: Any) -> dict[str, Array]:
    """The kernel's results by name."""
    optional = {t.name for t in op.tensors if t.optional}
    stored = next(a.dtype for n, a in arguments.items() if isinstance(a, np.ndarray))
    given = {n for n, a in arguments.items() if isinstance(a, np.ndarray)}
    graph = op.trace(stored, present=given & optional)
    results = op(**arguments)
    return dict(
        zip((o.name for o in graph.outputs), results if isinstance(results, tuple) else (results,), strict=True)
    )


def array(values: Any, dtype: Any = np.float32) -> Array:
    return np.asarray(values, np.float64).astype(dtype)


def textbook(op: Operator, graph: Graph, tensors: Mapping[str, Array], shape: tuple[int, int], params: Any) -> Any:
    """The textbook's results in extended precision."""
    assert op.textbook is not None
    wide = {}
    for t in graph.inputs:
        values = tensors[t.name] if graph.ragged else as_rows_cols(t, tensors[t.name], shape)
        with np.errstate(invalid="ignore"):  # signalling NaN
            wide[t.name] = values.astype(REAL if FORMATS[str(t.format)].is_float else np.int64)
    scalars = {p: params[p] for p in graph.params}
    if "rounded" in inspect.signature(op.textbook).parameters:  # a definition that stores an intermediate result
        scalars["rounded"] = lambda x: bits.round_to(x.astype(np.float64), graph.dtype).astype(REAL)
    with np.errstate(all="ignore"):
        return op.textbook(**wide, **scalars, **graph.options)


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
