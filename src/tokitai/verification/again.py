"""The cases of a certificate without the device that it is about: draw its inputs again, compute the oracle, compare.

What a device computed is in the certificate as digests, and they are those of the oracle. Whoever recomputes the oracle
from the definition, on any machine, sees whether it is the definition's bits that the device was compared with.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..backends.backend import CaseSet
from ..evidence.check import printable
from ..evidence.statement import ConditionedErrors
from ..families.elementwise.plan import is_flat
from ..lang import Graph, Operator, Sizes, shape_text
from ..meaning import bits, structure
from ..numerics import NUMERICS_VERSION
from ..runtime.kernel import is_product
from ..runtime.shapes import allowed
from . import cases, conditioned, derived
from .accuracy import is_measured, measure_error
from .buffers import digest
from .cases import Array, work_of
from .conditioned import ByFormat
from .derived import shape_of
from .lists import hashed_list, layouts_of_list, list_id, lists_of
from .run import FIRST_LAYOUTS, SMALL, CaseResult, in_words, layouts, placed, rows_alike
from .sentences import graphs_of

Digests = Mapping[str, str]
MOST_ELEMENTS = 1 << 20  # of a case that is computed again
MOST_STEPS = 1 << 16  # of what the oracle takes one after another: the K dimension, the products of a batch
WHOLE = ("rows", "cols", "inner", "batch", "seed")  # of a case
CONDITIONED = 6  # the suite's version from which on errors against the condition of their elements are stated
NOT_DRAWN = ("yours", "derivative")  # kinds of cases whose inputs no seed draws, or that have none


@dataclass(frozen=True)
class Again:
    """What recomputing a certificate showed: of ``able`` cases that can be recomputed ``cases`` were; what ``problems``
    there are with them and with what follows from them; or why nothing can be recomputed, as ``unable`` says.
    ``lacking`` tells what is not there of the suite."""

    cases: int = 0
    able: int = 0
    problems: tuple[str, ...] = ()
    unable: str | None = None
    lacking: str | None = None


def compute_again(
    predicate: Mapping[str, Any], operator: Operator, sample: int, seed: int, progress: Callable[[str], object] = str
) -> Again:
    """Recompute ``sample`` cases of a certificate of `operator`, drawn by ``seed`` (0: all), and whatever follows from
    its parts.

    `predicate` is that of a statement without problems. Nothing that it says raises. ``progress`` gets each case.
    """
    name, dtype = predicate["operator"]["name"], printable(predicate["dtype"])
    given, version = predicate["operator"]["graph_digest"], predicate["operator"]["numerics_version"]
    if version != NUMERICS_VERSION:
        return Again(unable=f"its bits are those of numerics version {version}, which is {NUMERICS_VERSION} here")
    if dtype not in operator.contract.formats:
        return Again(unable=f"{name} has no format {dtype} here")
    if all(graph.digest != given for graph in graphs_of(operator, dtype)):
        present = operator.trace(dtype).digest
        return Again(unable=f"it is about another definition of {name}: {given[:16]}, not {present[:16]}")
    able = sum(map(_is_able, predicate["cases"]))
    chosen = [_in_integers(case) for case in sampled(predicate["cases"], sample or able, seed)]
    if not chosen:
        return Again(unable="none of its cases can be recomputed: they are of your own tensors, or large")
    problems: list[str] = []
    measured: list[Recomputed] = []
    for case in chosen:
        wrong, made = _case(operator, dtype, case, predicate)
        problems += wrong
        measured += [made] if made is not None else []
        progress(case["name"])
    lacking = None
    if not problems:
        whole = {**predicate, "cases": [_in_integers(case) for case in predicate["cases"]]}
        problems += derived.departures(whole, operator)
        lacking = None if problems or predicate["verdict"] == "refuted" else derived.lacking(whole, operator)
    if not problems and predicate["failure"] is None:
        version = predicate["suite"]["version"] if "suite" in predicate else 1
        whole_count = sum(case["max_ulp_error"] is not None for case in predicate["cases"])
        problems += _error(predicate["error"], measured, whole_count, version)
    return Again(len(chosen), able, tuple(map(printable, problems)), lacking=lacking)


def _error(stated: Mapping[str, Any], cases: Sequence[Recomputed], count: int, version: int) -> Iterator[str]:
    """Where the largest error's bound and place are not those of the ``count`` measured cases, if all are here. Bounds
    have become tighter since the first version."""
    found = [c for c in cases if c.max_ulp is not None]
    if len(found) < count:
        return
    bounds = [c.bound for c in found]
    bound = max((b for b in bounds if b is not None), default=None) if None not in bounds else None
    if version > 1 and not _near(bound, stated["bound"]):
        yield f"the bound on its errors is stated as {stated['bound']}, where it is {bound}"
    condition, here = stated.get("condition"), conditioned.stated(conditioned.together(c.conditioned for c in found))
    if (condition is not None or version >= CONDITIONED) and not _alike(condition, here):
        yield "its errors against the condition of their elements are not those of its cases"
    tops = [c.worst for c in found if _near(c.max_ulp, stated["max_ulp_error"])]
    if stated["at"] not in (tops or [None]):
        yield f"its largest error is said to be at {stated['at']}, where none of that size is"


def _alike(there: Mapping[str, Mapping[str, Any]] | None, here: Mapping[str, ConditionedErrors] | None) -> bool:
    """Whether figures by format are the same: counts and sentences exactly, errors nearly."""
    if not there or not here or there.keys() != here.keys():
        return not there and not here
    return all(
        _near(figure, there[fmt][name]) if isinstance(figure, float) else figure == there[fmt][name]
        for fmt, said in here.items()
        for name, figure in asdict(said).items()
    )


def _near(here: float | None, there: float | str | None) -> bool:
    """Whether two error figures are the same. Extended precision, in which they are computed, differs between systems
    in the last of its 63 bits for each operation, which is 2**-39 ulp of f32: by less than this for a million."""
    if here is None or there is None:
        return here is there
    return math.isclose(here, float(there), rel_tol=2.0**-19, abs_tol=2.0**-19)


def sampled(given: Sequence[Mapping[str, Any]], count: int, seed: int) -> list[Mapping[str, Any]]:
    """Some of the cases that can be computed again, one of each kind at least where there are so many."""
    rng = random.Random(seed)
    able = [c for c in given if _is_able(c)]
    rng.shuffle(able)
    kinds = {c["kind"]: c for c in able}
    first = list(kinds.values())[:count]
    taken = {id(c) for c in first}
    rest = [c for c in able if id(c) not in taken]
    return first + rest[: count - len(first)]


def _is_able(case: Mapping[str, Any]) -> bool:
    """Whether a case's inputs can be drawn again, in the time and memory that anyone has. Sides of 0 count as 1."""
    rows, cols, inner, batch = (int(case.get(side) or 1) for side in WHOLE[:4])
    work = work_of(Sizes(rows, cols, inner, batch))
    return case["kind"] not in NOT_DRAWN and work <= MOST_ELEMENTS and max(inner, batch) <= MOST_STEPS


