"""Scatter kernels of CPUs, walked: rows that are sorted by the entries which they choose, in segments.

What the sort leaves in the workspace is modelled, not walked: that the rows of entry e are order[starts[e]] ...
order[starts[e + 1] - 1], and each row stands there once. It is so for entries in range, which every call checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..families.scatter.plan import ScatterPlan
from ..lang import Operator
from .cpu import Start, whole_numbers
from .kernel import Kernel
from .logic import holds
from .partition import Partition, applied
from .values import OPAQUE, Access, Cell, Int
from .walk import Walk

ROW = z3.Function("order", z3.IntSort(), z3.IntSort())  # the i-th sorted row
STARTS = z3.Function("starts", z3.IntSort(), z3.IntSort())


def walk_scatter(
    operator: Operator, plan: ScatterPlan, lanes: int, seconds: float, text: KernelText | None = None
) -> Kernel:
    """The walk through the CPU's kernel of a scatter plan."""
    start = Start(operator, plan, lanes, text)
    walk, rows, cols, entries = start.walk, start.rows, start.cols, z3.Int("entries")
    walk.knows += [entries >= 0, entries <= 2**31]
    tensors, strides = start.tensors({"rc": rows, "t": entries}, {"r": rows, "c": cols, "s": 1})
    numbers, within = whole_numbers(plan.graph, operator)
    walk.knows += within
    walk.tables["sizes"] = dict(enumerate([rows, cols, *strides, *numbers]))
    (chain,) = start.defined("CHAIN", r"(\d+)")
    start.products += [(2 * ((rows + chain - 1) / chain), cols)]
    walk.globals.names["CHAIN"] = Cell(Int(chain, "int64_t"))
    index = f"in_{plan.total.args[1].data[0]}"
    entry_of = z3.Function(index, z3.IntSort(), z3.IntSort())
    segments = Partition(STARTS, entries, rows, ROW, lambda i: entry_of(ROW(i)))

    def lemmas(terms: Sequence[Any]) -> list[Any]:
        there = [z3.Implies(z3.And(i >= 0, i < rows), z3.And(ROW(i) >= 0, ROW(i) < rows)) for i in applied(ROW, terms)]
        return [*segments.lemmas(terms), *there]

    walk.contents |= {index, "starts", "order"}
    walk.lemmas = lemmas
    walk.calls = {**walk.calls, "sort_by_entry": sorted_by_entry}
    kernel = start.walked(tensors, seconds, [rows, cols, entries, start.threads, *strides], entries)
    kernel.reached = lambda access, entry: window_of(access, entry, chain)
    return kernel


def sorted_by_entry(walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
    """Takes the entry of each row; writes where segments start, and the rows in order."""
    rows, entries, entry_of, starts, order = values
    n, r = walk.number(rows), walk.fresh("row")
    walk.under(z3.And(r >= 0, r < n), lambda: walk.invoke(entry_of, [Int(r, "int64_t")]))
    walk.access(starts, walk.number(entries) + 2, True)
    walk.access(order, n, True)
    return OPAQUE


def window_of(access: Access, entry: Any, chain: int) -> list[tuple[Any, Any]]:
    """The window that a long segment begins in, where an access is made once for each window with such a segment."""
    sorted_rows = [] if isinstance(access.at, int) else applied(ROW, [access.at])
    made = [l.iteration for l in access.loops if any(holds(i, l.iteration) for i in sorted_rows)]
    return [(iteration, STARTS(entry) / chain) for iteration in made]


__all__ = ["walk_scatter"]
