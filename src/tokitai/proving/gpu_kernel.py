"""What must hold of every access of a GPU's kernel that was walked, for all sizes and launches of one case."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from typing import Any, TypeVar

import z3

from ..errors import ProofError
from ..formats import FORMATS
from ..lang import Graph
from .gpu import Digits, GpuWalk
from .kernel import Extent, Kernel, once_each
from .logic import both, folded, variables
from .obligation import Obligation
from .terms import Answer, Sum, alike, ask
from .values import Access, Base, Pointer

T = TypeVar("T")
MOST_BLOCKS = 2**31 - 1  # of a launch; others are refused
MOST_WORD = 16  # bytes of an access
ORDER = ("proved", "undecided", "refuted")  # the better first


@dataclass
class GpuKernel(Kernel):
    """A walked kernel of a GPU. ``grid`` is how many blocks the plan launches, ``blocks`` how many there are by the
    numbers that they are given in the walk; ``grid`` is None where any number of blocks does."""

    walk: GpuWalk
    grid: Any = 0
    blocks: Any = 0
    places: dict[Access, tuple[Any, Any] | None] = field(default_factory=dict)
    nearby: bool = False  # whether products are looked for in near facts alone

    def ask(self, must: Any, knows: Sequence[Any]) -> Answer:
        """First with what is known without products of unknowns, and of near ones: where that is enough, it takes a
        fraction of the time."""
        plain = [k for k in knows if isinstance(k, bool) or not _has_products(k)]
        for known in (near(must, plain), plain):
            if (answer := super().ask(must, known)).status == "proved":
                return answer
        return super().ask(must, knows)

    def place(self, a: Access) -> tuple[Any, Any] | None:
        if a not in self.places:
            self.places[a] = super().place(a)
        return self.places[a]

    def witness(self, a: Access, place: tuple[Any, Any], wanted: tuple[Any, Any]) -> list[tuple[Any, Any]]:
        """Of digits that no row and no column is made of, the first."""
        chosen = super().witness(a, place, wanted)
        done = {v.get_id() for v, _ in chosen}
        return [*chosen, *((d, z3.IntVal(0)) for d in self.walk.own if d.get_id() not in done)]

    @staticmethod
    def corrects(a: Access) -> bool:
        """Whether a number that was read says where a store goes: one that overwrites an element of the same thread."""
        return any(v.decl().name().startswith("data!") for v in variables(a.at))

    def by_one(self, stores: Sequence[Access]) -> Iterator[Answer]:
        """No two threads write the same element, whatever was read where that says which."""
        for (a, _), (_, b) in combinations_with_replacement([(a, self.again(a)) for a in stores], 2):
            answer = self.ask(z3.Not(both(self.differ(), self.meet(a, b))), [*self.given(a), *b.when])
            yield self.told(replace(answer, assumes=answer.status == "refuted"), a)

    def aligned(self) -> Iterator[Answer]:
        """Where tensors and their strides are as the width of accesses asks for, each one of several elements is at a
        multiple of its bytes."""
        width = self.walk.globals.names["WIDTH"].value.term
        for a, size in self.walk.wide:
            if a.base.kind == "tensor" and (place := self.place(a)) is not None:
                col, granted = place[1], min(MOST_WORD, width * a.base.unit)
                must = folded(col * a.base.unit % size == 0) if granted % size == 0 else False
                yield self.told(self.ask(must, self.given(a)), a)

    def fitting(self) -> Iterator[Answer]:
        """Of most, what is known without products is enough."""
        ranged, settled = self.walk.ranged, set()
        for group in alike_in((r for r in ranged if not _has_products(r.must)), lambda r: r.when):
            answer = self.together([r.must for r in group], group[0].when)
            if answer.status == "proved":
                settled |= {id(r) for r in group}
                yield answer
        for group in alike_in((r for r in ranged if id(r) not in settled), lambda r: r.when):
            self.nearby, self.walk.ranged = True, [replace(group[0], must=z3.And(*(r.must for r in group)))]
            answers = list(super().fitting())
            if any(a.status != "proved" for a in answers):
                self.nearby, self.walk.ranged = False, group
                answers = list(super().fitting())
            yield from answers
        self.walk.ranged = ranged

    def without_products(self, terms: Sequence[Any]) -> list[Any]:
        """Of near facts alone, where these are asked about first."""
        must, *knows = terms
        return super().without_products([must, *(near(must, knows) if self.nearby else knows)])

    def in_arrays(self, accesses: Sequence[Access]) -> Iterator[Answer]:
        """Of a thread's own or of all threads of a block."""
        for group in alike_in(accesses, lambda a: a.when):
            sizes = [math.prod(a.base.dims) for a in group]
            musts = [both(a.at >= 0, a.at + a.count <= n) for a, n in zip(group, sizes, strict=True)]
            answer = self.together(musts, group[0].when)
            yield from [answer] if answer.status == "proved" else map(self.in_local, group)

    def together(self, musts: Sequence[Any], when: Sequence[Any]) -> Answer:
        """Whether all of these follow where these conditions hold, from what is known without products."""
        terms = [t for t in (*musts, *when) if not isinstance(t, bool)]
        knows = [*self.walk.knows, *when, *self.walk.relevant(terms)]
        must, plain = both(*musts), [k for k in knows if isinstance(k, bool) or not _has_products(k)]
        answer = ask(must, near(must, plain), self.seconds)
        return answer if answer.status == "proved" else ask(must, plain, self.seconds)

    def obligations(self, name: str) -> Iterator[Obligation]:
        """All of them. Raises ProofError where no size is left of which they could be stated."""
        if ask(False, self.walk.knows, self.seconds).status == "proved":
            raise ProofError(f"{name}: no sizes and launches are as the case says; accepted: cases of some size")
        yield from super().obligations(name)

    def statements(self) -> Iterator[tuple[str, Iterator[Answer]]]:
        for base in {a.base.name: a.base for a in self.walk.accesses}.values():
            mine = once_each(a for a in self.walk.accesses if a.base == base)
            if base.name in self.extents:
                yield f"{base.name} is accessed inside", map(self.inside, mine)
                if base.name not in self.outputs and any(a.write for a in mine):
                    yield f"{base.name} has no conflicting accesses", self.apart(mine)
        for kind, what in (("local", "arrays of a thread are"), ("shared", "shared memory is")):
            mine = once_each(a for a in self.walk.accesses if a.base.kind == kind)
            if mine:
                yield f"{what} accessed inside", self.in_arrays(mine)
        for out in self.outputs:
            mine = [a for a in self.walk.accesses if a.base.name == out and a.write]
            if any(map(self.corrects, mine)):
                yield f"no element of {out} is written by two threads", self.by_one(mine)
            else:
                yield f"no element of {out} is written twice", self.once(mine)
            yield f"every element of {out} is written", self.covered(out, mine)
        yield "accesses of several elements are aligned", self.aligned()
        yield "index arithmetic fits its types", self.fitting()
        if self.grid is not None:
            equal = alike(self.grid - self.blocks, self.walk.knows) == 0
            of_one_row = z3.Implies(self.sizes[0] == 1, equal)  # of which the solver finds sizes at which it is wrong
            asked = (ask(must, self.walk.knows, self.seconds) for must in (of_one_row, equal))
            yield "a launch has just these blocks", asked


