"""Check a certificate again without the device that it is about: draw its inputs again, compute the oracle, compare.

What a device computed is in the certificate as digests, and they are those of the oracle. Whoever recomputes the oracle
from the definition, on any machine, sees whether it is the definition's bits that the device was compared with.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evidence.check import check
from ..formats import format_of
from ..lang import Graph, Operator, Sizes, shape_text
from ..meaning import bits, structure
from . import cases
from .buffers import digest
from .cases import Array
from .lists import LISTS
from .run import work_of
from .verdict import variants

Digests = Mapping[str, str]
MOST_ELEMENTS = 1 << 20  # of a case that is computed again


def recheck(path: Path | str, operator: Operator, sample: int = 6, seed: int = 0) -> list[str]:
    """What is wrong with a certificate of `operator`, one sentence each; empty where nothing is.

    Its form and its parts are checked, that it is about the present definition and verified, and for ``sample`` cases,
    drawn by ``seed``, that inputs and oracle have the digests that it states. Never raises for what a file holds.
    """
    found = check(path)
    if found:
        return found
    predicate = json.loads(Path(path).read_text(encoding="utf-8"))["predicate"]
    if predicate["operator"]["name"] != operator.name:
        return [f"it is about {predicate['operator']['name']}, not about {operator.name}"]
    dtype = predicate["dtype"]
    given, present = predicate["operator"]["graph_digest"], operator.trace(dtype).digest
    if given != present:
        return [f"it is about another definition of {operator.name}: {given[:16]}, not {present[:16]}"]
    if predicate["verdict"] != "verified":
        found.append(f"its verdict is {predicate['verdict']}")
    for case in sampled(predicate["cases"], sample, seed):
        found += _case(operator, dtype, case)
    return found


def sampled(given: Sequence[Mapping[str, Any]], count: int, seed: int) -> list[Mapping[str, Any]]:
    """Some of the cases that can be computed again, one of each kind at least where there are so many."""
    rng = random.Random(seed)
    able = [c for c in given if c["kind"] != "yours" and work_of(_shape(c)) <= MOST_ELEMENTS]
    rng.shuffle(able)
    kinds = {c["kind"]: c for c in able}
    first = list(kinds.values())[:count]
    rest = [c for c in able if not any(c is one for one in first)]
    return first + rest[: count - len(first)]


def _shape(case: Mapping[str, Any], ragged: str = "") -> tuple[int, int]:
    rows, cols = case["rows"], case["cols"]
    return (rows, cols) if case.get("inner") is None else Sizes(rows, cols, case["inner"], case["batch"], ragged)


def _case(operator: Operator, dtype: str, case: Mapping[str, Any]) -> list[str]:
    """Nothing, where some graph of the operator has the inputs and the oracle that the case states."""
    ragged = operator.trace(dtype).ragged
    name = f"{case['kind']}/{case['name']}@{shape_text(_shape(case, ragged))}#{case['seed']}"
    problems = [f"case {name}: no graph of {operator.name} has it"]
    for v in variants(operator):
        graph = operator.trace(dtype, v.present, dict(v.options))
        made = recomputed(operator, graph, case)
        if made is None:
            continue
        inputs, oracle = made
        wrong = [f"input {n}" for n in inputs if inputs[n] != case["input_digests"].get(n)]
        wrong += [f"oracle {n}" for n in oracle if oracle[n] != case["oracle_digests"].get(n)]
        wrong += [f"{n}, which there is not" for n in case["input_digests"].keys() - inputs.keys()]
        wrong += [f"{n}, which there is not" for n in case["oracle_digests"].keys() - oracle.keys()]
        if not wrong:
            return []
        if len(problems) == 1 and "no graph" in problems[0]:
            problems = [f"case {name}: another digest of {', '.join(wrong)}"]
    return problems


def recomputed(operator: Operator, graph: Graph, case: Mapping[str, Any]) -> tuple[Digests, Digests] | None:
    """The digests of a case's inputs and of its oracle, computed here; None where the graph has no such case."""
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
        return _digests(tensors), _digests(structure.evaluate(graph, tensors, shape, hashes, params))
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
    return _digests({t.name: made.tensors[t.name] for t in graph.inputs}), _digests(want)


def _list(operator: Operator, graph: Graph, kind: str, name: str, seed: int) -> tuple[Digests, Digests] | None:
    if name not in LISTS:
        return None
    shapes = [(1, n) for n in LISTS[name]]
    params = cases.settled(operator, graph, cases.defaults(operator))
    if kind == "structure":
        hashes = [structure.hashes(graph, s, seed + i) for i, s in enumerate(shapes)]
        tensors = [drawn for drawn, _ in hashes]
        want = structure.evaluate_tensors(graph, tensors, shapes, hashes[0][1], params)
    else:
        tensors = [
            {t.name: cases.draw(operator, t, "normal", shape, seed + i) for t in graph.inputs}
            for i, shape in enumerate(shapes)
        ]
        want = bits.evaluate_tensors(graph, tensors, shapes, params)
    inputs = {f"{n}[{i}]": digest(a) for i, some in enumerate(tensors) for n, a in some.items()}
    return inputs, {f"{n}[{i}]": digest(a) for i, some in enumerate(want) for n, a in some.items()}


def _digests(tensors: Mapping[str, Array]) -> Digests:
    return {n: digest(a) for n, a in tensors.items()}
