"""What a certificate states beside its cases, derived again: contract, plan, sentences, the suite, the build.

What only the machine that ran can know is not here: outputs, device, compiler, kernels, times. That is the word of
whoever signed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..backends import backend_named, places
from ..backends.backend import CaseSet, Language, source_digest
from ..backends.machine_code import ANY_FUSED, MachineCode, holds_fma
from ..emit.counters import sums_of
from ..errors import TokitaiError
from ..families import Plan, emit_cpu, make_plan
from ..formats import format_of
from ..lang import NARROW_ACCUMULATORS, Graph, Operator, Sizes, shape_text
from ..meaning.derivative import check_backward
from ..runtime.compile import plan_on
from ..runtime.shapes import in_groups
from . import cases, sentences, suite
from .lists import lists_of
from .run import FIRST_LAYOUTS, SMALL

Predicate = Mapping[str, Any]


def departures(predicate: Predicate, operator: Operator) -> Iterator[str]:
    """Where what a certificate of `operator` states is not what follows from the definition and its other parts."""
    c, stated = operator.contract, predicate["operator"]["contract"]
    if predicate["target"] not in places():
        yield f"its target is {predicate['target']} (accepted: {', '.join(sorted(places()))})"
        return
    there = dict(formats=list(c.formats), max_rows=c.max_rows, max_cols=c.max_cols, domain=c.domain)
    wrong = [name for name, value in there.items() if stated[name] != value]
    if wrong:
        yield f"its contract has another {', '.join(wrong)} than that of {operator.name}"
    graphs = sentences.stated_graphs(operator, predicate["dtype"], sentences.as_now(operator, predicate["claims"]))
    if graphs is None:
        yield f"no claim says which variants of {operator.name} were run"
        return
    if predicate["operator"]["graph_digest"] != graphs[0].digest:
        yield "its definition is not that of the first variant that was run"
    yield from _build(predicate)
    yield from _sums(predicate, graphs)
    backend = backend_named(predicate["target"])
    plans = [plan_on(backend, graph) for graph in graphs]
    of_gpu = backend.language is Language.GPU and plans[0].has_inner
    planned, plan = dict(plans[0].describe()), dict(predicate["plan"])
    if of_gpu:  # which tiles were used only the device knows
        planned, plan = ({k: v for k, v in p.items() if k not in _TILES} for p in (planned, plan))
    if not _same(planned, plan):
        yield "its plan is not the definition's"
    if not any(map(holds_fma, graphs)):
        fused = [c["binary"] for c in predicate.get("machine_code", ()) if ANY_FUSED & c["counts"].keys()]
        yield from (f"the binary {b} fuses multiply-adds, and the definition holds none" for b in fused)
    if predicate["verdict"] != "refuted" and "suite" in predicate:
        yield from _suite(predicate, operator, plans)
    facts = _facts(predicate, operator, graphs, plans)
    proofs = [dict(statement=p.statement, status=p.status, how=p.how) for p in sentences.proofs(facts)]
    yield from _sentences("proofs", predicate["proofs"], proofs)
    yield from _sentences("claims", sentences.as_now(operator, predicate["claims"]), sentences.claims(facts))
    yield from _sentences("non-claims", predicate["non_claims"], sentences.non_claims(facts))


_TILES = {"tiles", "tile", "panels of queries x keys", "task", "rows packed at a time"}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two objects are the same as JSON has them, in which 1 is not true."""
    first, second = (json.dumps(x, sort_keys=True) for x in (one, other))
    return first == second


def _sentences(what: str, there: Sequence[Any], here: Sequence[Any]) -> Iterator[str]:
    """Sentences that do not follow, and those that are not there."""
    for line in (line for line in there if line not in here):
        yield f"its {what} do not follow from its parts: {line}"
    for line in (line for line in here if line not in there):
        yield f"its {what} lack: {line}"
    if not [line for line in there if line not in here] and len(there) != len(here):
        yield f"its {what} say something twice"


def _build(predicate: Predicate) -> Iterator[str]:
    """Where target, device, compiler, instruction set and flags do not belong together."""
    target, isa, flags = (predicate[k] for k in ("target", "isa", "flags"))
    backend = backend_named(target)
    known, named = backend.known_flags(), (f"-arch={isa}", f"--offload-arch={isa}")
    odd = [f for f in flags if f not in known and f not in named and not f.startswith("-DTOKITAI_")]
    yield from (f"the flag {flag} is none that kernels are built with" for flag in odd)
    yield from (f"the flag {flag} is not there" for flag in backend.needed_flags() if flag not in flags)
    yield from backend.departures(predicate)