@dataclass
class Tensors:
    """The tensors of a graph: inputs first, with the row strides of those that have rows."""

    pointers: list[Pointer]
    strides: list[Any]
    extents: dict[str, Extent]
    products: list[tuple[Any, Any]]
    knows: list[Any]


def tensors_of(graph: Graph, cols: Any, sides: Mapping[str, Any], plain: Mapping[str, Any], most: int) -> Tensors:
    """Of spaces with so many lines, or with so many elements; each has at most ``most`` elements."""
    given = [(f"in_{t.name}", str(t.space), t.slots or 1, str(t.format)) for t in graph.inputs]
    given += [(f"out_{o.name}", str(o.space), o.slots or 1, o.format) for o in graph.outputs]
    made = Tensors([], [], {}, [], [])
    for name, space, slots, fmt in given:
        known = FORMATS[fmt]
        made.pointers.append(Pointer(Base(name, "tensor", True, not known.is_float, unit=known.bits // 8), 0))
        if space in sides:
            stride, side = z3.Int(f"{name}_stride"), sides[space]
            made.strides.append(stride)
            made.knows += [stride >= cols, stride <= most]
            made.products.append((side - 1, stride))
            made.extents[name] = Extent(cols, side, stride)
        else:
            made.extents[name] = Extent(plain[space] * slots if space == "r" else plain[space])
    return made


def digits_of(total: Any, name: str, knows: list[Any]) -> Digits:
    """The digits of a number below a product: a digit for each factor. A factor that is no plain unknown gets a name,
    of which is known what it is. Raises ProofError where it is a sum."""
    parts = list(Sum(total).parts.items())
    if len(parts) != 1:
        raise ProofError(f"a launch of {total} blocks; accepted: a product of numbers")
    (monomial, n), atoms = parts[0], Sum(total).atoms
    factors: list[Any] = []
    for i in monomial:
        atom = atoms[i]
        if not z3.is_const(atom):
            named = z3.Int(f"{name}_{len(factors)}_count")
            knows.append(named == n * atom)
            atom, n = named, 1
        factors.append(atom)
    factors.sort(key=lambda f: not str(f).startswith("rows"))
    if n != 1:
        factors.append(n)
    return Digits(tuple(z3.Int(f"{name}_{i}") for i in range(len(factors))), tuple(factors))


def digits_of_threads(threads: int, lanes: int) -> Digits:
    """A thread of a block, by warps or parts of such."""
    if threads <= lanes:
        return Digits((z3.Int("lane"),), (threads,))
    if threads % lanes:
        raise ProofError(f"blocks of {threads} threads; accepted: multiples of {lanes}")
    return Digits((z3.Int("warp"), z3.Int("lane")), (threads // lanes, lanes))


def alike_in(items: Iterable[T], when: Callable[[T], Sequence[Any]]) -> list[list[T]]:
    """Items in groups of those that stand under the same conditions."""
    found: dict[Any, list[T]] = {}
    for i in items:
        found.setdefault(tuple(w if isinstance(w, bool) else w.get_id() for w in when(i)), []).append(i)
    return list(found.values())


def near(must: Any, knows: Sequence[Any]) -> list[Any]:
    """Of what is known that which speaks of unknowns of a statement, and of others of which such facts speak. Rows and
    columns, of which almost all speak, lead to no others."""
    known = {v.get_id() for v in variables(must)}
    left = [(k, {v.get_id() for v in variables(k)}) for k in knows]
    found: list[Any] = []
    while more := [x for x in left if x[1] <= known or (x[1] - _FAR) & known]:
        left = [x for x in left if not (x[1] <= known or (x[1] - _FAR) & known)]
        found += [k for k, _ in more]
        known |= set().union(*(ids for _, ids in more))
    return found


_SIDES = z3.Int("rows"), z3.Int("cols")
_FAR = {v.get_id() for v in _SIDES}


def _has_products(term: Any) -> bool:
    """Whether a product of unknowns is part of a term."""
    if term.get_id() not in _products:
        several = z3.is_mul(term) and sum(not z3.is_int_value(c) for c in term.children()) > 1
        _products[term.get_id()] = term, several or any(map(_has_products, term.children()))
    return _products[term.get_id()][1]


_products: dict[int, tuple[Any, bool]] = {}  # of what lives, which keeps its number


@dataclass(frozen=True)
class Case:
    """A kernel for some sizes and lanes, and what tells it from others, whatever the target."""

    name: str
    key: Any
    walked: Callable[[], GpuKernel]


_known: dict[Any, list[Obligation]] = {}  # by such keys


def worst(name: str, cases: Iterable[Case]) -> Iterator[Obligation]:
    """The obligations of all cases, each of which stands for all cases that have it."""
    found: dict[str, Obligation] = {}
    for case in cases:
        if case.key not in _known:
            began = time.perf_counter()
            kernel = case.walked()
            took = time.perf_counter() - began
            first, *others = kernel.obligations("")
            _known[case.key] = [replace(first, seconds=first.seconds + took), *others]
        for o in _known[case.key]:
            if o.status != "proved":
                o = replace(o, reason=f"{o.reason} ({case.name})")
            before = found.get(o.name, replace(o, status="proved", seconds=0.0, questions=0))
            chosen = max(before, o, key=lambda x: ORDER.index(x.status))
            found[o.name] = replace(
                chosen, seconds=before.seconds + o.seconds, questions=before.questions + o.questions,
                assumes=before.assumes or o.assumes,
            )  # fmt: skip
    yield from (replace(o, name=f"{name}{o.name}") for o in found.values())


__all__ = ["MOST_BLOCKS", "Case", "GpuKernel", "Tensors", "digits_of", "digits_of_threads", "tensors_of", "worst"]
