"""Shapes and formats of results from those of inputs: for tensors without values, on the meta device or being traced.

What a call refuses because of its shapes is refused here as well. Sizes may be symbols of `torch.compile`: they are
compared, never turned into numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, DefinitionError
from ..families.attention.arguments import check_limit
from ..lang import Graph, Operator
from ..runtime.kernel import is_attention, is_product

FORMATS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
DTYPES = {**{name: dtype for dtype, name in FORMATS.items()}, "i32": torch.int32, "i64": torch.int64}
Shape = tuple[Any, ...]


def empty_results(
    operator: Operator, graph: Graph, given: Mapping[str, Tensor], entries: Any = None
) -> tuple[Tensor, ...]:
    """A tensor for each result of a call; nothing is written to them. ``entries`` is the length of a table that is
    summed into. Raises ArgumentError as the call does."""
    check_dtypes(operator, given)
    like = next(iter(given.values()))
    if is_attention(operator):
        spaces = _attention(operator, graph, given)
    elif is_product(operator):
        spaces = _product(operator, graph, given)
    else:
        spaces = _rows(operator, graph, given, entries)
    made = []
    for o in graph.outputs:
        if o.space not in spaces:
            raise DefinitionError(f"{operator.name}: {o.name} of space {o.space}; accepted: {', '.join(spaces)}")
        shape = (*spaces[o.space], o.slots) if o.slots else spaces[o.space]
        dtype = "i32" if o.name in operator.contract.places else o.format
        made.append(like.new_empty(shape, dtype=DTYPES[dtype]))
    return tuple(made)


def check_dtypes(operator: Operator, given: Mapping[str, Tensor]) -> None:
    """Every tensor has the format that is declared, those of the storage format one of them. Raises ArgumentError."""
    chosen: torch.dtype | None = None
    for t in operator.tensors:
        x = given.get(t.name)
        if x is None:
            continue
        if t.format != "storage":
            accepted = [torch.int64, torch.int32] if t.format == "i64" else [DTYPES[str(t.format)]]
        else:
            accepted = [DTYPES[f] for f in operator.contract.formats]
            if x.dtype in accepted and chosen not in (None, x.dtype):
                raise ArgumentError(f"{t.name}: {x.dtype} beside {chosen}; accepted: one storage format for all")
            chosen = x.dtype
        if x.dtype not in accepted:
            raise ArgumentError(f"{t.name}: {x.dtype}; accepted: {', '.join(map(str, accepted))}")


def _refuse(name: str, shape: Shape, accepted: object) -> None:
    raise ArgumentError(f"{name}: shape {tuple(shape)}; accepted: {accepted}")


def _rows(operator: Operator, graph: Graph, given: Mapping[str, Tensor], entries: Any) -> dict[str, Shape]:
    """As `tokitai.runtime.call.common_shape`, by space."""
    matrices = [t for t in graph.inputs if t.space == "rc"]
    tables = [t for t in graph.inputs if t.space == "t"]
    if not matrices and not tables:
        raise ArgumentError(f"{operator.name}: no tensor of rows x cols is given")
    named = (matrices or tables)[0].name
    first = given[named].shape
    if len(first) == 0:
        raise ArgumentError(f"{named}: a scalar; accepted: at least one dimension")
    for t in tables:
        if given[t.name].ndim != 2:
            _refuse(t.name, given[t.name].shape, "(entries, columns)")
    of_rows = [(tuple(given[t.name].shape), t.slots) for t in graph.inputs if t.space == "r"]
    lead = tuple(first[:-1]) if matrices else next((s[:-1] if slots else s for s, slots in of_rows), ())
    cols = first[-1]
    for t in graph.inputs:
        shape = tuple(given[t.name].shape)
        accepted: Shape = {"rc": (*lead, cols), "r": lead, "c": (cols,), "s": (), "t": (*shape[:1], cols)}[t.space]
        accepted = (*lead, t.slots) if t.slots else accepted
        if shape != accepted:
            raise ArgumentError(f"{t.name}: shape {shape}; accepted beside {named}: {accepted}")
    _check_limits(operator, lead, cols)
    chosen = operator.contract.places and graph.options.get("k")
    if chosen and int(str(chosen)) > cols:
        raise ArgumentError(f"{operator.name}: k={chosen} of {cols} columns; accepted: at most {cols}")
    entries = given[tables[0].name].shape[0] if tables else entries
    return {"rc": (*lead, cols), "r": lead, "c": (cols,), "s": (), "t": (entries, cols)}


def _check_limits(operator: Operator, lead: Shape, cols: Any) -> None:
    limits = operator.contract
    if math.prod(lead) > limits.max_rows or cols < limits.min_cols or cols > limits.max_cols:
        raise ArgumentError(
            f"{operator.name}: rows={math.prod(lead)}, cols={cols}; accepted: at most {limits.max_rows} rows, "
            f"{limits.min_cols} to {limits.max_cols} columns"
        )


def _attention(operator: Operator, graph: Graph, given: Mapping[str, Tensor]) -> dict[str, Shape]:
    """As `tokitai.families.attention.arguments.bind_attention`."""
    queries, keys = (next(t.name for t in graph.inputs if t.space == space) for space in ("rk", "ck"))
    q, k = tuple(given[queries].shape), tuple(given[keys].shape)
    for name, shape in ((queries, q), (keys, k)):
        if len(shape) < 2:
            _refuse(name, shape, "2 dimensions or more")
    heads, shared = (q[-3], k[-3]) if len(q) > 2 and len(k) == len(q) else (1, 1)
    if len(k) != len(q) or k[:-3] != q[:-3] or k[-1] != q[-1]:
        _refuse(keys, k, f"beside {queries} of {q}: {(*q[:-3], *(['heads'] if len(q) > 2 else []), 'keys', q[-1])}")
    if (heads % shared if shared else heads) != 0:
        raise ArgumentError(f"{keys}: shape {k}, {shared} heads; accepted beside {queries}: a divisor of {heads}")
    spaces: dict[str, Shape] = {"rk": q, "ck": k, "r": q[:-1]}
    for t in graph.inputs:
        shape, whole = tuple(given[t.name].shape), spaces[t.space]
        if t.name in operator.contract.indices:
            check_limit(t.name, shape, whole)
        elif shape != whole:
            _refuse(t.name, shape, whole)
    _check_limits(operator, (heads // (shared or 1), q[-2]), k[-2])
    return spaces


def _product(operator: Operator, graph: Graph, given: Mapping[str, Tensor]) -> dict[str, Shape]:
    """As `tokitai.families.matmul.arguments.bind_product`, of products that are not in groups."""
    batched = operator.contract.batched
    sides: dict[str, tuple[Any, str]] = {}
    leads: dict[str, Shape] = {}
    for t in graph.inputs:
        shape: Shape = tuple(given[t.name].shape)
        matrix = len(t.space) == 2
        least = (2 if batched or t.space[0] != "r" else 1) if matrix else 1
        if len(shape) < least or (not matrix and len(shape) > 1):
            _refuse(t.name, shape, f"{least} dimension{'s' * (least > 1)}{' or more' * matrix}")
        ahead = shape[:-2] if batched else shape[:-1]
        if matrix and (ahead if batched else t.space[0] == "r"):
            leads[t.name] = ahead
        own = shape[-2:] if batched or not matrix else (math.prod(shape[:-1]), shape[-1])
        for side, size in zip(t.space, own, strict=True):
            first, name = sides.setdefault(side, (size, t.name))
            if first != size:
                _refuse(t.name, shape, f"{first} in place of {size}, beside {name}")
    (first, lead), *others = leads.items() or [("", ())]
    for name, ahead in others:
        if ahead != lead:
            raise ArgumentError(f"{name}: shape {tuple(given[name].shape)}; accepted beside {first}: {lead} ahead")
    rows, cols = sides["r"][0], sides["c"][0]
    _check_limits(operator, (rows,), cols)
    ahead = (*lead, rows) if batched or not leads else lead
    return {"rc": (*ahead, cols)}