def _sums(predicate: Predicate, graphs: Sequence[Graph]) -> Iterator[str]:
    """Where a kernel is said to join pending sums by what its source does not reach. Sources of GPUs depend on the
    device: of these only the target is known."""
    host = backend_named(predicate["target"]).language is Language.HOST
    here = dict(map(_reached, graphs)) if host else {}
    for kernel in (k for k in predicate["kernels"] if "sums" in k):
        there, source = kernel["sums"].keys(), kernel["source_digest"]
        wrong = {i for i in there if not i.startswith("cpu/" if host else "gpu/")} | (there ^ here.get(source, there))
        yield from (f"the source {source} joins pending sums by {i}, or is said not to" for i in sorted(wrong))


@lru_cache(maxsize=64)
def _reached(graph: Graph) -> tuple[str, frozenset[str]]:
    """The digest of a definition's source for the CPU, and where that joins pending sums."""
    text = emit_cpu(make_plan(graph))
    return source_digest(text), frozenset(sums_of(text))


# ------------------------------------------------------------------ the suite
def lacking(predicate: Predicate, operator: Operator) -> str | None:
    """What a certificate lacks of the suite as it is here: an operator may have got more hard inputs since. Where one
    case was asked for, it says so itself."""
    found = _counted(predicate, operator)
    if found is None:
        return None
    wanted, there = found
    missing = (wanted - there).total()
    return f"lacks {missing} of the suite's {wanted.total()} cases" if missing else None


def _suite(predicate: Predicate, operator: Operator, plans: Sequence[Plan]) -> Iterator[str]:
    """Cases that the certificate has, and the suite has not."""
    stated, there = predicate["suite"], _there(predicate, plans)
    if int(stated["version"]) > suite.VERSION:
        yield f"its suite is of version {stated['version']} (accepted: up to {suite.VERSION})"
        return
    if stated["only"] is not None:
        yield from (f"only {stated['only']} was asked for, but {i} is there" for i in there if i != stated["only"])
        if stated["shape"] is not None or stated["only"].rpartition("#")[2] != str(stated["seed"]):
            yield f"its suite names another seed or shape than the case {stated['only']}"
        return
    found = _counted(predicate, operator)
    others = [i for i in there - found[0] if not i.startswith("yours/")] if found is not None else []
    yield from (f"the suite has no case {i}, or has it less often" for i in others[:3])


def _counted(predicate: Predicate, operator: Operator) -> tuple[Counter[str], Counter[str]] | None:
    """The ids of the cases that the suite has, and of those that are there; None where one was asked for."""
    stated = predicate.get("suite")
    graphs = sentences.stated_graphs(operator, predicate["dtype"], sentences.as_now(operator, predicate["claims"]))
    if predicate["target"] not in places() or graphs is None or (stated is not None and stated["only"] is not None):
        return None
    plans = [plan_on(backend_named(predicate["target"]), graph) for graph in graphs]
    shape = None if stated is None or stated["shape"] is None else _asked(stated["shape"], plans[0])
    seed, version = (_seed(predicate), 1) if stated is None else (int(stated["seed"]), int(stated["version"]))
    wanted = Counter(i for plan in plans for i in ids(operator, plan, predicate, shape, seed, version))
    return wanted, _there(predicate, plans)


def case_set_of(target: str) -> CaseSet:
    """Which shapes verification tries on a target; those of a GPU on one that is not known here."""
    return backend_named(target).cases if target in places() else CaseSet.SCHEDULES


def _there(predicate: Predicate, plans: Sequence[Plan]) -> Counter[str]:
    ragged = plans[0].graph.ragged
    return Counter(_id(c, ragged) for c in predicate["cases"])


def ids(
    operator: Operator, plan: Plan, predicate: Predicate, shape: tuple[int, int] | None, seed: int, version: int
) -> Iterator[str]:
    """The ids of the cases that the suite has for a plan."""
    backend = backend_named(predicate["target"])
    lanes, case_set = backend.lanes(predicate["isa"]), backend.cases
    for name, s in suite.structure_runs(operator, plan, lanes, shape, seed, case_set, version):
        yield f"structure/{name}@{shape_text(s)}#{seed}"
    for name, sizes in lists_of(plan.graph).items() if plan.flat else ():
        yield f"list/{name}@1x{sum(sizes)}#{seed}"
        yield f"structure/list, {name}@1x{sum(sizes)}#{seed}"
    yield from (f"hard/{name}@{shape_text(s)}#0" for name, s in cases.hard_shapes(operator, plan.graph))
    every = cases.exhaustive(operator, plan.graph)
    if every is not None:
        yield every.id
    for how, s in suite.seeded_ids(operator, plan, lanes, shape, seed, case_set, version):
        yield f"seeded/{how}@{shape_text(in_groups(plan.graph, s))}#{seed}"


def _id(case: Mapping[str, Any], ragged: str) -> str:
    return f"{case['kind']}/{case['name']}@{shape_text(shape_of(case, ragged))}#{case['seed']}"


def shape_of(case: Mapping[str, Any], ragged: str = "") -> tuple[int, int]:
    """The shape that a case states, whose whole numbers are integers; `ragged` is the side that groups share."""
    rows, cols, inner = case["rows"], case["cols"], case.get("inner")
    return (rows, cols) if inner is None else Sizes(rows, cols, inner, case.get("batch") or 1, ragged)


