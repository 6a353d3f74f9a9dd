"""Which inputs and scalars of an operator the cases of a judgement show to be heeded.

A kernel that ignores one, and has a value built in, is refuted only if some case has results that would be others
beyond their bounds. That is asked of the definition: with the scalar replaced by the usual one, or the tensor by
another draw, does an exact value leave its bound?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import TokitaiError
from ..lang import GROUPS, Graph, Operator, Sizes
from ..verification import cases
from ..verification.cases import Array, Case
from . import arithmetic
from .reference import Expected
from .trials import Trial

LARGEST = 1 << 12  # elements of a case that is asked


class Shown:
    """What no case has shown yet. ``only``: the results that are judged."""

    def __init__(self, operator: Operator, graph: Graph, only: Sequence[str]) -> None:
        self.operator, self.only = operator, only
        derived = {n for n in graph.params if n == "entries"}  # the size of a table, which results show
        self.scalars = [n for n in graph.params if n not in derived]
        self.tensors = [t.name for t in graph.inputs if t.space not in GROUPS]
        self.options: dict[str, set[object]] = {}

    def ask(self, trial: Trial, wanted: Sequence[Expected]) -> None:
        """Strike out what this trial shows."""
        case = trial.case
        for name, value in trial.named.items():
            self.options.setdefault(name, set()).add(value)
        if not (self.scalars or self.tensors) or 0 in case.shape or case.shape[0] * case.shape[1] > LARGEST:
            return
        if isinstance(case.shape, Sizes) and case.shape.steps > 16 * LARGEST:
            return
        usual = cases.defaults(self.operator)
        for name in list(self.scalars):
            others = {float(usual[name]), *_declared(self.operator, name)} - {float(case.params[name])}
            if others and all(self._differs(trial, wanted, params={name: other}) for other in others):
                self.scalars.remove(name)
        for name in list(self.tensors):
            other = _other(self.operator, trial.graph, case, name)
            if other is not None and self._differs(trial, wanted, tensors={name: other}):
                self.tensors.remove(name)

    def _differs(
        self, trial: Trial, wanted: Sequence[Expected], params: Mapping[str, float] | None = None,
        tensors: Mapping[str, Array] | None = None,
    ) -> bool:  # fmt: skip
        case = trial.case
        changed = replace(case, params={**case.params, **(params or {})}, tensors={**case.tensors, **(tensors or {})})
        try:
            with np.errstate(all="ignore"):
                made = arithmetic.exactly(
                    trial.graph, changed.tensors, changed.shape, changed.params
                )  # of stored values
        except (TokitaiError, ValueError, IndexError, OverflowError):
            return False
        return any(_beyond(e, made[e.output.name]) for e in wanted if e.output.name in self.only)

    def __str__(self) -> str:
        """What is left, in words."""
        return ", ".join([*self.tensors, *self.scalars])


def _declared(operator: Operator, name: str) -> list[float]:
    """The default that a signature names, if it does."""
    return [float(p.default) for p in operator.params if p.name == name and p.default is not None]


def _other(operator: Operator, graph: Graph, case: Case, name: str) -> Array | None:
    t = next(t for t in graph.inputs if t.name == name)
    drawn = cases.draw(operator, t, "normal", case.shape, case.seed + 1)
    return drawn if drawn.shape == case.tensors[name].shape else None


def _beyond(e: Expected, other: Any) -> bool:
    """Whether some element with another exact value would be wrong."""
    value = np.broadcast_to(np.asarray(other, np.float64), e.defined.shape)
    exact = np.broadcast_to(np.asarray(e.exact, np.float64), e.defined.shape)
    limit = np.zeros(e.defined.shape) if e.limit is None else np.broadcast_to(e.limit, e.defined.shape)
    with np.errstate(all="ignore"):
        half = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64) / 2 if e.fmt.bits == 32 else 0
        return bool((np.isfinite(exact) & np.isfinite(value) & (np.abs(value - exact) > 2 * limit + half)).any())
