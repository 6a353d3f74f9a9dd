"""Element-wise kernels of GPUs, walked: a block for each tile, of one tensor of each name.

A call joins the rows of contiguous tensors to one: so there are tensors of one row, as long as memory allows, and those
of several. Where totals come first in the same launch, the blocks of elements are those that take the last turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..families.elementwise.gpu import ENTRY
from ..families.elementwise.gpu_kernels import emit_flat
from ..families.elementwise.schedule import flat_steps, flat_workspace_elements, schedule_flat, tiles_of, units_of
from ..lang import Operator
from ..lower.gpu import CHUNK
from .choice import MEMORY
from .cpu import sized_sides, whole_numbers
from .gpu import GpuWalk, read
from .gpu_kernel import MOST_BLOCKS, Case, GpuKernel, digits_of, digits_of_threads, tensors_of
from .kernel import Extent
from .symbolic import one_term, term_of, whole
from .values import OPAQUE, Base, Cell, Int, Pointer, Scope


def flat_cases(
    operator: Operator, plan: Any, warp: int, target: str, seconds: float, text: KernelText | None = None
) -> Iterator[Case]:
    """The kernel that computes elements, of one row and of several."""
    if not plan.compute:
        return
    rows, cols, knows = sized_sides(operator)
    source = read(emit_flat(plan, CHUNK, schedule_flat(plan)) if text is None else text, target, warp)
    one, several = [cols >= 1, cols <= MEMORY], [*knows, rows >= 2, cols >= 1, rows * cols <= MEMORY]
    cases = [("one row", 1, one), ("several rows", rows, several)]
    for name, count, known in cases[: 2 if operator.contract.max_rows > 1 else 1]:
        key = operator.name, str(known), source.signature("work"), warp
        yield Case(f"{name}, {warp} lanes", key, partial(_walked, operator, plan, source, seconds, count, known))


def _walked(operator: Operator, plan: Any, source: Any, seconds: float, rows: Any, knows: list[Any]) -> GpuKernel:
    """The kernel, walked."""
    cols, units, knows = z3.Int("cols"), z3.Int("units"), list(knows)
    shapes = [(rows if isinstance(rows, int) else whole(rows), whole(cols))]
    grid = one_term(lambda: sum(s.grid for s in flat_steps(plan, shapes) if s.name == "work"), knows)
    knows += [grid <= MOST_BLOCKS, units == one_term(lambda: units_of(shapes), knows)]
    block = digits_of(z3.simplify(term_of(tiles_of(*shapes[0]))), "block", knows)
    tensors = tensors_of(plan.graph, cols, {"rc": rows}, {"s": 1}, MEMORY)
    numbers, within = whole_numbers(plan.graph, operator)
    threads = digits_of_threads(next(s.block for s in flat_steps(plan, [(1, 1)]) if s.name == "work"), source.warp)
    filled = 1
    start = units + filled + 1 if schedule_flat(plan).joined else 0
    walk = GpuWalk(source, [*knows, *tensors.knows, *within], block, threads, start)
    entry = [rows, cols, 0, 0, 0, *tensors.strides, *tensors.pointers]
    assert len(entry) == ENTRY + len(tensors.strides) + len(tensors.pointers)
    walk.tables["one"], walk.tables["integers"] = dict(enumerate(entry)), dict(enumerate(numbers))
    call = {
        "table": Int(0), "one": Pointer(Base("one", "table"), 0), "integers": Pointer(Base("integers", "table"), 0),
        "scalars": OPAQUE, "workspace": Pointer(Base("workspace", "workspace"), 0), "units": Int(units, "int64_t"),
        "filled_count": Int(filled, "int64_t"),
    }  # fmt: skip
    walk.globals.names["call"] = Cell(call)
    walk.execute(source.kernel("work"), Scope(walk.globals))
    extents = tensors.extents | {"workspace": Extent(one_term(lambda: flat_workspace_elements(plan, shapes), knows))}
    outputs = [f"out_{o.name}" for o in plan.graph.outputs if o.space == "rc"]
    products = [*tensors.products, (rows - 1, cols), *((m - 1, n) for m, n in pairwise(block.factors))]
    sizes = [rows, cols, *tensors.strides]
    return GpuKernel(walk, extents, outputs, sizes, products, seconds, grid=grid, blocks=start + block.count)


__all__ = ["flat_cases"]
