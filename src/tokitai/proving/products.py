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
from ..families.matmul.plan import ProductPlan
from ..lang import MATRICES, Operator
from ..lower.scalars import whole_scalars
from .buffers import Buffers
from .choice import SIDE
from .cpu import CpuCalls, Start, defines
from .kernel import Extent, Kernel
from .known import LET
from .logic import both, no
from .obligation import Obligation
from .shares import lemmas
from .terms import Answer, Sum
from .values import OPAQUE, Access, Base, Cell, Int, Pointer
from .walk import Walk
from .work import Emitted, Evaluation

WALKED = ("each_product", "teams_of", "products", "ceil_div")
LEVELS = 40  # of the tree over chains at most: of 2^31 / 4096 of them there are fewer


@dataclass(frozen=True)
class Batch(Extent):
    """Matrices that lie ``apart`` elements from each other, ``batch`` of them."""

    apart: Any = None
    batch: Any = 1


@dataclass
class Products(Kernel):
    """A walked product, with the room for its buffers."""

    buffers: Buffers | None = None
    tiles: tuple[Any, Any] = (0, 0)  # of a team's accumulators: panels of rows and of columns at most
    tile: int = 0  # elements of one, of all products
    packed: dict[str, Any] = field(default_factory=dict)  # of packed operands: elements for one step of k, at most

    def obligations(self, name: str) -> Iterator[Obligation]:
        """That accesses lie inside, and that there is room."""
        yield from super().obligations(name)
        if self.buffers is not None:
            yield from self.buffers.obligations(name)

    def statements(self) -> Iterator[tuple[str, Iterator[Answer]]]:
        """Of accesses where they lie, not who else makes them nor how often."""
        for what, answers in super().statements():
            if what.endswith("is accessed inside"):
                yield what, answers

    def inside(self, a: Access) -> Answer:
        """Of a matrix, tiles or packed operands: of an index the parts that steps, panels and strides multiply."""
        extent, name, some = self.extents[a.base.name], a.base.name, a.count > 0
        if isinstance(extent, Batch):
            item, rest = Sum(a.at).along(extent.apart)
            row, col = Sum(rest).along(extent.stride)
            must = both(item >= 0, item < extent.batch, row >= 0, row < extent.rows, col >= 0,
                        col + a.count <= extent.cols)  # fmt: skip
        elif name == "tiles":
            level, rest = Sum(a.at).along(z3.Int("level"))
            panels = variable("m_panels", rest)
            q, rest = (0, rest) if panels is None else Sum(rest).along(panels)
            height, (down, across) = 1 if panels is None else panels, self.tiles
            must = both(level >= 0, level <= z3.Int("levels"), q >= 0, q <= (across - 1) * self.tile, rest >= 0,
                        rest + a.count <= height * self.tile, height <= down)  # fmt: skip
        elif name in self.packed:
            depth = variable("depth", a.at, a.count)
            (first, rest), (count, left) = Sum(a.at).along(depth), Sum(a.count).along(depth)
            must, some = both(first >= 0, first + count <= self.packed[name], rest == 0, left == 0), count > 0
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
        self.calls |= {
            "Operand": self.operand, "Team": self.team, "Buffers": self.buffers, "max": self.maximum,
            "pack_along": self.pack_along, "pack_across": self.pack_across, "micro": self.micro, "clear": self.clear,
            "join_chain": self.join_chain, "result_of": self.result_of, "fetch_panel": self.nothing,
            "team_barrier": self.nothing, "omp_get_num_threads": self.running,
        }  # fmt: skip

    def operand(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return dict(zip(("data", "stride"), values, strict=True))

    def team(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return dict(zip(("rank", "size", "slot"), values, strict=True))

    def buffers(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        def of_team(name: str) -> Any:
            def made(walk: Walk, team: Any) -> Pointer:
                return Pointer(Base(name, "workspace"), 0)

            return made

        return {"level": Int(z3.Int("level"), "int64_t"), "levels": Int(z3.Int("levels"), "int64_t"),
                ".sums": of_team("tiles"), ".right": of_team("right"),
                ".left": lambda walk: Pointer(Base("left", "workspace", False), 0)}  # fmt: skip

    def maximum(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        a, b = (walk.number(v) for v in values)
        return Int(max(a, b) if isinstance(a, int) and isinstance(b, int) else z3.If(a > b, a, b), "int64_t")

    def running(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return Int(z3.Int("running"), "int")

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
    start = Start(operator, plan, lanes, text, WALKED)
    walk, rows, cols = start.walk, start.rows, start.cols
    inner, batch, running = z3.Int("inner"), z3.Int("batch"), z3.Int("running")
    walk.knows += [inner >= 0, inner <= SIDE, batch >= 0, batch <= SIDE, running >= 1, running <= start.threads,
                   walk.thread < running, z3.Int("level") >= 0, z3.Int("level") <= 2**40, z3.Int("levels") >= 0,
                   z3.Int("levels") <= LEVELS]  # fmt: skip
    sizes = constants(start, lanes)
    calls = ProductCalls(lanes, start.threads, sizes)
    walk.calls = calls.calls
    count = len(plan.products)
    walk.globals.names |= {n: Cell(Int(v, "int64_t")) for n, v in sizes.items()} | {"N": Cell(Int(count))}
    walk.naming, walk.cases["n"] = True, count
    walk.lemmas = lambda terms: list(lemmas(terms, sizes["BLOCK_ROWS"] // sizes["MR"]))
    extents, strides, tensors = matrices(start, {"r": rows, "c": cols, "k": inner, "s": 1}, batch)
    numbers = [z3.Int(f"scalar_{i}") for i, _ in enumerate(whole_scalars(plan.graph))]
    walk.tables["sizes"] = dict(enumerate([rows, cols, inner, batch, *strides, *numbers]))
    start.execute(tensors)
    down, across = panels(rows, sizes["BLOCK_M"], sizes["MR"]), panels(cols, sizes["BLOCK_N"], sizes["NR"])
    packed = {
        "right": across * sizes["NR"] * count,
        "left": panels(rows, sizes["BLOCK_ROWS"], sizes["MR"]) * sizes["MR"],
    }
    extents |= {name: Extent(None) for name in ("tiles", "right", "left")}
    outputs = [f"out_{o.name}" for o in plan.graph.outputs]
    given = [rows, cols, inner, batch, start.threads, *strides]
    return Products(
        walk, extents, outputs, given, start.products, seconds, buffers=Buffers(operator, plan, lanes, seconds, text),
        tiles=(down, across), tile=count * sizes["MR"] * sizes["NR"], packed=packed,
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
    given = [(f"in_{t.name}", str(t.space)) for t in start.graph.inputs]
    given += [(f"out_{o.name}", str(o.space)) for o in start.graph.outputs]
    extents: dict[str, Extent] = {}
    strides: list[Any] = []
    pointers: dict[int, Any] = {}
    for i, (name, space) in enumerate(given):
        pointers[i] = Pointer(Base(name, "tensor"), 0)
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
