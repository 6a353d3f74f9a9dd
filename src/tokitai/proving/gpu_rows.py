"""Row-wise kernels of GPUs, walked: for every source that there is for some number of columns.

Sources that differ only in how many warps share a row are one, of an unknown number of warps. Where a launch has as
many blocks as there are rows to take, each block runs its loop over rows once. Where blocks take rows in turn, block b
of n takes units b, b + n, b + 2 n ...: each unit is that of one block and iteration, so a unit stands for both, and how
many blocks there are does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from ..families.rowwise import schedule as rowwise
from ..families.rowwise.gpu_kernels import emit_rows
from ..families.rowwise.plan import RowPlan, plan_rows
from ..lang import Operator
from ..lower.gpu import CHUNK, MOST_THREADS
from .choice import MEMORY, SHARED_BYTES
from .cpu import whole_numbers
from .effects import parts
from .gpu import Digits, Emitted, GpuWalk, read
from .gpu_kernel import MOST_BLOCKS, Case, GpuKernel, tensors_of
from .kernel import Extent
from .logic import both, either, folded, holds, no, variables
from .parse import Node
from .row_plans import column_classes
from .symbolic import one_term, whole
from .terms import Sum, ask
from .values import OPAQUE, Base, Cell, Int, Loop, Pointer, Scope, Truth

WARPS = "WARPS_OF_ROW"
LANES = 32  # of a warp, at least


@dataclass(frozen=True)
class Rows:
    """One source, and for which schedules, rows of columns from ``low`` to ``high``, it is printed."""

    text: KernelText
    schedule: rowwise.Schedule
    warps: tuple[
        int, int
    ]  # that share a row, from and to; (0, 0) where less than one does, or rows are read in each pass
    low: int
    high: int
    alone: bool = False  # whether a kernel of it is meant that is the same for all schedules


def sources(plan: RowPlan, warp: int, most: int, target: str) -> list[Rows]:
    """Every source that may be compiled for rows of ``most`` columns at most whose tensors are aligned for all
    accesses."""
    found: dict[str, Rows] = {}
    for s, low, high in schedules(plan, warp, most, target):
        made = emit_rows(plan if s.kept else plan_rows(plan.graph, "nothing"), s)
        warps = s.threads // warp if s.kept and s.threads % warp == 0 else 0
        text = re.sub(r"KERNEL\(work, \d+, \d+\)", "KERNEL(work, 1, 1)", made.text[made.text.index("#include") :])
        text = re.sub(r"// \d+ threads a row.*", "", text)
        if warps >= 2:
            text = text.replace(f"THREADS = {s.threads},", f"THREADS = {WARPS} * WARP,")
        one = Rows(replace(made, text=text), s, (warps, warps), low, high)
        if (before := found.get(text)) is not None:
            ends = min(before.warps[0], warps), max(before.warps[1], warps)
            one = replace(before, warps=ends, low=min(before.low, low), high=max(before.high, high))
        found[text] = one
    return list(found.values())


def schedules(plan: RowPlan, warp: int, most: int, target: str) -> Iterator[tuple[rowwise.Schedule, int, int]]:
    """Every schedule, and those that are tried where threads spill, with the numbers of columns, from and to."""
    wished: dict[rowwise.Schedule, tuple[int, int]] = {}
    for low, high in column_classes(most):
        s = rowwise.schedule_rows(plan, low, CHUNK, warp)
        wished[s] = min(low, wished.get(s, (low, high))[0]), max(high, wished.get(s, (low, high))[1])
    for first, ends in wished.items():
        fits = rowwise.stage_bytes(plan, first) <= SHARED_BYTES[target]
        tried: rowwise.Schedule | None = first if fits else replace(first, staged=False)
        while tried is not None:
            yield tried, *ends
            room = rowwise.stage_bytes(plan, replace(tried, staged=True)) <= SHARED_BYTES[target]
            tried = tried.with_fewer_registers(rowwise.blocked(plan), room)


class RowWalk(GpuWalk):
    """The walk through one kernel of rows, of ``launched`` blocks. ``counts`` are numbers that have a name, ``known``
    those that the source has one for; ``in_turn``: blocks take units in turn."""

    few = 1

    def __init__(
        self, source: Emitted, knows: Sequence[Any], block: Digits, thread: Digits, counts: Sequence[Any],
        known: Mapping[str, Any], launched: Any, in_turn: bool,
    ) -> None:  # fmt: skip
        self.counts, self.named_in_source, self.launched, self.in_turn = counts, known, launched, in_turn
        self.unit = z3.Int("unit")
        self.joined: dict[int, list[Any]] = {}  # conditions that an iteration adds to a variable, by iterations
        self.told = False  # whether the solver has what is known of sizes
        self.stands: list[Any] = []  # the conditions that the solver has, each one a level above the one before
        super().__init__(source, knows, block, thread)
        if in_turn:
            self.digits = (self.unit, *thread.digits)
        rows = RowCalls(self)
        self.calls = {**self.calls, **rows.calls}

    def value_name(self, n: Node, scope: Scope) -> Any:
        return self.named_in_source[n.args[0]] if n.args[0] in self.named_in_source else super().value_name(n, scope)

    # ------------------------------------------------------------------ conditions
    def asked(self, term: Any) -> bool:
        """What the solver says, which keeps what this place has in common with the last one."""
        if not self.told:
            self.solver.add(*self.knows)
            self.told = True
        here = [w for w in self.when if w is not True]
        same = 0
        for a, b in zip(self.stands, here, strict=False):
            if a is not b:
                break
            same += 1
        self.solver.pop(len(self.stands) - same)
        for w in here[same:]:
            self.solver.push()
            self.solver.add(w)
        self.stands = here
        self.solver.push()
        self.solver.add(*self.relevant([term, *here]), z3.Not(term))
        found = bool(self.solver.check() == z3.unsat)
        self.solver.pop()
        return found

    # ------------------------------------------------------------------ numbers
    def execute_declare(self, n: Node, scope: Scope) -> Any:
        """Counts that the plan has a name for are that name."""
        for one in n.args:
            super().execute_declare(Node("declare", (one,), n.line), scope)
            cell = scope.names[one[1]]
            if isinstance(cell.value, Int) and not isinstance(cell.value.term, int) and one[0].endswith("int64_t"):
                for count in self.counts:
                    if self.follows(cell.value.term == count):
                        cell.value = replace(cell.value, term=count)
                        break
        return True

    def converted(self, value: Any, kind: str) -> Any:
        """A negative number in an unsigned type is what wraps around."""
        if kind == "uint32_t" and isinstance(value, Int) and value.type == "int" and not isinstance(value.term, int):
            return Int(z3.If(value.term < 0, value.term + 2**32, value.term), kind)
        return super().converted(value, kind)

    def access(self, where: Any, n: Any, write: bool) -> None:
        """Choices that are decided where an access is made are not part of where it is."""
        if isinstance(where, Pointer) and not self.dry:
            where = replace(where, at=self.decided(where.at))
        super().access(where, n, write)

    def decided(self, term: Any) -> Any:
        """A number without the choices in it that follow from what is known here."""
        while not isinstance(term, int):
            for c in _choices(term):
                condition, x, y = c.children()
                same = x == y
                chosen = next(
                    (v for v, w in ((x, condition), (y, no(condition))) if self.follows(z3.Or(w, same))), None
                )
                if chosen is not None:
                    term = folded(z3.substitute(term, (c, chosen)))
                    break
            else:
                return term
        return term

    def value_assign(self, n: Node, scope: Scope) -> Any:
        mark, target, source = n.args
        if mark == "|=" and isinstance(before := self.value(target, scope), Truth):
            more = self.truth(self.value(source, scope))
            made = Truth(folded(either(before.term, more)))
            self.store_to(target, made, scope)
            if self.loops and target.kind == "name" and not self.dry:
                loop = self.loops[-1]
                first = next(i for i, w in enumerate(self.when) if holds(w, loop.iteration))
                here = both(*self.when[first:], more)
                self.joined.setdefault(loop.iteration.get_id(), []).append((scope.find(target.args[0]), here, loop))
            return made
        return super().value_assign(n, scope)

    def store_to(self, target: Node, value: Any, scope: Scope) -> None:
        if target.kind == "unary" and target.args[1].kind == "cast" and target.args[1].args[0].startswith("Words"):
            size = int(re.sub(r"\D", "", target.args[1].args[0]))
            self.moved(self.value(target.args[1].args[1], scope), size, True)
            return
        super().store_to(target, value, scope)

    # ------------------------------------------------------------------ loops over rows
    def quiet(self, n: Node, scope: Scope) -> bool:
        """Whoever has the address of a variable may change it."""
        given = (p.args[1].kind == "name" for p in parts(n) if p.kind == "unary" and p.args[0] == "&")
        return not any(given) and super().quiet(n, scope)

    def changes(self, n: Node, scope: Scope) -> dict[int, tuple[Cell, Any, Any]]:
        """A body that changes none needs no walk."""
        begin, condition, step, body = n.args
        nothing = Node("block", ())
        return super().changes(Node(n.kind, (begin, condition, step, nothing)) if self.quiet(body, scope) else n, scope)

    def execute_for(self, n: Node, scope: Scope, shared: bool = False) -> Any:
        """A block whose launch has a block for each unit goes through a loop over units once."""
        begin, condition, step, body = n.args
        if self.dry and self.quiet(n, scope):
            return True
        if not any(p.kind == "name" and p.args[0] == "grid_size" for p in parts(step)):
            return super().execute_for(n, scope, shared)
        inner = Scope(scope)
        self.execute(begin, inner)
        if self.in_turn:
            return self.summary(n, inner, shared)
        once = Node("if", (condition, body, Node("block", ())))
        self.execute(once, inner)
        self.log.append([])
        self.value(step, inner)
        again = self.truth(self.value(condition, inner))
        for cell, before in reversed(self.log.pop()):
            cell.value = before
        self.must("a block goes through its loop over rows once", no(again))
        return True

    def counted(self, linear: Sequence[tuple[Any, Any]]) -> Any:
        """The unit, of a loop in which blocks take units in turn."""
        turns = self.in_turn and any(v.eq(self.launched) for _, d in linear for v in variables(d))
        return self.unit if turns else super().counted(linear)

    def bounded(self, kept: Sequence[Any]) -> Sequence[Any]:
        """None: they are facts of numbers that were made up."""
        for bound in kept:
            self.fact(bound)
        return ()

    def grown(self, first: Any, by: Any, iteration: Any) -> Any:
        if iteration is not self.unit:
            return super().grown(first, by, iteration)
        (block,) = self.block.digits
        behind = z3.substitute(first, (block, block + self.launched))
        if folded(z3.simplify(behind - first - by, som=True)) != 0:
            raise ProofError(f"{self.line}: grows by {by}; accepted: as much as of one block to the next, times blocks")
        return folded(z3.substitute(first, (block, self.unit)))

    def behind(
        self, n: Node, scope: Scope, linear: Any, changed: Any, unknown: Any, kept: Any, k_: Any, breaks: bool
    ) -> Any:
        """Behind all rows, nothing is known of what grew. A condition that iterations add to holds where that of one
        does: which one that is, where there is one, is an unknown."""
        if k_ is not self.unit:
            added = self.joined.pop(k_.get_id(), [])
            for cell, more, loop in added if len(added) == 1 else ():
                if id(cell) in changed and changed[id(cell)][1] == Truth(False) and not _made_in(more, loop):
                    self.assign(cell, Truth(z3.substitute(more, (k_, self.fresh("k")))))
            return super().behind(n, scope, linear, changed, unknown, kept, k_, breaks)
        for k in linear:
            cell = changed[k][0]
            at = self.fresh("before")
            self.assign(
                cell, replace(cell.value, term=at) if isinstance(cell.value, Int) else replace(cell.value, at=at)
            )
        return True


def _made_in(term: Any, loop: Loop) -> bool:
    """Whether a number is part of a condition that was made up in an iteration, or for what is ahead of it."""
    names = (v.decl().name().partition("!") for v in variables(term) if not v.eq(loop.iteration))
    return any(of == "before" or (n.isdigit() and int(n) > loop.number) for of, _, n in names)


def _choices(term: Any) -> list[Any]:
    """The choices in a number, inner ones first."""
    found: dict[int, Any] = {}
    stack = [term]
    while stack:
        t = stack.pop()
        if z3.is_app_of(t, z3.Z3_OP_ITE) and z3.is_int(t):
            found[t.get_id()] = t
        stack += t.children()
    return list(found.values())[::-1]


class RowCalls:
    """What functions of ``rows.h`` do that are not walked."""

    def __init__(self, walk: RowWalk) -> None:
        self.walk = walk
        self.calls = {
            "grid_size": self.blocks,
            "Cells": self.cells,
            ".next": self.half,
            "power_of_two_from": self.power,
            "Stage": self.stage,
            ".fetch": self.fetch,
            ".get": self.get,
            "over_blocks": self.each,
            "down_rows": self.each,
            "block_size": lambda w, t, v: Int(w.threads.count),
        }

    def blocks(self, walk: RowWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return Int(walk.launched, "int64_t")

    def cells(self, walk: RowWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        memory, half, _ = values
        return {"memory": memory, "half": half}

    def half(self, walk: RowWalk, owner: Any, values: Sequence[Any]) -> Any:
        """Either half: they alternate."""
        phase = walk.fresh("half")
        walk.fact(z3.And(phase >= 0, phase <= 1))
        return replace(owner["memory"], at=phase * owner["half"].term, dims=())

    def power(self, walk: RowWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        n = walk.number(values[0])
        if isinstance(n, int):
            return Int(1 << (n - 1).bit_length() if n > 1 else 1)
        made = walk.fresh("power")
        walk.fact(z3.And(made >= n, made >= 1, z3.Or(made < 2 * n, made == 1)))
        return Int(made)

    def stage(self, walk: RowWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        return OPAQUE

    def fetch(self, walk: RowWalk, owner: Any, values: Sequence[Any]) -> Any:
        _, _, where, count = values
        chunk = Pointer(Base("fetched", "local", False, False, (CHUNK,), where.base.unit), 0, (CHUNK,))
        width, fit = (walk.globals.names[name].value for name in ("WIDTH", "FIT"))
        return walk.function("load_chunk", [width, fit], [chunk, where, count])

    def get(self, walk: RowWalk, owner: Any, values: Sequence[Any]) -> Any:
        return OPAQUE

    def each(self, walk: RowWalk, template: Sequence[Any], values: Sequence[Any]) -> Any:
        """Takes each value once; see the order of sums."""
        n, at = values[0], values[1]
        k = walk.fresh("k")
        walk.when += [k >= 0, k < walk.number(n)]
        walk.invoke(at, [Int(k, "int64_t")])
        del walk.when[-2:]
        return OPAQUE


WALKED = ("load_chunk", "store_chunk", "whole", "along_row", "store_partial")


def row_cases(
    operator: Operator, plan: RowPlan, warp: int, target: str, seconds: float,
    changed: Callable[[KernelText], KernelText] = lambda text: text,
) -> Iterator[Case]:  # fmt: skip
    """Every kernel of every source; one that no schedule has a part in once."""
    alone: dict[tuple[str, str], tuple[Emitted, Rows]] = {}
    for s in sources(plan, warp, operator.contract.max_cols, target):
        source = read(changed(s.text), target, warp, WALKED)
        within = s.schedule.threads <= LANES and "WARP" not in re.sub(r"THREADS > WARP \? [^:;]*:", "", s.text.text)
        for name in re.findall(r"KERNEL\((\w+), ", s.text.text):
            if name in ("early", "finish") and not SCHEDULED.search(body := _body(source.text, name)):
                _, before = alone.get((name, body), (source, s))
                low, high = min(s.low, before.low), max(s.high, before.high)
                alone[name, body] = source, replace(s, low=low, high=high, warps=(0, 0), alone=True)
                continue
            # The threads of a row within a warp do the same whatever the lanes are.
            lanes = (0, (0, 0)) if within and name == "work" else (warp, s.warps)
            key = operator.name, source.signature(name), s.low, s.high, *lanes
            made = Launch(operator, plan, s, source.warp)
            yield Case(f"{name}, {s.schedule}", key, partial(made.walked, source, name, seconds))
    for (name, body), (source, s) in alone.items():
        made = Launch(operator, plan, s, source.warp)
        same = operator.name, name, body, repr(source.functions), s.low, s.high, warp
        yield Case(name, same, partial(made.walked, source, name, seconds))


SCHEDULED = re.compile(r"\b(?:THREADS|CHUNKS|ROWS|SPAN|GROUP|STEP|FIT|WIDTH)\b")


def _body(text: str, name: str) -> str:
    """The text of a kernel, without what nothing comes of."""
    body = text.partition(f"KERNEL({name},")[2].partition("\nKERNEL(")[0]
    return re.sub(r"\(void\)\w+|known\([^;]*\);", "", body)


class Launch:
    """What is known of a launch of one source's kernels. A number of blocks is a product of counts: each is an unknown
    of which is said what it is rounded up from."""

    def __init__(self, operator: Operator, plan: RowPlan, source: Rows, warp: int) -> None:
        self.operator, self.plan, self.source, self.warp = operator, plan, source, warp
        self.schedule = source.schedule
        self.rows, self.cols = z3.Int("rows"), z3.Int("cols")
        self.knows: list[Any] = []
        self.counts: list[Any] = []
        self.known: dict[str, Any] = {}
        self.in_turn = False

    def up(self, name: str, of: Any, by: Any) -> Any:
        """How many parts of so many there are of a number, the last one included."""
        if isinstance(by, int) and by == 1:
            return of
        count = z3.Int(name)
        self.knows += [count * by >= of, (count - 1) * by < of, count >= 0]
        self.counts.append(count)
        return count

    def sides(self, name: str) -> None:
        """The numbers of rows and columns for which a kernel is launched."""
        c, s, rows, cols = self.operator.contract, self.source, self.rows, self.cols
        least = 0 if name in ("early", "finish") else 1
        self.knows += [rows >= least, rows <= c.max_rows, cols >= max(s.low, c.min_cols), cols <= s.high]
        self.knows += [rows * cols <= MEMORY]
        if name == "columns" or (name == "work" and not rowwise.has_row_results(self.plan)):
            self.knows.append(cols >= 1)

    def threads(self, name: str) -> Digits:
        """A thread of a block. How many columns a row may have follows from how many threads share it."""
        schedule, warp = self.schedule, self.warp
        if name != "work":
            lanes = rowwise.COLUMNS
            threads = rowwise.COLUMN_THREADS if name == "columns" else MOST_THREADS
            return Digits((z3.Int("warp"), z3.Int("lane")), (threads // lanes, lanes))
        warps, lanes = z3.Int("warps"), min(schedule.threads, warp)
        digits = [("row_of_block", schedule.rows), ("warp", schedule.threads // lanes), ("lane", lanes)]
        if self.source.warps[1] >= 2:
            digits[1] = "warp", warps
        found = [(z3.Int(d), n) for d, n in digits if not isinstance(n, int) or n > 1]
        return Digits(tuple(d for d, _ in found), tuple(n for _, n in found))

    def columns_of(self) -> None:
        """How many columns a row has by the threads that share it."""
        schedule, (least, most) = self.schedule, self.source.warps
        threads: Any = schedule.threads
        if most >= 2:
            warps = z3.Int("warps")
            self.knows += [warps >= least, warps <= most]
            self.known[WARPS] = Int(warps)
            threads = warps * self.warp
        span = threads * schedule.chunks * CHUNK
        if schedule.exact:
            self.knows.append(self.cols == CHUNK * z3.Int("chunks_of_row"))
        if schedule.sliced:
            self.up("slices", self.cols, span)
            if schedule.full:
                self.knows.append(self.cols == span * z3.Int("slices"))
        elif schedule.full:
            self.knows.append(self.cols == span)
        elif schedule.kept:
            self.knows.append(self.cols <= span)

    def blocks(self, name: str) -> Digits:
        """A block of a launch."""
        plan, schedule, rows, cols = self.plan, self.schedule, self.rows, self.cols
        blocks = self.up("blocks", rows, plan.block)
        if name == "early":
            return Digits((), ())
        if name == "finish":
            if not rowwise.column_results(plan):
                return Digits((), ())
            wide = z3.Int("column_blocks")
            self.knows += [z3.If(cols > 0, z3.And(wide * 32 >= cols, (wide - 1) * 32 < cols), wide == 1)]
            return Digits((z3.Int("block"),), (wide,))
        if name == "columns":
            across = self.up("across", cols, rowwise.COLUMN_THREADS * CHUNK)
            return Digits((z3.Int("block"), z3.Int("part")), (blocks, across))
        joined = rowwise.blocked(plan) and not schedule.apart
        count = self.up("units", blocks if joined else rows, schedule.rows)
        if schedule.sliced:
            return Digits((z3.Int("slice"), z3.Int("block")), (z3.Int("slices"), count))
        if not joined and schedule.kept and (schedule.ahead > 0 or schedule.staged):
            self.in_turn = True
            self.knows += [z3.Int("grid") >= 1, z3.Int("grid") <= count, z3.Int("unit") >= 0]
            return Digits((z3.Int("block"),), (z3.Int("grid"),))
        return Digits((z3.Int("block"),), (count,))

    def named(self, term: Any) -> Any:
        """A number of blocks, made of counts that have a name."""
        for atom in Sum(term).atoms.values():
            for count in (n for c in self.counts for n in (c, -c) if not z3.is_const(atom)):
                if ask(atom == count, self.knows, 1.0).status == "proved":
                    term = z3.substitute(term, (atom, count))
                    break
        return term

    def walked(self, source: Emitted, name: str, seconds: float) -> GpuKernel:
        """A kernel, walked."""
        plan, rows, cols, entries = self.plan, self.rows, self.cols, z3.Int("entries")
        self.sides(name)
        if not self.source.alone:
            self.columns_of()
        block, threads = self.blocks(name), self.threads(name)
        count = block.factors[0] if block.factors else 1
        if len(block.factors) > 1:  # a name for the product, which is as large as each factor where the other is not 0
            count, (n, m) = z3.Int("grid"), block.factors
            self.knows += [count == n * m, z3.Implies(n >= 1, count >= m), z3.Implies(m >= 1, count >= n)]
        if not isinstance(count, int):
            self.knows.append(count <= MOST_BLOCKS)
        numbers, within = whole_numbers(plan.graph, self.operator)
        tensors = tensors_of(plan.graph, cols, {"rc": rows, "t": entries}, {"r": rows, "c": cols, "s": 1}, MEMORY)
        self.knows += [*within, entries >= 1, entries <= 2**31, *tensors.knows]
        walk = RowWalk(source, self.knows, block, threads, self.counts, self.known, count, self.in_turn)
        walk.tables["sizes"] = dict(enumerate([rows, cols, *tensors.strides, *numbers]))
        call = {
            "tensors": dict(enumerate(tensors.pointers)), "sizes": Pointer(Base("sizes", "table"), 0),
            "scalars": OPAQUE, "workspace": Pointer(Base("workspace", "workspace"), 0),
        }  # fmt: skip
        walk.globals.names["call"] = Cell(call)
        walk.execute(source.kernel(name), Scope(walk.globals))
        sides = whole(rows), whole(cols)
        room = one_term(lambda: rowwise.workspace_elements(plan, *sides), self.knows)
        spaces = ("rc", "r") if name == "work" else ("c", "s") if name == "finish" else ()
        launched: Any = None
        if not self.in_turn:
            planned = partial(rowwise.row_steps, plan, self.schedule, *sides)
            launched = self.named(one_term(lambda: sum(s.grid for s in planned() if s.name == name), self.knows))
        blocks_ = z3.Int("blocks") if plan.block > 1 else rows
        return GpuKernel(
            walk, tensors.extents | {"workspace": Extent(room)},
            [f"out_{o.name}" for o in plan.graph.outputs if o.space in spaces],
            [rows, cols, z3.Int("warps"), *tensors.strides],
            [*tensors.products, (rows - 1, cols), (blocks_, cols), *pairwise(block.factors)],
            seconds, grid=launched, blocks=block.count,
        )  # fmt: skip


__all__ = ["row_cases", "sources"]
