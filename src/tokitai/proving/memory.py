"""The accesses that a walk finds, and what is known of the memory that they lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import z3

from ..errors import ProofError
from .arithmetic import Arithmetic
from .logic import Term, both, folded, holds
from .terms import Sum
from .values import OPAQUE, Access, Base, Int, Loop, Piece, Pointer

BYTES = {"f16": 2, "bf16": 2, "f32": 4, "Stored": 4, "S": 4, "float": 4, "double": 8, "int32_t": 4, "int64_t": 8}


class Memory(Arithmetic):
    """Accesses, with the loops and barriers around them; numbers that were stored, and parts of workspaces."""

    def __init__(self, knows: Sequence[Any]) -> None:
        super().__init__(knows)
        self.loops: list[Loop] = []
        self.accesses: list[Access] = []
        self.phase: list[Any] = [0]
        self.alone = 0
        self.pieces: list[Piece] = []
        self.tables: dict[str, Mapping[int, Any]] = {}
        self.memory: dict[tuple[str, int], tuple[Any, Any]] = {}  # whole numbers stored ahead of all loops, and when
        self.thread = z3.Int("thread")
        self.contents: set[str] = set()  # memory whose whole numbers are a function of their place

    @property
    def own(self) -> Sequence[Any]:
        """Unknowns of which two threads differ in one at least."""
        return (self.thread,)

    def access(self, where: Any, n: Term, write: bool) -> None:
        """Record an access."""
        if not isinstance(where, Pointer):
            raise ProofError(f"{self.line}: an access through {where}; accepted: pointers whose memory is known")
        if self.dry:
            return
        self.accesses.append(
            Access(
                where.base,
                where.at,
                n,
                write,
                tuple(self.when),
                tuple(self.loops),
                tuple(self.phase),
                self.alone,
                self.line,
            )
        )

    def loaded(self, where: Any, n: Term = 1) -> Any:
        """The value of an element."""
        self.access(where, n, False)
        if (known := self.remembered(where)) is not None:
            return known
        if where.base.kind == "table" or where.base.name in self.contents:
            return Int(self.table(where), "int64_t")
        if where.base.data:
            return Int(self.fresh("data"), "int64_t")
        return OPAQUE

    def remember(self, where: Pointer, value: Any) -> None:
        """Note a whole number that is stored at a known place; what else is stored may overwrite any."""
        if self.dry or not where.base.data:
            return
        if isinstance(where.at, int) and not self.loops:
            self.memory[where.base.name, where.at] = both(*self.when), value
        else:
            self.memory = {key: v for key, v in self.memory.items() if key[0] != where.base.name}

    def remembered(self, where: Pointer) -> Any:
        """The number that was stored there, where that is known here."""
        for (name, at), (when, value) in self.memory.items():
            if name == where.base.name and isinstance(value, Int):
                here = folded(where.at == at)
                if here is not False and self.follows(here) and self.follows(when):
                    return value
        return None

    def table(self, where: Pointer) -> Any:
        """An entry of a table of numbers, such as sizes: known, or the function of its place."""
        known = self.tables.get(where.base.name, {})
        if isinstance(where.at, int) and where.at in known:
            return known[where.at]
        return z3.Function(where.base.name, z3.IntSort(), z3.IntSort())(where.at)

    def indexed(self, base: Any, at: Any) -> Any:
        if not isinstance(base, Pointer):
            return OPAQUE
        i = self.number(at)
        inner: Term = 1
        for side in base.dims[1:]:
            inner = inner * side
        if base.dims:
            self.must("index of an array", both(folded(i >= 0), folded(i < base.dims[0])))
        return replace(base, at=folded(base.at + i * inner), dims=base.dims[1:])

    def piece(self, name: str, made: Pointer, data: bool) -> Pointer:
        """A pointer into a workspace that is declared ahead of all loops begins a piece of it."""
        if made.base.kind != "workspace" or made.base.name.startswith("scratch"):
            return made
        unit = made.base.unit
        own = next((p for p in self.pieces if p.base.name == made.base.name), None)
        start, each = folded(made.at * unit), None
        if not isinstance(made.at, int) and holds(made.at, self.thread):
            zero = z3.substitute(made.at, (self.thread, z3.IntVal(0)))
            each = z3.simplify(z3.substitute(made.at, (self.thread, z3.IntVal(1))) - zero, som=True)
            if folded(zero) != 0:
                return made
            name, start = "scratch", 0
        elif own is not None and isinstance(made.at, int) and made.at == 0:
            return made
        if own is not None:
            if own.size is None and each is None:
                own.size = parted(start, own.base.unit)
            start = folded(own.start + start)
        base = Base(name, "workspace", each is None, data, unit=unit)
        self.pieces.append(Piece(base, start, None, each))
        return Pointer(base, 0)


def parted(total: Any, unit: int) -> Any:
    """A number of bytes in elements of so many."""
    if isinstance(total, int):
        return total // unit
    made = Sum(total)
    if any(n % unit for n in made.parts.values()):
        return total / unit
    return made.term({m: n // unit for m, n in made.parts.items()})


def unit_of(kind: str) -> int | None:
    """Bytes of what a pointer of a type leads to, where that is known."""
    return BYTES.get(kind.replace("const", "").rstrip("*")) if kind.endswith("*") else None
