"""The plan of a row-wise kernel: which pass over a row computes what.

A row sum or maximum is known only after a pass over the whole row, so every value has a *level*: the number of passes
that must be over before it can be computed. Pass p computes the reductions of level p, and stores what it can; values
that several passes need are computed again, or kept in a scratch row where that would cost more than a load.

A plan decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ...errors import DefinitionError
from ...lang import COL_SUM_BLOCK, ROW_REDUCTIONS, TOTALS, Graph, Node, Output, topological
from ..family import Plan

# Rough cost of an operation in vector instructions; only the comparisons with KEEP_ABOVE and CHEAP matter.
_COST = {"div": 8, "sqrt": 10, "maximum": 4, "minimum": 4, "where": 1, "input": 2, "const": 0, "round": 0}
Keep = Literal["in cache", "in registers", "nothing"]
KEEP_ABOVE: dict[Keep, int] = {"in cache": 3, "in registers": 8}  # a scratch row costs a store and a load
NARROW = ("f16", "bf16")
CHEAP = 20  # below this a pass is bound by its loop and by the way its sums take, not by its arithmetic

REDUCTIONS = ROW_REDUCTIONS | TOTALS | {"col_sum"}


@dataclass(frozen=True)
class Pass:
    """One sweep over the columns of a row."""

    compute: tuple[Node, ...]  # values with a column index, operands first
    sums: tuple[Node, ...]
    maxima: tuple[Node, ...]
    firsts: tuple[Node, ...]
    stores: tuple[Output, ...]
    col_sums: tuple[Node, ...]
    keep: tuple[Node, ...]  # written to the scratch row for later passes
    after: tuple[Node, ...]  # values with one element a row that can be computed once the pass is over
    cheap: bool  # so little is computed that its code may be repeated for several vectors at a time


@dataclass(frozen=True)
class RowPlan(Plan):
    """How the rows of a matrix are worked through.

    ``block`` rows are one unit of parallel work: 32 where a column sum runs down them as a chain, else 1. Column sums
    that rows need (a count of rows that are kept) are *early*: they run first, over values that need no pass.
    """

    graph: Graph
    uniform: tuple[Node, ...]  # scalars of the whole call
    early: tuple[Node, ...]
    under_early: tuple[Node, ...]  # values with one element a row that early sums need
    after_early: tuple[Node, ...]  # scalars made of early sums
    before: tuple[Node, ...]  # values with one element a row that no pass is needed for
    passes: tuple[Pass, ...]
    finish: tuple[Node, ...]  # column values computed from complete column sums
    kept: Mapping[Node, int]  # values that later passes find, and the scratch row of each
    block: int
    flat: bool = False

    @cached_property
    def col_sums(self) -> tuple[Node, ...]:
        """All column sums: each has room for its blocks."""
        return tuple(n for n in self.graph.nodes if n.op == "col_sum")

    @cached_property
    def running(self) -> tuple[Node, ...]:
        """Column sums that run while the rows are worked through."""
        return tuple(n for n in self.col_sums if n not in self.early)

    @cached_property
    def widened(self) -> tuple[Node, ...]:
        """Narrow inputs with one element a column, which every row reads: each thread may widen them once."""
        used = {n for p in self.passes for n in p.compute if n.op == "input" and n.space == "c"}
        return tuple(n for n in self.graph.nodes if n in used and n.data[1] in NARROW)

    @cached_property
    def kept_rows(self) -> int:
        """How many scratch rows hold values that are kept from pass to pass."""
        return max(self.kept.values(), default=-1) + 1

    @cached_property
    def scratch_rows(self) -> int:
        """How many scratch rows each thread has."""
        return self.kept_rows + len(self.widened)

    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """Sums of blocks of rows and, for each thread, scratch rows and the sums of a row's blocks."""
        ((rows, cols),) = shapes
        blocks = -(-rows // self.block)
        shared = sum(blocks * (cols if n.space == "c" else 1) for n in self.col_sums)
        partial = self.most_sums * (cols // 4 + 512)  # partial_room(cols) in rows.h
        return element * (shared + threads * (self.scratch_rows * cols + partial))

    @property
    def needs_all_rows(self) -> bool:
        """Whether there are early sums."""
        return bool(self.early)

    @cached_property
    def has_firsts(self) -> bool:
        """Whether first columns are looked for."""
        return any(p.firsts for p in self.passes)

    @cached_property
    def most_sums(self) -> int:
        """How many sums along a row one pass takes at most."""
        return max((len(p.sums) for p in self.passes), default=0)

    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""
        return {
            "passes": len(self.passes),
            "rows in a block": self.block,
            "scratch rows": self.kept_rows,
            "column sums": len(self.col_sums),
            "column sums before the rows": len(self.early),
        }


def plan_rows(graph: Graph, keep: Keep = "in cache") -> RowPlan:
    """The plan for a graph; where it is to ``keep`` nothing, every pass computes all that it needs again.

    Raises DefinitionError where a row needs a column sum that is not complete yet.
    """
    level = _levels(graph)
    last = max((level[n] for n in graph.nodes if n.op in (*ROW_REDUCTIONS, "take_column")), default=0)
    row_stores = [o for o in graph.outputs if o.space == "rc"]
    col_sums = [n for n in graph.nodes if n.op == "col_sum" and n.space == "c"]
    final = any(level[o.node] >= last for o in row_stores) or bool(col_sums)
    count = last + (1 if final else 0)
    early, after_early = _early(graph)
    late = _after_columns(graph, early)

    row_nodes = [n for n in graph.nodes if n.space == "r" and n.op not in ROW_REDUCTIONS and n not in late]
    wanted: list[list[Node]] = []  # what each pass needs to have computed
    for p in range(1, count + 1):
        roots = [n.args[0] for n in graph.nodes if n.op in ROW_REDUCTIONS and level[n] == p]
        roots += [o.node for o in row_stores if _store_pass(o, level, count) == p]
        roots += [n.args[0] for n in col_sums] if p == count else []
        wanted.append(roots)
    for o in (o for o in row_stores if o.inplace):
        _check_replaced(graph, o, wanted, _store_pass(o, level, count))
    kept: dict[Node, int] = {}
    if keep != "nothing":
        kept = _scratch_rows(wanted, _choose_kept(wanted, count, KEEP_ABOVE[keep]))
    if keep == "in cache":
        kept = _with_inputs(wanted, kept)

    passes = []
    available: set[Node] = set()
    for p in range(1, count + 1):
        nodes = [n for n in _cone(wanted[p - 1], stop=available) if n.space in ("rc", "c")]
        held = tuple(n for n in nodes if n in kept and n not in available)
        passes.append(
            Pass(
                compute=tuple(nodes),
                sums=tuple(n for n in graph.nodes if n.op == "row_sum" and level[n] == p),
                maxima=tuple(n for n in graph.nodes if n.op == "row_max" and level[n] == p),
                firsts=tuple(n for n in graph.nodes if n.op == "row_first" and level[n] == p),
                stores=tuple(o for o in row_stores if _store_pass(o, level, count) == p),
                col_sums=tuple(col_sums) if p == count else (),
                keep=held,
                after=tuple(n for n in row_nodes if level[n] == p),
                cheap=sum(_own_cost(n) for n in nodes if n not in available) < CHEAP,
            )
        )
        available.update(held)
    sums = any(n.op == "col_sum" for n in graph.nodes)
    return RowPlan(
        graph=graph,
        uniform=tuple(
            n for n in graph.nodes if n.space == "s" and n.type != "host" and n not in late and n not in after_early
        ),
        early=early,
        under_early=tuple(n for n in topological([e.args[0] for e in early]) if n.space == "r"),
        after_early=tuple(n for n in graph.nodes if n in after_early and n not in early and n not in late),
        before=tuple(n for n in row_nodes if level[n] == 0),
        passes=tuple(passes),
        finish=tuple(n for n in graph.nodes if n in late),
        kept=kept,
        block=COL_SUM_BLOCK if sums else 1,
    )


def _check_replaced(graph: Graph, o: Output, wanted: list[list[Node]], store: int) -> None:
    """A result in an input's place must not be written before the input is read for the last time. Raises
    DefinitionError."""
    replaced = [n for n in graph.nodes if n.op == "input" and n.data[0] == o.name]
    later = [n for roots in wanted[store:] for n in _cone(roots, set())]
    later += [m for n in graph.nodes if n.op == "take_column" for m in topological([n.args[0]])]  # by other threads
    if any(n in later for n in replaced):
        raise DefinitionError(
            f"{o.node.origin}: the result {o.name} replaces an input that is read again behind a sum or maximum of its "
            "rows; accepted: a result of its own"
        )


def _levels(graph: Graph) -> dict[Node, int]:
    level: dict[Node, int] = {}
    for n in graph.nodes:
        below = max((level[a] for a in n.args), default=0)
        level[n] = below + (1 if n.op in ROW_REDUCTIONS else 0)
    return level


def _store_pass(output: Output, level: dict[Node, int], count: int) -> int:
    return min(level[output.node] + 1, count)


def _early(graph: Graph) -> tuple[tuple[Node, ...], set[Node]]:
    """Column sums that rows need and that themselves need nothing but values with one element a row; and the scalars
    that are made of them, themselves included."""
    needed = {m for n in graph.nodes if n.space in ("rc", "r") for m in topological(n.args) if m.op == "col_sum"}
    early = tuple(
        n for n in graph.nodes
        if n in needed and all(_needs_no_pass(m) for m in topological(n.args))
    )  # fmt: skip
    made: set[Node] = set(early)
    for n in graph.nodes:
        if n.space == "s" and any(a in made for a in n.args):
            made.add(n)
    return early, made if early else set()


def _needs_no_pass(n: Node) -> bool:
    """Whether a value is known before the pass over its row: one a row, or what it is taken from, one a column."""
    return n.op not in REDUCTIONS and (n.space in ("r", "s") or (n.space == "c" and n.op == "input"))


def _after_columns(graph: Graph, early: tuple[Node, ...]) -> set[Node]:
    """Column sums and what is made of them: known only after the last row."""
    late: set[Node] = set()
    for n in graph.nodes:
        if n in early:
            continue
        if n.op == "col_sum" or any(a in late for a in n.args):
            if n.space in ("rc", "r"):
                raise DefinitionError(
                    f"{n.origin}: {n.op} of a row with a column sum, which is complete only after the last row; "
                    "accepted: column sums as results, in values with one element a column, and sums of values that "
                    "have one element a row and need no sum themselves"
                )
            late.add(n)
    return late


def _cone(roots: list[Node], stop: set[Node]) -> list[Node]:
    """What must be computed for the roots, operands first, not looking behind kept values, reductions and functions."""
    need: set[Node] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n in need:
            continue
        need.add(n)
        if n not in stop and n.op not in REDUCTIONS:
            stack.extend(n.args)
    return [n for n in topological(roots) if n in need]


def _cost(node: Node, seen: set[Node]) -> int:
    if node in seen or node.space not in ("rc", "c"):
        return 0
    seen.add(node)
    return _own_cost(node) + sum(_cost(a, seen) for a in node.args if node.op not in REDUCTIONS)


def _own_cost(node: Node) -> int:
    return sum(_COST.get(n.op, 1) for n in node.body.nodes) if node.body is not None else _COST.get(node.op, 1)


def _choose_kept(wanted: list[list[Node]], count: int, above: int) -> set[Node]:
    """Values that two passes need and that are dear to compute; of a value and its operands, only the value."""
    cones = [set(_cone(roots, set())) for roots in wanted]
    shared = {n for i in range(count) for j in range(i + 1, count) for n in cones[i] & cones[j] if n.space == "rc"}
    dear = {n for n in shared if n.type == "f32" and _cost(n, set()) >= above}
    covered: set[Node] = set()
    for n in dear:  # an operand is needed in a later pass only through values that are kept themselves
        users = [m for cone in cones for m in cone if n in m.args]
        if users and all(u in dear for u in users) and not any(n in roots for roots in wanted[1:]):
            covered.add(n)
    return dear - covered


def _scratch_rows(wanted: list[list[Node]], kept: set[Node]) -> dict[Node, int]:
    """The scratch row of each value that later passes load. A row is used again by the pass that loads its value for
    the last time: a pass loads before it stores."""
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for p, roots in enumerate(wanted):
        for n in _cone(roots, stop=set(first)):
            if n in kept:
                first.setdefault(n, p)
                last[n] = p
    row: dict[Node, int] = {}
    free_from: list[int] = []  # the pass from which on each row is free
    for n in (n for n in first if first[n] < last[n]):  # in the order of their first pass
        found = next((i for i, p in enumerate(free_from) if p <= first[n]), len(free_from))
        free_from[found : found + 1] = [last[n]]
        row[n] = found
    return row


def _with_inputs(wanted: list[list[Node]], kept: dict[Node, int]) -> dict[Node, int]:
    """Also narrow inputs, widened, for which there is a scratch row that is free."""
    for n in (n for roots in wanted for n in _cone(roots, set())):
        if n.op == "input" and n.space == "rc" and n.data[1] in NARROW and n not in kept:
            more = _scratch_rows(wanted, {*kept, n})
            if max(more.values(), default=-1) == max(kept.values(), default=-1):
                kept = more
    return kept
