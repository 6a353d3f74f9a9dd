"""Matrix products of CPUs, walked: from the emitted source through `products` in `products.h`, for all sizes.

What packing, the micro-kernel and the tree over chains access is modelled, not walked: `ProductCalls` says what. A
team's tiles of accumulators, its packed operands and a thread's packed operand are memory of their own; that there is
room for all of them is shown by `buffers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from ..families.matmul.plan import ProductPlan
from ..formats import FORMATS
from ..lang import MATRICES, Operator
from ..lower.scalars import whole_scalars
from .buffers import Buffers
from .choice import SIDE
from .cpu import CpuCalls, Start, defines
from .kernel import Extent
from .known import LET
from .logic import both, folded, no
from .obligation import Obligation
from .shares import lemmas
from .terms import Answer, Sum
from .twins import Place
from .values import OPAQUE, Access, Base, Cell, Int, Loop, Pointer
from .walk import Walk
from .work import Emitted, Evaluation
from .written import Written

WALKED = ("each_product", "teams_of", "products", "ceil_div")
OF_TEAM = z3.Int("of_team")  # elements from the buffers of a team to those of the next
LEVELS = 40  # of the tree over chains at most: of 2^31 / 4096 of them there are fewer


@dataclass(frozen=True)
class Batch(Extent):
    """Matrices that lie ``apart`` elements from each other, ``batch`` of them."""

    apart: Any = None
    batch: Any = 1


@dataclass
class Products(Written):
    """A walked product, with the room for its buffers."""

    buffers: Buffers | None = None
    tiles: tuple[Any, Any] = (0, 0)  # of a team's accumulators: panels of rows and of columns at most
    tile: int = 0  # elements of one, of all products
    packed: dict[str, Any] = field(default_factory=dict)  # of packed operands: elements for one step of k, at most
    teams: Any = 1  # that have buffers

    def obligations(self, name: str) -> Iterator[Obligation]:
        """That accesses lie inside, and that there is room."""
        yield from super().obligations(name)
        if self.buffers is not None:
            yield from self.buffers.obligations(name)

    def placed(self, a: Access) -> Place:
        """By item, row and column of a matrix; by team, level and panels of tiles; by team of packed operands."""
        extent, name = self.extents[a.base.name], a.base.name
        if isinstance(extent, Batch):
            item, rest = Sum(a.at).along(extent.apart)
            row, col = Sum(rest).along(extent.stride)
            return [(item, 1), (row, 1), (col, a.count)]
        slot, rest = Sum(a.at).along(OF_TEAM)
        if name == "tiles":
            level, rest = Sum(rest).along(z3.Int("level"))
            panels = variable("m_panels", rest)
            q, rest = (0, rest) if panels is None else Sum(rest).along(panels)
            return [(slot, 1), (level, 1), (q, 1), (rest, a.count)]
        depth = variable("depth", rest, a.count)
        if depth is None:
            raise ProofError(f"{a.line}: no index of packed operands; accepted: one that `depth` multiplies")
        (first, _), (count, _) = Sum(rest).along(depth), Sum(a.count).along(depth)
        return [(slot, 1), (first, count)]

    def of_element(self, out: str, wanted: Sequence[Any]) -> list[Any]:
        """Item, row and column of a result's elements."""
        extent = self.extents[out]
        assert isinstance(extent, Batch)
        sides = (extent.batch, extent.rows, extent.cols)
        return [z3.And(e >= 0, e < side) for e, side in zip(wanted, sides, strict=True)]

    def inside(self, a: Access) -> Answer:
        """Of a matrix, tiles or packed operands: of an index the parts that steps, panels and strides multiply."""
        extent, name, some = self.extents[a.base.name], a.base.name, a.count > 0
        if isinstance(extent, Batch):
            item, rest = Sum(a.at).along(extent.apart)
            row, col = Sum(rest).along(extent.stride)
            must = both(item >= 0, item < extent.batch, row >= 0, row < extent.rows, col >= 0,
                        col + a.count <= extent.cols)  # fmt: skip
        elif name == "tiles":
            slot, at = Sum(a.at).along(OF_TEAM)
            level, rest = Sum(at).along(z3.Int("level"))
            panels = variable("m_panels", rest)
            q, rest = (0, rest) if panels is None else Sum(rest).along(panels)
            height, (down, across) = 1 if panels is None else panels, self.tiles
            must = both(slot >= 0, slot < self.teams, level >= 0, level <= z3.Int("levels"), q >= 0,
                        q <= (across - 1) * self.tile, rest >= 0, rest + a.count <= height * self.tile,
                        height <= down)  # fmt: skip
        elif name in self.packed:
            slot, at = Sum(a.at).along(OF_TEAM)
            depth = variable("depth", at, a.count)
            (first, rest), (count, left) = Sum(at).along(depth), Sum(a.count).along(depth)
            some = count > 0
            must = both(slot >= 0, slot < self.teams, first >= 0, first + count <= self.packed[name], rest == 0,
                        left == 0)  # fmt: skip
        else:
            return super().inside(a)
        return self.told(self.ask(z3.Or(no(some), must), self.given(a)), a)


