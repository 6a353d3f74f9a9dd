"""The plan of attention: products of queries and keys, what is made of them along each row, and weighted sums.

For a panel of queries the scores of all keys lie in a thread's own memory, so that maxima and sums along a row are
taken as in any row-wise kernel, pass by pass; then the panel weighs the sums over its keys and adds to those over
queries. The memory grows with the keys, not with queries times keys. A plan decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...errors import DefinitionError
from ...lang import MATMUL_BLOCK, OPERANDS, Graph, Node, Sizes, topological
from ..family import Plan
from ..matmul.plan import PANEL_COLS, PANEL_ROWS

PANEL = 32  # queries of a panel at most, whatever the instruction set
SLACK = 32  # elements of each piece of a thread's memory: it is rounded up to 16, behind which structure builds have 16
KEEP = frozenset({"call", "div", "sqrt"})  # what costs more to compute again than to keep
_REFUSED = frozenset({
    "col_sum", "total_sum", "total_max", "take_column", "tensor_index", "row_first", "slots", "gather", "scatter_sum",
    "row_index", "element_word", "round_stochastic",
})  # fmt: skip


@dataclass(frozen=True)
class KeyPass:
    """One sweep over the keys of a panel."""

    compute: tuple[Node, ...]  # values with a row and a column, operands first; those that lie in panels are loaded
    maxima: tuple[Node, ...]
    sums: tuple[Node, ...]
    keep: tuple[Node, ...]  # written to panels
    after: tuple[Node, ...]  # values with one element a row that can be computed once the pass is over


@dataclass(frozen=True)
class AttentionPlan(Plan):
    """Products of queries with keys, passes over the keys, weighted sums over keys and over queries.

    ``limit`` is the input that says how many keys each query sees, ``hidden`` what each maximum or sum takes in the
    place of the others. ``slot`` says in which panel a product or a kept value lies.
    """

    has_inner: ClassVar[bool] = True
    graph: Graph
    products: tuple[Node, ...]
    uniform: tuple[Node, ...]  # scalars of the whole call
    before: tuple[Node, ...]  # values with one element a row that no pass is needed for
    passes: tuple[KeyPass, ...]
    limit: Node | None
    hidden: dict[Node, Node]
    over_keys: tuple[Node, ...]
    over_queries: tuple[Node, ...]
    slot: dict[Node, int]
    format: str = ""  # of all operands and weights, where products are steps of a matrix unit
    flat: bool = False
    block: int = 1

    @property
    def panels(self) -> int:
        """How many values lie in panels at a time."""
        return max(self.slot.values()) + 1

    @property
    def sides(self) -> tuple[list[Node], list[Node], list[Node], list[Node]]:
        """The operands that are packed: keys and queries of products; terms of sums over keys, and over queries."""
        return (
            _once(n.args[1] for n in self.products), _once(n.args[0] for n in self.products),
            _once(n.args[1] for n in self.over_keys), _once(n.args[1] for n in self.over_queries),
        )  # fmt: skip

    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """The memory of all threads: at least what the text of the kernel takes, piece by piece."""
        sizes = Sizes.of(shapes[0])
        rows, cols, inner = sizes[0], sizes[1] + PANEL_ROWS, sizes.inner
        tall, wide = inner + PANEL_ROWS, inner + PANEL_COLS
        keys, queries, columns, lines = map(len, self.sides)
        pieces = [cols * inner] * keys + [PANEL * inner] * queries + [tall * cols] * columns + [PANEL * wide] * lines
        pieces += [(cols + PANEL_ROWS) * PANEL] * self.panels
        pieces += [PANEL * PANEL_ROWS * (1 + _levels(inner)), PANEL * (inner + SLACK)]
        pieces += [tall * PANEL * (1 + _levels(cols))] * len(self.over_keys)
        pieces += [cols * wide * (1 + _levels(rows))] * len(self.over_queries)
        pieces += [(cols + wide) * PANEL] * (len(self.over_queries) if self.format else 0)
        return element * threads * sum(p + SLACK for p in pieces)

    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""
        return {
            "products": len(self.products),
            **({"accumulator": "fused16"} if self.format else {}),
            "passes over the keys": len(self.passes),
            "panels of queries x keys": self.panels,
            "sums over keys": len(self.over_keys),
            "sums over queries": len(self.over_queries),
        }


def _levels(terms: int) -> int:
    chains = -(-terms // MATMUL_BLOCK)
    return chains.bit_length() if chains > 1 else 0


def _once(nodes: Iterable[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes))


def is_attention(graph: Graph) -> bool:
    """Whether the graph has a weighted sum."""
    return any(n.op == "weighted_sum" for n in graph.nodes)


def made_of(root: Node) -> list[Node]:
    """Weighted sums and what is made of them for a result, operands first."""
    found: set[Node] = set()
    stack = [root]
    while stack:
        n = stack.pop()
        if n.space == root.space and n not in found:
            found.add(n)
            stack += [] if n.op == "weighted_sum" else n.args
    return [n for n in topological([root]) if n in found]


def plan_attention(graph: Graph) -> AttentionPlan:
    """The plan for a graph. Raises DefinitionError for what cannot be laid out beside weighted sums."""
    for t in graph.inputs:
        if t.space not in ("r", *OPERANDS) or t.slots:
            raise DefinitionError(
                f"{t.origin}: the input {t.name} beside a weighted sum; accepted: operands, and one value a row"
            )
    for n in graph.nodes:
        if n.op in _REFUSED or (n.type not in ("f32", "i32", "bool", "host")):
            raise DefinitionError(
                f"{n.origin}: {n.op} of type {n.type} beside a weighted sum; accepted: f32 arithmetic, row_max and "
                "row_sum, conditions on column_index() and an i32 limit"
            )
        if n.op == "matmul" and n.data not in (("NT", "f32"), ("NT", "fused16")):
            raise DefinitionError(
                f"{n.origin}: matmul {n.data} beside a weighted sum; accepted: layout NT in f32 or fused16"
            )
    for o in graph.outputs:
        if o.space not in ("r", "rk", "ck"):
            raise DefinitionError(
                f"{o.node.origin}: the result {o.name}, {o.node}, beside a weighted sum; accepted: what is made of "
                "weighted sums, and values with one element a row"
            )
    reductions = [n for n in graph.nodes if n.op in ("row_max", "row_sum")]
    sums = [n for n in graph.nodes if n.op == "weighted_sum"]
    for n in sums:
        if n.args[0].op == "weighted_sum" or any(m.op == "weighted_sum" for m in topological([n.args[0]])):
            raise DefinitionError(f"{n.origin}: weights made of a weighted sum; accepted: of products and rows")
    limit, hidden = _limit(reductions, sums)
    fmt = _format_of_units(graph)
    level: dict[Node, int] = {}
    for n in graph.nodes:
        level[n] = max((level[a] for a in n.args), default=0) + (n in reductions)
    count = max([level[n] for n in reductions] + [level[n.args[0]] + 1 for n in sums])
    wanted = [
        _once([r.args[0] for r in reductions if level[r] == p] + [s.args[0] for s in sums if level[s.args[0]] + 1 == p])
        for p in range(1, count + 1)
    ]
    products = tuple(n for n in graph.nodes if n.op == "matmul")
    kept = {s.args[0] for s in sums} | _dear(wanted)
    passes: list[KeyPass] = []
    there: set[Node] = set(products)
    slot, last = {n: i for i, n in enumerate(products)}, _last_use(wanted, kept | there, [s.args[0] for s in sums])
    rows = [n for n in graph.nodes if n.space == "r" and n.op not in ("input", "row_max", "row_sum")]
    for p, roots in enumerate(wanted, 1):
        nodes = _cone(roots, there)
        keep = tuple(n for n in nodes if n in kept and n not in there)
        for n in keep:
            free = [i for i in set(slot.values()) if all(last[m] <= p for m, at in slot.items() if at == i)]
            slot[n] = min(free, default=max(slot.values()) + 1)
        passes.append(
            KeyPass(
                compute=tuple(nodes),
                maxima=tuple(n for n in reductions if n.op == "row_max" and level[n] == p),
                sums=tuple(n for n in reductions if n.op == "row_sum" and level[n] == p),
                keep=keep,
                after=tuple(n for n in rows if level[n] == p),
            )
        )
        there.update(keep)
    return AttentionPlan(
        graph=graph,
        products=products,
        uniform=tuple(n for n in graph.nodes if n.space == "s" and n.type != "host"),
        before=tuple(n for n in rows if level[n] == 0),
        passes=tuple(passes),
        limit=limit,
        hidden=hidden,
        over_keys=tuple(n for n in sums if n.data[0] == "columns"),
        over_queries=tuple(n for n in sums if n.data[0] == "rows"),
        slot=slot,
        format=fmt,
    )


def _format_of_units(graph: Graph) -> str:
    """The one format of all operands, where all products are steps of a matrix unit; empty where none is."""
    every = [n for n in graph.nodes if n.op in ("matmul", "weighted_sum")]
    narrow = [n for n in every if n.data[1:] == ("fused16",)]
    formats = {str(a.data[1]) for n in every for a in n.args if a.op == "input" and a.space in OPERANDS}
    if narrow and (len(narrow) < len(every) or len(formats) > 1):
        other = next((n for n in every if n not in narrow), every[-1])
        raise DefinitionError(
            f"{other.origin}: {other.op} {other.data} of {', '.join(sorted(formats))} beside products in fused16; "
            "accepted: all in fused16, of operands in one format"
        )
    return formats.pop() if narrow else ""


def _limit(reductions: Sequence[Node], sums: Sequence[Node]) -> tuple[Node | None, dict[Node, Node]]:
    """The one limit of all weighted sums; what maxima and sums along a row take where a key is not seen."""
    limits = _once(n.args[2] if len(n.args) > 2 else None for n in sums)  # type: ignore[misc]
    if len(limits) > 1 or (limits[0] is not None and limits[0].op != "input"):
        raise DefinitionError(f"{sums[0].origin}: weighted sums with several limits; accepted: one input, or none")
    limit = limits[0]
    hidden: dict[Node, Node] = {}
    for n in reductions if limit is not None else ():
        x = n.args[0]
        seen = x.op == "where" and x.args[0].op == "lt" and x.args[0].args[0].op == "column_index"
        if not seen or x.args[0].args[1] is not limit or x.args[2].space != "s":
            raise DefinitionError(
                f"{n.origin}: {n.op} of what is not seen; accepted beside a limit: "
                f"{n.op}(where(column_index() < limit, value, number))"
            )
        hidden[n] = x.args[2]
    return limit, hidden


def _cone(roots: Iterable[Node], there: set[Node]) -> list[Node]:
    """What must be computed for the roots, operands first, not looking behind what is there."""
    need: set[Node] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n in need or n.space not in ("rc", "c"):
            continue
        need.add(n)
        if n not in there and n.op != "matmul":
            stack.extend(n.args)
    return [n for n in topological(roots) if n in need]


def _dear(wanted: Sequence[Sequence[Node]]) -> set[Node]:
    """Values that several passes need and that are dear to compute; of a value and its operands, only the value."""
    cones = [set(_cone(roots, set())) for roots in wanted]
    shared = {n for i, a in enumerate(cones) for b in cones[i + 1 :] for n in a & b if n.type == "f32"}
    dear = {n for n in shared if n.op != "matmul" and any(m.op in KEEP for m in _cone([n], set()))}
    return {n for n in dear if not all(u in dear for cone in cones for u in cone if n in u.args) or _root(n, wanted)}


def _root(n: Node, wanted: Sequence[Sequence[Node]]) -> bool:
    return any(n in roots for roots in wanted[1:])


def _last_use(wanted: Sequence[Sequence[Node]], held: set[Node], weights: Sequence[Node]) -> dict[Node, int]:
    """The last pass that needs a value that is held in a panel; weights are needed after all of them."""
    last = dict.fromkeys(held, 0)
    for p, roots in enumerate(wanted, 1):
        for n in _cone(roots, held - set(roots)):
            if n in held:
                last[n] = p
    return last | dict.fromkeys(weights, len(wanted) + 1)
