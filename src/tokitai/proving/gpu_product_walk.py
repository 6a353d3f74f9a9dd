"""The walk through a matrix product's kernel for GPUs: a unit of work, and what blocks copy of operands for it.

A unit of work is a tile of a result's matrix and a slice of its chains. Blocks take units in turn: block b of n has
the units b, b + n, b + 2 n and so on, so each is that of one block and iteration, and stands for both. The source takes
digits of a unit, by the counts of tiles, slices and matrices; so it is walked as these digits.

Modelled, not walked: where an operand's pointers are (`at` of ``Loader``, each of which begins as ``start`` says and
goes on by a step with each K-tile), and pending partials, whose room is a statement about the launch. Not stated is
what lies in shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import z3

from ..errors import ProofError
from ..formats import FORMATS
from .effects import parts
from .gpu import TYPES, Digits, Emitted, GpuWalk
from .logic import both, folded
from .memory import parted
from .parse import Function, Node, functions_of
from .terms import Sum
from .values import OPAQUE, Base, Cell, Int, Pointer, Scope, Truth

OF_LOADER = ("start", "line_of", "k_of", "fetch")


@dataclass(frozen=True)
class Number:
    """A number below a product of counts, by its digits, the lowest first: each is an unknown below its count."""

    digits: tuple[tuple[Any, Any], ...]

    @property
    def count(self) -> Any:
        """How many such numbers there are."""
        made: Any = 1
        for _, n in self.digits:
            made = made * n
        return made

    def cut(self, by: Any) -> int | None:
        """How many of the lowest digits a divisor takes off; None where it is no product of their counts."""
        made: Any = 1
        for i, (_, n) in enumerate(self.digits):
            made = made * n
            if _same(made, by):
                return i + 1
        return None


@dataclass(frozen=True)
class First:
    """The first chain of a slice: a name for the product that it is."""

    name: Any
    of: Any


@dataclass(frozen=True)
class Group:
    """A group of those that partition the rows or the K dimension: of a range, as the tensor ``offsets`` says. Of rows
    it is found by a block; of the K dimension it is the item of a unit."""

    along: str = ""
    offsets: str = ""
    range: Mapping[str, Any] = field(default_factory=dict)  # index, begin and count
    counts: Sequence[Any] = ()  # tiles of its rows; or its slices, which are one where there is one

    @property
    def own(self) -> list[Any]:
        """What tells it from others, where no digit of a unit does."""
        return [self.range["index"]] if self.along == "r" else []

    @property
    def follow(self) -> list[Any]:
        """What it has."""
        return [self.range["begin"], self.range["count"], *self.counts] if self.along else []


@dataclass(frozen=True)
class Addresses:
    """The pointers of a loader."""

    of: dict[str, Any]


def _same(a: Any, b: Any) -> bool:
    return not Sum(a - b).parts


class ProductWalk(GpuWalk):
    """The walk through one kernel. ``unit`` is the number that its blocks take in turn, or each thread ``alone``;
    ``counted_up`` are counts that have a name: of what, by how many, the count. ``group`` is one of those that
    partition a dimension; ``first`` is the name of the first chain of a slice."""

    def __init__(
        self, source: Emitted, knows: Sequence[Any], thread: Digits, unit: Number, names: Mapping[str, Any],
        counted_up: Sequence[tuple[Any, Any, Any]], alone: bool, first: First, group: Group,
    ) -> None:  # fmt: skip
        self.group = group
        self.unit, self.counted_up, self.alone_in_turn, self.first = unit, counted_up, alone, first
        super().__init__(source, knows, Digits((), ()), thread, names=names)
        own = [d for d, _ in unit.digits if not isinstance(d, int)]
        self.follow = [first.name, *group.follow]  # which follow from the others
        self.digits = (*own, *group.follow, *(() if alone else (*thread.digits, *group.own, first.name)))
        self.loaders: list[dict[str, Any]] = []
        self.calls = {**self.calls, **ProductCalls(self).calls}

    # ------------------------------------------------------------------ numbers by their digits
    def value_binary(self, n: Node, scope: Scope) -> Any:
        mark, left, right = n.args
        if mark in ("/", "%", "<", ">="):
            a = self.value(left, scope)
            if isinstance(a, Number):
                return self.of_number(mark, a, self.number(self.value(right, scope)))
            left = Node("known", (a,))
        return super().value_binary(Node("binary", (mark, left, right)), scope)

    def arithmetic(self, mark: str, a: Int, b: Int) -> Any:
        """The first chain of a slice has a name. The last bit of 0 or 1, changed."""
        made = super().arithmetic(mark, a, b)
        if mark == "*" and not isinstance(made.term, int) and _same(made.term, self.first.of):
            return replace(made, term=self.first.name)
        if mark == "^" and b.term == 1 and not isinstance(a.term, int):
            return replace(made, term=z3.If(a.term == 0, 1, z3.If(a.term == 1, 0, made.term)))
        return made

    def of_number(self, mark: str, a: Number, by: Any) -> Any:
        """What is taken of a number by digits."""
        if mark in ("<", ">="):
            if not _same(a.count, by):
                raise ProofError(f"{self.line}: a bound of {by}; accepted: {a.count}, as many as there are")
            return Truth(mark == "<")
        cut = a.cut(by)
        if cut is None or (mark == "%" and cut > 1):
            raise ProofError(f"{self.line}: {mark} {by} of a number whose digits count {[n for _, n in a.digits]}")
        left = a.digits[:cut] if mark == "%" else a.digits[cut:]
        return Int(left[0][0], "int64_t") if len(left) == 1 else Number(left) if left else Int(0, "int64_t")

    def value_assign(self, n: Node, scope: Scope) -> Any:
        mark, target, source = n.args
        if mark == "/=" and isinstance(self.value(target, scope), Number):
            made = self.value(Node("binary", ("/", target, source)), scope)
            self.store_to(target, made, scope)
            return made
        return super().value_assign(n, scope)

    def execute_for(self, n: Node, scope: Scope, shared: bool = False) -> Any:
        """A loop in which blocks take units in turn, once for any unit."""
        begin, condition, step, body = n.args
        if not any(p.kind == "name" and p.args[0] == "grid_size" for p in parts(step)):
            return super().execute_for(n, scope, shared)
        inner = Scope(scope)
        ((kind, variable, _, first),) = begin.args
        self.in_turn(self.number(self.value(first, scope)), self.number(self.value(step.args[2], scope)))
        inner.names[variable] = Cell(self.unit, kind)
        self.truth(self.value(condition, inner))
        self.execute(body, inner)
        return True

    def in_turn(self, first: Any, step: Any) -> None:
        """That blocks, and their threads where each takes a unit of its own, begin with one unit each and go on by as
        many as there are: so each unit is that of one of them, in one iteration."""
        block, grid = z3.Int("block"), z3.Int("grid")
        each, own = Sum(first).along(block)
        mine = self.threads.count if self.alone_in_turn else 1
        if not (_same(each, mine) and _same(step, grid * each) and _same(own, self.threads.number if mine != 1 else 0)):
            raise ProofError(f"{self.line}: units from {first} on, by {step}; accepted: each of one block or thread")

    # ------------------------------------------------------------------ memory
    def loaded(self, where: Any, n: Any = 1) -> Any:
        """An offset of the group's, as it was taken."""
        made = super().loaded(where, n)
        if isinstance(where, Pointer) and where.base.name == self.group.offsets:
            begin, count, index = (self.group.range[n] for n in ("begin", "count", "index"))
            for at, value in ((index, begin), (index + 1, begin + count)):
                if _same(where.at, at):
                    return Int(value, "int64_t")
        return made

    def access(self, where: Any, n: Any, write: bool) -> None:
        if not (isinstance(where, Pointer) and where.base.kind == "shared"):  # of which nothing is stated
            super().access(where, n, write)

    # ------------------------------------------------------------------ loaders
    def execute_declare(self, n: Node, scope: Scope) -> Any:
        for one in n.args:
            kind, variable, sides, value = one
            if value == Node("call", (Node("name", ("block_index", None)), ())):  # a block for each unit
                scope.names[variable] = Cell(self.unit, kind)
                continue
            if sides and value is None and kind in ("Left", "Right"):
                count = self.number(self.value(sides[0], scope))
                scope.names[variable] = Cell({i: self.calls[kind](self, [], []) for i in range(count)})
            else:
                super().execute_declare(Node("declare", (one,), n.line), scope)
        return True

    def value_index(self, n: Node, scope: Scope) -> Any:
        if n.args[0].kind == "name" and isinstance(at := self.value(n.args[0], scope), Addresses):
            return self.address(at.of, self.value(n.args[1], scope))
        return super().value_index(n, scope)

    def address(self, loader: dict[str, Any], i: Any) -> Pointer:
        """Pointer i: where ``start`` puts it, and a step on for each K-tile."""
        scope = Scope(loader["started"])
        scope.names["i"] = Cell(i, "int")
        self.loaders.append(loader)
        *declared, put = loader["put"].args
        for d in declared:
            self.execute(d, scope)
        where = self.value(put.args[2], scope)
        self.loaders.pop()
        assert isinstance(where, Pointer)
        step = self.number(loader["started"].find("step").value)
        deep = self.number(self.globals.names["DEPTH"].value)
        if any(n % deep for n in Sum(step).parts.values()):
            raise ProofError(f"{self.line}: a step of {step}; accepted: one over {deep} products along k")
        each = parted(step, deep)  # to the next product along k
        return replace(where, at=folded(Sum(where.at + (loader["first"] - loader["left"]) * each).term()))

    def value_call(self, n: Node, scope: Scope) -> Any:
        callee, args = n.args
        if callee.kind == "member" and callee.args[1] in ("start", "fetch", "advance", "put"):
            loader = self.value(callee.args[0], scope)
            template = [self.argument(a, scope) for a in callee.args[2] or ()]
            return loader[f".{callee.args[1]}"](self, template, [self.value(a, scope) for a in args])
        return super().value_call(n, scope)

    def of_loader(self, loader: dict[str, Any], name: str, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """A function of a loader, walked in the scope of its members."""
        f: Function = loader["functions"][name][0]
        inner = Scope(loader["scope"])
        inner.names |= {t: Cell(v) for (_, t, _), v in zip(f.template, template, strict=True)}
        self.loaders.append(loader)
        made = self.run(f.params, f.body, inner, values)
        self.loaders.pop()
        return made


class ProductCalls:
    """What functions of the headers of products do with memory."""

    def __init__(self, walk: ProductWalk) -> None:
        self.source = walk.source
        nothing = walk.calls["element_word"]
        self.calls: dict[str, Callable[..., Any]] = {
            "Work": self.work, "ceil_div": self.rounded_up, "Unit": self.unit, "Tile": self.tile, "Group": self.group,
            "Operand": self.operand, **{n: partial(self.loader, walk, n) for n in ("Left", "Right")},
            "line_of": self.own("line_of"), "k_of": self.own("k_of"), "over_slices": self.over_slices,
            "block_index": lambda w, t, v: Int(z3.Int("block"), "int64_t"),
            "grid_size": lambda w, t, v: Int(z3.Int("grid"), "int64_t"),
            **dict.fromkeys(("fill", "multiply", "join_chain", "k_padding", "empty_sum", "result_of"), nothing),
        }  # fmt: skip

    def work(self, walk: Any, template: Any, values: Sequence[Any]) -> Any:
        """By the constructor and the functions of the header."""
        names = ("rows", "cols", "k_size", "batch", "chains_per_slice")
        made: dict[str, Any] = dict(zip(names, values, strict=True))
        struct = self.source.text.partition("struct Work {")[2].partition("\n};")[0]

        def of(pattern: str, values: Sequence[Any] = ()) -> Any:
            """The value of the expression that stands last in a pattern, behind parameters where there are any."""
            m = re.search(pattern, struct)
            if m is None:
                raise ProofError(f"no part of Work in the headers; accepted: one that matches {pattern}")
            scope = Scope(walk.globals)
            scope.names |= {n: Cell(v) for n, v in made.items()}
            params = m[1].split(",") if values else []
            scope.names |= {p.split()[-1]: Cell(v) for p, v in zip(params, values, strict=True)}
            return walk.value(self.source.parser(m[m.lastindex or 1]).expression(), scope)

        for name in ("down", "across", "chains"):
            made[name] = of(rf"\b{name}\((ceil_div\(\w+, \w+\))\)")
        for name in ("slices", "units"):
            made[name] = of(rf"\b{name} = ([^;]*);")
            for count in walk.group.counts:  # has a name
                if not isinstance(made[name].term, int) and walk.follows(made[name].term == count):
                    made[name] = Int(count, "int64_t")
        index = r"INLINE int64_t index\(([^)]*)\) const \{\s*return ([^;]*);"
        pending = dict.fromkeys((".slice_partials", ".pending_of_block"), lambda walk: Int(0, "int64_t"))

        def place(walk: Any, *given: Any) -> Any:
            """Of a slice's sum: below the number of all such sums, of which memory has room."""
            walk.dry += 1
            at = of(index, given)
            walk.dry -= 1
            slice_, _, *digits = map(walk.number, given)
            below = (walk.number(made[m]) for m in ("batch", "rows", "cols"))
            ranges = [both(folded(d >= 0), folded(d < m)) for d, m in zip(digits, below, strict=True)]
            walk.must("index of slices", both(folded(slice_ >= 0), folded(slice_ < made["slices"].term), *ranges))
            return at

        return {**made, **pending, ".index": place}

    def rounded_up(self, walk: Any, template: Any, values: Sequence[Any]) -> Any:
        """A count that has a name."""
        a, b = map(walk.number, values)
        for of, by, count in walk.counted_up:
            if _same(of, a) and _same(by, b):
                return Int(count, "int64_t")
        raise ProofError(f"{walk.line}: {a} / {b}, rounded up; accepted: tiles, chains and slices")

    def group(self, walk: Any, template: Any, values: Sequence[Any]) -> Any:
        """What a block finds: a group, and one of the units of its product. Each unit of each group is found by one
        block."""
        made: dict[str, Any] = {}

        def find(walk: Any, offsets: Any, groups: Any, each: Any, at: Any) -> Any:
            units = walk.unit.digits[1:]
            if not _same(walk.number(each), Number(units).count) or at is not walk.unit:
                raise ProofError(f"{walk.line}: no unit of its own for each block; accepted: {units} for each tile")
            made.update(taken(walk), unit=walk.unit)
            return Truth(True)

        def take(walk: Any, offsets: Any, group: Any) -> Any:
            if not _same(walk.number(group), walk.group.range["index"]):
                raise ProofError(f"{walk.line}: group {group}; accepted: that of the unit")
            made.update(taken(walk))
            return OPAQUE

        def taken(walk: Any) -> dict[str, Any]:
            return {n: Int(v, "int64_t") for n, v in walk.group.range.items()}

        made |= {".find": find, ".take": take}
        return made

    def operand(self, walk: Any, template: Any, values: Sequence[Any]) -> Any:
        return dict(zip(("data", "stride"), values, strict=True))

    def unit(self, walk: Any, template: Any, values: Sequence[Any]) -> Any:
        """By the constructor of the header."""
        if not values:
            return {}
        m = re.search(r"INLINE Unit\(const Work& work, int64_t unit\) (?=\{)", self.source.text)
        if m is None:
            raise ProofError("no Unit(const Work& work, int64_t unit) in the headers; accepted: one")
        scope = Scope(walk.globals)
        members = ("r0", "c0", "slice", "item")
        scope.names |= {n: Cell(OPAQUE) for n in members}
        scope.names |= {"work": Cell(values[0]), "unit": Cell(values[1])}
        for s in self.source.parser(self.source.text[m.end() :]).block().args:
            walk.execute(s, scope)
        return {n: scope.names[n].value for n in members}

    def tile(self, walk: Any, template: Any, values: Any) -> Any:
        def method(name: str) -> Callable[..., Any]:
            return lambda walk, *given: walk.function(name, (), given)

        return {".run": method("run"), ".results": method("results")}

    def own(self, name: str) -> Callable[..., Any]:
        """A function of the loader whose function is walked."""
        return lambda walk, template, values: walk.of_loader(walk.loaders[-1], name, (), values)

    def over_slices(self, walk: Any, template: Any, values: Sequence[Any]) -> Any:
        """Takes each slice once; see the order of sums."""
        k = walk.fresh("k")
        walk.when += [k >= 0, k < walk.number(values[0])]
        walk.invoke(values[1], [Int(k, "int64_t")])
        del walk.when[-2:]
        return OPAQUE

    def loader(self, walk: Any, name: str, *_: Any) -> dict[str, Any]:
        """A loader as its type says."""
        source = walk.source
        m = re.search(rf"typedef Loader<(\w+), (\w+), (\w+), (\w+)> {name};", source.text)
        found = re.search(r"struct Loader \{(.*?)\n\};", source.text, re.DOTALL)
        if m is None or found is None or "at[i] += step;" not in found[1]:
            raise ProofError(f"no Loader of the name {name} that goes on by a step; accepted: a typedef of one")
        scope, body = Scope(walk.globals), found[1]
        lines = walk.globals.names[m[1]].value
        flags = {"ALONG_K": Truth(m[2] == "true"), "LEFT": Truth(m[3] == "true")}
        unit = FORMATS[m[4]].bits // 8
        scope.names |= {"LINES": Cell(lines), "sizeof P": Cell(Int(unit, "size_t"))}
        scope.names |= {n: Cell(v) for n, v in flags.items()}
        for line in re.findall(r"static constexpr int [^;{]*;", body):
            walk.execute(source.parser(line).statement(), scope)
        v, pieces = (scope.names[n].value.term for n in ("V", "PIECES"))
        held = Base("held", "local", dims=(pieces, v), unit=unit)
        scope.names["held"] = Cell(Pointer(held, 0, (pieces, v)))
        made: dict[str, Any] = {"scope": scope}
        scope.names["at"] = Cell(Addresses(made))
        made["functions"] = functions_of(body, OF_LOADER, source.templates, TYPES)

        def start(walk: Any, template: Any, values: Sequence[Any]) -> Any:
            f: Function = made["functions"]["start"][0]
            first, loop = f.body.args
            inner = Scope(scope)
            inner.names |= {n: Cell(x) for (_, n), x in zip(f.params, values, strict=True)}
            inner.names |= {"step": Cell(OPAQUE, "int64_t"), "lines": Cell(OPAQUE, "int")}
            walk.execute(first, inner)
            scope.names["lines"] = inner.names["lines"]
            made.update(started=inner, put=loop.args[3], lines=inner.names["lines"].value, first=None)
            return OPAQUE

        def fetch(walk: Any, template: Sequence[Any], values: Sequence[Any]) -> Any:
            made["left"] = walk.number(values[0])
            if made["first"] is None:
                made["first"] = made["left"]
            return walk.of_loader(made, "fetch", template, values)

        def nothing(walk: Any, template: Any, values: Any) -> Any:
            return OPAQUE

        made.update({".start": start, ".fetch": fetch, ".advance": nothing, ".put": nothing})
        return made


__all__ = ["First", "Group", "Number", "ProductWalk"]
