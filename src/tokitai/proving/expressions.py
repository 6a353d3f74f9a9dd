"""The values of expressions.

Functions of the headers are walked where they are called, from the text that is compiled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import z3

from ..errors import ProofError
from .arithmetic import BITS
from .logic import Term, both, either, folded, no
from .memory import BYTES, Memory, parted, unit_of
from .parse import Function, Node
from .terms import Sum
from .values import OPAQUE, Cell, Closure, Frame, Int, Lanes, Opaque, Pointer, Scope, Truth


class Expressions(Memory, ABC):
    """``functions`` are those of the headers; ``calls`` are what functions of a name do in place of their text;
    ``constants`` are known everywhere."""

    def __init__(
        self, functions: Mapping[str, Sequence[Function]], knows: Sequence[Any],
        calls: Mapping[str, Callable[..., Any]], constants: Mapping[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(knows)
        self.functions, self.calls = functions, calls
        self.globals = Scope()
        for name, value in constants.items():
            self.globals.names[name] = Cell(value)
        self.frames: list[Frame] = [Frame(0)]
        self.log: list[list[tuple[Cell, Any]]] = []  # what variables were ahead of what is tried
        self.in_closure = 0
        self.cases: dict[str, int] = {}  # variables that index arrays of structures: how many numbers they may be

    @abstractmethod
    def execute(self, n: Node, scope: Scope) -> Any:
        """Walk a statement. Returns under which condition the next one is reached."""

    def assign(self, cell: Cell, value: Any) -> None:
        """Give a variable a value."""
        if self.log:
            self.log[-1].append((cell, cell.value))
        cell.value = value

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
            owner = self.value(target.args[0], scope)
            if isinstance(owner, dict):
                owner[target.args[1]] = value
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


def composed(term: Any) -> bool:
    """Whether a term has choices or quotients."""
    return not isinstance(term, int) and any(not z3.is_const(a) for a in Sum(term).atoms.values())


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
