"""Which shapes and inputs a verification tries: every branch of a plan, hard inputs, noise of several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..backends.backend import CaseSet
from ..families import Plan
from ..families.shapes import Seeded, Shape
from ..lang import Operator, Sizes
from ..runtime.shapes import allowed
from . import cases, drawn
from .cases import Case

# Of what is run. Certificates that do not name it are of the first, and the cases of each go on being what they were:
# the second draws from its seed, the third has shapes at which blocks take several units in turn, and NaN behind the
# last vector, the fourth runs a case of a processor in every number of threads, and several whole blocks of sums, the
# fifth draws seeds, has segments that begin at every place in a chain, tables of many entries, three chains of keys;
# the sixth repeats structure runs in which no query attends to all keys with queries that do, has NaN among what is
# stored past the caches, and whole panels of products.
VERSION = 6
SEEDS = 8  # cases whose seeds are drawn
STRUCTURE_LIMIT = 1 << 23  # elements: beyond, hashing a whole tensor takes longer than a person waits


def structure_ids(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str = CaseSet.VECTORS,
    version: int = VERSION,
) -> list[tuple[int, int]]:  # fmt: skip
    """The shapes of all structure runs: those of the plan, and the shape asked for or those of ordinary use."""
    of_plan = plan.family.shapes
    shapes: list[Shape] = of_plan.structure(operator, plan, lanes, device)
    shapes += [shape] if shape is not None else list(default_shapes(operator, plan, device, version))
    if version > 1:
        shapes += [*of_plan.long(operator, plan, device), *drawn.shapes(operator, plan, device, seed)]
    if version > 2:
        shapes += of_plan.in_turn(operator, plan, device)
    if version > 3:
        shapes += of_plan.whole_blocks(operator, plan, device)
    if version > 4:
        shapes += of_plan.chains(operator, plan, device)
    if version > 5:
        shapes += of_plan.whole_panels(operator, plan, device)
    return [
        s for s in dict.fromkeys(shapes) if allowed(operator, s) and cases.work_of(s) <= STRUCTURE_LIMIT
    ]  # fmt: skip


def structure_runs(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str = CaseSet.VECTORS,
    version: int = VERSION,
) -> list[tuple[str, Shape]]:  # fmt: skip
    """The names and shapes of all structure runs."""
    shapes = structure_ids(operator, plan, lanes, shape, seed, device, version)
    runs = [(cases.ALL_INPUTS, s) for s in shapes]
    if version > 1:
        runs += [(cases.ROWS_ALIKE, s) for s in expanded_shapes(operator, plan)]
    if version > 5:
        none_whole = [s for s in shapes if cases.none_is_whole(operator, plan.graph, s, seed)]
        runs += [(cases.WHOLE_LENGTHS, s) for s in none_whole]
    return runs


def number_cases(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str = CaseSet.VECTORS,
    version: int = 1,
) -> Iterator[Case]:  # fmt: skip
    """The cases of a verification, cheapest first: hard inputs, all values, seeded noise, the shape asked for."""
    graph = plan.graph
    yield from cases.hard(operator, graph)
    every = cases.exhaustive(operator, graph)
    if every is not None:
        yield every
    for how, chosen in seeded_ids(operator, plan, lanes, shape, seed, device, version):
        yield cases.seeded(operator, graph, how, chosen, seed)


def seeded_ids(
    operator: Operator, plan: Plan, lanes: int, shape: tuple[int, int] | None, seed: int, device: str,
    version: int = VERSION,
) -> list[tuple[str, tuple[int, int]]]:  # fmt: skip
    """How and in which shape the inputs of a verification's seeded cases are drawn.

    What the first version has is never changed: certificates name its cases, and are checked for ever.
    """
    of_use = [shape] if shape is not None else list(default_shapes(operator, plan, device, version))
    tried: list[Seeded] = plan.family.shapes.seeded(operator, plan, lanes, device, list(cases.FIRST_DRAWS), of_use)
    if version > 1:
        tried += drawn.seeded_ids(operator, plan, lanes, device, seed)
    if version > 2:
        tried += plan.family.shapes.seeded_last(operator, plan)
    if version > 3 and device == CaseSet.VECTORS:
        tried.append((cases.IN_THREADS, plan.family.shapes.in_threads(operator, plan)))
    if version > 4:
        rows = min(3, operator.contract.max_rows)
        tried += [(cases.SEEDS, (rows, 33 + i)) for i in range(SEEDS if cases.seeds_of(operator) else 0)]
        tried += plan.family.shapes.partitioned(operator, plan, device)
    if version > 5 and device == CaseSet.VECTORS:
        tried += [(cases.TILED_NANS, s) for how, s in tried if how == "tiled"]
    return [(how, s) for how, s in dict.fromkeys(tried) if isinstance(s, Sizes) or allowed(operator, s)]


def default_shapes(operator: Operator, plan: Plan, device: str = CaseSet.VECTORS, version: int = 1) -> Sequence[Shape]:
    """Shapes of ordinary use, where none is asked for."""
    found: Sequence[Shape] = plan.family.shapes.of_use(operator, plan, device, version)
    return found


def expanded_shapes(operator: Operator, plan: Plan) -> list[Shape]:
    """Shapes of structure runs whose inputs have one row in memory that stands for all: with a row stride of 0."""
    found: list[Shape] = plan.family.shapes.expanded(operator, plan)
    return found
