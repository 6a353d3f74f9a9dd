"""From a graph to a plan: how the work is laid out. A plan decides speed, never a bit."""

from __future__ import annotations

from ..errors import DefinitionError
from ..lang import TOTALS, Graph
from .attention.plan import AttentionPlan, is_attention, plan_attention
from .elementwise.plan import FlatPlan, is_flat, plan_flat
from .grouped.plan import GroupedPlan, plan_grouped
from .matmul.plan import ProductPlan, is_product, plan_product
from .rowwise.plan import RowPlan, plan_rows
from .scatter.plan import ScatterPlan, plan_scatter

Plan = RowPlan | FlatPlan | ScatterPlan | ProductPlan | AttentionPlan


def make_plan(graph: Graph) -> Plan:
    """The plan for a graph. Raises DefinitionError for one that cannot be laid out."""
    _check_types(graph)
    if is_attention(graph):
        return plan_attention(graph)
    if is_product(graph):
        return plan_grouped(graph) if graph.ragged else plan_product(graph)
    if any(n.op == "scatter_sum" for n in graph.nodes):
        return plan_scatter(graph)
    if is_flat(graph):
        return plan_flat(graph)
    for n in graph.nodes:
        if n.op in TOTALS or n.op == "tensor_index":
            raise DefinitionError(
                f"{n.origin}: {n.op} beside sums or indices of rows; accepted: in element-wise definitions"
            )
    return plan_rows(graph)


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


__all__ = [
    "AttentionPlan", "FlatPlan", "GroupedPlan", "Plan", "ProductPlan", "RowPlan", "ScatterPlan", "is_attention",
    "make_plan",
]  # fmt: skip
