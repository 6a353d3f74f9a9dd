"""Element-wise operators on lists of tensors: one launch over all of them, empty ones included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..formats import FORMATS
from ..lang import Graph, Node, Operator
from ..meaning import bits, structure
from ..runtime.kernel import KernelBase, Scalars
from . import cases
from .buffers import digest, workspace_buffer
from .cases import Array
from .compare import first_mismatch
from .run import FAULTS, SMALL, CaseResult, Launch, Layout, fault_text, layouts

# Numbers of elements: empty tensors first, last and between; tiles that are full, one short, one over; many small ones.
LISTS: dict[str, tuple[int, ...]] = {
    "one tensor": (37,),
    "empty tensors alone": (0, 0),
    "empty tensors between": (0, 5, 0, 16384, 1, 16385, 0, 0, 40000, 3, 0),
    "many small tensors": tuple(1 + i % 7 for i in range(35)) + (0,) + (1,) * 20,
}
# Those of a definition that counts columns: host scalars are the call's, so that tensors are of one size.
COUNTED: dict[str, tuple[int, ...]] = {
    "one tensor": (37,), "empty tensors alone": (0, 0), "tensors of one size": (16385, 16385, 16385),
}  # fmt: skip


def lists_of(graph: Graph) -> Mapping[str, tuple[int, ...]]:
    """The lists that a graph is tried on: numbers of elements, by name."""
    return COUNTED if any(n.op == "columns" for n in graph.nodes) else LISTS


def run_lists(
    operator: Operator, numbers: KernelBase, hashed: KernelBase | None, seed: int, threads: int
) -> list[CaseResult]:  # fmt: skip
    """Every list, as numbers against the oracle and, where a kernel over hashes is given, against the structure."""
    kernels = [k for k in (numbers, hashed) if k is not None]
    return [run_list(operator, k, name, seed, threads) for name in lists_of(numbers.graph) for k in kernels]


def run_list(operator: Operator, kernel: KernelBase, name: str, seed: int, threads: int) -> CaseResult:
    """One list by its name: as numbers against the oracle or, of a kernel over hashes, against the structure."""
    graph, sizes = kernel.graph, lists_of(kernel.graph)[name]
    params = cases.settled(operator, graph, cases.defaults(operator))
    shapes = [(1, n) for n in sizes]
    if kernel.structure:
        drawn, first = hashed_list(operator, graph, shapes, seed)
        wanted = structure.evaluate_tensors(graph, drawn, shapes, first, params)
        table = kernel.hash_table(first, 1, sizes[0], params)
        return _run("structure", f"list, {name}", kernel, drawn, shapes, table, wanted, seed, threads)
    tensors = [
        {t.name: cases.draw(operator, t, "normal", shape, seed + i) for t in graph.inputs}
        for i, shape in enumerate(shapes)
    ]
    want = bits.evaluate_tensors(graph, tensors, shapes, params)
    scalars = kernel.scalar_table(1, sizes[0], params)
    return _run("list", name, kernel, tensors, shapes, scalars, want, seed, threads)


def hashed_list(
    operator: Operator, graph: Graph, shapes: Sequence[tuple[int, int]], seed: int
) -> tuple[list[Mapping[str, Array]], dict[Node, int]]:
    """Hashes for the float inputs of each tensor, beside whole numbers as they are drawn; and for the host scalars,
    which are the call's: the same for all."""
    hashes = [structure.hashes(graph, s, seed + i) for i, s in enumerate(shapes)]
    integers = [t for t in graph.inputs if not FORMATS[str(t.format)].is_float]
    drawn: list[Mapping[str, Array]] = [
        {**tensors, **{t.name: cases.draw(operator, t, "normal", s, seed + i) for t in integers}}
        for i, (s, (tensors, _)) in enumerate(zip(shapes, hashes, strict=True))
    ]
    return drawn, hashes[0][1]


def list_id(kind: str, name: str, shapes: Sequence[tuple[int, int]], seed: int) -> str:
    """The id of the case that runs a list."""
    named = f"list, {name}" if kind == "structure" else name
    return f"{kind}/{named}@1x{sum(n for _, n in shapes)}#{seed}"


def layouts_of_list(case: str, seed: int) -> list[Layout]:
    """Those of the first tensor of a list; the others' tensors lie elsewhere."""
    return [replace(x, draws=(*x.draws, "0")) for x in layouts(case, SMALL + 1, seed)]


def _run(
    kind: str, name: str, kernel: KernelBase, tensors: Sequence[Mapping[str, Array]],
    shapes: list[tuple[int, int]], scalars: Scalars, want: list[dict[str, Array]], seed: int, threads: int,
) -> CaseResult:  # fmt: skip
    elements = sum(n for _, n in shapes)
    shape, short = (1, elements), name.removeprefix("list, ")
    made = CaseResult(kind, name, shape, seed, list_id(kind, short, shapes, seed), {})
    made.inputs = {f"{n}[{i}]": digest(a) for i, some in enumerate(tensors) for n, a in some.items()}
    made.oracle = {f"{n}[{i}]": digest(a) for i, some in enumerate(want) for n, a in some.items()}
    for layout in layouts_of_list(made.id, seed):
        each = [replace(layout, draws=(*layout.draws[:-1], str(i))) for i in range(len(shapes))]
        launches = [Launch(kernel, s, t, x) for t, s, x in zip(tensors, shapes, each, strict=True)]
        made.layouts += (launches[0].told(),)
        made_by = [x.results for x in launches]
        if made_by:  # results that a list has one of are those of its first tensor
            single = [o.name for o in kernel.graph.outputs if o.space == "s"]
            made_by = [{**r, **{n: made_by[0][n] for n in single}} for r in made_by]
        results = [{n: b.array for n, b in some.items()} for some in made_by]
        try:
            need = kernel.workspace_bytes(shapes, layout.threads)
            workspace = workspace_buffer(need, kernel.element("f32"))
            kernel.launch_buffers([x.inputs for x in launches], made_by, shapes, scalars, layout.threads, workspace)
            for x in launches:
                x.check()
            workspace.check_guards()
        except FAULTS as error:
            made.failure = f"{made.layouts[-1]}: {fault_text(error)}"
            return made
        for i, (got, wanted) in enumerate(zip(results, want, strict=True)):
            for n, values in got.items():
                mismatch = first_mismatch(f"{n} of tensor {i}", values.reshape(wanted[n].shape), wanted[n])
                if mismatch is not None:
                    made.failure = f"{made.layouts[-1]}: {mismatch}"
                    return made
                made.compared += values.size
        made.outputs = made.outputs or {f"{n}[{i}]": digest(a) for i, x in enumerate(results) for n, a in x.items()}
    return made
