"""How far the bits are from the exact value, and whether that is within the rounding-error bound."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..backends.backend import CaseSet
from ..elementary.exact import REAL
from ..errors import TokitaiError
from ..formats import FORMATS
from ..lang import MATRICES, OPERANDS, Graph, Operator, Sizes, TensorSpec
from ..meaning import bits, condition, real
from ..meaning.interpret import full_size
from .cases import Array, Case, forward_pass, size_of
from .compare import spacing, ulp_errors
from .conditioned import measured, together
from .run import CaseResult

MEASURED_ELSEWHERE = 1 << 14  # elements of a case of another device than the CPU that is measured
BOUNDED = 1 << 18  # elements: beyond, the bounds are not computed


def is_measured(case: Case, case_set: CaseSet) -> bool:
    """Whether a case's distance from the exact value is measured. On other devices than the CPU the bits are those of
    the CPU's kernels, whose distance is measured at every shape: small ones do there."""
    large = case_set is not CaseSet.VECTORS and case.shape[0] * case.shape[1] > MEASURED_ELSEWHERE
    return case.kind != "structure" and case.in_domain and 0 not in case.shape and not large


def measure_error(graph: Graph, case: Case, want: Mapping[str, Array], operator: Operator, result: CaseResult) -> None:
    """Fill in the largest distance from the exact value, in ulp of the result itself and in ulp of the largest result
    in its row (for results with one element a row or column: in the tensor). The first is dominated by elements that
    cancel almost to zero; the second is what a user of the tensor notices. Where there are bounds, errors are also
    measured against the condition of their elements (`meaning.condition`).

    The exact value is the textbook's, in extended precision; without a textbook, the definition's own. Where a textbook
    is further away than the rounding errors of the definition can add up to, the definition is not what it says it is:
    the case has failed.

    A gradient is held against the derivative of the whole forward function: the textbook is given the exact values of
    what a forward pass saved. The bound allows for the distance of the stored ones, but for that of an anchor, which
    the definition has to take out.
    """
    textbook = operator.textbook
    whole = exactly(operator, graph, case)
    exact = exact_results(graph, whole, textbook)
    limits, sentences = _limits(operator, graph, case, whole)
    for o in graph.outputs:
        if o.name not in exact or not FORMATS[o.format].is_float or want[o.name].size == 0:
            continue
        fmt = FORMATS[o.format]
        value = np.broadcast_to(np.asarray(exact[o.name], REAL), want[o.name].shape)
        errors = ulp_errors(want[o.name], value, fmt)
        finite = np.where(np.isfinite(value), np.abs(value), 0)
        scale = finite.max(axis=-1, keepdims=True) if o.space in MATRICES else finite.max(keepdims=True)
        ulp = spacing(finite, fmt)
        with np.errstate(all="ignore"):
            of_row = np.where(np.isfinite(errors), errors * (ulp / spacing(scale, fmt)), errors)
        top = float(errors.max())
        if result.max_ulp is None or top > result.max_ulp:
            at = tuple(int(i) for i in np.unravel_index(int(errors.argmax()), errors.shape))
            result.max_ulp, result.worst = top, f"{o.name}[{','.join(map(str, at))}] of {case.id}"
        result.max_ulp_of_row = max(result.max_ulp_of_row or 0.0, float(of_row.max()))
        if o.name in limits:
            got, (limit, *others) = want[o.name], limits[o.name]
            conditioned = measured(got, value, (limit, *others), fmt, scale, sentences)
            result.conditioned = together((result.conditioned, {o.format: conditioned}))
            _hold(o.name, value, got, limit, ulp, textbook is not None, result)


def exactly(operator: Operator, graph: Graph, case: Case) -> Case:
    """The case with the exact values, in extended precision, of what a forward pass saved."""
    if not case.saved:
        return case
    forward, its_graph, others = forward_pass(operator, graph, case)
    made = exact_results(its_graph, others, forward.textbook)
    found = {}
    for name in case.saved:
        stored = case.tensors[name]
        value = np.asarray(made[name], REAL)
        found[name] = value.reshape(stored.shape) if value.size == stored.size else np.broadcast_to(value, stored.shape)
    return replace(case, tensors={**case.tensors, **found})


def exact_results(graph: Graph, case: Case, textbook: Callable[..., Any] | None) -> Mapping[str, Any]:
    """The exact values by name, in extended precision: the textbook's, or the definition's own where there is none."""
    if textbook is None:
        return real.evaluate(graph, case.tensors, case.shape, case.params)
    with np.errstate(all="ignore"):
        wide = {
            t.name: case.tensors[t.name]
            .astype(REAL if FORMATS[str(t.format)].is_float else np.int64)
            .reshape(_size(t, case.tensors[t.name], case.shape))
            for t in graph.inputs
        }
        scalars: dict[str, Any] = {p: case.params[p] for p in graph.params}
        if "rounded" in inspect.signature(textbook).parameters:  # a definition that stores an intermediate result
            scalars["rounded"] = lambda x: bits.round_to(x.astype(np.float64), graph.dtype).astype(REAL)
        made: Mapping[str, Any] = textbook(**wide, **scalars, **graph.options)
        return made


def _size(t: TensorSpec, values: Array, shape: tuple[int, int]) -> tuple[int, ...]:
    """The size of an input as a textbook takes it: of a batch of products with its dimension."""
    if t.space == "r" and isinstance(shape, Sizes):
        return (*size_of("r", shape), 1)
    return size_of(t.space, shape) if t.space in OPERANDS or t.space == "rc" else full_size(t.space, values, shape)


def _limits(
    operator: Operator, graph: Graph, case: Case, whole: Case
) -> tuple[dict[str, tuple[Array, ...]], list[str]]:
    """The bounds on the distance from the exact results for ``whole``, which is the case with exact values of what a
    forward pass saved, and what else `condition.evaluate` says of each element; and its sentences."""
    shape = Sizes.of(case.shape)
    if shape[0] * shape[1] * shape.batch > BOUNDED:
        return {}, []
    anchors = {n for n, wish in operator.contract.draw.items() if wish == "anchor"}
    with np.errstate(invalid="ignore"):
        off = {n: np.abs(case.tensors[n] - whole.tensors[n]).astype(np.float64) for n in {*case.saved} - anchors}
    try:
        why: list[str] = []
        found = condition.evaluate(graph, case.tensors, case.shape, case.params, off, why)
        return {n: made[1:] for n, made in found.items()}, why
    except TokitaiError:
        return {}, []  # a function of the user's own, whose error nobody proved


def _hold(name: str, exact: Array, got: Array, limit: Array, ulp: Array, judged: bool, result: CaseResult) -> None:
    """Keep the largest bound, and fail the case where an element is further away than its bound."""
    with np.errstate(all="ignore"):
        value = got.astype(np.float64).astype(REAL)
        measured = np.isfinite(exact) & np.isfinite(value) & np.isfinite(limit)
        ulps = np.where(measured, limit / ulp, 0)
        result.max_bound = max(result.max_bound or 0.0, float(ulps.max()))
        beyond = measured & ~(np.abs(value - exact) <= limit)
    if judged and beyond.any():
        at = tuple(int(i) for i in np.argwhere(beyond)[0])
        result.failure = (
            f"{name}[{','.join(map(str, at))}]: the definition gives {float(value[at]):.9g}, "
            f"the textbook {float(exact[at]):.9g}; "
            f"the rounding-error bound is {float(limit[at]):.3g}"
        )
