"""The shape that a user asks for, of kernels and verifications: checked against the contract, with all its sizes."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ArgumentError
from ..lang import Graph, Operator, Sizes
from .kernel import is_grouped, is_product


def allowed(operator: Operator, shape: tuple[int, int]) -> bool:
    """Whether a shape lies within the operator's contract."""
    c = operator.contract
    return shape[0] <= c.max_rows and c.min_cols <= shape[1] <= c.max_cols


def usual_shape(operator: Operator) -> tuple[int, int]:
    """A shape of ordinary use."""
    c = operator.contract
    return min(4096, c.max_rows), min(max(4096, c.min_cols), c.max_cols)


def in_groups(graph: Graph, shape: tuple[int, int]) -> tuple[int, int]:
    """The sizes of a graph's call: three groups, where a grouped product is asked for without saying how many."""
    if not graph.ragged or isinstance(shape, Sizes):
        return shape
    return Sizes(*shape, shape[1], 3, graph.ragged)


def asked_shape(operator: Operator, shape: Mapping[str, int] | None) -> tuple[int, int] | None:
    """The shape asked for, checked against the contract. Raises ArgumentError."""
    if shape is None:
        return None
    product = is_product(operator)
    grouped = is_grouped(operator)
    batched = (product and operator.contract.batched) or grouped
    wanted = ["rows", "cols", *(["inner"] if product else [])]
    if not set(wanted) <= set(shape) or set(shape) - {*wanted, *(["batch"] if batched else [])}:
        several = f", and for several {'groups' if grouped else 'products'} batch" * batched
        accepted = f"{', '.join(wanted[:-1])} and {wanted[-1]}{several}"
        raise ArgumentError(f"{operator.name}: shape has {', '.join(shape) or 'nothing'}; accepted: {accepted}")
    for name, size in shape.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ArgumentError(f"{name}={size!r}; accepted: a whole number of at least 0")
    if shape.get("batch") == 0:
        raise ArgumentError("batch=0; accepted: at least 1")
    asked: tuple[int, int] = (shape["rows"], shape["cols"])
    if product:
        ragged = operator.trace(operator.contract.formats[0]).ragged
        asked = Sizes(*asked, shape["inner"], shape.get("batch", 1), ragged)
    if not allowed(operator, asked):
        c = operator.contract
        raise ArgumentError(
            f"{operator.name}: rows={asked[0]}, cols={asked[1]}; accepted: at most {c.max_rows} rows, "
            f"{c.min_cols} to {c.max_cols} columns"
        )
    return asked
