"""The calls of one trial, each held to the same bounds: twice as it is, in other layouts, and with some of its rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..lang import Operator, Sizes
from ..verification.cases import Array, Case, work_of
from ..verification.compare import first_mismatch, patterns
from ..verification.run import part_of
from ..verification.verdict import named_sizes
from . import special
from .adequacy import Adequacy
from .explain import KEPT, LARGEST, RIGHT, Evidence
from .lending import Placement
from .reference import Expected, expected
from .runner import Outcome, Runner, run
from .shown import Shown
from .trials import Trial, rows_are_apart
from .verdict import Failure, Judgement, Special

AGAIN = "called again"
BATCHES = "rows in two batches"
VIEWS = "views"
BATCHED = 1 << 20  # elements up to which rows are given in two batches as well


class Calls:
    """Calls a kernel, and writes down in ``made`` what that shows. ``only``: the results that it has."""

    def __init__(
        self, made: Judgement, operator: Operator, runner: Runner, only: Sequence[str],
        forgiven: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.made, self.operator, self.runner, self.only, self.forgiven = made, operator, runner, only, forgiven
        self.refused: dict[str, str] = {}  # layouts, and what was said
        self.evidence: list[Evidence] = []
        self.right: list[Evidence] = []
        self.adequacy = Adequacy(forgiven)
        self._earlier: dict[tuple[str, tuple[int, ...]], deque[Array]] = {}  # answers, by result and size

    def trial(self, one: Trial, shown: Shown) -> None:
        """Every call of a trial, until one fails."""
        made, case = self.made, one.case
        with np.errstate(all="ignore"):
            every = expected(self.operator, one.graph, case, one.spread, one.noise, one.accepted)
            wanted = [e for e in every if e.output.name in self.only]
            made.cases += 1
            made.kinds += [case.kind] if case.kind not in made.kinds else []
            sizes = [*named_sizes(case.shape).values()]
            made.shapes += [sizes] if sizes not in made.shapes else []
            shown.ask(one, wanted)
            self.adequacy.ask(wanted, case.tensors, self._earlier)
            got = self._call(one, wanted, Placement(seed=made.cases, shift=made.cases % 3))
            if case.shape[0] == 0:
                self._special(special.NO_ROWS, 1, int(self._fails(case, got, wanted, "", first=True)))
                return
            if self._fails(case, got, wanted, "", first=True):
                self._keep(one, wanted, got)
                return
            self._keep(one, wanted, got)
            if self._again(one, wanted, got) or self._elsewhere(one, wanted, got):
                return
            if case.kind != "hard" and rows_are_apart(one) and case.shape[0] * case.shape[1] <= BATCHED:
                self._batches(one, wanted, got)

    def _call(
        self, one: Trial, wanted: Sequence[Expected], placement: Placement, turn: int = 0,
        tensors: Mapping[str, Array] | None = None, shape: tuple[int, int] | None = None,
    ) -> Outcome:  # fmt: skip
        case, graph = one.case, one.graph
        self.made.calls += 1
        entries = next((e.defined.shape[-2] for e in wanted if e.output.space == "t"), 0)
        named: dict[str, Any] = {**{p: case.params[p] for p in graph.params}, **one.named}
        return run(
            self.runner, graph, shape or case.shape, tensors or case.tensors, entries, named, self.only,
            tuple(self.operator.contract.places), turn, placement,
        )  # fmt: skip

    def _fails(self, case: Case, got: Outcome, wanted: Sequence[Expected], ahead: str, first: bool = False) -> bool:
        """Whether a call is wrong; the first result that is so is kept."""
        if got.wrong is not None:
            self._failure(case, f"{ahead}{got.wrong}", kinds=("call",))
            return True
        identical, wrong = True, None
        kinds: set[int] = set()
        for e in wanted:
            found = e.hold(got.results[e.output.name], self.forgiven)
            identical &= found.identical
            kinds |= set(found.wrong_of)
            better = wrong is None or min(found.wrong_of, default=9) < min(wrong.wrong_of)
            wrong = found if found.wrong and better else wrong
            self.made.share = max(self.made.share, found.share)
            if first:
                self._count(found)
        self.made.same_bits += first and identical
        if wrong is not None:
            named = {special.ORDINARY: "accuracy", **special.KINDS}
            self._failure(case, f"{ahead}{wrong.first}", wrong.where, tuple(named[k] for k in sorted(kinds)))
        return wrong is not None

    def _keep(self, one: Trial, wanted: Sequence[Expected], got: Outcome) -> None:
        """Keep the wrong results of a case, so that they can be explained, and some right ones that an explanation must
        agree with."""
        if got.wrong is not None:
            return
        for e in wanted:
            if e.source.case.shape[0] * e.source.case.shape[1] > LARGEST or e.output.name not in got.results:
                continue
            answer = e.computed(got.results[e.output.name])
            found = e.alone(answer, self.forgiven)
            if not found.wrong and one.case.kind == "hard" and len(self.right) < RIGHT:
                self.right.append(Evidence(one.case.id, self.operator, one.graph, e, answer, found.mask))
            if found.wrong and len(self.evidence) < KEPT:
                stale = tuple(self._earlier.get((e.output.name, answer.shape), ()))
                self.evidence.append(Evidence(one.case.id, self.operator, one.graph, e, answer, found.mask, stale))
        self._remember(wanted, got)

    def _remember(self, wanted: Sequence[Expected], got: Outcome) -> None:
        """Keep the last answers of each size, which a later call may give again."""
        for e in wanted:
            answer = e.computed(got.results[e.output.name])
            if answer.size <= LARGEST:
                self._earlier.setdefault((e.output.name, answer.shape), deque(maxlen=4)).append(answer)

    def _special(self, name: str, judged: int, wrong: int) -> None:
        here = self.made.special.setdefault(name, Special())
        here.judged += judged
        here.wrong += wrong
        here.cases += wrong > 0

    def _count(self, found: Any) -> None:
        made = self.made
        made.compared += found.compared
        made.judged += found.judged
        made.max_ulp_error = max(made.max_ulp_error, found.max_ulp)
        made.max_ulp_error_of_row = max(made.max_ulp_error_of_row, found.max_ulp_of_row)
        for kind, said in special.KINDS.items():
            if kind in found.judged_of:
                self._special(said, found.judged_of[kind], found.wrong_of.get(kind, 0))
        if found.zeros:
            made.notes[special.SIGNED_ZERO] = "some zeros have another sign than the definition's, which is not judged"

    def _failure(self, case: Case, what: str, where: str = "", kinds: tuple[str, ...] = ("accuracy",)) -> None:
        self.made.failures.append(Failure(case.id, what, where, work_of(case.shape), kinds))

    # ------------------------------------------------------------------ calls beyond the first
    def _again(self, one: Trial, wanted: Sequence[Expected], was: Outcome) -> bool:
        """A second call with the same values, other stale memory about. Returns whether it is wrong."""
        got = self._call(one, wanted, Placement(seed=self.made.cases, fill=0xFF), turn=1)
        other = None if got.wrong is not None else _other(was, got)
        if other is not None:
            self.made.notes[AGAIN] = f"other bits: {other}, of {one.case.id}"
        elif got.wrong is None:
            self.made.notes.setdefault(AGAIN, "the same bits")
            return False
        return self._fails(one.case, got, wanted, f"{AGAIN}, ")

    def _elsewhere(self, one: Trial, wanted: Sequence[Expected], was: Outcome) -> bool:
        """The same values in other layouts, which may be refused, but not read wrongly. Returns whether they are."""
        for said, placement in one.placements:
            got = self._call(one, wanted, placement)
            if got.refused and placement.kinds:
                self.refused.setdefault(said.partition(": ")[2] or said.removeprefix("all "), str(got.wrong))
                some = list(self.refused)
                shown = ", ".join(some[:4]) + (f" and {len(some) - 4} more" if len(some) > 4 else "")
                self.made.notes[VIEWS] = f"refused ({shown}): {next(iter(self.refused.values()))}"
                continue
            if got.wrong is None and _other(was, got) is None:
                self.made.notes.setdefault(VIEWS, "read rightly")
                continue
            if self._fails(one.case, got, wanted, f"given views ({said}): "):
                self.made.notes[VIEWS] = "read wrongly"
                return True
        return False

    def _batches(self, one: Trial, wanted: Sequence[Expected], was: Outcome) -> None:
        """Whether rows are right, and have the same bits, when they are computed in two calls."""
        case = one.case
        cut = case.shape[0] // 3 + 1
        of_rows = [e for e in wanted if "r" in e.output.space]
        results: dict[str, list[Array]] = {e.output.name: [] for e in of_rows}
        for rows in (slice(0, cut), slice(cut, case.shape[0])):
            some = {t.name: part_of(t.space, case.tensors[t.name], rows) for t in one.graph.inputs}
            count, cols = len(range(case.shape[0])[rows]), case.shape[1]
            shape = Sizes(count, cols, case.shape.inner) if isinstance(case.shape, Sizes) else (count, cols)
            got = self._call(one, wanted, Placement(seed=self.made.cases), tensors=some, shape=shape)
            if got.wrong is not None:
                self._failure(case, f"given rows {rows.start} to {rows.stop - 1} alone it {got.wrong}",
                              kinds=("call",))  # fmt: skip
                return
            for name in results:
                results[name].append(got.results[name])
        joined = Outcome({n: np.concatenate(parts, axis=0) for n, parts in results.items()})
        other = _other(Outcome({n: was.results[n] for n in results}), joined)
        if other is None:
            self.made.notes.setdefault(BATCHES, "the same bits")
        elif not self._fails(case, joined, of_rows, f"given {BATCHES}: "):
            self.made.notes[BATCHES] = f"other bits: {other.partition('[')[0]} of {case.id}"


def _other(one: Outcome, two: Outcome) -> str | None:
    """The first element whose bits differ between two calls; which NaN one is does not matter."""
    for name, values in one.results.items():
        a, b = two.results[name].reshape(-1), values.reshape(-1)
        if not ((patterns(a) == patterns(b)) | ((a != a) & (b != b))).all():
            return str(first_mismatch(name, two.results[name], values))
    return None
