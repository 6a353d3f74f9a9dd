"""Shapes of sums over entries: those of rows."""

from __future__ import annotations

from ...lang import Operator
from ..rowwise.shapes import TableShapes
from ..shapes import Seeded, Shape
from .plan import ScatterPlan

# Of a GPU's workspace, whose parts are multiples of 16 bytes: rows and entries at which parts are full, and one more.
FULL, ONE_MORE = (96, 1), (97, 1)


class ScatterShapes(TableShapes[ScatterPlan]):
    """Shapes of sums over entries."""

    def large(self, operator: Operator, plan: ScatterPlan) -> Shape | None:
        """None: an entry's sum needs all of its rows."""
        return None

    def partitioned(self, operator: Operator, plan: ScatterPlan, device: str) -> list[Seeded]:
        """Long segments at every place in a chain; for a GPU, which sorts 8 bits of an index at a time, indices of one
        to four such digits."""
        named = [("segments", (2145, 5))]
        if device != "cpu":
            for full, more in ((255, 256), (259, 260), (2**16 + 3, 2**16 + 4), (2**24 + 3, 2**24 + 4)):
                named += [(f"{full} entries", FULL), (f"{more} entries", ONE_MORE)]
        return named


__all__ = ["ScatterShapes"]
