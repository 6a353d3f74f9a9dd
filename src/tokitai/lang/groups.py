"""Grouped products: a batch of matrix products each of which has its share of one side."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from .graph import Node
from .origin import refuse
from .primitives import matmul
from .values import Operand, Value, make

F = TypeVar("F")
_SIDES = {"rows": "r", "inner": "k"}


class Groups(Value, Generic[F]):
    """Where the groups of a product begin: groups + 1 whole numbers, from 0 to where the last one ends."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def node(self) -> Node:  # type: ignore[override]
        """Groups are no value that can be computed with."""
        refuse(f"{self} outside a product", "grouped_matmul(a, b, groups)")

    def __repr__(self) -> str:
        return f"the groups {self.name}"


def grouped_matmul(
    a: Operand[Any], b: Operand[Any], groups: Groups[Any], layout: str = "NT", accumulator: str = "f32",
    *, share: Literal["rows", "inner"] = "rows",
) -> Value:  # fmt: skip
    """For each group g the `matmul` of its own parts, to the same bits: of the places groups[g] to groups[g + 1].

    With ``share="rows"`` these are rows of a and of the result, and b is groups x its two sides. With ``share="inner"``
    they are places along k, in both operands, and the result is groups x rows x cols: of a group without any +0.
    """
    if not isinstance(groups, Groups):
        refuse(f"grouped_matmul with the groups {groups!r}", "an input that is annotated as Groups[...]")
    if share not in _SIDES:
        refuse(f"grouped_matmul(..., share={share!r})", " or ".join(map(repr, _SIDES)))
    plain = matmul(a, b, layout, accumulator).node
    data = (*plain.data, _SIDES[share], groups.name)
    return Value(make("matmul", *plain.args, space="rc", data=data))