def variable(name: str, *terms: Any) -> Any:
    """The unknown in these terms that is a variable of the source; None where there is none."""
    atoms = [a for t in terms for a in Sum(t).atoms.values()]
    return next((a for a in atoms if z3.is_const(a) and a.decl().name().startswith(f"{LET}{name}!")), None)


class ProductCalls(CpuCalls):
    """What functions of `products.h` do with memory."""

    def __init__(self, lanes: int, threads: Any, sizes: dict[str, int]) -> None:
        super().__init__(lanes, threads)
        self.mr, self.nr = sizes["MR"], sizes["NR"]
        self.tile = self.mr * self.nr
        self.teams: Any = 1
        self.barriers: list[tuple[Any, Sequence[Loop]]] = []
        self.calls |= {
            "Operand": self.operand, "Team": self.team, "Buffers": self.buffers, "max": self.maximum,
            "pack_along": self.pack_along, "pack_across": self.pack_across, "micro": self.micro, "clear": self.clear,
            "join_chain": self.join_chain, "result_of": self.result_of, "fetch_panel": self.nothing,
            "team_barrier": self.barrier, "omp_get_num_threads": self.running,
        }  # fmt: skip

    def operand(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return dict(zip(("data", "stride"), values, strict=True))

    def team(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return dict(zip(("rank", "size", "slot"), values, strict=True))

    def buffers(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        def of_team(name: str) -> Any:
            def made(walk: Walk, team: Any) -> Pointer:
                return Pointer(Base(name, "workspace"), walk.number(team["slot"]) * OF_TEAM)

            return made

        self.teams = walk.number(walk.function("teams_of", [], values[4:6]))

        return {"level": Int(z3.Int("level"), "int64_t"), "levels": Int(z3.Int("levels"), "int64_t"),
                ".sums": of_team("tiles"), ".right": of_team("right"),
                ".left": lambda walk: Pointer(Base("left", "workspace", False), 0)}  # fmt: skip

    def maximum(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        a, b = (walk.number(v) for v in values)
        return Int(max(a, b) if isinstance(a, int) and isinstance(b, int) else z3.If(a > b, a, b), "int64_t")

    def running(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return Int(z3.Int("running"), "int")

    def barrier(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Of all threads of a team, where that has more than one."""
        alone = folded(walk.number(values[0]["size"]) == 1)
        if alone is not True and not walk.dry:
            self.barriers.append((tuple(walk.phase), tuple(walk.loops)))
            walk.phase[-1] += 1
        return OPAQUE

    def pack_along(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Of `depth` rows of memory the first `count` elements."""
        self.packs(walk, template, values, lambda depth, count: (depth, count))
        return OPAQUE

    def pack_across(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Of `count` rows of memory the first `depth` elements."""
        self.packs(walk, template, values, lambda depth, count: (count, depth))
        return OPAQUE

    def packs(self, walk: Walk, template: Sequence[Any], values: Sequence[Any], sides: Any) -> None:
        to, operand, count, depth = values
        n, k, w = walk.number(count), walk.number(depth), template[0].term
        rows, cols = sides(k, n)
        row = walk.fresh("row")
        start, stride = operand["data"], walk.number(operand["stride"])
        inside = z3.And(row >= 0, row < rows)
        walk.under(inside, lambda: walk.access(replace(start, at=start.at + row * stride), cols, False))
        walk.access(to, (n + w - 1) / w * w * k, True)

    def micro(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        _, depth, left, right, tile = values
        k = walk.number(depth)
        walk.access(left, self.mr * k, False)
        walk.access(right, self.nr * k, False)
        self.tiles(walk, tile, self.tile, True)
        return OPAQUE

    def clear(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        self.tiles(walk, values[0], self.tile, True)
        return OPAQUE

    def join_chain(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """The tile, and those above it: on as many levels as the number of chains has bits."""
        tile, level, above = values[0], walk.number(values[1]), walk.fresh("above")
        self.tiles(walk, tile, self.tile, True)
        there = z3.And(above >= 0, above < z3.Int("levels"))
        walk.under(there, lambda: self.tiles(walk, replace(tile, at=tile.at + (above + 1) * level), self.tile, True))
        return OPAQUE

    def result_of(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        self.tiles(walk, values[0], self.lanes, False)
        return OPAQUE

    def tiles(self, walk: Walk, where: Any, count: int, write: bool) -> None:
        """An access to tiles, in either case where there are two."""
        two = [a for a in Sum(where.at).atoms.values() if z3.is_app_of(a, z3.Z3_OP_ITE)]
        two = [a for a in two if any(len(m) > 1 for side in a.children()[1:] for m in Sum(side).parts)]
        if not two:
            walk.access(where, count, write)
            return
        for side, when in ((1, two[0].arg(0)), (2, z3.Not(two[0].arg(0)))):
            at = z3.substitute(where.at, (two[0], two[0].arg(side)))
            walk.under(when, lambda at=at: self.tiles(walk, replace(where, at=at), count, write))  # type: ignore[misc]


def walk_products(
    operator: Operator, plan: ProductPlan, lanes: int, seconds: float, text: KernelText | None = None
) -> Products:
    """The walk through the CPU's kernel of a matrix product."""
    return ProductStart(operator, plan, lanes, text).products_walked(seconds)


class ProductStart(Start):
    """What is known where a kernel begins."""

    def __init__(
        self, operator: Operator, plan: ProductPlan, lanes: int, text: KernelText | None,
        walked: Sequence[str] = WALKED,
    ) -> None:  # fmt: skip
        super().__init__(operator, plan, lanes, text, walked)
        walk = self.walk
        self.operator, self.lanes, self.given, self.product = operator, lanes, text, plan
        self.inner, self.batch = z3.Int("inner"), z3.Int("batch")
        running, inner, batch = z3.Int("running"), self.inner, self.batch
        walk.knows += [inner >= 0, inner <= SIDE, batch >= 0, batch <= SIDE, running >= 1, running <= self.threads,
                       walk.thread < running, z3.Int("level") >= 0, z3.Int("level") <= 2**40, z3.Int("levels") >= 0,
                       z3.Int("levels") <= LEVELS]  # fmt: skip
        self.numbers = constants(self, lanes)
        self.calls = ProductCalls(lanes, self.threads, self.numbers)
        walk.calls = self.calls.calls
        walk.globals.names |= {n: Cell(Int(v, "int64_t")) for n, v in self.numbers.items()}
        walk.globals.names["N"] = Cell(Int(len(plan.products)))
        walk.naming, walk.cases["n"] = True, len(plan.products)
        walk.lemmas = lambda terms: list(lemmas(terms, self.numbers["BLOCK_ROWS"] // self.numbers["MR"]))
        self.sides = {"r": self.rows, "c": self.cols, "k": inner, "s": 1}

    def products_walked(self, seconds: float, kind: type[Products] = Products, **more: Any) -> Products:
        """The kernel, walked."""
        n, plan, rows, cols = self.numbers, self.product, self.rows, self.cols
        extents, strides, tensors = matrices(self, self.sides, self.batch)
        scalars = [z3.Int(f"scalar_{i}") for i, _ in enumerate(whole_scalars(plan.graph))]
        self.walk.tables["sizes"] = dict(enumerate([rows, cols, self.inner, self.batch, *strides, *scalars]))
        self.execute(tensors)
        count = len(plan.products)
        down, across = panels(rows, n["BLOCK_M"], n["MR"]), panels(cols, n["BLOCK_N"], n["NR"])
        left = panels(rows, n["BLOCK_ROWS"], n["MR"]) * n["MR"]
        extents |= {name: Extent(None) for name in ("tiles", "right", "left")}
        return kind(
            self.walk, extents, [f"out_{o.name}" for o in plan.graph.outputs],
            [rows, cols, self.inner, self.batch, self.threads, *strides], self.products, seconds,
            buffers=Buffers(self.operator, plan, self.lanes, seconds, self.given), threads=self.threads,
            barriers=self.calls.barriers, teams=self.calls.teams, tiles=(down, across), tile=count * n["TILE_SIZE"],
            packed={"right": across * n["NR"] * count, "left": left}, **more,
        )  # fmt: skip


def constants(start: Start, lanes: int) -> dict[str, int]:
    """Numbers that the headers define."""
    run = Evaluation(
        Emitted(start.text, {**defines(lanes), "LANES": lanes}),
        {name: int(n) for name, n in re.findall(r"#define (ACCUMULATORS_F64) (\d+)", start.text.text)},
    )
    run.constants()
    (at_once,) = start.defined("PACKED_AT_ONCE", r"(\d+)")
    made = {n: c.value.term for n, c in run.walk.globals.names.items()}
    return made | {"PACKED_AT_ONCE": at_once, "TILE_SIZE": made["MR"] * made["NR"]}


def panels(side: Any, block: int, panel: int) -> Any:
    """Panels of a block at most, of a side."""
    return (z3.If(side < block, side, block) + panel - 1) / panel


def matrices(start: Start, sides: dict[str, Any], batch: Any) -> tuple[dict[str, Extent], list[Any], dict[int, Any]]:
    """The extents of tensors, strides of matrices and of the batch, pointers."""
    given = [(f"in_{t.name}", str(t.space), not FORMATS[str(t.format)].is_float) for t in start.graph.inputs]
    given += [(f"out_{o.name}", str(o.space), False) for o in start.graph.outputs]
    extents: dict[str, Extent] = {}
    strides: list[Any] = []
    pointers: dict[int, Any] = {}
    for i, (name, space, whole) in enumerate(given):
        pointers[i] = Pointer(Base(name, "tensor", True, whole), 0)
        if space not in MATRICES:
            extents[name] = Extent(sides[space])
            continue
        stride, apart = z3.Int(f"{name}_stride"), z3.Int(f"{name}_batch")
        height, width = sides[space[0]], sides[space[1]]
        start.walk.knows += [stride >= width, stride <= 2**60, apart >= 0, apart <= 2**60]
        start.products += [(height - 1, stride), (batch - 1, apart)]
        extents[name] = Batch(width, height, stride, apart, batch)
        strides += [stride, apart]
    return extents, strides, pointers


__all__ = ["Products", "walk_products"]
