"""Shapes of element-wise kernels: edges of tiles beside those of rows."""

from __future__ import annotations

from ...lang import Operator
from ..rowwise.shapes import TableShapes
from ..shapes import Shape
from .plan import FlatPlan


class FlatShapes(TableShapes[FlatPlan]):
    """Shapes of element-wise kernels."""

    def longer(self, simulated: bool) -> list[Shape]:
        """Edges of a GPU's tiles and of runs of them."""
        return [(1, 4096), (1, 4097)] + ([] if simulated else [(1, 3 * 4096 - 1), (1, 1 << 20), (1, 5 * 4096 + 3)])

    def tiles(self, plan: FlatPlan) -> list[Shape]:
        """Edges of the CPU's tiles."""
        return [(1, plan.tile), (2, plan.tile + 1), (3, 2 * plan.tile - 1), (1, 5 * plan.tile + 3)]

    def chains(self, operator: Operator, plan: FlatPlan, device: str) -> list[Shape]:
        """A run of sixteen tiles, and more, where they have a total."""
        return [(1, 17 * 4096 + 5)] if plan.totals and device == "sim" else []

    def long(self, operator: Operator, plan: FlatPlan, device: str) -> list[Shape]:
        """None: nothing runs along rows."""
        return []


__all__ = ["FlatShapes"]
