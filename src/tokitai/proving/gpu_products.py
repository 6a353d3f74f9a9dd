"""Kernels of matrix products for GPUs: what is known of their launches, and what must hold of each access.

Every tiling is walked, for sums of one slice and of several, and so is the kernel that adds slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from .gpu import Emitted, read
from .gpu_kernel import MOST_BLOCKS, Case, GpuKernel, digits_of_threads
from .gpu_product_walk import First, Group, Number, ProductWalk
from .kernel import Extent, products_in
from .logic import both
from .parse import Node
from .product_plans import source_of, tilings
from .products import Batch
from .terms import Answer, Sum
from .values import OPAQUE, Access, Base, Cell, Int, Pointer, Scope

WALKED = ("run", "run_chain", "results", "row_at", "line_here", "column_here")
CHAIN = 4096  # products in a chain


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
        others += [(n, self.across, self.slices) for n in self.group.counts if self.group.along == "r"]
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
