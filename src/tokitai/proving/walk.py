"""A symbolic walk through an emitted kernel: every access that it makes, for all sizes at once.

Integers are terms of Z3 over the sizes of a call; what a kernel computes with (floats, hashes) is opaque. A loop is
walked once, for an iteration that stands for all: a variable that grows by the same amount each time is its first value
plus that many times the iteration, and whatever else changes is unknown but for bounds that are shown to be kept.
Functions of the headers are walked where they are called, from the text that is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import z3

from ..errors import ProofError
from .effects import quiet
from .logic import Term, both, either, folded, holds, no, variables
from .parse import Function, Node
from .shares import share_of
from .terms import Sum
from .values import (
    OPAQUE,
    Access,
    Base,
    Cell,
    Closure,
    Division,
    Frame,
    Int,
    Lanes,
    Loop,
    Opaque,
    Piece,
    Pointer,
    Ranged,
    Scope,
    Truth,
)

BITS = {"int": 32, "int32_t": 32, "int64_t": 64, "uint32_t": 32, "uint64_t": 64, "size_t": 64, "uintptr_t": 64,
        "unsigned": 32, "RowIndex": 64}  # fmt: skip
UNSIGNED = {"uint32_t", "uint64_t", "size_t", "uintptr_t", "unsigned"}
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "Stored": 4, "S": 4, "float": 4, "double": 8, "int32_t": 4, "int64_t": 8}


LET = "let_"  # ahead of the names of unknowns that are variables of the source


class Walk:
    """The walk through one kernel. ``knows`` are facts about the sizes; ``calls`` are what functions of a name do in
    place of their text."""

    # ------------------------------------------------------------------ what is known at a place
    def __init__(
        self, functions: Mapping[str, Sequence[Function]], knows: Sequence[Any],
        calls: Mapping[str, Callable[..., Any]], constants: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.functions, self.calls = functions, calls
        self.knows = list(knows)
        self.globals = Scope()
        for name, value in constants.items():
            self.globals.names[name] = Cell(value)
        self.when: list[Any] = []
        self.loops: list[Loop] = []
        self.frames: list[Frame] = [Frame(0)]
        self.log: list[list[tuple[Cell, Any]]] = []
        self.dry = 0
        self.accesses: list[Access] = []
        self.ranged: list[Ranged] = []
        self.phase: list[Any] = [0]
        self.alone = 0
        self.pieces: list[Piece] = []
        self.line = ""
        self.names = count()
        self.solver = z3.Solver()
        self.solver.set("timeout", 1500)
        self.known: dict[tuple[Any, ...], bool] = {}
        self.alive: list[Any] = []
        self.facts: list[Any] = []
        self.unknowns: list[set[int]] = []  # of each fact
        self.tables: dict[str, Mapping[int, Any]] = {}
        self.in_closure = 0
        self.divisions: dict[tuple[int, ...], Division] = {}
        self.multiples: list[Any] = []  # sizes below which a quotient may be shown to be
        self.memory: dict[tuple[str, int], tuple[Any, Any]] = {}  # whole numbers stored ahead of all loops, and when
        self.thread = z3.Int("thread")
        self.below: dict[int, Any] = {}  # quotients and rests, and what they are below
        self.naming = False  # whether variables that are choices and quotients become unknowns of their own
        self.cases: dict[str, int] = {}  # variables that index arrays of structures: how many numbers they may be
        self.contents: set[str] = set()  # memory whose whole numbers are a function of their place
        self.lemmas: Callable[[Sequence[Any]], list[Any]] = lambda terms: []  # what is known of such functions

    @property
    def own(self) -> Sequence[Any]:
        """Unknowns of which two threads differ in one at least."""
        return (self.thread,)

    def fresh(self, name: str) -> Any:
        """An unknown number."""
        return z3.Int(f"{name}!{next(self.names)}")

    def unknown_truth(self) -> Any:
        """A condition of which nothing is known."""
        return z3.Bool(f"data!{next(self.names)}")

    def follows(self, term: Any) -> bool:
        """Whether a condition follows from what is known here. False where that is not found out in time."""
        term = folded(term)
        if isinstance(term, bool):
            return term
        key = (term.get_id(), *(w.get_id() for w in self.when if not isinstance(w, bool)))
        if key not in self.known:
            self.solver.push()
            known = [*self.when, *self.relevant([term, *self.when])]
            self.solver.add(*self.knows, *known, *self.lemmas([term, *known]), z3.Not(term))
            self.known[key] = self.solver.check() == z3.unsat
            self.solver.pop()
            self.alive.append((term, list(self.when)))  # what lives keeps its number
        return self.known[key]

    def must(self, what: str, term: Any) -> None:
        """Record what has to hold here."""
        term = folded(term)
        if self.dry or term is True:
            return
        self.ranged.append(Ranged(what, term if term is not False else z3.BoolVal(False), tuple(self.when), self.line))

    def fact(self, term: Any) -> None:
        """What holds of numbers that were made up, wherever the source comes to this place."""
        self.facts.append(z3.Implies(both(*self.when), term) if self.when else term)

    def relevant(self, terms: Sequence[Any]) -> list[Any]:
        """The facts about the unknowns of these terms, and about those of such facts."""
        known = {v.get_id() for t in terms for v in variables(t)}
        found: list[Any] = []
        for f in self.facts[len(self.unknowns) :]:
            self.unknowns.append({v.get_id() for v in variables(f) if "!" in v.decl().name()})
        left = list(zip(self.facts, self.unknowns, strict=True))
        while more := [x for x in left if x[1] & known]:
            left = [x for x in left if not x[1] & known]
            found += [f for f, _ in more]
            known |= set().union(*(ids for _, ids in more))
        return found

    def under(self, condition: Any, run: Callable[[], Any]) -> Any:
        """Run with one more condition."""
        mark = len(self.when)
        self.when.append(condition)
        try:
            return run()
        finally:
            del self.when[mark:]

    # ------------------------------------------------------------------ whole numbers of C++
    def number(self, value: Any) -> Term:
        """The term of a value that must be a whole number."""
        if isinstance(value, Int):
            return value.term
        if isinstance(value, Truth):
            return int(value.term) if isinstance(value.term, bool) else z3.If(value.term, 1, 0)
        return self.fresh("data")

    def truth(self, value: Any) -> Any:
        """The condition that a value is not 0."""
        if isinstance(value, Truth):
            return value.term
        if isinstance(value, Int):
            return value.term != 0
        return self.unknown_truth()

    def arithmetic(self, mark: str, a: Int, b: Int) -> Any:
        """A C++ operation on whole numbers; the result must fit its type."""
        wide = "int64_t" if max(BITS.get(a.type, 64), BITS.get(b.type, 64)) == 64 else "int"
        both_unsigned = [t for t in (a.type, b.type) if t in UNSIGNED and BITS[t] == BITS[wide]]
        kind = both_unsigned[0] if both_unsigned else wide
        x, y = a.term, b.term
        fixed = isinstance(x, int) and isinstance(y, int)
        if mark in ("==", "!=", "<", ">", "<=", ">="):
            made = {"==": lambda: x == y, "!=": lambda: x != y, "<": lambda: x < y, ">": lambda: x > y,
                    "<=": lambda: x <= y, ">=": lambda: x >= y}[mark]()  # fmt: skip
            return Truth(folded(made))
        if mark in ("+", "-", "*"):
            made = x + y if mark == "+" else x - y if mark == "-" else x * y
            if not fixed:
                self.must(f"{kind} overflow", self.fits(made, kind))
            return Int(folded(made), kind)
        if mark in ("/", "%") and isinstance(y, int) and y == 1:
            return Int(x if mark == "/" else 0, kind)
        if mark in ("/", "%"):
            if isinstance(y, int) and y > 0 and (fixed or (not self.dry and self.follows(x >= 0))):
                made = (x // y if mark == "/" else x % y) if fixed else x / y if mark == "/" else x % y
                return Int(folded(made), kind)
            if fixed and y:
                q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
                return Int(q if mark == "/" else x - q * y, kind)
            if isinstance(y, int) and y > 0:
                q = z3.If(x >= 0, x / y, -((-x) / y))
                return Int(q if mark == "/" else x - q * y, kind)
            self.must("division by 0 or of a negative", both(y > 0, x >= 0))
            if mark == "/" and (share := share_of(x, y, self.below)) is not None:
                return Int(share, kind)
            made = self.divided(x, y)
            return Int(made.quotient if mark == "/" else made.rest, kind)
        if mark in ("<<", ">>") and isinstance(y, int):
            if mark == "<<":
                made = x * 2**y
                if not fixed:
                    self.must(f"{kind} overflow", self.fits(made, a.type))
                return Int(folded(made), a.type)
            return Int(x >> y if fixed else folded(x / 2**y), a.type)
        if fixed:
            made = {"&": x & y, "|": x | y, "^": x ^ y, "<<": 0, ">>": 0}[mark]
            return Int(made, kind)
        if mark == "&" and isinstance(y, int) and (y & (y + 1)) == 0:
            return Int(folded(x % (y + 1)), kind)
        made = self.fresh("bits")
        return Int(made, kind)

    def divided(self, x: Term, y: Term) -> Division:
        """A quotient by an unknown. Where x < n * y, it is below n."""
        x, y = (z3.IntVal(t) if isinstance(t, int) else t for t in (x, y))
        key: tuple[int, ...] = (x.get_id(), y.get_id(), *(w.get_id() for w in self.when if not isinstance(w, bool)))
        if self.dry or key not in self.divisions:
            made = Division(x, y, self.fresh("quotient"), self.fresh("rest"))
            q, r = made.quotient, made.rest
            if self.dry and self.naming:
                return made
            self.fact(z3.And(x == q * y + r, r >= 0, r < y, q >= 0, q <= x))
            if self.dry:
                return made
            self.below[r.get_id()] = y
            for n in [*self.multiples, *self.factors(x, y)]:
                if self.follows(x < n * y):
                    self.fact(q < n)
                    self.below[q.get_id()] = n
            self.divisions[key] = made
            self.alive.append((x, [y, *self.when]))
        return self.divisions[key]

    def factors(self, x: Any, y: Any) -> list[Any]:
        """What a loop's bound multiplies y by, where that bounds x."""
        bounds = [w.arg(1) for w in self.when if z3.is_app(w) and z3.is_lt(w) and w.arg(0).eq(x)]
        return [f for b in bounds if z3.is_mul(b) and b.num_args() == 2 and b.arg(0).eq(y) for f in [b.arg(1)]]

    def fits(self, term: Term, kind: str) -> Any:
        """Whether a number fits a type."""
        n = BITS.get(kind, 64)
        low, high = (0, 2**n - 1) if kind in UNSIGNED else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)
        return both(folded(term >= low), folded(term <= high))

    def converted(self, value: Any, kind: str) -> Any:
        """A value as it is kept in a variable of a type."""
        plain = kind.replace("const", "").rstrip("&")
        if plain in BITS:
            if isinstance(value, (Int, Truth)):
                term = self.number(value)
                if (
                    BITS[plain] < 64
                    and not isinstance(term, int)
                    and not (
                        isinstance(value, Int)
                        and BITS.get(value.type, 64) == BITS[plain]
                        and (value.type in UNSIGNED) == (plain in UNSIGNED)
                    )
                ):
                    self.must(
                        f"{plain} from {value.type if isinstance(value, Int) else 'bool'}", self.fits(term, plain)
                    )
                return Int(term, plain)
            return Int(self.fresh("data"), plain) if isinstance(value, Opaque) else value
        if plain == "bool" and isinstance(value, (Int, Opaque)):
            return Truth(self.truth(value))
        return value

    # ------------------------------------------------------------------ accesses, and what is known of memory
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

    def assign(self, cell: Cell, value: Any) -> None:
        """Give a variable a value."""
        if self.log:
            self.log[-1].append((cell, cell.value))
        cell.value = value

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

    # ------------------------------------------------------------------ expressions
    def value(self, n: Node, scope: Scope) -> Any:
        """The value of an expression; accesses in it are recorded."""
        made = getattr(self, f"value_{n.kind}", None)
        if made is None:
            raise ProofError(f"{self.line}: {n.kind} in an expression; accepted: what kernels are printed in")
        return made(n, scope)

    def value_number(self, n: Node, scope: Scope) -> Any:
        return Int(n.args[0], n.args[1] if len(n.args) > 1 else "int")

    def value_real(self, n: Node, scope: Scope) -> Any:
        return OPAQUE

    def value_string(self, n: Node, scope: Scope) -> Any:
        return OPAQUE

    def value_braces(self, n: Node, scope: Scope) -> Any:
        for a in n.args:
            self.value(a, scope)
        return OPAQUE

    def value_closure(self, n: Node, scope: Scope) -> Any:
        return Closure(n.args[0], n.args[1], scope)

    def value_comma(self, n: Node, scope: Scope) -> Any:
        found: Any = OPAQUE
        for a in n.args:
            found = self.value(a, scope)
        return found

    def value_name(self, n: Node, scope: Scope) -> Any:
        name = n.args[0]
        cell = scope.find(name) or self.globals.find(
            name.rpartition("::")[2] if "::" in name and "<" not in name else name
        )
        if "::" in name and self.globals.find(name):
            cell = self.globals.find(name)
        if cell is not None:
            return cell.value
        if name in ("true", "false"):
            return Truth(name == "true")
        if name == "nullptr":
            return Int(0)
        return OPAQUE

    def value_sizeof(self, n: Node, scope: Scope) -> Any:
        cell = scope.find(f"sizeof {n.args[0]}")
        return (
            cell.value
            if cell
            else Int(BYTES[n.args[0]], "size_t")
            if n.args[0] in BYTES
            else Int(self.fresh("size"), "size_t")
        )

    def value_cast(self, n: Node, scope: Scope) -> Any:
        value, unit = self.value(n.args[1], scope), unit_of(n.args[0])
        if isinstance(value, Pointer) and value.base.kind == "workspace" and unit and unit != value.base.unit:
            at = folded(value.at * value.base.unit)
            return replace(value, base=replace(value.base, unit=unit), at=parted(at, unit), dims=())
        return self.converted(value, n.args[0])

    def value_unary(self, n: Node, scope: Scope) -> Any:
        mark, inner = n.args
        if mark in ("++", "--"):
            return self.grow(inner, 1 if mark == "++" else -1, scope, after=False)
        if mark == "&":
            return self.place(inner, scope)
        value = self.value(inner, scope)
        if mark == "*":
            return self.loaded(value) if isinstance(value, Pointer) else OPAQUE
        if mark == "!":
            return Truth(no(self.truth(value)))
        if isinstance(value, (Int, Truth)) and mark in ("-", "+"):
            term = self.number(value)
            return Int(folded(-term if mark == "-" else term), getattr(value, "type", "int"))
        if isinstance(value, Int) and mark == "~" and isinstance(value.term, int):
            return Int(~value.term, value.type)
        return OPAQUE

    def value_after(self, n: Node, scope: Scope) -> Any:
        return self.grow(n.args[1], 1 if n.args[0] == "++" else -1, scope, after=True)

    def grow(self, target: Node, by: int, scope: Scope, after: bool) -> Any:
        before = self.value(target, scope)
        self.store_to(target, self.plus(before, by), scope)
        return before if after else self.plus(before, by)

    def plus(self, value: Any, by: Term) -> Any:
        """A value further on."""
        if isinstance(value, Pointer):
            return replace(value, at=folded(value.at + by))
        if isinstance(value, Int):
            made = self.arithmetic("+", value, Int(by, value.type))
            return Int(made.term, value.type)
        return OPAQUE

    def value_choose(self, n: Node, scope: Scope) -> Any:
        condition = folded(self.truth(self.value(n.args[0], scope)))
        if isinstance(condition, bool):
            return self.value(n.args[1 if condition else 2], scope)
        a = self.under(condition, lambda: self.value(n.args[1], scope))
        b = self.under(no(condition), lambda: self.value(n.args[2], scope))
        return self.merged(condition, a, b)

    def merged(self, condition: Any, a: Any, b: Any) -> Any:
        """One value or the other."""
        if a is b or a == b if not isinstance(a, (Int, Truth, Pointer, Lanes)) else a is b:
            return a
        if isinstance(a, (Int, Truth)) and isinstance(b, (Int, Truth)):
            if isinstance(a, Truth) and isinstance(b, Truth):
                x, y = (z3.BoolVal(v) if isinstance(v, bool) else v for v in (a.term, b.term))
                return Truth(z3.If(condition, x, y))
            x, y = self.number(a), self.number(b)
            if isinstance(x, int) and isinstance(y, int) and x == y:
                return a
            kinds = [getattr(v, "type", "int") for v in (a, b)]
            return Int(z3.If(condition, x, y), max(kinds, key=lambda k: BITS.get(k, 64)))
        if isinstance(a, Pointer) and isinstance(b, Pointer) and a.base == b.base:
            return replace(a, at=z3.If(condition, a.at, b.at))
        return OPAQUE

    def value_binary(self, n: Node, scope: Scope) -> Any:
        mark, left, right = n.args
        a = self.value(left, scope)
        if mark in ("&&", "||"):
            x = folded(self.truth(a))
            if isinstance(x, bool):
                return Truth(x) if x == (mark == "||") else Truth(folded(self.truth(self.value(right, scope))))
            y = self.under(x if mark == "&&" else no(x), lambda: self.truth(self.value(right, scope)))
            return Truth(folded(both(x, y) if mark == "&&" else either(x, y)))
        b = self.value(right, scope)
        if isinstance(a, Pointer) and isinstance(b, (Int, Truth)) and mark in ("+", "-"):
            return replace(a, at=folded(a.at + self.number(b) if mark == "+" else a.at - self.number(b)), dims=())
        if isinstance(a, (Int, Truth)) and isinstance(b, (Int, Truth)):
            x, y = (v if isinstance(v, Int) else Int(self.number(v)) for v in (a, b))
            return self.arithmetic(mark, x, y)
        if isinstance(a, Truth) and isinstance(b, Truth):
            return Truth(both(a.term, b.term) if mark == "&" else either(a.term, b.term))
        if mark in ("==", "!=", "<", ">", "<=", ">="):
            return Truth(self.unknown_truth())
        return OPAQUE

    def value_assign(self, n: Node, scope: Scope) -> Any:
        mark, target, source = n.args
        value = self.value(source, scope)
        if mark != "=":
            before = self.value(target, scope)
            if isinstance(before, Pointer) and isinstance(value, Int):
                value = self.plus(before, value.term if mark == "+=" else -value.term)
            elif isinstance(before, Int) and isinstance(value, Int):
                value = self.converted(self.arithmetic(mark[:-1], before, value), before.type)
            else:
                value = OPAQUE
        elif self.naming and not self.dry and target.kind == "name" and isinstance(value, Int) and composed(value.term):
            value = Int(self.named(target.args[0], value.term), value.type)
        self.store_to(target, value, scope)
        return value

    def store_to(self, target: Node, value: Any, scope: Scope) -> None:
        """Assign to what an expression names."""
        if target.kind == "name":
            cell = scope.find(target.args[0])
            if cell is None:
                raise ProofError(f"{self.line}: {target.args[0]} is not known; accepted: variables that are declared")
            self.assign(cell, self.converted(value, cell.type))
        elif target.kind == "choose":
            condition = folded(self.truth(self.value(target.args[0], scope)))
            for side, taken in ((target.args[1], condition), (target.args[2], no(condition))):
                before = self.value(side, scope)
                self.store_to(side, self.merged(taken, value, before), scope)
        elif target.kind == "member":
            self.value(target.args[0], scope)
        else:
            where = self.place(target, scope)
            if isinstance(where, Pointer):
                self.access(where, 1, True)
                self.remember(where, value)

    def place(self, n: Node, scope: Scope) -> Any:
        """Where an expression's value lies."""
        if n.kind == "index":
            base = self.value(n.args[0], scope)
            at = self.value(n.args[1], scope)
            return self.indexed(base, at)
        if n.kind == "unary" and n.args[0] == "*":
            return self.value(n.args[1], scope)
        if n.kind == "name":
            cell = scope.find(n.args[0])
            if cell is not None and isinstance(cell.value, Pointer):
                return cell.value
        if n.kind == "member":
            return self.value(n, scope)
        return OPAQUE

    def value_index(self, n: Node, scope: Scope) -> Any:
        base = self.value(n.args[0], scope)
        at = self.value(n.args[1], scope)
        if isinstance(base, Mapping):
            return base.get(self.number(at), OPAQUE)
        where = self.indexed(base, at)
        if isinstance(where, Pointer) and where.dims:
            return where
        return self.loaded(where) if isinstance(where, Pointer) else OPAQUE

    def value_member(self, n: Node, scope: Scope) -> Any:
        base = self.value(n.args[0], scope)
        if isinstance(base, Lanes) and n.args[1] == "count":
            return Int(base.count, "int64_t")
        if isinstance(base, dict):
            return base.get(n.args[1], OPAQUE)
        return OPAQUE

    def value_call(self, n: Node, scope: Scope) -> Any:
        callee, args = n.args
        if callee.kind == "member":
            owner = self.value(callee.args[0], scope)
            values = [self.value(a, scope) for a in args]
            name = f".{callee.args[1]}"
            if isinstance(owner, dict) and name in owner:
                return owner[name](self, *values)
            return self.calls[name](self, owner, values) if name in self.calls else OPAQUE
        if callee.kind != "name":
            return self.invoke(self.value(callee, scope), [self.value(a, scope) for a in args])
        name, given = callee.args[0].rpartition("::")[2], callee.args[1]
        cell = scope.find(name)
        if cell is not None and isinstance(cell.value, Closure) and "::" not in callee.args[0]:
            return self.invoke(cell.value, [self.value(a, scope) for a in args])
        values = [self.value(a, scope) for a in args]
        cells = [scope.find(a.args[0]) if a.kind == "name" else None for a in args]
        if name in BITS or name == "bool":
            return self.converted(values[0] if values else Int(0), name)
        template = [self.argument(a, scope) for a in given or ()]
        if name in self.calls:
            return self.calls[name](self, template, values)
        if name in self.functions:
            return self.function(name, template, values, cells)
        return OPAQUE

    def argument(self, n: Node, scope: Scope) -> Any:
        """A template argument: a number, or the name of a type."""
        name = n.args[0]
        known = n.kind != "name" or name in ("true", "false") or scope.find(name) or self.globals.find(name)
        return self.value(n, scope) if known else name

    def function(
        self, name: str, template: Sequence[Any], values: Sequence[Any], cells: Sequence[Cell | None] = ()
    ) -> Any:
        """A function of a header, walked; ``cells`` are the variables that are its arguments."""
        for f in self.functions[name]:
            if len(f.params) != len(values) or not all(map(_suits, (t for t, _ in f.params), values)):
                continue
            scope = Scope(self.globals)
            for i, (kind, variable, default) in enumerate(f.template):
                if kind.endswith("..."):
                    break
                if i < len(template):
                    scope.names[variable] = Cell(template[i])
                elif default is not None:
                    scope.names[variable] = Cell(self.value(default, scope))
            return self.run(f.params, f.body, scope, values, cells)
        raise ProofError(
            f"{self.line}: {name} with {len(values)} arguments is not known; accepted: what headers define"
        )

    def invoke(self, made: Any, values: Sequence[Any]) -> Any:
        """Call a closure."""
        if not isinstance(made, Closure):
            return OPAQUE
        self.in_closure += 1
        try:
            return self.run(made.params, made.body, Scope(made.scope), values)
        finally:
            self.in_closure -= 1

    def run(
        self, params: Sequence[tuple[str, str]], body: Node, scope: Scope, values: Sequence[Any],
        cells: Sequence[Cell | None] = (),
    ) -> Any:  # fmt: skip
        """Walk a body with its parameters. A reference to a whole number is the caller's variable."""
        frame = Frame(len(self.loops))
        for (kind, variable), value, cell in zip(params, values, cells or [None] * len(values), strict=True):
            if cell is not None and kind.rstrip("&") in BITS and kind.endswith("&"):
                scope.names[variable] = cell
                frame.references.append(cell)
            else:
                scope.names[variable] = Cell(self.converted(value, kind), kind)
        self.frames.append(frame)
        mark = frame.mark = len(self.when)
        line = self.line
        try:
            if self.execute(body, scope) is not False:
                frame.returns(True, OPAQUE)
        finally:
            self.frames.pop()
            self.line = line
        del self.when[mark:]
        if frame.broken or not frame.returned:
            for cell in frame.references:
                self.assign(cell, Int(self.fresh("data"), cell.value.type))
            return OPAQUE
        _, made, left = frame.returned[-1]
        for condition, value, there in reversed(frame.returned[:-1]):
            made = self.merged(condition, value, made) if not isinstance(condition, bool) else value
            left = [self.merged(condition, x, y) for x, y in zip(there, left, strict=True)]
        for cell, value in zip(frame.references, left, strict=True):
            self.assign(cell, value)
        return made

    # ------------------------------------------------------------------ loops, walked once
    def execute_for(self, n: Node, scope: Scope, shared: bool = False) -> Any:
        begin, condition, step, body = n.args
        if self.dry and self.quiet(n, scope):
            return True
        inner = Scope(scope)
        self.execute(begin, inner)
        if not shared and not (self.naming and self.once_known(n, inner)):
            for _ in range(33):
                go = folded(self.truth(self.value(condition, inner)))
                if not isinstance(go, bool) and not (step.kind == "block" and self.follows(no(go))):
                    break
                if go is not True:
                    return True
                self.turn(body, step, inner)
                if self.frames[-1].broken:
                    break
        return self.summary(n, inner, shared)

    def quiet(self, n: Node, scope: Scope) -> bool:
        """Whether a loop leaves all variables outside as they are."""

        def called(name: str) -> Node | bool | None:
            cell = scope.find(name)
            if cell is not None and isinstance(cell.value, Closure):
                return Node("closure", (cell.value.params, cell.value.body))
            mine = self.functions.get(name, ()) if name not in self.calls else ()
            return any(kind.endswith("&") and kind.rstrip("&") in BITS for f in mine for kind, _ in f.params) or None

        return quiet(n, called)

    def once_known(self, n: Node, scope: Scope) -> bool:
        """Whether a loop is known to begin and not how it goes on."""
        _, condition, step, _ = n.args
        if step.kind == "block" or folded(self.truth(self.value(condition, scope))) is not True:
            return False
        self.log.append([])
        self.value(step, scope)
        known = isinstance(folded(self.truth(self.value(condition, scope))), bool)
        for cell, before in reversed(self.log.pop()):
            cell.value = before
        return not known

    def turn(self, body: Node, step: Node, scope: Scope) -> None:
        self.execute(body, Scope(scope))
        self.value(step, scope) if step.kind != "block" else None

    def changes(self, n: Node, scope: Scope) -> dict[int, tuple[Cell, Any, Any]]:
        """Variables that one iteration changes: before and after."""
        _, condition, step, body = n.args
        born = next(Cell.made)
        self.log.append([])
        self.dry += 1
        mark, phase, broken = len(self.when), list(self.phase), self.frames[-1].broken
        returned = len(self.frames[-1].returned)
        go = folded(self.truth(self.value(condition, scope)))
        if go is not False:
            self.when.append(go)
            self.turn(body, step, scope)
        del self.when[mark:]
        del self.frames[-1].returned[returned:]
        self.phase, self.dry = phase, self.dry - 1
        self.breaks = self.frames[-1].broken
        self.frames[-1].broken = broken
        log = self.log.pop()
        found: dict[int, tuple[Cell, Any, Any]] = {}
        for cell, before in log:
            if cell.born < born:  # else one of the iteration's own
                found.setdefault(id(cell), (cell, before, cell.value))
        for cell, before in reversed(log):
            cell.value = before
        return found

    def summary(self, n: Node, scope: Scope, shared: bool) -> Any:
        """An iteration that stands for all, then the state behind the loop."""
        _, condition, _step, body = n.args
        changed = {k: c for k, c in self.changes(n, scope).items() if c[0].type != "local"}
        first = {k: c.value for k, (c, _, _) in changed.items()}
        unknown: dict[int, Any] = {}
        for k, (cell, _, _) in changed.items():
            if isinstance(cell.value, Int):
                unknown[k] = self.fresh("before")
                self.assign(cell, Int(unknown[k], cell.value.type))
            elif isinstance(cell.value, Pointer):
                unknown[k] = self.fresh("before")
                self.assign(cell, replace(cell.value, at=unknown[k]))
            else:
                self.assign(cell, OPAQUE if not isinstance(cell.value, Truth) else Truth(self.unknown_truth()))
        again = self.changes(n, scope)
        breaks = self.breaks
        k_ = self.fresh("k")
        linear: dict[int, tuple[Any, Any]] = {}
        for k, s in unknown.items():
            after = again[k][2] if k in again else None
            term = after.term if isinstance(after, Int) else after.at if isinstance(after, Pointer) else None
            if term is None:
                continue
            grown = folded(z3.simplify(term - s, som=True) if not isinstance(term, int) else term)
            if isinstance(term, int):
                continue
            known = isinstance(grown, int) or not any(holds(grown, u) for u in unknown.values())
            if known and _invariant(grown):
                linear[k] = (_term(first[k]), grown)
        for k, (f, d) in linear.items():
            cell = changed[k][0]
            at = folded(f + k_ * d)
            cell.value = Int(at, cell.value.type) if isinstance(cell.value, Int) else replace(cell.value, at=at)
        kept = self.invariants(n, scope, {k: s for k, s in unknown.items() if k not in linear}, first, k_)
        mark = len(self.when)
        self.when += [k_ >= 0, *kept]
        if unknown.keys() == linear.keys():
            self.dry += 1
            before = folded(self.truth(self.value(condition, scope)))
            self.dry -= 1
            if not isinstance(before, bool):  # the iteration before this one went on
                self.when.append(z3.Or(k_ == 0, z3.substitute(before, (k_, k_ - 1))))
        go = folded(self.truth(self.value(condition, scope)))
        self.when.append(go)
        loop = Loop(next(self.names), k_, shared)
        self.loops.append(loop)
        self.log.append([])
        self.execute(body, Scope(scope))
        log = self.log.pop()
        for cell, before in reversed(log):
            cell.value = before
        self.loops.pop()
        del self.when[mark:]
        return self.behind(n, scope, linear, changed, unknown, kept, k_, breaks)

    def invariants(
        self, n: Node, scope: Scope, unknown: Mapping[int, Any], first: Mapping[int, Any], k_: Any
    ) -> list[Any]:
        """Bounds of variables that grow unevenly which hold at first, and which an iteration keeps."""
        made: dict[tuple[int, int], Callable[[Any], Any]] = {}
        for k in unknown:
            f = _term(first[k])
            made |= {(k, 0): partial(_least, 0), (k, 1): partial(_most, f), (k, 2): partial(_least, f)}
        made = {key: c for key, c in made.items() if self.follows(c(_term(first[key[0]])))}
        while made:
            mark = len(self.when)
            self.when += [k_ >= 0, *(c(unknown[k]) for (k, _), c in made.items())]
            self.when.append(folded(self.truth(self.value(n.args[1], scope))))
            again = self.changes(n, scope)
            lost = []
            for key, c in made.items():
                after = again.get(key[0])
                term = None if after is None else _term(after[2])
                if after is not None and (term is None or not self.follows(c(term))):
                    lost.append(key)
            del self.when[mark:]
            if not lost:
                return [c(unknown[k]) for (k, _), c in made.items()]
            for key in lost:
                del made[key]
        return []

    def behind(
        self, n: Node, scope: Scope, linear: Mapping[int, tuple[Any, Any]], changed: Mapping[int, Any],
        unknown: Mapping[int, Any], kept: Sequence[Any], k_: Any, breaks: bool,
    ) -> Any:  # fmt: skip
        """The state behind a loop."""
        self.dry += 1
        condition = folded(self.truth(self.value(n.args[1], scope)))
        self.dry -= 1
        turns = None if breaks else self.closed(condition, k_)
        facts: list[Any] = []
        if turns is None:
            turns = self.fresh("turns")
            at_end = z3.substitute(condition, (k_, turns)) if not isinstance(condition, bool) else z3.BoolVal(condition)
            facts = [turns >= 0] if breaks else [turns >= 0, z3.Not(at_end)]
            if not unknown.keys() - linear.keys():
                before = condition if isinstance(condition, bool) else z3.substitute(condition, (k_, turns - 1))
                facts.append(z3.Or(turns == 0, before))
            facts += kept
        for k, (cell, _, _) in changed.items():
            if k in linear:
                f, d = linear[k]
                at = folded(f + turns * d)
                value = cell.value
                self.assign(cell, Int(at, value.type) if isinstance(value, Int) else replace(value, at=at))
        for fact in facts:
            self.fact(fact)
        return True

    def closed(self, condition: Any, k_: Any) -> Any:
        """How many iterations a loop has whose condition is that something which grows evenly is below a bound."""
        if isinstance(condition, bool) or z3.is_and(condition):
            return None
        c = condition
        strict = None
        if z3.is_lt(c) or z3.is_le(c):
            low, high, strict = c.arg(0), c.arg(1), z3.is_lt(c)
        elif z3.is_gt(c) or z3.is_ge(c):
            low, high, strict = c.arg(1), c.arg(0), z3.is_gt(c)
        if strict is None:
            return None
        gap = high - low  # falls by d each time; the loop goes on while it is above 0, or at least 0
        at0 = z3.substitute(gap, (k_, z3.IntVal(0)))
        d = folded(z3.simplify(at0 - z3.substitute(gap, (k_, z3.IntVal(1))), som=True))
        rest = z3.simplify(gap - at0 + k_ * d, som=True)
        if not isinstance(d, int) or d <= 0 or folded(rest) != 0:
            return None
        top = at0 + d - 1 if strict else at0 + d
        return folded(z3.If(top < d, 0, z3.simplify(top) / d))

    # ------------------------------------------------------------------ statements
    def execute(self, n: Node, scope: Scope) -> Any:
        """Walk a statement. Returns under which condition the next one is reached."""
        if n.line:
            self.line = n.line
        made = getattr(self, f"execute_{n.kind}", None)
        if made is not None:
            return made(n, scope)
        self.value(n, scope)
        return True

    def execute_in(self, n: Node, scope: Scope) -> None:
        """Walk the statements of a block whose variables stay known."""
        for s in n.args:
            self.execute(s, scope)

    def execute_block(self, n: Node, scope: Scope) -> Any:
        inner, live = Scope(scope), True
        mark = len(self.when)
        for i, s in enumerate(n.args):
            here = self.execute(s, inner)
            if s.kind == "declare" and (several := self.several(s, inner)):
                cell, count = several
                for k in range(count):  # the rest, for each number that the variable may be
                    self.under(cell.value.term == k, partial(self.rest, Node("block", n.args[i + 1 :]), inner, cell, k))
                break
            if here is False:
                live = False
                break
            if here is not True:
                self.when.append(here)
                live = both(live, here)
        del self.when[mark:]
        return live

    def named(self, variable: str, term: Any) -> Any:
        """An unknown that is a term, so that what is made of it stays small."""
        name = self.fresh(f"{LET}{variable}")
        self.facts.append(name == term)
        return name

    def several(self, n: Node, scope: Scope) -> tuple[Cell, int] | None:
        """A variable that is declared here whose few numbers are walked one by one."""
        found = [(scope.names[name], self.cases[name]) for _, name, _, _ in n.args if name in self.cases]
        return next(((c, k) for c, k in found if isinstance(c.value, Int) and not isinstance(c.value.term, int)), None)

    def rest(self, n: Node, scope: Scope, cell: Cell, k: int) -> None:
        """What follows, for one number of a variable."""
        before, cell.value = cell.value, Int(k, cell.value.type)
        self.execute(n, scope)
        cell.value = before

    def execute_declare(self, n: Node, scope: Scope) -> Any:
        for kind, variable, sides, value in n.args:
            struct = self.calls.get(kind.partition("<")[0])
            given = value.args if value is not None and value.kind == "braces" else ()
            if sides and given and (struct or kind == "bool"):
                scope.names[variable] = Cell(
                    {
                        i: self.structure(struct, a, scope) if struct else self.value(a, scope)
                        for i, a in enumerate(given)
                    }
                )
                continue
            if struct and given:
                scope.names[variable] = Cell(self.structure(struct, value, scope))
                continue
            if sides:
                dims = tuple(self.number(self.value(s, scope)) if s is not None else 0 for s in sides)
                base = Base(f"{variable}@{next(self.names)}" if self.dry else variable, "local", False, False, dims)
                if value is not None and value.kind == "braces":
                    for a in value.args:
                        self.value(a, scope)
                scope.names[variable] = Cell(Pointer(base, 0, dims), kind)
                continue
            made = OPAQUE if value is None else self.value(value, scope)
            if value is not None and value.kind == "braces" and value.args and kind in BITS:
                made = self.value(value.args[0], scope)
            if value is None and kind in BITS:
                made = Int(self.fresh(variable), kind)
            made = self.converted(made, kind)
            if self.naming and not self.dry and isinstance(made, Int) and composed(made.term):
                made = Int(self.named(variable, made.term), made.type)
            if isinstance(made, Pointer) and kind.endswith("*") and not (self.loops or self.in_closure or self.dry):
                made = self.piece(variable, made, kind.replace("const", "").rstrip("*") in BITS)
            scope.names[variable] = Cell(made, kind)
        return True

    def structure(self, make: Callable[..., Any], n: Node, scope: Scope) -> Any:
        """A structure of what stands in braces, or what an expression gives."""
        return make(self, [], [self.value(a, scope) for a in n.args]) if n.kind == "braces" else self.value(n, scope)

    def execute_if(self, n: Node, scope: Scope) -> Any:
        condition = folded(self.truth(self.value(n.args[0], scope)))
        if isinstance(condition, bool):
            return self.execute(n.args[1 if condition else 2], Scope(scope))
        found = []
        for branch, c in ((n.args[1], condition), (n.args[2], no(condition))):
            self.log.append([])
            live = self.under(c, lambda branch=branch: self.execute(branch, Scope(scope)))  # type: ignore[misc]
            log = self.log.pop()
            changed = {id(cell): (cell, cell.value) for cell, _ in log}
            for cell, before in reversed(log):
                cell.value = before
            found.append((live, changed))
        (live_a, a), (live_b, b) = found
        for key in {**a, **b}:
            cell = (a.get(key) or b[key])[0]
            x = a[key][1] if key in a else cell.value
            y = b[key][1] if key in b else cell.value
            self.assign(cell, y if live_a is False else x if live_b is False else self.merged(condition, x, y))
        return folded(either(both(condition, live_a), both(no(condition), live_b)))

    def execute_return(self, n: Node, scope: Scope) -> Any:
        value = OPAQUE if n.args[0] is None else self.value(n.args[0], scope)
        frame = self.frames[-1]
        frame.returns(both(*self.when[frame.mark :]), value)
        if len(self.loops) > frame.depth:
            frame.broken = True
        return False

    def execute_break(self, n: Node, scope: Scope) -> Any:
        self.frames[-1].broken = True
        return False

    def execute_continue(self, n: Node, scope: Scope) -> Any:
        return False

    def execute_omp(self, n: Node, scope: Scope) -> Any:
        pragma, statement = n.args
        if " parallel" in pragma:  # one thread alone runs what is ahead of it and behind it
            before, self.alone = self.alone, 0
            self.phase[-1] += 1
            self.execute(statement, scope)
            self.phase[-1] += 1
            self.alone = before
            return True
        if " single" in pragma:
            self.alone = next(self.names) + 1
            self.execute(statement, scope)
            self.alone = 0
        else:
            self.execute_for(statement, scope, shared=True)
        if "nowait" not in pragma:
            self.phase[-1] += 1
        return True

    def execute_each(self, n: Node, scope: Scope) -> Any:
        return True  # over elements of a value that no index is made of


