"""Shapes of sums over entries: those of rows."""

from __future__ import annotations

from ...lang import Operator
from ..rowwise.shapes import TableShapes
from ..shapes import Shape
from .plan import ScatterPlan


class ScatterShapes(TableShapes[ScatterPlan]):
    """Shapes of sums over entries."""

    def large(self, operator: Operator, plan: ScatterPlan) -> Shape | None:
        """None: an entry's sum needs all of its rows."""
        return None


__all__ = ["ScatterShapes"]
