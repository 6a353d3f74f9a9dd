"""The cases of a certificate without the device that it is about: draw its inputs again, compute the oracle, compare.

What a device computed is in the certificate as digests, and they are those of the oracle. Whoever recomputes the oracle
from the definition, on any machine, sees whether it is the definition's bits that the device was compared with.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import DefinitionError
from ..evidence.check import printable
from ..formats import format_of
from ..kernel import is_product
from ..lang import Graph, Operator, Sizes, shape_text
from ..lower.flat import is_flat
from ..meaning import bits, structure
from ..numerics import NUMERICS_VERSION
from . import cases
from .buffers import digest
from .cases import Array
from .lists import hashed_list, lists_of
from .run import work_of
from .suite import allowed
from .verdict import Variant, variants

Digests = Mapping[str, str]
MOST_ELEMENTS = 1 << 20  # of a case that is computed again
MOST_STEPS = 1 << 16  # of what the oracle takes one after another: the inner side, the products of a batch
WHOLE = ("rows", "cols", "inner", "batch", "seed")  # of a case
NOT_DRAWN = ("yours", "derivative")  # kinds of cases whose inputs no seed draws, or that have none


@dataclass(frozen=True)
class Again:
    """What computing the oracle again showed: of ``able`` cases that can be computed again ``cases`` were; what
    ``problems`` there are with them; or why nothing can be computed, as ``unable`` says."""

    cases: int = 0
    able: int = 0
    problems: tuple[str, ...] = ()
    unable: str | None = None


def compute_again(
    predicate: Mapping[str, Any], operator: Operator, sample: int, seed: int, progress: Callable[[str], object] = str
) -> Again:
    """Compute ``sample`` cases of a certificate of `operator` again, drawn by ``seed``; 0: all.

    `predicate` is that of a statement without problems. Nothing that it says raises. ``progress`` is told of each case.
    """
    name, dtype = predicate["operator"]["name"], printable(predicate["dtype"])
    given, version = predicate["operator"]["graph_digest"], predicate["operator"]["numerics_version"]
    if version != NUMERICS_VERSION:
        return Again(unable=f"its bits are those of numerics version {version}, which is {NUMERICS_VERSION} here")
    if dtype not in operator.contract.formats:
        return Again(unable=f"{name} has no format {dtype} here")
    if all(graph.digest != given for graph in _graphs(operator, dtype)):
        present = operator.trace(dtype).digest
        return Again(unable=f"it is about another definition of {name}: {given[:16]}, not {present[:16]}")
    able = sum(map(_is_able, predicate["cases"]))
    chosen = [_in_integers(case) for case in sampled(predicate["cases"], sample or able, seed)]
    if not chosen:
        return Again(unable="none of its cases can be computed again: they are of your own tensors, or large")
    problems: list[str] = []
    for case in chosen:
        problems += _case(operator, dtype, case)
        progress(case["name"])
    return Again(len(chosen), able, tuple(map(printable, problems)))


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


def _shape(case: Mapping[str, Any], ragged: str = "") -> tuple[int, int]:
    rows, cols, inner = case["rows"], case["cols"], case.get("inner")
    return (rows, cols) if inner is None else Sizes(rows, cols, inner, case.get("batch") or 1, ragged)


def _graphs(operator: Operator, dtype: str) -> Iterator[Graph]:
    """Every graph of the operator, each once: first those that a verification takes, then all other combinations."""
    names, optional = [o.name for o in operator.options], [t.name for t in operator.tensors if t.optional]
    others = (
        Variant(frozenset(itertools.compress(optional, there)), tuple(zip(names, values, strict=True)))
        for there in itertools.product((True, False), repeat=len(optional))
        for values in itertools.product(*(o.accepted for o in operator.options))
    )
    seen = set()
    for v in itertools.chain(variants(operator), others):
        try:
            graph = operator.trace(dtype, v.present, dict(v.options))
        except DefinitionError:  # a combination that the definition does not have
            continue
        if graph.digest not in seen:
            seen.add(graph.digest)
            yield graph


def _case(operator: Operator, dtype: str, case: Mapping[str, Any]) -> list[str]:
    """Nothing, where some graph of the operator has the inputs and the oracle that the case states."""
    ragged = operator.trace(dtype).ragged
    shape = _shape(case, ragged)
    name = f"{case['kind']}/{case['name']}@{shape_text(shape)}#{case['seed']}"
    if case["seed"] is None:
        return [f"case {name}: no seed draws its inputs"]
    if is_product(operator) is not isinstance(shape, Sizes) or not allowed(operator, shape):
        return [f"case {name}: {operator.name} has no such shape"]
    problems = [f"case {name}: no graph of {operator.name} has it"]
    inputs_of, results_of = (
        {n.partition("[")[0] for n in case[digests]} for digests in ("input_digests", "oracle_digests")
    )
    for graph in _graphs(operator, dtype):
        if inputs_of != {t.name for t in graph.inputs} or results_of != {o.name for o in graph.outputs}:
            continue
        made = recomputed(operator, graph, case)
        if made is None:
            continue
        inputs, oracle, scalars = made
        wrong = [f"input {n}" for n in inputs if inputs[n] != case["input_digests"].get(n)]
        wrong += [f"oracle {n}" for n in oracle if oracle[n] != case["oracle_digests"].get(n)]
        wrong += [f"{n}, which there is not" for n in case["input_digests"].keys() - inputs.keys()]
        wrong += [f"{n}, which there is not" for n in case["oracle_digests"].keys() - oracle.keys()]
        said = [f"another digest of {', '.join(wrong)}"] if wrong else []
        if _as_floats(scalars) != _as_floats(case["scalars"]):
            said.append(f"its scalars are {dict(case['scalars'])}, where the definition's are {dict(scalars)}")
        if not said:
            return []
        if "no graph" in problems[0]:
            problems = [f"case {name}: {'; '.join(said)}"]
    return problems


def _as_floats(scalars: Mapping[str, float | str]) -> dict[str, str]:
    """Scalars that can be compared: as text, NaN is equal to itself and 0 is not -0."""
    return {name: repr(float(value)) for name, value in scalars.items()}


class Recomputed(NamedTuple):
    """What a certificate says of a case, computed here: digests of its inputs and of its oracle, and its scalars."""

    inputs: Digests
    oracle: Digests
    scalars: Mapping[str, float]


def recomputed(operator: Operator, graph: Graph, case: Mapping[str, Any]) -> Recomputed | None:
    """What the case of a graph is; None where the graph has no such case."""
    kind, name, shape, seed = case["kind"], case["name"], _shape(case, graph.ragged), case["seed"]
    if kind == "list" or name.startswith("list, "):
        return _list(operator, graph, kind, name.removeprefix("list, "), seed)
    if kind == "structure":
        integers = {
            t.name: cases.draw(operator, t, "normal", shape, seed)
            for t in graph.inputs
            if not format_of(t.format).is_float
        }
        tensors, hashes = structure.hashes(graph, shape, seed)
        tensors |= integers
        params = cases.drawn_scalars(operator, graph, shape)
        hashed = structure.evaluate(graph, tensors, shape, hashes, params)
        return Recomputed(_digests(tensors), _digests(hashed), {})  # scalars are hashes as well
    if kind == "seeded":
        if name not in cases.DRAWS:
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
    return Recomputed(_digests({t.name: made.tensors[t.name] for t in graph.inputs}), _digests(want), made.params)


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
    return Recomputed(inputs, oracle, {})  # which certificates do not list


def _digests(tensors: Mapping[str, Array]) -> Digests:
    return {n: digest(a) for n, a in tensors.items()}