def parted(total: Any, unit: int) -> Any:
    """A number of bytes in elements of so many."""
    if isinstance(total, int):
        return total // unit
    made = Sum(total)
    if any(n % unit for n in made.parts.values()):
        return total / unit
    return made.term({m: n // unit for m, n in made.parts.items()})


def composed(term: Any) -> bool:
    """Whether a term has choices or quotients."""
    return not isinstance(term, int) and any(not z3.is_const(a) for a in Sum(term).atoms.values())


def unit_of(kind: str) -> int | None:
    """Bytes of what a pointer of a type leads to, where that is known."""
    return BYTES.get(kind.replace("const", "").rstrip("*")) if kind.endswith("*") else None


def _suits(kind: str, value: Any) -> bool:
    """Whether a value can be passed for a parameter of this type."""
    plain = kind.replace("const", "")
    if plain.endswith("*"):
        return isinstance(value, Pointer)
    if plain in BITS:
        return isinstance(value, (Int, Truth, Opaque))
    if plain in ("Full", "Four", "Part"):
        return isinstance(value, Lanes) and value.kind == plain
    if plain in ("V", "S"):
        return isinstance(value, Opaque)
    return True


def _least(bound: Any, x: Any) -> Any:
    return x >= bound


def _most(bound: Any, x: Any) -> Any:
    return x <= bound


def _term(value: Any) -> Any:
    return value.term if isinstance(value, Int) else value.at if isinstance(value, Pointer) else None


def _invariant(term: Any) -> bool:
    """Whether a term is made of what was known ahead of the loop: nothing that was made up meanwhile."""
    return not any("data" in str(v) or "quotient" in str(v) for v in variables(term))
