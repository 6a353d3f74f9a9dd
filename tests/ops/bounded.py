"""A kernel's results held against a reference in f64, by the bounds that are derived from the definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from running import run

from tokitai.families import family_of
from tokitai.formats import format_of
from tokitai.lang import MATRICES, Operator
from tokitai.meaning import bounds

Array = np.ndarray[Any, Any]


def limits(op: Operator, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The bound on each result's distance from the real one, as (rows, cols)."""
    tensors = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
    optional = {t.name for t in op.tensors if t.optional}
    first = next(t for t in op.tensors if t.space in MATRICES and t.name in tensors)
    scalars = {p.name: float(arguments.get(p.name, p.default)) for p in op.params}  # type: ignore[arg-type]
    options = {o.name: arguments.get(o.name, o.default) for o in op.options}
    options |= {name: bool(scalars[of]) for name, of in op.contract.switches.items()}
    graph = op.trace(tensors[first.name].dtype, set(tensors) & optional, options)
    shape = (int(np.prod(tensors[first.name].shape[:-1])), tensors[first.name].shape[-1])
    bound = family_of(graph).bind(op, graph, tensors)
    if bound is not None:
        shape = bound.sizes
    elif first.space == "t":  # its rows are its own: those of the call are those of what chooses among them
        shape = next(len(tensors[t.name]) for t in graph.inputs if t.space == "r"), shape[1]
    return {n: limit for n, (_, limit) in bounds.evaluate(graph, tensors, shape, scalars).items()}


def results(op: Operator, arguments: Mapping[str, Any]) -> dict[str, Array]:
    """The kernel's results by name, two-dimensional or as the operator gives them."""
    return run(op, **arguments)


def hold(op: Operator, arguments: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """Assert that every result lies within its bound of the reference, where that is finite, and is as infinite or NaN
    elsewhere. Returns by name the largest part of the bound that was used. The reference's own roundings count for
    2**-48 of the largest element of its row: hundreds of them."""
    got, allowed, used = results(op, arguments), limits(op, arguments), {}
    for name, want in reference.items():
        want = np.asarray(want, np.float64).reshape(allowed[name].shape)
        have = got[name].astype(np.float64).reshape(want.shape)
        finite = np.isfinite(want)
        top = 2.0 ** format_of(got[name].dtype).emax * 2
        special = [np.where(finite, 0, a) for a in (want, have)]
        assert np.array_equal(*special, equal_nan=True), f"{name}: infinities or NaN elsewhere"
        own = 2.0**-48 * np.abs(np.where(finite, want, 0)).max(axis=-1, keepdims=True, initial=0)
        away = np.where(finite & (np.abs(want) < top), np.abs(have - want), 0)
        part = away / np.maximum(allowed[name] + own, 2.0**-1074)  # a bound of 0: exact, and known to be
        assert (part <= 1).all(), f"{name}: {part.max()} of the bound at {np.argwhere(~(part <= 1))[0]}"
        used[name] = float(part.max(initial=0))
    return used
