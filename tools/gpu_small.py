"""Small cases of every kernel of every operator, for a run under compute-sanitizer:

    compute-sanitizer --tool T python3 -m tools.gpu_small [--device cuda|sim] [--quick] [OP ...]

Each operator is run in f16 at shapes that take a thread, a warp and a block to a row, with all optional tensors and
without, with every choice of its options; a sum over a table's entries also with one entry of all rows, which takes
other kernels, and with entries of two and three digits. ``--quick`` leaves the other variants out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from tokitai.backends import backend_of
from tokitai.families.scatter.plan import ScatterPlan
from tokitai.lang import Graph, Operator, Sizes
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.kernel import is_product
from tokitai.runtime.shapes import allowed
from tokitai.verification import cases, run
from tokitai.verification.verdict import variants

SHAPES = ((3, 9), (33, 264), (34, 1024))
INNER, GROUPS = 40, 5  # of a product, of one in groups
LONG = 80  # rows that one entry gets: more than a chain
ENTRIES = (300, 70_000)  # of two and of three digits to be sorted by


def offered(names: Sequence[str] = ()) -> list[Operator]:
    """All operators, or those that are named."""
    return [op for name, op in registry().items() if not names or name in names]


def cases_of(op: Operator, graph: Graph, shapes: Sequence[tuple[int, int]], scattered: bool) -> Iterator[cases.Case]:
    """What one variant of an operator is run on."""
    for rows, cols in shapes:
        shape: tuple[int, int] = (min(rows, op.contract.max_rows), cols)
        if is_product(op):
            shape = Sizes(*shape, INNER, GROUPS if graph.ragged else 1, graph.ragged)
        if allowed(op, shape):
            yield cases.seeded(op, graph, "normal", shape, 0)
    if scattered:
        index = next(iter(op.contract.indices))
        for entries in (3, *ENTRIES):
            made = cases.seeded(op, graph, "normal", (LONG + 5, 9), 0)
            chosen = np.full(LONG + 5, 1)
            chosen[LONG:] = entries - 1
            tensors = {**made.tensors, index: chosen.astype(made.tensors[index].dtype)}
            for t in graph.inputs:
                if t.space == "t":
                    tensors[t.name] = np.zeros((entries, 9), made.tensors[t.name].dtype)
            yield cases.Case(
                "seeded", f"{entries} entries", made.shape, 0, tensors, {**made.params, "entries": entries}
            )


def main(words: Sequence[str] | None = None) -> int:
    """0 where every result equals the oracle and something was run, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", metavar="OP")
    parser.add_argument("--device", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(words)
    target, wrong, tried = backend_of(asked.device).open(asked.device), 0, 0
    for op in offered(asked.operators):
        for number, v in enumerate(variants(op)[: 1 if asked.quick else None]):
            graph = op.trace("f16", v.present, dict(v.options))
            plan = gpu_plan(graph, asked.device)
            kernel: GpuKernel = GpuKernel(op, graph, plan, False, target)
            shapes = SHAPES if number == 0 else SHAPES[1:2]
            for case in cases_of(op, graph, shapes, isinstance(plan, ScatterPlan)):
                tried += 1
                result = run.run_numbers(kernel, case, None, 1)
                if result.failure:
                    wrong += 1
                    print(f"{op.name}{v.flags(op)} {case.id}: {result.failure}")
    print(f"{tried} cases, {wrong} wrong")
    return int(bool(wrong) or not tried)


if __name__ == "__main__":
    sys.exit(main())
