"""The arguments of attention: heads, groups of heads that share keys, what queries see, results."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...errors import ArgumentError
from ...lang import Graph, Operator, Sizes, extent
from ...lang.graph import Space
from ..arguments import Bound, Reading
from ..family import Array


def bind_attention(operator: Operator, graph: Graph, arrays: Mapping[str, Array]) -> Bound:
    """The sizes that the arrays have in common: (..., heads, queries, dim) beside (..., heads of keys, keys, dim), or
    (queries, dim) beside (keys, dim). A batch is one head of keys and values with all queries that share it, head
    after head. Raises ArgumentError where they do not agree."""
    queries, keys = (next(t.name for t in graph.inputs if t.space == space) for space in ("rk", "ck"))
    q, k = arrays[queries].shape, arrays[keys].shape
    for name, shape in ((queries, q), (keys, k)):
        if len(shape) < 2:
            raise ArgumentError(f"{name}: shape {shape}; accepted: 2 dimensions or more")
    heads, shared = (q[-3], k[-3]) if len(q) > 2 and len(k) == len(q) else (1, 1)
    if len(k) != len(q) or k[:-3] != q[:-3] or k[-1] != q[-1]:
        accepted = (*q[:-3], *(["heads"] if len(q) > 2 else []), "keys", q[-1])
        raise ArgumentError(f"{keys}: shape {k}; accepted beside {queries}: ({', '.join(map(str, accepted))})")
    if (heads % shared if shared else heads) != 0:
        raise ArgumentError(f"{keys}: shape {k}, {shared} heads; accepted beside {queries}: a divisor of {heads}")
    found: dict[Space, tuple[int, ...]] = {"rk": q, "ck": k, "r": q[:-1]}
    for t in graph.inputs:
        shape = arrays[t.name].shape
        if t.name in operator.contract.indices:
            check_limit(t.name, shape, found[t.space])
        elif shape != found[t.space]:
            beside = queries if t.space != "ck" else keys
            raise ArgumentError(f"{t.name}: shape {shape}; accepted beside {beside}: {found[t.space]}")
    rows = heads // max(shared, 1) * q[-2]
    limits = operator.contract
    if rows > limits.max_rows or not limits.min_cols <= k[-2] <= limits.max_cols:
        raise ArgumentError(
            f"{operator.name}: {rows} queries of a head of keys, {k[-2]} keys; accepted: at most {limits.max_rows} "
            f"queries, {limits.min_cols} to {limits.max_cols} keys"
        )
    sizes = Sizes(rows, k[-2], k[-1], math.prod(k[:-2]))
    inputs = {
        t.name: Reading(extent(t.space, sizes), found[t.space], t.name in operator.contract.indices)
        for t in graph.inputs
    }
    return Bound(sizes, inputs, {o.name: found[o.space] for o in graph.outputs})


def check_limit(name: str, shape: tuple[int, ...], lead: tuple[int, ...]) -> None:
    """A limit is of queries alone, or has all dimensions of ``lead``, where any may be 1: what would broadcast from the
    middle, as (heads, queries), has another reading, (batch, queries). Raises ArgumentError."""
    whole = lead[-1:] if len(shape) == 1 else lead
    if shape and (len(shape) != len(whole) or any(n not in (1, m) for n, m in zip(shape, whole, strict=True))):
        raise ArgumentError(
            f"{name}: shape {shape}; accepted: ({lead[-1]},), of queries alone, or {lead}, where any may be 1"
        )


__all__ = ["bind_attention", "check_limit"]
