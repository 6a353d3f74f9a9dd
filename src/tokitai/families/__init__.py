"""From a graph to a plan: how the work is laid out. A plan decides speed, never a bit.

A folder is a family of kernels; `family` says what it has. A new one needs no other file to be touched.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from ..emit.cpp import KernelText, own
from ..errors import DefinitionError
from ..formats import FORMATS
from ..lang import Graph
from .family import Family, Plan


@cache
def families() -> tuple[Family[Any], ...]:
    """All families, in the order in which they are asked."""
    folders = (m.name for m in pkgutil.iter_modules(__path__) if m.ispkg)
    found = (importlib.import_module(f"{__name__}.{folder}").FAMILY for folder in folders)
    return tuple(sorted(found, key=lambda f: f.priority))


def make_plan(graph: Graph) -> Plan:
    """The plan for a graph. Raises DefinitionError for one that cannot be laid out."""
    _check_types(graph)
    plan: Plan = family_of(graph).plan(graph)
    return plan


def family_of(graph: Graph) -> Family[Any]:
    """The family that takes a graph."""
    return next(f for f in families() if f.takes(graph))


def emit_cpu(plan: Plan) -> KernelText:
    """The source of the CPU's kernel for this plan, with the headers that it includes."""
    made, graph = plan.family.cpu_source(plan), plan.graph
    stored = [(t.space, str(t.format)) for t in graph.inputs] + [(o.space, o.format) for o in graph.outputs]
    if not any(space in ("rc", "c") and not FORMATS[fmt].is_float for space, fmt in stored):
        return made
    text = made.text.replace("#include", '#include "whole.h"\n#include', 1)
    return KernelText(text, {**made.headers, **own("whole.h")})


def _check_types(graph: Graph) -> None:
    """Kernels have no f64 but for accumulators, and vectors of 32 bits. Raises DefinitionError."""
    for t in graph.inputs:
        if t.format == "f64":
            raise DefinitionError(f"{t.origin}: the input {t.name} in f64; accepted: f16, bf16, f32 and integers")
    for n in graph.nodes:
        if n.type == "f64":
            raise DefinitionError(f"{n.origin}: {n.op} in f64; accepted: f32 and integers")
        if n.type == "i64" and n.space not in ("r", "s"):
            raise DefinitionError(
                f"{n.origin}: {n.op} of type i64 with columns; accepted: i32 and u32 there, i64 with one element a row"
            )
    for o in graph.outputs:
        if o.format == "f64":
            raise DefinitionError(f"{o.node.origin}: the result {o.name} in f64; accepted: f16, bf16, f32 and integers")


__all__ = ["Family", "Plan", "emit_cpu", "families", "family_of", "make_plan"]
