"""``judge``: somebody else's kernel against a definition.

Its bits need not be the definition's, as it may sum in another order. They must be as near the real result as rounding
explains (`allowance`), for the inputs that `verify` tries as well: hard ones, every 16-bit value where an operator
takes one tensor element by element, noise of several kinds, odd shapes. Each call is repeated, with other stale memory
about; inputs must stay what they are, and views with gaps between rows be read rightly or refused. Without rows the
call has to succeed; rows without columns are not tried: what a mean over nothing is, is for each kernel to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..call_checks import check_slots
from ..errors import ArgumentError, TokitaiError, UnavailableError, UnknownNameError, UsageError
from ..formats import FORMATS, format_of
from ..lang import Graph, Operator, Output, Sizes, check_operator, shape_text
from ..lower import Plan, make_plan
from ..meaning import bits
from ..verification import suite
from ..verification.accuracy import exact_results
from ..verification.cases import Array, Case, work_of
from ..verification.compare import first_mismatch, patterns
from ..verification.drawn import rows_are_apart
from ..verification.run import part_of
from ..verification.verdict import Variant, asked_shape, named_sizes
from .allowance import allowed
from .elements import Finding, hold
from .runner import Here, Isolated, Outcome, Runner, run

LANES = 16  # odd sizes are chosen about the widest vectors of a processor
MOST_WORK = 1 << 22  # elements of a case: bounds and real results of more take too long and too much memory
SECONDS = 60.0
GAP = 3  # elements
DEVICES = "numpy, cpu (PyTorch's tensors), cuda or cuda:N"


@dataclass
class Failure:
    """One case that a kernel gets wrong: its id, what is wrong in a sentence, and where; and how large the case is."""

    case: str
    what: str
    where: str = ""
    work: int = 0


@dataclass
class Judgement:
    """What judging a kernel showed. ``same_bits``: cases in which it has the definition's bits; ``share``: the largest
    distance from the real result as a part of what rounding explains; ``notes``: what is not wrong and good to know."""

    operator: str
    kernel: str
    dtype: str
    device: str
    shape: dict[str, int] | None = None
    verdict: Literal["verified", "refuted", "undecided"] = "undecided"
    cases: int = 0
    same_bits: int = 0
    compared: int = 0
    judged: int = 0
    max_ulp_error: float = 0.0
    max_ulp_error_of_row: float = 0.0
    share: float = 0.0
    kinds: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)  # that were tried, as `named_sizes` orders them
    failures: list[Failure] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    undecided: str | None = None
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 verified, 1 refuted, 3 undecided."""
        return {"verified": 0, "refuted": 1, "undecided": 3}[self.verdict]

    def as_json(self) -> dict[str, Any]:
        """The documented, stable keys of ``--json``."""
        return {
            "operator": self.operator, "kernel": self.kernel, "dtype": self.dtype, "device": self.device,
            "shape": self.shape, "verdict": self.verdict, "evidence": self.kinds, "shapes": self.shapes,
            "cases": self.cases,
            "same_bits": self.same_bits, "elements": self.compared, "elements_judged": self.judged,
            "max_ulp_error": self.max_ulp_error, "max_ulp_error_of_row": self.max_ulp_error_of_row,
            "share_of_allowance": self.share,
            "failures": [{"case": f.case, "what": f.what, "where": f.where} for f in self.failures],
            "notes": self.notes, "undecided": self.undecided, "seconds": round(self.seconds, 3),
        }  # fmt: skip


