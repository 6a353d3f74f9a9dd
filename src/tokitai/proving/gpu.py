"""The walk through an emitted kernel of a GPU: one thread of one block that stand for all.

Blocks and threads are numbers in the ranges of the launch, which the plan says. They are written by their digits: a
block of a launch of n * m blocks is i * m + j with i < n and j < m, a thread of a block of whole warps is a warp and a
lane. Then quotients by m or by the lanes of a warp are digits, and nothing is divided.

What is random or read from a tensor is a condition of its own in each thread and iteration. An integer whose bits are
set one by one, such as the chunks of a thread that are to be computed once more, is a list of conditions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from .cpu import CpuCalls
from .logic import both, either, folded, no
from .memory import parted
from .parse import Function, Node, Parser, functions_of, preprocessed, templates_in
from .terms import Sum
from .values import OPAQUE, Access, Base, Cell, Int, Opaque, Pointer, Scope, Truth
from .walk import Walk

WALKED = ("load_chunk", "store_chunk", "whole")
TYPES = ("S", "SB", "Stored", "Chunk", "f16", "bf16", "f32", "Cells", "Quick", "Maximum", "Add")
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "Stored": 4, "S": 4, "uint32_t": 4, "int32_t": 4, "int64_t": 8, "uint8_t": 1}
COPIED = 32  # iterations of a copy that are walked one by one; of more one stands for all
BITS_OF_A_SET = 32


@dataclass(frozen=True)
class Bits:
    """An integer as conditions that its bits are set, the lowest first."""

    of: tuple[Any, ...]


@dataclass(frozen=True)
class Bytes:
    """A pointer that counts bytes, to memory of elements of so many."""

    to: Pointer
    at: Any


class Emitted:
    """A translation unit as one target compiles it: the kernels, and functions and constants of the headers."""

    def __init__(self, text: KernelText, target: str, warp: int, walked: Sequence[str] = WALKED) -> None:
        hip = int(target == "hip")
        defined = {"TOKITAI_STRUCTURE": 0, "TOKITAI_HIP": hip, "TOKITAI_SIM": 0, "__CUDA_ARCH__": 900, "__GNUC__": 13}
        self.text = preprocessed(text.text, defined, text.headers)
        headers, _, own = self.text.rpartition("namespace tokitai {")
        templates, self.functions = _of_headers(headers, tuple(walked))
        self.templates = templates | templates_in(own)
        self.warp = warp
        self.kernels: dict[str, Node] = {}

    def parser(self, text: str) -> Parser:
        """A parser that knows the templates of the headers."""
        return Parser(text, self.templates, TYPES)

    def kernel(self, name: str) -> Node:
        """The body of a kernel. Raises ProofError where there is none."""
        if name not in self.kernels:
            m = re.search(rf"KERNEL\({name}, [^{{]*\) (?=\{{)", self.text)
            if m is None:
                raise ProofError(f"no KERNEL({name}, ...) in the emitted source; accepted: one")
            self.kernels[name] = self.parser(self.text[m.end() :]).block()
        return self.kernels[name]

    def signature(self, name: str) -> int:
        """What tells a walk through a kernel from others: the same where targets have the same source."""
        return hash((repr(self.kernel(name)), repr(self.functions), repr(self.constants()), repr(self.share("GROUP"))))

    def constants(self) -> list[Node]:
        """Declarations of whole numbers outside functions, in their order, but for the lanes of a warp."""
        lines = re.findall(r"^constexpr (?:int|int64_t|bool) (?!WARP\b)\w+ = [^;{]*;", self.text, re.MULTILINE)
        return [self.parser(line).statement() for line in lines]

    def share(self, name: str) -> Node:
        """How a member of ``Share`` follows from its T."""
        m = re.search(rf"struct Share \{{\s*static constexpr int [^;]*?\b{name} = ([^,;]*)[,;]", self.text)
        if m is None:
            raise ProofError(f"no Share::{name} in the headers; accepted: one that is a number")
        return self.parser(m[1]).expression()


@cache
def _of_headers(text: str, walked: tuple[str, ...]) -> tuple[set[str], dict[str, list[Function]]]:
    """The templates of headers, and functions that are walked."""
    templates = templates_in(text)
    return templates, functions_of(text, walked, templates, TYPES)


@cache
def _read(
    text: str, headers: tuple[tuple[str, str], ...], target: str, warp: int, walked: tuple[str, ...]
) -> Emitted:  # fmt: skip
    return Emitted(KernelText(text, dict(headers)), target, warp, walked)


def read(text: KernelText, target: str, warp: int, walked: tuple[str, ...] = WALKED) -> Emitted:
    """The same for the same source."""
    return _read(text.text, tuple(text.headers.items()), target, warp, walked)


@dataclass(frozen=True)
class Digits:
    """A number below a product, by its digits: each an unknown below its factor. The last one counts ones."""

    digits: tuple[Any, ...]
    factors: tuple[Any, ...]

    @property
    def number(self) -> Any:
        """The number, as a sum of products."""
        made: Any = 0
        for d, n in zip(self.digits, self.factors, strict=True):
            made = d if isinstance(made, int) else made * n + d
        return made

    @property
    def count(self) -> Any:
        """How many such numbers there are."""
        return math.prod(self.factors)

    @property
    def ranges(self) -> list[Any]:
        """That digits are below their factors."""
        pairs = zip(self.digits, self.factors, strict=True)
        return [z3.And(d >= 0, d < n) for d, n in pairs]


class GpuWalk(Walk):
    """The walk through one kernel. ``block`` and ``thread`` are what the launch makes of them. Of loops that copy
    nothing, ``few`` iterations are walked one by one."""

    few = 4

    def __init__(
        self, source: Emitted, knows: Sequence[Any], block: Digits, thread: Digits, start: Any = 0,
        names: Mapping[str, Any] = {},
    ) -> None:  # fmt: skip
        self.source, self.block, self.threads = source, block, thread
        self.wide: list[tuple[Access, int]] = []  # accesses of so many bytes at once
        calls = GpuCalls(self, start)
        known = [*knows, *block.ranges, *thread.ranges]
        super().__init__(source.functions, known, calls.calls, {"WARP": Int(source.warp), **names})
        self.digits = (*block.digits, *thread.digits)
        for n in source.constants():
            self.execute(n, self.globals)

    @property
    def own(self) -> Sequence[Any]:
        return self.digits

    # ------------------------------------------------------------------ conditions
    def unknown_truth(self) -> Any:
        """One for each thread and iteration."""
        of = [*self.own, *(l.iteration for l in self.loops)]
        made = z3.Function(f"data!{next(self.names)}", *[z3.IntSort()] * len(of), z3.BoolSort())
        return made(*of)

    def truth(self, value: Any) -> Any:
        """Decided where it follows from what is known here."""
        if isinstance(value, Bits):
            return reduce(either, value.of, False)
        if isinstance(value, Pointer):
            return True
        term = folded(self.unknown_truth() if isinstance(value, Opaque) else super().truth(value))
        if isinstance(term, bool) or not _only_numbers(term):
            return term
        return True if self.follows(term) else False if self.follows(no(term)) else term

    # ------------------------------------------------------------------ numbers
    def arithmetic(self, mark: str, a: Int, b: Int) -> Any:
        """Quotients by a factor of digits are digits."""
        if mark in ("/", "%") and not isinstance(a.term, int) and (found := self.split(a.term, b.term)) is not None:
            made = super().arithmetic("+", Int(0, a.type), Int(0, b.type))
            return replace(made, term=folded(found[mark == "%"]))
        if mark in ("/", "%") and isinstance(b.term, int) and self.grows(a.term) and not self.dry:
            parts = self.divided(a.term, b.term)
            return Int(parts.quotient if mark == "/" else parts.rest, a.type)
        made = super().arithmetic(mark, a, b)
        if mark in ("+", "-", "*") and not isinstance(made.term, int):
            return replace(made, term=Sum(made.term).term())  # in which products that cancel are gone
        if mark == "/" and isinstance(made, Int) and not isinstance(made.term, int):
            for n in self.block.factors:  # such as the tiles of a row, which the source computes in its own way
                if not isinstance(n, int) and z3.is_const(n) and self.follows(made.term == n):
                    return replace(made, term=n)
        return made

    def grows(self, x: Any) -> bool:
        """Whether a number that is not negative grows by one with an iteration."""
        if isinstance(x, int) or all(Sum(x).factor(l.iteration) != 1 for l in self.loops):
            return False
        return self.follows(x >= 0)

    def split(self, x: Any, y: Any) -> tuple[Any, Any] | None:
        """Quotient and rest, where one is a sum of multiples of the divisor and what is left is below it."""
        of = Sum(x)
        if isinstance(y, int):
            if y <= 0:
                return None
            whole = {m: n // y for m, n in of.parts.items() if n % y == 0}
            rest = of.term({m: n for m, n in of.parts.items() if n % y})
            quotient = of.term(whole)
        elif z3.is_const(y):
            quotient, rest = of.along(y)
            if quotient is None:
                return None
        else:
            quotient, rest = 0, x
        fits = both(folded(rest >= 0), folded(rest < y), folded(quotient >= 0))
        return (quotient, rest) if self.follows(fits) else None

    # ------------------------------------------------------------------ expressions
    def value_name(self, n: Node, scope: Scope) -> Any:
        m = re.fullmatch(r"Share<(\w+)>::(\w+)", n.args[0])
        if m is None:
            return super().value_name(n, scope)
        names = Scope(self.globals)
        given = Node("number", (int(m[1]),)) if m[1].isdigit() else Node("name", (m[1], None))
        names.names["T"] = Cell(self.value(given, scope))
        if m[2] != "GROUP":
            names.names["GROUP"] = Cell(self.value(self.source.share("GROUP"), names))
        return self.value(self.source.share(m[2]), names)

    def value_cast(self, n: Node, scope: Scope) -> Any:
        value, kind = self.value(n.args[1], scope), n.args[0].replace("const", "")
        if isinstance(value, Bytes):
            return value
        if isinstance(value, Pointer) and kind in ("char*", "void*") and value.base.kind != "workspace":
            return Bytes(value, 0)
        return value if isinstance(value, Pointer) else self.converted(value, n.args[0])

    def value_unary(self, n: Node, scope: Scope) -> Any:
        mark, inner = n.args
        if mark == "&" and inner.kind == "name":
            cell = scope.find(inner.args[0])
            if cell is not None and isinstance(cell.value, Truth):  # whoever has its address may set it
                self.assign(cell, Truth(self.unknown_truth()))
        return super().value_unary(n, scope)

    def value_binary(self, n: Node, scope: Scope) -> Any:
        mark = n.args[0]
        if mark in ("&&", "||"):
            return super().value_binary(n, scope)
        a, b = self.value(n.args[1], scope), self.value(n.args[2], scope)
        if isinstance(a, Bytes) and isinstance(b, Int) and mark == "+":
            return replace(a, at=folded(a.at + b.term))
        if isinstance(a, Bits) and isinstance(b, Int) and mark == ">>":
            return Bits((reduce(either, (both(folded(b.term == i), bit) for i, bit in enumerate(a.of)), False),))
        if isinstance(a, Bits) and isinstance(b, Int) and mark == "&" and isinstance(b.term, int) and b.term == 1:
            return Truth(a.of[0])
        given = (Node("known", (a,)), Node("known", (b,)))
        return super().value_binary(Node("binary", (mark, *given)), scope)

    def value_known(self, n: Node, scope: Scope) -> Any:
        return n.args[0]

    def value_assign(self, n: Node, scope: Scope) -> Any:
        mark, target, source = n.args
        if mark == "|=" and target.kind == "name":
            before, value = self.value(target, scope), self.value(source, scope)
            if (a := _bits(before)) is not None and (b := _bits(value)) is not None:
                made = Bits(tuple(either(x, y) for x, y in zip(a.of, b.of, strict=True)))
                self.store_to(target, made, scope)
                return made
            n = Node("assign", (mark, target, Node("known", (value,))))
        return super().value_assign(n, scope)

    def merged(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(a, Bits) or isinstance(b, Bits):
            x, y = _bits(a), _bits(b)
            if x is None or y is None:
                return OPAQUE
            pairs = zip(x.of, y.of, strict=True)
            return Bits(tuple(_chosen(condition, p, q) for p, q in pairs))
        return super().merged(condition, a, b)

    def value_member(self, n: Node, scope: Scope) -> Any:
        base = self.value(n.args[0], scope)
        if isinstance(base, Pointer) and base.dims and n.args[1] == "e":
            return base  # the elements of a chunk
        return super().value_member(Node("member", (Node("known", (base,)), *n.args[1:])), scope)

    def value_call(self, n: Node, scope: Scope) -> Any:
        callee, args = n.args
        if callee.kind == "name" and callee.args[0] == "SHARED":
            kind, name, count = args
            size = self.number(self.value(count, scope))
            unit = SIZES.get(kind.args[0], 4)
            base = Base(name.args[0], "shared", True, kind.args[0] == "uint32_t", (size,), unit)
            scope.names[name.args[0]] = Cell(Pointer(base, 0, (size,)), "S[]")
            return OPAQUE
        return super().value_call(n, scope)

    # ------------------------------------------------------------------ memory
    def piece(self, name: str, made: Pointer, data: bool) -> Pointer:
        return made  # the workspace is one

    def loaded(self, where: Any, n: Any = 1) -> Any:
        if isinstance(where, Pointer) and where.base.kind == "table":
            self.access(where, n, False)
            value = self.table(where)
            return value if isinstance(value, (Pointer, Opaque)) else Int(value, "int64_t")
        return super().loaded(where, n)

    def moved(self, where: Any, size: int, write: bool) -> None:
        """An access of so many bytes through a pointer."""
        if isinstance(where, Bytes):
            where = replace(where.to, at=folded(where.to.at + parted(where.at, where.to.base.unit)))
        if isinstance(where, Pointer):
            self.access(where, size // where.base.unit, write)
            if not self.dry:
                self.wide.append((self.accesses[-1], size))

    def store_to(self, target: Node, value: Any, scope: Scope) -> None:
        if target.kind == "index" and isinstance(held := self.value(target.args[0], scope), dict):
            at = self.value(target.args[1], scope)
            if not self.dry:
                if self.loops or self.log or not isinstance(at, Int) or not isinstance(at.term, int):
                    raise ProofError(f"{self.line}: a number stored in a loop; accepted: entries that are copied once")
                held[at.term] = value
            return
        super().store_to(target, value, scope)

    # ------------------------------------------------------------------ statements
    def run(
        self, params: Sequence[tuple[str, str]], body: Node, scope: Scope, values: Sequence[Any], *cells: Any
    ) -> Any:  # fmt: skip
        for (kind, _), value in zip(params, values, strict=True):
            plain = kind.replace("const", "").rstrip("*&")
            if kind.endswith("*") and isinstance(value, Pointer) and plain not in SIZES:
                scope.names[f"sizeof {plain}"] = Cell(Int(value.base.unit, "size_t"))
        return super().run(params, body, scope, values, *cells)

    def execute_declare(self, n: Node, scope: Scope) -> Any:
        for kind, variable, sides, value in n.args:
            if sides and value is not None and value.kind == "braces" and kind.replace("const", "") in SIZES:
                found = [self.value(a, scope) for a in value.args]
                if all(isinstance(f, Int) for f in found):
                    scope.names[variable] = Cell(dict(enumerate(found)), kind)
                    continue
            if sides and value is None and kind == "int64_t":
                scope.names[variable] = Cell({}, kind)  # an entry of a table, copied
                continue
            if kind.startswith("Chunk<") and value is None:
                sides = (*sides, Node("name", ("CHUNK", None)))
            super().execute_declare(Node("declare", ((kind, variable, sides, value),), n.line), scope)
            cell = scope.names[variable]
            if isinstance(cell.value, Pointer) and cell.value.base.kind == "local":
                unit = SIZES.get(kind.removeprefix("Chunk<").rstrip(">"), 4)
                base = replace(cell.value.base, unit=unit, data=kind in ("int32_t", "int64_t"))
                cell.value = replace(cell.value, base=base)
        return True

    def execute_for(self, n: Node, scope: Scope, shared: bool = False) -> Any:
        begin, condition, step, body = n.args
        copy = body.kind == "assign" and body.args[1].kind == "index" and body.args[1].args[0].kind == "name"
        trial = Scope(scope)
        self.dry += 1
        self.log.append([])
        self.execute(begin, trial)
        turns = 0
        most = COPIED if copy else self.few
        while turns <= most and folded(self.truth(self.value(condition, trial))) is True and step.kind != "block":
            self.value(step, trial)
            turns += 1
        for cell, before in reversed(self.log.pop()):
            cell.value = before
        self.dry -= 1
        if turns <= most and step.kind != "block":
            return super().execute_for(n, scope, shared)
        inner = Scope(scope)
        self.execute(begin, inner)
        return self.summary(n, inner, shared)


class GpuCalls:
    """What functions of the headers do with memory."""

    def __init__(self, walk: GpuWalk, start: Any) -> None:
        self.walk, self.start = walk, start
        number = folded(start + walk.block.number)
        self.index = Int(number, "int64_t")
        pure = CpuCalls(1, 1)
        self.calls: dict[str, Callable[..., Any]] = {
            "thread_index": lambda w, t, v: Int(w.threads.number), "block_index": lambda w, t, v: self.index,
            "load_streaming": self.copy, "keep": self.copy, "store_streaming": self.copy, "load1": pure.load1,
            "store1": pure.store1, "min": pure.minimum, "element_word": pure.nothing, "take_turn": self.turn,
            "barrier": self.barrier,
        }  # fmt: skip

    def copy(self, walk: GpuWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        to, source = values
        walk.moved(source, template[0].term, False)
        walk.moved(to, template[0].term, True)
        return OPAQUE

    def turn(self, walk: GpuWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Each block takes another turn, and they are as many as blocks: a turn is a number like a block's."""
        return self.index

    def barrier(self, walk: GpuWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        walk.phase[-1] += 1
        return OPAQUE


def _bits(value: Any) -> Bits | None:
    """A known number, or a set of bits, as such a set."""
    if isinstance(value, Int) and isinstance(value.term, int):
        return Bits(tuple(bool(value.term >> i & 1) for i in range(BITS_OF_A_SET)))
    return value if isinstance(value, Bits) else None


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    """One condition or the other."""
    if a is b or (not isinstance(a, bool) and not isinstance(b, bool) and a.eq(b)):
        return a
    return either(both(condition, a), both(no(condition), b))


def _only_numbers(term: Any) -> bool:
    """Whether no condition of a thread's own is part of a term."""
    stack = [term]
    while stack:
        t = stack.pop()
        if z3.is_app(t) and t.decl().arity() and t.decl().name().startswith("data!"):
            return False
        stack += t.children()
    return True
