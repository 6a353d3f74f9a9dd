"""Obligations of kernels whose source, headers or contract are changed on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from tokitai.emit.cpp import KernelText
from tokitai.families import Plan, emit_cpu
from tokitai.lang import Operator
from tokitai.ops import registry
from tokitai.proving.attention_memory import AttentionMemory
from tokitai.proving.buffers import Buffers
from tokitai.proving.choice import family_of
from tokitai.proving.kernel import Kernel
from tokitai.proving.obligation import Obligation
from tokitai.proving.prove import WALKS, plan_of


def changed_text(plan: Plan, changes: Mapping[str, str], headers: Mapping[str, str]) -> KernelText:
    """The source of a plan's kernel for CPUs with these changes."""
    return changed(emit_cpu(plan), changes, headers)


def changed(made: KernelText, changes: Mapping[str, str], headers: Mapping[str, str]) -> KernelText:
    """A source with these changes to it, and to the header that has what is changed."""
    source, files = made.text, dict(made.headers)
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    for old, new in headers.items():
        (name,) = (n for n, text in files.items() if old in text)
        files[name] = files[name].replace(old, new)
    return KernelText(source, files)


def obligations(
    name: str, changes: Mapping[str, str] = {}, headers: Mapping[str, str] = {}, only: Collection[str] = (),
    walk: Callable[..., Kernel | Buffers | AttentionMemory] | None = None, **contract: Any,
) -> dict[str, Obligation]:  # fmt: skip
    """All obligations by name, or ``only`` these, of a kernel in f32 whose source and headers are changed, for vectors
    of 8; by ``walk``, or that of the operator's family."""
    operator: Operator = registry()[name]
    if contract:
        operator = copy(operator)
        operator.contract = replace(operator.contract, **contract)
    plan = plan_of(operator, "f32")
    walked = (walk or WALKS[family_of(plan)])(operator, plan, 8, 20.0, changed_text(plan, changes, headers))
    if only:
        assert isinstance(walked, Kernel)
        return {what: walked.joined(what, answers) for what, answers in walked.statements() if what in only}
    return {o.name.removeprefix(f"{name}: "): o for o in walked.obligations(name)}


def refuted(found: Mapping[str, Obligation]) -> dict[str, Mapping[str, int]]:
    """What is refuted, and the sizes."""
    return {name: o.sizes for name, o in found.items() if o.status == "refuted"}
