"""C++ for the CPU: the text of a row-wise kernel, from its plan.

One text serves every instruction set, and numbers as well as hashes: the headers in ``emit/cpu`` decide what a value is
and how many a vector holds.

The kernel's one symbol is::

    int32_t tokitai_kernel(void* const* tensors, const int64_t* sizes, const void* scalars, void* workspace,
                           int32_t threads)

``tensors`` are the inputs, then the results; ``sizes`` are rows, columns, then the row stride in elements of every
rows x cols tensor in the same order; ``scalars`` is the table of rounded host scalars. What the sizes of lists and of
products are, `families.elementwise.cpu` and `families.matmul.cpu` say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from ..families import AttentionPlan, FlatPlan, GroupedPlan, Plan, ProductPlan, ScatterPlan
from ..families.attention.cpu import AttentionEmitter
from ..families.elementwise.cpu import FlatEmitter
from ..families.grouped.cpu import GroupedEmitter
from ..families.matmul.cpu import ProductEmitter
from ..families.rowwise.cpu import RowEmitter
from ..families.scatter.cpu import ScatterEmitter
from ..formats import FORMATS

HEADERS = ("lanes.h", "integers.h", "numbers.h", "hashes.h", "many.h", "rows.h")
OF_PRODUCTS = ("accumulators.h", "matrix_unit.h", "products.h")


@dataclass(frozen=True)
class KernelText:
    """The emitted text with the headers that it includes, by name."""

    text: str
    headers: Mapping[str, str]


def headers(of_products: bool = False) -> dict[str, str]:
    """The headers of the cpu target, by the name under which a kernel includes them."""
    folder = resources.files(__package__) / "cpu"
    return {name: (folder / name).read_text() for name in HEADERS + OF_PRODUCTS * of_products}


def own(name: str) -> dict[str, str]:
    """A header of one kind of kernels, by its name."""
    return {name: (resources.files(__package__) / "cpu" / name).read_text()}


def segments() -> dict[str, str]:
    """The header of sums over entries, by its name: other kernels do without it."""
    return {"segments.h": (resources.files(__package__) / "cpu" / "segments.h").read_text()}


def first() -> dict[str, str]:
    """The header of first columns, by its name."""
    return {"first.h": (resources.files(__package__) / "cpu" / "first.h").read_text()}


def emit_cpu(plan: Plan) -> KernelText:
    """The text of the kernel for this plan."""
    made, graph = _emitted(plan), plan.graph
    stored = [(t.space, str(t.format)) for t in graph.inputs] + [(o.space, o.format) for o in graph.outputs]
    if not any(space in ("rc", "c") and not FORMATS[fmt].is_float for space, fmt in stored):
        return made
    text = made.text.replace("#include", '#include "whole.h"\n#include', 1)
    return KernelText(text, {**made.headers, **own("whole.h")})


def _emitted(plan: Plan) -> KernelText:
    if isinstance(plan, AttentionPlan):
        return KernelText(AttentionEmitter(plan).text(), headers(of_products=True) | own("attention.h"))
    if isinstance(plan, GroupedPlan):
        return KernelText(GroupedEmitter(plan).text(), headers(of_products=True) | own("groups.h"))
    if isinstance(plan, ProductPlan):
        return KernelText(ProductEmitter(plan).text(), headers(of_products=True))
    if isinstance(plan, ScatterPlan):
        return KernelText(ScatterEmitter(plan).text(), headers() | segments())
    if isinstance(plan, FlatPlan):
        return KernelText(FlatEmitter(plan).text(), headers())
    return KernelText(RowEmitter(plan).text(), headers() | (first() if plan.has_firsts else {}))