def _asked(shape: Mapping[str, int], plan: Plan) -> tuple[int, int]:
    if "inner" not in shape:
        return int(shape.get("rows", 0)), int(shape.get("cols", 0))
    rows, cols, inner, batch = (int(shape.get(side, 1)) for side in ("rows", "cols", "inner", "batch"))
    return Sizes(rows, cols, inner, batch, plan.graph.ragged)


def _seed(predicate: Predicate) -> int:
    """The seed of the first version's certificates: that of their drawn cases."""
    drawn = [c["seed"] for c in predicate["cases"] if c["kind"] in ("structure", "seeded") and c["seed"] is not None]
    return Counter(drawn).most_common(1)[0][0] if drawn else 0


# ------------------------------------------------------------------ sentences
def _facts(predicate: Predicate, operator: Operator, graphs: Sequence[Graph], plans: Sequence[Plan]) -> sentences.Facts:
    stated = predicate.get("suite")
    only = None if stated is None else stated["only"]
    ragged = graphs[0].ragged
    ran = []
    for c in predicate["cases"]:
        shape = shape_of(c, ragged)
        whole = c["kind"] not in ("structure", "list", "derivative")
        apart = whole and c["equal"] and any(
            p.rows_are_apart(shape) for p in plans if c["input_digests"].keys() == {t.name for t in p.graph.inputs}
        )  # fmt: skip
        ran.append(sentences.Ran(c["kind"], shape, c["compared"], c["equal"], _layouts(c, stated, shape), apart))
    derivative: list[tuple[str, float, float]] = []
    said = any(line.startswith("At the sampled points ") for line in predicate["claims"])
    if operator.backward_of is not None and (said if stated is None else only is None) and not predicate["failure"]:
        derivative = _derivative(operator, operator.backward_of, predicate["dtype"], graphs)
        if stated is None:  # whose points were others: the figures are as they say
            derivative = _as_said(predicate["claims"], derivative)
    device = predicate["device"]
    archs = [a for a in str(device.get("architectures", "")).split(", ") if a]
    return sentences.Facts(
        operator, predicate["dtype"], predicate["target"], graphs, ran, bool(predicate["failure"]),
        predicate.get("isolation"), derivative, only, archs,
        str(device.get("warp", "")), _not_run(predicate), [MachineCode(**c) for c in predicate.get("machine_code", ())],
        1 if stated is None else int(stated["version"]),
        sentences.joined(k["sums"] for k in predicate["kernels"]) if "sums" in predicate["kernels"][0] else None,
    )  # fmt: skip


def _layouts(case: Mapping[str, Any], stated: object, shape: tuple[int, int]) -> Sequence[str]:
    if stated is not None:
        return list(case.get("layouts", ()))
    of_list = case["kind"] == "list" or case["name"].startswith("list, ")
    if of_list:
        return ("plain", "one element off")
    return () if case["kind"] == "derivative" else FIRST_LAYOUTS[cases.work_of(shape) > SMALL]


def _not_run(predicate: Predicate) -> str:
    """Why kernels ran on a stand-in, which only the machine knew."""
    start = backend_named(predicate["target"]).not_run_start
    return next((s[len(start) : -1] for s in predicate["non_claims"] if start and s.startswith(start)), "")


def _derivative(
    operator: Operator, forward: Operator, dtype: str, graphs: Sequence[Graph]
) -> list[tuple[str, float, float]]:
    try:
        return list(derivatives(operator, forward, format_of(dtype).name, graphs))
    except TokitaiError:
        return []


_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]{1,3})?"
_FIGURES = re.compile(
    rf"At the sampled points (\w+) is the derivative .* is ({_NUMBER}) of the largest element away, where rounding "
    rf"explains ({_NUMBER})\."
)


def _as_said(claims: Sequence[str], here: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Derivatives with the errors, and what explains them, that claims state, where they are about the same results."""
    found = [m for line in claims if (m := _FIGURES.fullmatch(line))]
    if [m[1] for m in found] != [name for name, _, _ in here]:
        return list(here)
    return [(m[1], float(m[2]), float(m[3])) for m in found]


def derivatives(
    operator: Operator, forward: Operator, dtype: str, graphs: Sequence[Graph]
) -> Iterator[tuple[str, float, float]]:
    """How far each result of a backward pass is from the derivative of the forward one, and the rounding-error bound.
    Every option has each of its values in turn; accumulators of 16-bit operands are those that ``graphs`` have."""
    both = [o for o in operator.options if any(o.name == other.name for other in forward.options)]
    others = [(o.name, v) for o in both for v in o.accepted if v != o.default]
    run = [(n, v) for n, v in others if v not in NARROW_ACCUMULATORS or any(g.options.get(n) == v for g in graphs)]
    for options in [{}, *({n: v} for n, v in run)]:
        yield from check_backward(operator, forward, dtype, (5, 7), seed=1, options=options)
