"""Launch plans of kernels that treat all elements alike, or all rows of an entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import z3

from ..families.elementwise import schedule as flat
from ..families.scatter import schedule as scatter
from ..lang import Operator
from .choice import MEMORY, Choice, Planned
from .symbolic import whole


def of_flat(operator: Operator, plan: Any, target: str, knows: Sequence[Any]) -> Iterator[Choice]:
    """Of one tensor."""

    def made() -> Planned:
        shapes = [(whole(z3.Int("rows")), whole(z3.Int("cols")))]
        return Planned(flat.flat_steps(plan, shapes), 4 * flat.flat_workspace_elements(plan, shapes))

    yield Choice("one tensor", knows, made)


def of_entries(operator: Operator, plan: Any, target: str, knows: Sequence[Any]) -> Iterator[Choice]:
    """Of so many entries of a table."""
    entries, cols = z3.Int("entries"), z3.Int("cols")

    def made() -> Planned:
        sides = whole(z3.Int("rows")), whole(cols), whole(entries)
        return Planned(scatter.scatter_steps(plan, *sides), scatter.workspace_bytes(*sides, 4))

    yield Choice("entries", [*knows, entries >= 1, entries < 2**31, entries * cols <= MEMORY], made)


__all__ = ["of_entries", "of_flat"]