def judge(
    kernel: Callable[..., Any] | tuple[Path | str, str],
    operator: Operator,
    *,
    dtype: object = "f32",
    device: str = "numpy",
    shape: Mapping[str, int] | None = None,
    seed: int = 0,
    variant: Variant | None = None,
    results: Sequence[str] | None = None,
    case: str | None = None,
    seconds: float = SECONDS,
    progress: Callable[[str], None] | None = None,
) -> Judgement:
    """Judge a kernel of somebody else's by `operator`.

    ``kernel`` is a function, which is called in this process, or a Python file and the name of a function in it, which
    is called in a process of its own that it may take down. It is called as the operator is: tensors by position,
    scalars and the options of ``variant`` by name; tensors have the shapes of the definition, rows x cols. It returns
    an array or a tuple in the definition's order, of ``results`` alone where it has fewer; what replaces an input it
    writes there. ``device``: of the arrays, ``numpy`` or a device of PyTorch's. ``seconds``: within which a call must
    end, where it has its own process.

    Raises UsageError for wrong arguments, a file that cannot be loaded, and a function that cannot be called so.
    """
    check_operator(operator)
    _check_device(device)
    fmt = format_of(dtype).name
    if fmt not in operator.contract.formats:
        raise ArgumentError(f"{operator.name}: dtype {fmt}; accepted: {', '.join(operator.contract.formats)}")
    asked = asked_shape(operator, shape)
    if asked is not None and work_of(asked) > MOST_WORK:
        raise ArgumentError(f"{shape_text(asked)}: {work_of(asked)} elements of work; accepted: at most {MOST_WORK}")
    chosen = variant or Variant(frozenset(t.name for t in operator.tensors if t.optional))
    graph = operator.trace(fmt, chosen.present, dict(chosen.options))
    plan = make_plan(graph)
    only = _results(graph, results)
    name = kernel[1] if isinstance(kernel, tuple) else str(getattr(kernel, "__name__", kernel))
    made = Judgement(operator.name, name, fmt, device, None if asked is None else named_sizes(asked))
    missing = [o.name for o in graph.outputs if o.name not in only]
    if missing:
        made.notes["not judged"] = f"{', '.join(missing)}: left out"
    started = time.perf_counter()
    every = (c for c in suite.number_cases(operator, plan, LANES, asked, seed) if _may_call(operator, graph, c))
    with _runner(kernel, device, seconds) as runner:
        for one in every:
            if case not in (None, one.id):
                continue
            if progress is not None:
                progress(one.id)
            try:
                with np.errstate(all="ignore"):
                    _one(made, _Case(operator, graph, one, runner, dict(chosen.options), only), plan)
            except UnavailableError as error:
                made.undecided = f"{one.id}: {error}"
                break
    if not made.cases and made.undecided is None:
        raise UsageError(f"{operator.name}: no case {case!r}; accepted: an id as a failure prints it")
    made.failures.sort(key=lambda f: f.work)  # the smallest first: it is the one to look at
    made.verdict = "refuted" if made.failures else "undecided" if made.undecided or not made.judged else "verified"
    made.seconds = time.perf_counter() - started
    return made


def _check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind not in ("numpy", "cpu", "cuda") or (":" in device and not (kind == "cuda" and number.isdecimal())):
        raise ArgumentError(f"device={device!r}; accepted: {DEVICES}")


def _may_call(operator: Operator, graph: Graph, case: Case) -> bool:
    """Whether a call with these values is one that every kernel takes: rows have columns, no more is chosen of a row
    than it has, ..."""
    if case.shape[1] == 0:
        return False
    try:
        check_slots(operator, graph, case.tensors, case.shape)
    except ArgumentError:
        return False
    return True


def _results(graph: Graph, results: Sequence[str] | None) -> list[str]:
    names = [o.name for o in graph.outputs]
    for name in results or ():
        if name not in names:
            raise UnknownNameError(f"result of {graph.name}", name, names)
    return names if results is None else [n for n in names if n in results]


@contextmanager
def _runner(kernel: Callable[..., Any] | tuple[Path | str, str], device: str, seconds: float) -> Iterator[Runner]:
    if not isinstance(kernel, tuple):
        if not callable(kernel):
            raise ArgumentError(f"kernel={kernel!r}; accepted: a function, or a file and the name of one")
        yield Here(kernel, device)
        return
    file, name = Path(kernel[0]), kernel[1]
    if not file.is_file() or file.suffix != ".py":
        found = "no such file" if not file.is_file() else f"suffix {file.suffix!r}"
        raise UsageError(f"{file}: {found}; accepted: a Python file")
    isolated = Isolated(file, name, device, seconds)
    try:
        yield isolated
    finally:
        isolated.close()


@dataclass(frozen=True)
class _Case:
    """One case and what its calls need."""

    operator: Operator
    graph: Graph
    case: Case
    runner: Runner
    options: Mapping[str, Any]
    only: Sequence[str]

    @property
    def outputs(self) -> list[Output]:
        """The results that are judged."""
        return [o for o in self.graph.outputs if o.name in self.only]

    def call(
        self, entries: int, tensors: Mapping[str, Array] | None = None, shape: tuple[int, int] | None = None, **how: int
    ) -> Outcome:
        """Call the kernel, on some rows where these are given."""
        named = {**{p: self.case.params[p] for p in self.graph.params}, **self.options}
        return run(
            self.runner, self.graph, shape or self.case.shape, tensors or self.case.tensors, entries, named, self.only,
            tuple(self.operator.contract.places), **how,
        )  # fmt: skip


