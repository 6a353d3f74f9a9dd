"""Kernels for the CPU, walked: what their calls guarantee, and what the functions of their headers do with memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from ..families import Plan, emit_cpu
from ..formats import FORMATS
from ..lang import Graph, Node, Operator
from ..lower.scalars import whole_scalars
from .kernel import Extent, Kernel
from .memory import parted
from .parse import Parser, functions_of, preprocessed, templates_in
from .symbolic import one_term, whole
from .values import OPAQUE, Base, Cell, Int, Lanes, Opaque, Pointer, Scope
from .walk import Walk

WALKED = (
    "each",
    "row_sums",
    "joined_at",
    "pad",
    "partial_capacity",
    "tiles_of",
    "tensor_of",
    "windows_of",
    "slot_of",
    "long_segment",
    "long_block",
)
TYPES = (
    "S",
    "V",
    "Stored",
    "Max",
    "FloatMode",
    "f16",
    "bf16",
    "f32",
    "SB",
    "E",
    "X",
    "W",
    "Sums",
    "Four",
    "Full",
    "Part",
)
MOST_THREADS = 1 << 12


def defines(lanes: int) -> dict[str, int]:
    """The macros of a build for vectors of so many lanes."""
    return {"TOKITAI_LANES": lanes, "TOKITAI_STRUCTURE": 0, "TOKITAI_ISA_SCALAR": int(lanes == 1), "__GNUC__": 13,
            "TOKITAI_ISA_AVX2": int(lanes == 8), "TOKITAI_ISA_AVX512": int(lanes == 16),
            "TOKITAI_ISA_NEON": int(lanes == 4)}  # fmt: skip


class CpuCalls:
    """What functions of the headers do with memory. ``lanes``: of a vector."""

    def __init__(self, lanes: int, threads: Any) -> None:
        self.lanes, self.threads = lanes, threads
        self.calls = {
            "load": self.load, "store": self.store, "load1": self.load1, "store1": self.store1, "min": self.minimum,
            "Four": self.four, "Full": self.full, "Part": self.part, "thread_number": self.number,
            "joined": self.joined, "tree": self.tree, "tree_over": self.tree_over, "prefetch": self.nothing,
            "streams": self.nothing, "get": self.nothing, "element_word": self.word,
        }  # fmt: skip

    def constants(self, lanes: int, headers: str) -> dict[str, Any]:
        """Numbers that the headers define, read there. Raises ProofError where one is defined in another way."""
        (interleave,) = _defined(headers, "INTERLEAVE", r"(\d+)")
        (tile,) = _defined(headers, "TILE", r"(\d+)")
        bound, wide, other = _defined(headers, "JOINED", r"(\d+) > 1 \? (\d+) : (\d+)")
        joined = wide if bound > 1 else other
        (width,) = _defined(headers, "BLOCK", r"int64_t\(JOINED\) \* (\d+)")
        return {
            "Four::count": Int(interleave * lanes, "int64_t"), "LANES": Int(lanes), "INTERLEAVE": Int(interleave),
            "JOINED": Int(joined), "BLOCK": Int(joined * width, "int64_t"), "TILE": Int(tile, "int64_t"),
        }  # fmt: skip

    def load(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        if not isinstance(values[0], Pointer):
            return OPAQUE
        n = values[1].count if len(values) > 1 and isinstance(values[1], Lanes) else self.lanes
        walk.access(values[0], n, False)
        return OPAQUE

    def store(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        if not isinstance(values[0], Pointer):
            return OPAQUE
        n = values[2].count if len(values) > 2 and isinstance(values[2], Lanes) else self.lanes
        walk.access(values[0], n, True)
        return OPAQUE

    def load1(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return walk.loaded(values[0]) if isinstance(values[0], Pointer) else OPAQUE

    def store1(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        if isinstance(values[0], Pointer):
            walk.access(values[0], 1, True)
        return OPAQUE

    def minimum(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        a, b = values
        if not isinstance(a, Int) or not isinstance(b, Int):
            return OPAQUE
        kind = "int64_t" if "int64_t" in (a.type, b.type) else a.type
        if isinstance(a.term, int) and isinstance(b.term, int):
            return Int(min(a.term, b.term), kind)
        return Int(z3.If(a.term < b.term, a.term, b.term), kind)

    def four(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return Lanes("Four", 4 * self.lanes)

    def full(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return Lanes("Full", self.lanes)

    def part(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        n = walk.number(values[0])
        walk.must("Part of a vector", z3.And(n >= 0, n <= self.lanes) if not isinstance(n, int) else True)
        return Lanes("Part", n)

    def number(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return Int(walk.thread, "int64_t")

    def joined(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        walk.access(values[0], template[0].term * self.lanes, False)
        return OPAQUE

    def tree(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Uses up what lies behind: as much as there are whole blocks for."""
        block = walk.globals.names["BLOCK"].value.term
        n = walk.number(values[1])
        room = (n + block - 1) // block * block if isinstance(n, int) else (n + block - 1) / block * block
        walk.access(values[0], room, True)
        return OPAQUE

    def tree_over(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Takes each value once; see the order of sums."""
        n, at = values[0], values[2]
        k = walk.fresh("k")
        walk.when += [k >= 0, k < walk.number(n)]
        found = walk.invoke(at, [Int(k, "int64_t")])
        del walk.when[-2:]
        return found if isinstance(found, Opaque) else OPAQUE

    def word(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """A word of the numbers of elements, from this one on."""
        lanes = values[1].count if len(values) > 1 and isinstance(values[1], Lanes) else self.lanes
        walk.access(Pointer(Base(f"word {template[0].term}", "numbers"), walk.number(values[0])), lanes, False)
        return OPAQUE

    def nothing(self, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return OPAQUE


def whole_text(text: KernelText, lanes: int) -> tuple[str, str]:
    """The kernel, and all headers, as the preprocessor leaves them."""
    main = re.sub(r'#include "[^"]*"', "", text.text)
    order = "".join(f"{line}\n" for line in re.findall(r"#define .*", text.text))
    order += "".join(f'#include "{name}"\n' for name in re.findall(r'#include "([^"]*)"', text.text))
    return preprocessed(main, defines(lanes) | {"LANES": lanes}), preprocessed(order, defines(lanes), text.headers)


def sized_sides(operator: Operator) -> tuple[Any, Any, list[Any]]:
    """Rows and columns, and what a contract says of them."""
    rows, cols, c = z3.Int("rows"), z3.Int("cols"), operator.contract
    return rows, cols, [rows >= 0, rows <= c.max_rows, cols >= c.min_cols, cols <= c.max_cols]


def _defined(headers: str, name: str, how: str) -> list[int]:
    """The numbers in the definition of a constant."""
    found = re.search(rf"constexpr \w+ {name} = {how};", headers)
    if found is None:
        raise ProofError(f"{name}: no definition of the form {how!r} in the headers")
    return [int(n) for n in found.groups()]


def walk_rowwise(operator: Operator, plan: Plan, lanes: int, seconds: float, text: KernelText | None = None) -> Kernel:
    """The walk through the CPU's kernel of a row-wise plan."""
    start = Start(operator, plan, lanes, text)
    rows, cols, threads = start.rows, start.cols, start.threads
    entries = z3.Int("entries")
    start.walk.knows += [entries >= 1, entries <= 2**31]
    start.products = [(z3.If(rows > 0, rows - 1, 0), cols)]
    tensors, strides = start.tensors({"rc": rows, "t": entries}, {"r": rows, "c": cols, "s": 1})
    start.walk.tables["sizes"] = dict(enumerate([rows, cols, *strides]))
    start.products.append((z3.simplify((rows + plan.block - 1) / plan.block), cols))
    return start.walked(tensors, seconds, [rows, cols, threads, *strides])


def walk_flat(operator: Operator, plan: Plan, lanes: int, seconds: float, text: KernelText | None = None) -> Kernel:
    """The walk through the CPU's kernel of an element-wise plan, for one tensor of each name."""
    start = Start(operator, plan, lanes, text)
    rows, cols = start.rows, start.cols
    start.walk.multiples.append(rows)
    tiles = start.walk.number(start.walk.function("tiles_of", [], [Int(cols, "int64_t")]))
    start.products = [(z3.If(rows > 0, rows - 1, 0), cols), (rows, tiles)]  # no more tiles in a row than columns
    tensors, strides = start.tensors({"rc": rows}, {"s": 1})
    numbers, within = whole_numbers(plan.graph, operator)
    start.walk.knows += within
    start.walk.tables["sizes"] = dict(enumerate([1, rows, cols, *strides, *numbers]))
    return start.walked(tensors, seconds, [rows, cols, start.threads, *strides])


class Start:
    """What is known where a kernel begins."""

    walks = Walk

    def __init__(
        self, operator: Operator, plan: Plan, lanes: int, text: KernelText | None, walked: Sequence[str] = WALKED
    ) -> None:
        self.plan, self.graph = plan, plan.graph
        self.text = emit_cpu(plan) if text is None else text
        self.main, self.headers = whole_text(self.text, lanes)
        self.rows, self.cols, knows = sized_sides(operator)
        self.threads, thread = z3.Int("threads"), z3.Int("thread")
        knows += [self.threads >= 1, self.threads <= MOST_THREADS, thread >= 0, thread < self.threads]
        self.templates = templates_in(self.headers)
        functions = functions_of(self.headers, walked, self.templates, TYPES)
        calls = CpuCalls(lanes, self.threads)
        self.walk = self.walks(functions, knows, calls.calls, calls.constants(lanes, self.headers))
        self.walk.thread = thread
        self.extents: dict[str, Extent] = {}
        self.products: list[tuple[Any, Any]] = []  # as a `Kernel` has them

    def tensors(self, sides: Mapping[str, Any], plain: Mapping[str, Any]) -> tuple[dict[int, Any], list[Any]]:
        """Pointers to all tensors, inputs first, and the strides of those that have rows: of spaces with so many lines,
        or with so many elements."""
        given = [(f"in_{t.name}", str(t.space), t.slots or 1, str(t.format)) for t in self.graph.inputs]
        given += [(f"out_{o.name}", str(o.space), o.slots or 1, o.format) for o in self.graph.outputs]
        pointers: dict[int, Any] = {}
        strides = []
        for i, (name, space, slots, fmt) in enumerate(given):
            pointers[i] = Pointer(Base(name, "tensor", True, not FORMATS[fmt].is_float), 0)
            if space in sides:
                stride, side = z3.Int(f"{name}_stride"), sides[space]
                strides.append(stride)
                self.walk.knows += [stride >= self.cols, stride <= 2**60, z3.Implies(side <= 1, stride <= 2**60)]
                self.products.append((side - 1, stride))
                self.extents[name] = Extent(self.cols, side, stride)
            else:
                self.extents[name] = Extent(plain[space] * slots if space == "r" else plain[space])
        return pointers, strides

    def defined(self, name: str, how: str) -> list[int]:
        """The numbers in the definition of a constant of the headers."""
        return _defined(self.headers, name, how)

    def execute(self, tensors: Mapping[int, Any]) -> None:
        """Walk the kernel on tensors and sizes that are known."""
        walk = self.walk
        walk.globals.names |= _cells(
            tensors=tensors, sizes=Pointer(Base("sizes", "table", True, True), 0), scalar_table=OPAQUE,
            threads=Int(self.threads, "int32_t"), workspace=Pointer(Base("workspace", "workspace"), 0),
        )  # fmt: skip
        begin = self.main.index("tokitai_kernel(")
        parser = Parser(self.main[self.main.index("{", begin) :], self.templates, TYPES)
        walk.alone = next(walk.names) + 1
        walk.execute(parser.block(), Scope(walk.globals))

    def walked(self, tensors: Mapping[int, Any], seconds: float, sizes: Sequence[Any], entries: Any = None) -> Kernel:
        """The kernel, walked."""
        self.execute(tensors)
        outputs = [f"out_{o.name}" for o in self.graph.outputs]
        kernel = Kernel(self.walk, self.extents, outputs, sizes, self.products, seconds)
        _workspace(kernel, self.plan, self.rows, self.cols, self.threads, z3.IntVal(0) if entries is None else entries)
        return kernel


def whole_numbers(graph: Graph, operator: Operator) -> tuple[list[Any], list[Any]]:
    """The whole host scalars of a call, and that they are in the ranges that it accepts."""
    found, knows = [], []
    for i, n in enumerate(whole_scalars(graph)):
        found.append(z3.Int(str(n.args[0].data[0]) if n.args[0].op == "param" else f"scalar_{i}"))
        if (within := _range(n.args[0], operator)) is not None:
            knows += [found[-1] >= math.floor(within[0]), found[-1] <= math.ceil(within[1])]
    return found, knows


def _range(n: Node, operator: Operator) -> tuple[float, float] | None:
    """The range of a host scalar that is an argument, a number or a product of such; None where there is none."""
    if n.op == "param":
        return operator.contract.ranges.get(str(n.data[0]))
    if n.op == "number":
        return float(str(n.data[0])), float(str(n.data[0]))
    sides = [_range(a, operator) for a in n.args] if n.op == "host_mul" else [None]
    ends = [a * b for a in sides[0] or () for b in sides[-1] or ()]
    return (min(ends), max(ends)) if ends else None


def _workspace(kernel: Kernel, plan: Plan, rows: Any, cols: Any, threads: Any, entries: Any) -> None:
    """The parts of the workspace: the last ends where the plan says that the workspace does."""

    def asked() -> int:
        return plan.workspace_bytes([(whole(rows), whole(cols))], 4, whole(threads), whole(entries))

    total = one_term(asked, kernel.walk.knows)
    kernel.workspace, kernel.threads = total, threads
    extents = dict(kernel.extents)
    for p in kernel.walk.pieces:
        size = p.size if p.size is not None else p.each if p.each is not None else parted(total - p.start, p.base.unit)
        extents[p.base.name] = Extent(size)
        if p.each is not None:
            kernel.products = [*kernel.products, (p.each, kernel.walk.thread)]
    kernel.extents = extents


def _cells(**values: Any) -> dict[str, Any]:
    return {name: Cell(value) for name, value in values.items()}


__all__ = ["sized_sides", "walk_flat", "walk_rowwise", "whole_numbers"]
