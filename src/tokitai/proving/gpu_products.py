"""Kernels of matrix products for GPUs, walked: operands, tensors beside them, results and slices of sums.

A unit of work is a tile of a result's matrix and a slice of its chains. Blocks take units in turn: block b of n has
the units b, b + n, b + 2 n and so on, so each is that of one block and iteration, and stands for both. The source takes
digits of a unit, by the counts of tiles, slices and matrices; so it is walked as these digits.

Modelled, not walked: where an operand's pointers are (`at` of ``Loader``, each of which begins as ``start`` says and
goes on by a step with each K-tile), and pending partials, whose room is a statement about the launch. Not stated is
what lies in shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, permutations
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from ..families.matmul.plan import ProductPlan
from ..formats import FORMATS
from ..lang import MATRICES, Operator
from .choice import MEMORY, SIDE
from .cpu import whole_numbers
from .effects import parts
from .gpu import TYPES, Digits, Emitted, GpuWalk, read
from .gpu_kernel import MOST_BLOCKS, Case, GpuKernel, digits_of_threads
from .kernel import Extent, products_in
from .logic import both, folded
from .parse import Function, Node, functions_of
from .product_plans import source_of, tilings
from .products import Batch
from .terms import Answer, Sum
from .values import OPAQUE, Access, Base, Cell, Int, Pointer, Scope, Truth

WALKED = ("run", "run_chain", "results", "row_at", "line_here", "column_here")
OF_LOADER = ("start", "line_of", "k_of", "fetch")
CHAIN = 4096  # products in a chain


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
    ``counted_up`` are counts that have a name: of what, by how many, the count. ``range`` is what a group has of the
    dimension that groups partition, by members of ``Group``; ``offsets`` names the tensor that says so."""

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
        step, deep = (
            Sum(self.number(loader["started"].find("step").value)),
            self.number(self.globals.names["DEPTH"].value),
        )
        each = step.term({m: n // deep for m, n in step.parts.items()})  # to the next product along k
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


@dataclass
class ProductKernel(GpuKernel):
    """A walked kernel of a product. ``slices`` are the counts of what an index of slices is made of, the lowest
    first."""

    walk: ProductWalk
    slices: Sequence[Any] = ()
    counted: Sequence[Any] = ()  # of what products are bounded by what is known

    def placed(self, a: Access) -> list[Any]:
        """Item, row and column of a matrix's element; column, row, item and sum of a slice's."""
        extent, at = self.extents[a.base.name], a.at
        if isinstance(extent, Batch):
            item, rest = Sum(at).along(extent.apart)
            return [item, *Sum(rest).along(extent.stride)]
        if extent.stride is not None:
            return list(Sum(at).along(extent.stride))
        if a.base.name != "workspace":
            return [at]
        made = []
        for n in self.slices[:-1]:
            at, rest = Sum(at).along(n)
            made.append(rest)
        return [*made, at]

    def counts(self, name: str) -> list[Any]:
        """How many there are of each."""
        extent = self.extents[name]
        if isinstance(extent, Batch):
            return [extent.batch, extent.rows, extent.cols]
        if extent.stride is not None:
            return [extent.rows, extent.cols]
        return list(self.slices) if name == "workspace" else [extent.cols]

    def inside(self, a: Access) -> Answer:
        places, counts = self.placed(a), self.counts(a.base.name)
        if a.base.name == "workspace" and not (isinstance(a.count, int) and a.count == 1):
            raise ProofError(f"{a.line}: {a.count} elements of slices; accepted: 1")
        ends = places if a.base.name == "workspace" else [*places[:-1], places[-1] + a.count - 1]
        must = both(*(p >= 0 for p in places), *(e < n for e, n in zip(ends, counts, strict=True)))
        return self.told(self.ask(must, self.given(a)), a)

    def differ(self) -> Any:
        """In more than what follows from the rest."""
        return z3.Or(*(o != z3.Int(f"{o}'") for o in self.walk.own if not any(map(o.eq, self.walk.follow))))

    def meet(self, a: Access, b: Access) -> Any:
        """With what is known of two groups: they are the same, or the rows of one lie behind those of the other."""
        known: list[Any] = []
        if self.walk.group.along == "r":
            group = self.walk.group.range
            other = {n: z3.Int(f"{v}'") for n, v in group.items()}
            ends = [(g["begin"], g["begin"] + g["count"]) for g in (group, other)]
            known = [z3.If(group["index"] == other["index"], z3.And(*(v == other[n] for n, v in group.items())),
                           z3.Or(ends[0][1] <= ends[1][0], ends[1][1] <= ends[0][0]))]  # fmt: skip
        return both(*known, *(x == y for x, y in zip(self.placed(a), self.placed(b), strict=True)))

    def without_products(self, terms: Sequence[Any]) -> list[Any]:
        """Of the first, from the others: with one term for each product of the same counts, whatever their order and
        the number that they have."""
        counts = {c.get_id() for c in self.counted}
        found = [(t, s) for t in products_in(*terms) if set((s := Sum(t)).atoms) <= counts and len(s.parts) == 1]
        alike = [(t, s.term({m: 1}) * n) for t, s in found for m, n in s.parts.items()]
        must, *knows = [t if isinstance(t, bool) else z3.substitute(t, *alike) for t in terms]
        mine = {t.get_id() for t in products_in(must)}  # what is known of others takes time and shows nothing
        knows = [k for k in knows if {t.get_id() for t in products_in(k)} <= mine]
        return super().without_products([must, *knows])

    def covered(self, out: str, accesses: Sequence[Access]) -> Iterator[Answer]:
        """Every element is written in the iteration that its place says."""
        element = [z3.Int(f"element_{i}") for i, _ in enumerate(self.counts(out))]
        knows = [*self.walk.knows, *(both(e >= 0, e < n) for e, n in zip(element, self.counts(out), strict=True))]
        if self.walk.group.along == "r":  # each row is one of a group
            group = self.walk.group.range
            knows += [group["begin"] <= element[0], element[0] < group["begin"] + group["count"]]
        hits = [z3.BoolVal(False)]
        for a in accesses:
            for chosen in self.iterations(element, a):
                there = [p == e for p, e in zip(self.placed(a), element, strict=True)]
                must = [t for t in (*there, *a.when, *self.of_own()) if not isinstance(t, bool)]
                for d in reversed(self.walk.divisions.values()):  # each after those that are made of it
                    values = (d.quotient, d.of / d.by), (d.rest, d.of % d.by)
                    must = [z3.substitute(t, *values) for t in must]
                hits.append(z3.And(*(z3.substitute(t, *chosen) for t in must)))
        line = accesses[0].line if accesses else "no store"
        yield self.told(self.ask(z3.Or(*hits), knows), None, line)

    def iterations(self, element: Sequence[Any], a: Access) -> Iterator[list[tuple[Any, Any]]]:
        """Where an access may reach an element: the unit and the thread, and iterations of loops over the rows of a
        thread and over the elements of a tile."""
        unit = {str(d): d for d, _ in self.walk.unit.digits if not isinstance(d, int)}
        *items, row, col = element
        if self.walk.alone_in_turn:
            yield [*zip(unit.values(), reversed(element), strict=True)]
            return
        names = ("ROWS", "COLS", "THREAD_M", "DOWN", "BELOW")
        rows, cols, thread_m, down, below = (self.walk.globals.names[n].value.term for n in names)
        row = row - self.walk.group.range["begin"] if self.walk.group.along == "r" else row
        r = row % rows  # as `row_at` has it, of line a * DOWN + c and of row b * BELOW + d of a thread
        high, b, c, d = r / (down * thread_m), r / (down * below) % (thread_m // below), r / below % down, r % below
        e = (high * down + c) * cols + col % cols
        threads, lanes = self.walk.threads.count, self.walk.threads.factors[-1]
        own = [(unit["i"], row / rows), (unit["j"], col / cols), *((unit["item"], i) for i in items)]
        digits = self.walk.threads.digits
        own += zip(digits, (e % threads / lanes, e % lanes)[-len(digits) :], strict=True)
        for values in permutations((b * below + d, e / threads), len(a.loops)):
            yield [*own, *((l.iteration, v) for l, v in zip(a.loops, values, strict=True))]

    def statements(self) -> Iterator[tuple[str, Iterator[Answer]]]:
        for what, answers in super().statements():
            if what != "accesses of several elements are aligned":
                yield what, answers


def product_cases(
    operator: Operator, plan: ProductPlan, warp: int, target: str, seconds: float,
    changed: Callable[[KernelText], KernelText] = lambda text: text,
) -> Iterator[Case]:  # fmt: skip
    """Every kernel of every tiling; where sums are cut into slices, and where not."""
    every = tilings(plan, target)
    for t in [*every, *(replace(t, once=True) for t in every if plan.graph.ragged)]:
        text = source_of(plan, t)
        if '"products.h"' not in text.text:
            continue
        source = read(changed(text), target, warp, WALKED)
        for name, sliced in (("work", False), ("work", True), ("finish", True)):
            made = Launch(operator, plan, t, name, sliced)
            key = operator.name, name, sliced, *map(repr, (source.kernel(name), source.functions, constants(source)))
            yield Case(
                f"{name}, {'several slices' if sliced else 'one slice'}, {t}",
                key,
                partial(made.walked, source, seconds),
            )


def constants(source: Emitted) -> list[Node]:
    """Those that a walk meets: how far a loop along k is unrolled differs from target to target."""
    return [n for n in source.constants() if "UNROLL_K" not in repr(n)]


class Launch:
    """What is known of a launch, for one tiling: of ``sliced`` sums, or of such that one block adds."""

    def __init__(self, operator: Operator, plan: ProductPlan, tiling: Any, kernel: str, sliced: bool) -> None:
        self.operator, self.plan, self.tiling, self.kernel, self.sliced = operator, plan, tiling, kernel, sliced
        self.rows, self.cols, self.inner, self.batch = (z3.Int(n) for n in ("rows", "cols", "inner", "batch"))
        self.together = z3.Int("chains_per_slice")
        self.knows: list[Any] = [self.together >= 1, self.together <= SIDE]
        self.knows += [z3.And(n >= 0, n <= SIDE) for n in (self.rows, self.cols, self.inner, self.batch)]
        self.counted_up: list[tuple[Any, Any, Any]] = []
        self.group = Group()
        self.down = self.up("down", self.rows, tiling.rows)
        self.across = self.up("across", self.cols, tiling.cols)
        self.chains = self.up("chains", self.inner, CHAIN)
        self.slices: Any = 1
        self.first = First(z3.Int("first"), z3.Int("slice") * self.together)
        self.knows += [z3.Int("block") >= 0, z3.Int("block") < z3.Int("grid"), z3.Int("grid") <= MOST_BLOCKS]
        if sliced:
            self.slices = z3.Int("slices")
            self.counted_up.append((self.chains, self.together, self.slices))
            self.knows += [self.chains > self.together, self.slices >= 2, self.slices <= SIDE]
            # As slices are chains / together, rounded up.
            self.knows += [self.first.name >= 0, self.first.name < self.chains]
        else:
            self.knows.append(self.chains <= self.together)
        if plan.graph.ragged:
            assert plan.graph.offsets is not None
            self.group = self.one_group(plan.graph.ragged, f"in_{plan.graph.offsets.name}")

    def one_group(self, along: str, offsets: str) -> Group:
        """A group, of those that partition a dimension. There are no more slices of it than of all, as slices are
        chains / together, rounded up, and no less than one."""
        begin, count = z3.Int("group_begin"), z3.Int("group_count")
        index = z3.Int("item" if along == "k" else "group_index")
        whole = self.rows if along == "r" else self.inner
        self.knows += [index >= 0, index < self.batch, begin >= 0, count >= 0, begin + count <= whole]
        name, by = ("group_down", self.tiling.rows) if along == "r" else ("group_chains", CHAIN)
        counts = [self.up(name, count, by)]
        if along == "k" and self.sliced:
            slices, own, first = z3.Int("group_parts"), z3.Int("group_slices"), self.first.name
            self.counted_up.append((counts[0], self.together, own))
            self.knows += [slices == z3.If(counts[0] > self.together, own, 1), slices >= 1, slices <= self.slices]
            slice_ = z3.Int("slice")
            self.knows += [z3.Implies(slice_ < own, first < counts[0]), z3.Implies(slice_ == 0, first == 0)]
            counts += [slices, own]
        return Group(along, offsets, {"index": index, "begin": begin, "count": count}, counts)

    def up(self, name: str, of: Any, by: int) -> Any:
        """How many parts of so many there are, the last one included."""
        count = z3.Int(name)
        self.knows += [count * by >= of, (count - 1) * by < of, count >= 0]
        self.counted_up.append((of, by, count))
        return count

    def unit(self) -> Number:
        """An element; or a tile's row and column of tiles, a slice and a matrix."""
        alone = self.kernel == "finish"
        pairs = [("i", self.down), ("j", self.across), ("slice", self.slices), ("item", self.batch)]
        if alone:
            pairs = [("col", self.cols), ("row", self.rows), ("item", self.batch)]
        if self.group.along == "r":  # an operand's matrix is that of the group
            pairs = [*pairs[:-1], ("item", 1)]
            pairs[0] = pairs[0] if alone else ("i", self.group.counts[0])
        made = tuple((0, 1) if isinstance(count, int) else (z3.Int(d), count) for d, count in pairs)
        # There are no more tiles than elements, of which memory has room, and no more slices than chains.
        elements, tiles = (self.batch, self.rows, self.cols), (self.down, self.across, self.batch, self.slices)
        others = [(self.down, self.across, n) for n in (self.slices, *self.group.counts[1:])] * bool(self.group.along)
        others += [(self.group.counts[0], self.across, self.slices)] * (self.group.along == "r")
        for counted, *left in elements[1:], elements, tiles, *others:
            for count in left:
                counted = counted * count
                self.knows.append(z3.And(counted >= 0, counted <= MEMORY * SIDE // CHAIN))
        self.knows += [z3.And(d >= 0, d < count) for d, count in made if not isinstance(d, int)]
        return Number(made)

    def counted(self) -> list[Any]:
        """Counts of which products are bounded."""
        found = [self.rows, self.cols, self.batch, self.down, self.across, self.slices, *self.group.counts]
        return [c for c in found if not isinstance(c, int)]

    def walked(self, source: Emitted, seconds: float) -> ProductKernel:
        """The kernel, walked."""
        graph, rows, cols, inner, batch = self.plan.graph, self.rows, self.cols, self.inner, self.batch
        sides = {"r": rows, "c": cols, "k": inner, "s": 1}
        extents: dict[str, Extent] = {}
        pointers, strides, products = [], [], [(batch, inner)]
        given = [(f"in_{t.name}", str(t.space), FORMATS[str(t.format)]) for t in graph.inputs]
        given += [(f"out_{o.name}", str(o.space), FORMATS[o.format]) for o in graph.outputs]
        for name, space, stored in given:
            base = Base(name, "tensor", True, not stored.is_float, unit=stored.bits // 8)
            pointers.append(Pointer(base, 0))
            if space not in MATRICES:
                extents[name] = Extent(batch + 1 if name == self.group.offsets else sides[space])
                continue
            stride, apart = z3.Int(f"{name}_stride"), z3.Int(f"{name}_batch")
            height, width = sides[space[0]], sides[space[1]]
            self.knows += [stride >= width, stride <= MEMORY, apart >= 0, apart <= MEMORY]
            products += [(height - 1, stride), (batch - 1, apart)]
            whole = graph.ragged and graph.ragged in space  # which is one, of all groups: one may begin at its end
            products += [(height, stride)] if whole else []
            extents[name] = Extent(width, height, stride) if whole else Batch(width, height, stride, apart, batch)
            strides += [stride, 0 if whole else apart]
        numbers, within = whole_numbers(graph, self.operator)
        self.knows += within
        unit, alone = self.unit(), self.kernel == "finish"
        thread = digits_of_threads(256 if alone else self.tiling.threads, 32)  # as tiles have it, whatever the warp
        names = {"sizeof E": Int(8 if self.plan.accumulator == "f64" else 4, "size_t")}
        walk = ProductWalk(source, self.knows, thread, unit, names, self.counted_up, alone, self.first, self.group)
        walk.tables["sizes"] = dict(enumerate([rows, cols, inner, batch, *strides, *numbers]))
        call = {
            "tensors": dict(enumerate(pointers)), "sizes": Pointer(Base("sizes", "table"), 0), "scalars": OPAQUE,
            "workspace": Pointer(Base("workspace", "workspace"), 0), "chains_per_slice": Int(self.together, "int64_t"),
        }  # fmt: skip
        walk.globals.names["call"] = Cell(call)
        walk.execute(source.kernel(self.kernel), Scope(walk.globals))
        outputs = [f"out_{o.name}" for o in graph.outputs] if self.kernel == "finish" or not self.sliced else []
        sums = self.slices * len(self.plan.products)
        return ProductKernel(
            walk, extents | {"workspace": Extent(sums)}, outputs, [rows, cols, inner, batch, self.together, *strides],
            [*products, *((m - 1, n) for m, n in pairwise([c for _, c in unit.digits if not isinstance(c, int)]))],
            seconds, grid=None, counted=self.counted(),
            slices=[cols, rows, *([] if self.group.along == "r" else [batch]), sums],
        )  # fmt: skip


__all__ = ["product_cases"]