def _in_integers(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """A case whose whole numbers, which JSON may write as 3.0, are integers."""
    return {**case, **{name: int(case[name]) for name in WHOLE if case.get(name) is not None}}


def _case(
    operator: Operator, dtype: str, case: Mapping[str, Any], predicate: Mapping[str, Any]
) -> tuple[list[str], Recomputed | None]:
    """Nothing wrong, and what it is, where some graph of the operator has all that the case states."""
    ragged = operator.trace(dtype).ragged
    shape = shape_of(case, ragged)
    name = f"{case['kind']}/{case['name']}@{shape_text(shape)}#{case['seed']}"
    if case["seed"] is None:
        return [f"case {name}: no seed draws its inputs"], None
    whole = (case.get("inner") is None) is (case.get("batch") is None) and case.get("batch") != 0
    if is_product(operator) is not isinstance(shape, Sizes) or not whole or not allowed(operator, shape):
        return [f"case {name}: {operator.name} has no such shape"], None
    problems = [f"case {name}: no graph of {operator.name} has it"]
    inputs_of, results_of = (
        {n.partition("[")[0] for n in case[digests]} for digests in ("input_digests", "oracle_digests")
    )
    case_set = derived.case_set_of(predicate["target"])
    for graph in graphs_of(operator, dtype):
        if inputs_of != {t.name for t in graph.inputs} or results_of != {o.name for o in graph.outputs}:
            continue
        made = recomputed(operator, graph, case, case_set, 2 if "suite" in predicate else 1)
        if made is None:
            continue
        said = [*_digests_said(case, made), *_figures_said(case, made, predicate, shape)]
        if not said:
            return [], made
        if "no graph" in problems[0]:
            problems = [f"case {name}: {'; '.join(said)}"]
    return problems, None


def _digests_said(case: Mapping[str, Any], made: Recomputed) -> Iterator[str]:
    """Where a case has other inputs, another oracle or other scalars."""
    inputs, oracle = made.inputs, made.oracle
    wrong = [f"input {n}" for n in inputs if inputs[n] != case["input_digests"].get(n)]
    wrong += [f"oracle {n}" for n in oracle if oracle[n] != case["oracle_digests"].get(n)]
    wrong += [f"{n}, which there is not" for n in case["input_digests"].keys() - inputs.keys()]
    wrong += [f"{n}, which there is not" for n in case["oracle_digests"].keys() - oracle.keys()]
    if wrong:
        yield f"another digest of {', '.join(wrong)}"
    if _as_floats(made.scalars) != _as_floats(case["scalars"]):
        yield f"its scalars are {dict(case['scalars'])}, where the definition's are {dict(made.scalars)}"


def _figures_said(
    case: Mapping[str, Any], made: Recomputed, predicate: Mapping[str, Any], shape: tuple[int, int]
) -> Iterator[str]:
    """Where an equal case has other layouts, another number of compared elements or another error."""
    if not case["equal"]:
        return
    first = "suite" not in predicate
    if first:
        small = _is_list(case) or work_of(shape) > SMALL
        times = len(FIRST_LAYOUTS[small])
    else:
        times = len(made.layouts)
        if tuple(case.get("layouts", ())) != made.layouts:
            yield "its layouts are not those that its seed draws"
    if case["compared"] != times * made.elements:
        yield f"{case['compared']} elements compared, where it has {made.elements}, in {times} layouts"
    if not _near(made.max_ulp, case["max_ulp_error"]):
        yield f"its largest error is {case['max_ulp_error']}, where the oracle's is {made.max_ulp}"


def _is_list(case: Mapping[str, Any]) -> bool:
    return bool(case["kind"] == "list" or case["name"].startswith("list, "))


def _as_floats(scalars: Mapping[str, float | str]) -> dict[str, str]:
    """Scalars that can be compared: as text, NaN is equal to itself and 0 is not -0."""
    return {name: repr(float(value)) for name, value in scalars.items()}


class Recomputed(NamedTuple):
    """What a certificate says of a case, computed here: digests of its inputs and of its oracle, its scalars, elements
    of its results, how its launches are laid out, and how far the oracle is from the exact value where that is
    measured, with the bound and the place."""

    inputs: Digests
    oracle: Digests
    scalars: Mapping[str, float]
    elements: int
    layouts: tuple[str, ...]
    max_ulp: float | None = None
    bound: float | None = None
    worst: str | None = None
    conditioned: ByFormat = MappingProxyType({})


def recomputed(
    operator: Operator, graph: Graph, case: Mapping[str, Any], case_set: CaseSet = CaseSet.VECTORS, version: int = 2
) -> Recomputed | None:  # fmt: skip
    """What the case of a graph is; None where the graph has no such case. In the first ``version`` gradients were held
    against the derivative of the rest of the function, with what was saved as it is stored."""
    kind, name, shape, seed = case["kind"], case["name"], shape_of(case, graph.ragged), case["seed"]
    if _is_list(case):
        return _list(operator, graph, kind, name.removeprefix("list, "), seed)
    if kind == "structure":
        return _structure(operator, graph, name, shape, seed)
    if kind == "seeded":
        if name not in (*cases.DRAWS, *cases.NAMED_DRAWS):
            return None
        made = cases.seeded(operator, graph, name, shape, seed)
    else:
        every = [*cases.hard(operator, graph), cases.exhaustive(operator, graph)]
        wanted = (kind, name, shape)
        found = next((c for c in every if c is not None and (c.kind, c.name, c.shape) == wanted), None)
        if found is None:
            return None
        made = found
    want = bits.evaluate(graph, made.tensors, made.shape, made.params)
    told, elements = _told(graph, False, made.id, made.shape, seed, made.tensors, want)
    result = CaseResult(made.kind, made.name, made.shape, made.seed, made.id, made.params)
    if is_measured(made, case_set):
        measure_error(graph, made if version > 1 else replace(made, saved=()), want, operator, result)
    inputs = _digests({t.name: made.tensors[t.name] for t in graph.inputs})
    measured = (result.max_ulp, result.max_bound, result.worst, result.conditioned)
    return Recomputed(inputs, _digests(want), made.params, elements, told, *measured)


def _structure(
    operator: Operator, graph: Graph, name: str, shape: tuple[int, int], seed: int
) -> Recomputed | None:  # fmt: skip
    tensors, hashes = structure.hashes(graph, shape, seed)
    tensors |= cases.drawn_integers(operator, graph, name, shape, seed)
    if name == cases.ROWS_ALIKE:
        tensors = rows_alike(graph, tensors)
    params = cases.drawn_scalars(operator, graph, shape)
    hashed = structure.evaluate(graph, tensors, shape, hashes, params)
    told, elements = _told(graph, True, f"structure/{name}@{shape_text(shape)}#{seed}", shape, seed, tensors, hashed,
                           name == cases.ROWS_ALIKE)  # fmt: skip
    return Recomputed(_digests(tensors), _digests(hashed), {}, elements, told)  # scalars are hashes as well


def _told(
    graph: Graph, hashed: bool, case: str, shape: tuple[int, int], seed: int, tensors: Mapping[str, Array],
    want: Mapping[str, Array], expanded: bool = False,
) -> tuple[tuple[str, ...], int]:  # fmt: skip
    """How the launches of a case are laid out, and how many elements its results have."""
    tables = {t.name: len(tensors[t.name]) for t in graph.inputs if t.space == "t"}
    entries = next((len(want[o.name]) for o in graph.outputs if o.space == "t"), structure.drawn_entries(shape[0]))
    chosen = [replace(x, expanded=expanded) for x in layouts(case, work_of(shape), seed)]
    told = tuple(in_words(x, placed(graph, hashed, shape, x, tables, entries)) for x in chosen)
    return told, sum(a.size for a in want.values())


def _list(operator: Operator, graph: Graph, kind: str, name: str, seed: int) -> Recomputed | None:
    if not is_flat(graph) or name not in lists_of(graph):
        return None
    shapes = [(1, n) for n in lists_of(graph)[name]]
    params = cases.settled(operator, graph, cases.defaults(operator))
    if kind == "structure":
        tensors, scalars = hashed_list(operator, graph, shapes, seed)
        want = structure.evaluate_tensors(graph, tensors, shapes, scalars, params)
    else:
        tensors = [
            {t.name: cases.draw(operator, t, "normal", shape, seed + i) for t in graph.inputs}
            for i, shape in enumerate(shapes)
        ]
        want = bits.evaluate_tensors(graph, tensors, shapes, params)
    inputs = {f"{n}[{i}]": digest(a) for i, some in enumerate(tensors) for n, a in some.items()}
    oracle = {f"{n}[{i}]": digest(a) for i, some in enumerate(want) for n, a in some.items()}
    told = tuple(
        in_words(x, placed(graph, kind == "structure", shapes[0], x, {}, 0))
        for x in layouts_of_list(list_id(kind, name, shapes, seed), seed)
    )
    elements = sum(some[n].size for some in want for n in some)
    return Recomputed(inputs, oracle, {}, elements, told)  # which certificates do not list


def _digests(tensors: Mapping[str, Array]) -> Digests:
    return {n: digest(a) for n, a in tensors.items()}
