"""The plan of a matrix product with element-wise work on its result.

The result is cut into tiles of at most TALL x WIDE elements. Along k, DEPTH products at a time are taken from operands
that were packed, widened to the accumulator's format, and added to a tile of accumulators; DEPTH divides a chain's
block, so that each accumulator's chain runs in the order of k. A plan decides speed, never a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...errors import DefinitionError
from ...lang import FIXED_BITS, MATMUL_BLOCK, OPERANDS, Graph, Node, Sizes
from ..family import Plan

TALL, WIDE, DEPTH, BLOCK_ROWS = 2016, 1024, 256, 144
PANEL_ROWS, PANEL_COLS = 16, 64  # of the micro-kernel at most, whatever the instruction set
SHARE = 2  # batches of so many products a thread are shared out whole
_REFUSED = frozenset({"row_sum", "row_max", "col_sum", "total_sum", "total_max", "take_column", "tensor_index"})


@dataclass(frozen=True)
class ProductPlan(Plan):
    """One product, or several of one left operand, and what is made of them element by element."""

    has_inner: ClassVar[bool] = True
    graph: Graph
    products: tuple[Node, ...]
    uniform: tuple[Node, ...]  # scalars of the whole call
    compute: tuple[Node, ...]  # values with a row or a column that the results need, operands first
    flat: bool = False
    block: int = 1

    @property
    def accumulator(self) -> str:
        """The format of the accumulators."""
        return str(self.products[0].data[1])

    @property
    def fixed(self) -> bool:
        """Whether operands are rounded to fixed point, and added exactly."""
        return self.accumulator in FIXED_BITS

    def bytes_for(self, sizes: Sizes, tall: int, wide: int, element: int, teams: int, threads: int) -> int:
        """For each team tiles of accumulators and of sums of whole blocks, packed operands of the right, units of
        lines in fixed point; for each thread packed operands of the left: as ``Buffers`` in products.h has them."""
        height, width = min(sizes[0], tall) + PANEL_ROWS, min(sizes[1], wide) + PANEL_COLS
        blocks, count = -(-sizes.inner // MATMUL_BLOCK), len(self.products)
        tiles = height * width * (1 + (blocks.bit_length() if blocks > 1 else 0)) * count
        right = DEPTH * width * count
        left = DEPTH * (min(sizes[0], BLOCK_ROWS) + PANEL_ROWS)
        each = max(element, 8 if self.accumulator in ("f64", "fixed16", "fixed24") else 4)
        units = self.fixed * element * (height + width * count)
        return each * (teams * (tiles + right) + threads * left) + teams * units

    @property
    def left(self) -> Node:
        """The operand on the left, of all products."""
        return self.products[0].args[0]

    def workspace_bytes(
        self, shapes: Sequence[tuple[int, int]], element: int, threads: int = 1, entries: int = 0
    ) -> int:
        """What ``Room`` in products.h has."""
        sizes = Sizes.of(shapes[0])
        teams = threads if sizes.batch >= SHARE * threads else 1
        return self.bytes_for(sizes, TALL, WIDE, element, teams, threads)

    def describe(self) -> dict[str, object]:
        """The plan in words, for people and certificates."""
        return {
            "products": len(self.products),
            "layout": ", ".join(str(n.data[0]) for n in self.products),
            "accumulator": self.accumulator,
            "tile": f"{TALL} x {WIDE}, {DEPTH} along k",
            "rows packed at a time": BLOCK_ROWS,
        }


def is_product(graph: Graph) -> bool:
    """Whether the graph has a matrix product."""
    return any(n.op == "matmul" for n in graph.nodes)


def plan_product(graph: Graph) -> ProductPlan:
    """The plan for a graph. Raises DefinitionError for sums and results of other sizes beside a product."""
    products = tuple(n for n in graph.nodes if n.op == "matmul")
    for t in graph.inputs:
        if t.space == "t" or t.slots:
            found = f"the input {t.name}, {'several values a row' if t.slots else 'a table'}, beside a product"
            raise DefinitionError(f"{t.origin}: {found}; accepted: operands, rows x cols, one value a row or a column")
    for n in graph.nodes:
        if n.op in _REFUSED:
            raise DefinitionError(f"{n.origin}: {n.op} beside a product; accepted: element-wise work on its result")
    for o in graph.outputs:
        if o.space != "rc":
            raise DefinitionError(f"{o.node.origin}: {o.name} is no matrix; accepted of a product: rows x cols")
    first = products[0]
    for n in products[1:]:
        same = n.args[0] is first.args[0] and n.data[1] == first.data[1]
        if not same or n.args[1].data[1] != first.args[1].data[1]:
            raise DefinitionError(
                f"{n.origin}: a second product of another kind; accepted: several of one left operand, with one format "
                "on the right and one accumulator"
            )
    return ProductPlan(
        graph=graph,
        products=products,
        uniform=tuple(n for n in graph.nodes if n.space == "s" and n.type != "host"),
        compute=tuple(n for n in graph.nodes if n.space != "s" and n.space not in OPERANDS and n.op != "matmul"),
    )
