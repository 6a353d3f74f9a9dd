"""What a symbolic walk through a kernel knows: values of its variables, memory, and the accesses that it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from .logic import Term
from .parse import Node


@dataclass(frozen=True)
class Int:
    """A whole number of a C++ type."""

    term: Term
    type: str = "int"


@dataclass(frozen=True)
class Truth:
    """A condition: True, False or a term of Z3."""

    term: Any


@dataclass(frozen=True)
class Opaque:
    """A value that no index is made of."""


OPAQUE = Opaque()


@dataclass(frozen=True)
class Base:
    """Memory that pointers lead to. ``shared``: by all threads."""

    name: str
    kind: str  # tensor, workspace, local, table, or the numbers of elements
    shared: bool = True
    data: bool = False  # whose elements are whole numbers
    dims: tuple[Any, ...] = ()  # of a local array
    unit: int = 4  # bytes of an element, of a workspace


@dataclass(frozen=True)
class Pointer:
    """An element of memory."""

    base: Base
    at: Term
    dims: tuple[Any, ...] = ()  # sides of what it leads to, where that is an array


@dataclass(frozen=True)
class Lanes:
    """How many neighbouring elements an access takes."""

    kind: str
    count: Term


@dataclass
class Closure:
    """A lambda where it stands."""

    params: Sequence[tuple[str, str]]
    body: Node
    scope: Scope


@dataclass(frozen=True)
class Loop:
    """One loop around an access: the iteration, and whether threads partition it."""

    number: int
    iteration: Any
    shared: bool


@dataclass(frozen=True)
class Access:
    """What one place of the source reads or writes: ``count`` elements of ``base`` from ``at`` on."""

    base: Base
    at: Term
    count: Term
    write: bool
    when: tuple[Any, ...]  # conditions under which it is made
    loops: tuple[Loop, ...]
    phase: tuple[Any, ...]  # accesses of different phases have a barrier between them
    alone: int  # the number of the `single` that it stands in, or 0
    line: str


@dataclass(frozen=True)
class Ranged:
    """An integer that must fit its type, or a condition that must hold, where it is computed."""

    what: str
    must: Any
    when: tuple[Any, ...]
    line: str


class Cell:
    """A variable."""

    __slots__ = ("born", "type", "value")
    made = count()

    def __init__(self, value: Any, type_: str = "") -> None:
        self.value, self.type, self.born = value, type_, next(Cell.made)


class Scope:
    """Names that are known at a place."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, Cell] = {}
        self.parent = parent

    def find(self, name: str) -> Cell | None:
        """The variable of this name."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass
class Frame:
    """A call that is walked: what it returned, and under which conditions."""

    depth: int
    mark: int = 0
    returned: list[tuple[Any, Any, list[Any]]] = field(default_factory=list)  # with what references lead to then
    broken: bool = False
    references: list[Cell] = field(default_factory=list)

    def returns(self, condition: Any, value: Any) -> None:
        """Note a way out of the call."""
        self.returned.append((condition, value, [c.value for c in self.references]))


@dataclass
class Piece:
    """A part of a workspace, from where a pointer to it is declared to where the next one is."""

    base: Base
    start: Term  # in bytes
    size: Term | None = None  # in elements, as the next is
    each: Term | None = None  # of each thread, where threads have one


@dataclass(frozen=True)
class Division:
    """A quotient of unknowns, and what is left: ``of == quotient * by + rest``."""

    of: Term
    by: Term
    quotient: Any
    rest: Any