def _one(made: Judgement, one: _Case, plan: Plan) -> None:
    """Judge one case: as it is, once more, with gaps between rows, then in two batches."""
    case, graph = one.case, one.graph
    defined = bits.evaluate(graph, case.tensors, case.shape, case.params)
    entries = next((len(defined[o.name]) for o in graph.outputs if o.space == "t"), 0)
    got = one.call(entries)
    made.cases += 1
    made.kinds += [case.kind] if case.kind not in made.kinds else []
    sizes = [*named_sizes(case.shape).values()]
    made.shapes += [sizes] if sizes not in made.shapes else []
    fault = got.wrong or _changed(one, got)
    if fault is not None:
        made.failures.append(_failure(case, fault))
        return
    if case.shape[0] == 0:
        made.same_bits += all(_same(got.results[o.name], defined[o.name]) for o in one.outputs)
        return
    exact = exact_results(graph, case, one.operator.textbook)
    limits = _limits(graph, case)

    def findings(outcome: Outcome) -> list[Finding]:
        return [_hold(o, outcome, defined, exact, limits) for o in one.outputs]

    found = findings(got)
    _count(made, found)
    if _fails(made, case, found):
        return
    _again(made, case, got, one.call(entries, turn=1))
    if case.kind != "seeded":
        return
    spread = one.call(entries, gap=GAP)
    note = "views with gaps between rows"
    if spread.wrong is not None:
        made.notes[note] = f"refused: {spread.wrong}"
    elif _fails(made, case, findings(spread), f"given {note}: "):
        made.notes[note] = "read wrongly"
    else:
        made.notes.setdefault(note, "read rightly")
    if rows_are_apart(plan, case.shape):
        _batches(made, one, got)


def _hold(
    o: Output, got: Outcome, defined: Mapping[str, Array], exact: Mapping[str, Any], limits: Mapping[str, Array]
) -> Finding:
    value = got.results[o.name].reshape(defined[o.name].shape)
    real = np.asarray(exact[o.name]) if o.name in exact else defined[o.name].astype(np.float64)
    return hold(o.name, value, defined[o.name], real, limits.get(o.name), FORMATS[o.format])


def _limits(graph: Graph, case: Case) -> Mapping[str, Array]:
    """Allowances by result; none where no bound is known: such results must have the definition's bits."""
    try:
        return allowed(graph, case)
    except TokitaiError:
        return {}


def _changed(one: _Case, got: Outcome) -> str | None:
    """Which input the kernel changed that it should not."""
    replaced = {o.name for o in one.graph.outputs if o.inplace}
    for t in one.graph.inputs:
        if t.name not in replaced and not _same(got.inputs[t.name], one.case.tensors[t.name]):
            return f"changed its input {t.name}"
    return None


def _same(a: Array, b: Array) -> bool:
    """The same bits, except that which NaN one is does not matter."""
    a, b = a.reshape(-1), b.reshape(-1)
    return bool(((patterns(a) == patterns(b)) | ((a != a) & (b != b))).all())


def _count(made: Judgement, found: Sequence[Finding]) -> None:
    made.same_bits += all(f.identical for f in found)
    for f in found:
        made.compared += f.compared
        made.judged += f.judged
        made.max_ulp_error = max(made.max_ulp_error, f.max_ulp)
        made.max_ulp_error_of_row = max(made.max_ulp_error_of_row, f.max_ulp_of_row)
        made.share = max(made.share, f.share)


def _failure(case: Case, what: str, where: str = "") -> Failure:
    return Failure(case.id, what, where, work_of(case.shape))


def _fails(made: Judgement, case: Case, found: Sequence[Finding], ahead: str = "") -> bool:
    """Keep the first result of a case that is wrong."""
    wrong = next((f for f in found if f.wrong), None)
    if wrong is not None:
        made.failures.append(_failure(case, f"{ahead}{wrong.first}", wrong.where))
    return wrong is not None


def _again(made: Judgement, case: Case, one: Outcome, two: Outcome) -> None:
    """A second call with the same values: that it fails is a fault, that it gives other bits is good to know."""
    if two.wrong is not None:
        made.failures.append(_failure(case, f"called again it {two.wrong}"))
        return
    for name, values in one.results.items():
        if not _same(values, two.results[name]):
            made.notes["called again"] = f"other bits: {first_mismatch(name, two.results[name], values)}, of {case.id}"
            return
    made.notes.setdefault("called again", "the same bits")


def _batches(made: Judgement, one: _Case, whole: Outcome) -> None:
    """Whether rows have the same bits when they are computed in two calls."""
    case, note = one.case, "rows in two batches"
    cut = case.shape[0] // 3 + 1
    for part in (slice(0, cut), slice(cut, case.shape[0])):
        some = {t.name: part_of(t.space, case.tensors[t.name], part) for t in one.graph.inputs}
        rows, cols = len(range(case.shape[0])[part]), case.shape[1]
        shape = Sizes(rows, cols, case.shape.inner) if isinstance(case.shape, Sizes) else (rows, cols)
        got = one.call(0, some, shape)
        if got.wrong is not None:
            made.failures.append(_failure(case, f"given rows {part.start} to {part.stop - 1} alone it {got.wrong}"))
            return
        for o in one.outputs:
            if "r" in o.space and not _same(got.results[o.name], whole.results[o.name][part]):
                made.notes[note] = f"other bits: {o.name} of {case.id}"
                return
    made.notes.setdefault(note, "the same bits")
