"""What a family of kernels is: the definitions that it takes, their plans, and all that follows from such a plan.

A folder beside this file is a family, and its ``FAMILY`` is a `Family`. Nothing outside a family asks which class a
plan has: it asks ``plan.family``. Families are found by listing the folders, and asked in the order of ``priority``.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ..emit.cpp import KernelText
from ..lang import MATRICES, TOTALS, Graph, Node, Operator, Sizes
from .arguments import Bound
from .gpu_family import GpuFamily
from .shapes import Shapes, of_rows

Array = np.ndarray[Any, Any]
_MEETS = frozenset({*TOTALS, "row_index", "rows", "element_word"})  # what knows of other rows


class Plan(ABC):
    """How the work of a graph is laid out. A plan decides speed, never a bit."""

    graph: Graph
    flat: bool  # takes a list of tensors, whose elements are one range of work
    block: int  # rows that are one unit of parallel work
    has_inner: ClassVar[bool] = False  # its shapes are `Sizes`: rows, cols, the K dimension, a batch

    @property
    def family(self) -> Family[Any]:
        """The family in whose folder the plan's class is."""
        return _family_in(type(self).__module__.rpartition(".")[0])

    @property
    def entries(self) -> Node | None:
        """The host scalar that says how many entries a table has that is summed into; None where there is none."""
        return None

    @property
    def needs_all_rows(self) -> bool:
        """Whether rows need something of all rows, such as their number of valid ones, before the first is computed."""
        return False

    def rows_are_apart(self, shape: tuple[int, int]) -> bool:
        """Whether each row is its own affair, and there are some; of a shape that is soon computed again."""
        rows, cols = shape
        meets = self.needs_all_rows or any(n.op in _MEETS for n in self.graph.nodes)
        batch = isinstance(shape, Sizes) and shape.several
        return rows >= 2 and not meets and not batch and bool(of_rows(self.graph)) and rows * cols <= 1 << 20

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""

    @abstractmethod
    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """Workspace of a launch on the CPU: of tensors of these shapes whose elements have ``element`` bytes in it, on
        so many threads, into a table of so many ``entries``."""


P = TypeVar("P", bound=Plan)


class Family(ABC, Generic[P]):
    """One way to lay out a graph, for every target. What is asked per target or per purpose is apart: ``gpu`` and
    ``shapes``."""

    priority: ClassVar[int]  # families are asked in this order; the last takes what no other does
    gpu: GpuFamily[P]
    shapes: Shapes[P]

    @abstractmethod
    def takes(self, graph: Graph) -> bool:
        """Whether a graph is this family's, where no family before it takes it."""

    @abstractmethod
    def plan(self, graph: Graph) -> P:
        """The plan for a graph that the family takes. Raises DefinitionError for what it cannot lay out."""

    @abstractmethod
    def cpu_source(self, plan: P) -> KernelText:
        """The source of the kernel for the CPU, with the headers that it includes."""

    def bind(self, operator: Operator, graph: Graph, arrays: Mapping[str, Array], *, read: bool = True) -> Bound | None:
        """Which side of each array is which, and what the kernel reads and writes. None where all leading dimensions
        are rows and no array says more, which is for the caller to see.

        With ``read=False`` no element is read: the arrays lie elsewhere. Raises ArgumentError where they do not agree.
        """
        return None

    def launch_sizes(
        self, spaces: Sequence[str], tensors: Sequence[Sequence[Array]], shapes: Sequence[tuple[int, int]]
    ) -> list[int]:
        """The sizes of a launch as kernels take them, ahead of its whole numbers: of each tensor of a list rows,
        columns, and the row stride of every matrix in elements. ``spaces`` are those of the inputs and the results, and
        each of ``tensors`` has an array for each."""
        made: list[int] = []
        for arrays, shape in zip(tensors, shapes, strict=True):
            made += shape
            made += [a.strides[0] // a.itemsize for s, a in zip(spaces, arrays, strict=True) if s in MATRICES]
        return made

    def __repr__(self) -> str:
        return f"<family {type(self).__module__.rpartition('.')[0].rpartition('.')[2]}>"


@cache
def _family_in(package: str) -> Family[Any]:
    found: Family[Any] = importlib.import_module(package).FAMILY
    return found


__all__ = ["Family", "Plan"]
