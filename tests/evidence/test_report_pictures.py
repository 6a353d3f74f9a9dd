"""The pictures of a report show what the certificates say: a mark for every error, bound, shape and number of cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import REFUTED, Page, files, page
from sample import EMPTY, SAMPLE, SEEDED, STRUCTURE, WRONG, conditioned

from tokitai.evidence.statement import LargestError, OperatorIdentity, Verification, build_statement

FORMULA = "$x^{2$"  # no formula that can be set


def of(name: str, dtype: str, error: float, bound: float | None, **changes: Any) -> Verification:
    """A certificate of an operator with this largest error against its condition, where it has a bound."""
    contract = replace(SAMPLE.operator.contract, formats=("f16", "bf16", "f32", "f8", FORMULA))
    operator = OperatorIdentity(name, SAMPLE.operator.graph_digest, 1, contract)
    cases = (STRUCTURE, replace(SEEDED, max_ulp_error=error), EMPTY)
    condition = None if bound is None else {dtype: conditioned(error, bound)}
    changes = {"cases": cases, "error": LargestError(error, "here", condition=condition), **changes}
    return replace(SAMPLE, operator=operator, dtype=dtype, **changes)


def beyond(name: str, dtype: str, error: float, bound: float) -> dict[str, Any]:
    """A certificate that states a bound below its error, as no verification writes it."""
    statement = build_statement(of(name, dtype, error, error))
    statement["predicate"]["error"]["condition"][dtype]["bound"] = bound
    return statement


def place(found: Page, group: str, number: int = 0) -> tuple[float, float]:
    """Where a mark is: x from the left, y from the top."""
    mark = found.marks(group)[number].attributes
    return float(mark["x"]), float(mark["y"])


def test_every_error_that_was_measured_against_its_condition_has_a_mark_and_its_bound(tmp_path: Path) -> None:
    found = page(files(
        tmp_path, a=of("gelu", "f16", 0.5, 2.0), b=of("gelu", "bf16", 0.5, None), c=of("silu", "f16", 3.0, 30.0),
        d=of("silu", "f8", 0.0, 1.0), e=of("tanh", "f32", 2e5, 1e6), f=replace(
            SAMPLE, cases=(STRUCTURE,), error=LargestError()),
    ))  # fmt: skip
    counts = {name: len(found.marks(f"errors.errors-{name}")) for name in ("f16", "bf16", "f32", "f8")}
    assert counts == {"f16": 2, "bf16": 0, "f32": 1, "f8": 1}
    assert counts == {name: len(found.marks(f"errors.bounds-errors-{name}")) for name in counts}
    told = [e.tag for e in found.all("td", "p") if e.text.rstrip(".").endswith("not measured in this way")]
    assert sorted(told) == ["p", "p", "td", "td"], "in the table, and in its section"
    assert found.marks("errors.beyond") == [] and "beyond its bound" not in found.all("svg")[0].text
    titles = [e.text for e in found.all("title") if "use" in e.above]
    assert "silu f16 (cpu): error 3, bound 30 units" in titles


def test_errors_are_counted_by_format(tmp_path: Path) -> None:
    """A line through all bins for each format, over all valid certificates."""
    found = page(files(
        tmp_path, a=of("gelu", "f16", 0.5, 2.0), b=of("silu", "f16", 3.0, 30.0), c=of("tanh", "f32", 2e5, 1e6),
        d=beyond("tanh", "bf16", 2.0, 1.0), e=of("gelu", "bf16", 0.5, None),
    ))  # fmt: skip
    (picture,) = (e for e in found.all("svg") if "Histogram" in e.attributes.get("aria-label", ""))
    assert picture.attributes["aria-label"] == "Histogram of errors. f16: 64 elements; f32: 32 elements"
    ids = [e.attributes["id"] for e in found.all("g") if e.attributes.get("id", "").startswith("histogram.histogram-")]
    assert ids == ["histogram.histogram-f16", "histogram.histogram-f32"]


def test_no_bound_above_a_million_is_shown_without_a_reason(tmp_path: Path) -> None:
    """Of an operator whose bound in ulp is 4e37, as cancellation makes it, the other bound is shown; elements without
    one are counted, with the reason."""
    why = "a divisor may be zero within its error bound"
    errors = LargestError(2.9, "here", 4.254e37, {"f32": conditioned(2.0, 9.5, why)})
    found = page(files(tmp_path, a=replace(of("layer_norm", "f32", 2.9, None), error=errors)))
    assert "e+37" not in found.text and found.text.count(f"1 element in f32 without a bound below 1e6: {why}.") == 2


def test_the_axis_of_errors_is_logarithmic(tmp_path: Path) -> None:
    found = page(files(
        tmp_path, a=of("a", "f16", 1.0, 10.0), b=of("b", "f16", 10.0, 1000.0), c=of("c", "f16", 0.0, 1e6),
        d=of("d", "f16", 1e-9, 1.0),
    ))  # fmt: skip
    (one, _), (ten, _), (nothing, _), (least, _) = (place(found, "errors.errors-f16", n) for n in range(4))
    ten_, thousand, million, _ = (place(found, "errors.bounds-errors-f16", n)[0] for n in range(4))
    decade = ten - one
    assert decade > 10 and ten_ == pytest.approx(ten, abs=0.1) and thousand - ten == pytest.approx(2 * decade, abs=0.1)
    assert one - least == pytest.approx(2 * decade, abs=0.1) and nothing < least - decade / 3
    assert million - thousand == pytest.approx(3 * decade, abs=0.1)


@pytest.mark.parametrize(("error", "bound"), [(0.75, 0.5), (9e5, 5e5), (9e5, 3.0), (0.01, 0.0)])
def test_an_error_beyond_its_bound_leaps_to_the_eye(error: float, bound: float, tmp_path: Path) -> None:
    found = page(files(tmp_path, bad=beyond("gelu", "f16", error, bound), good=of("silu", "f16", 0.5, 2.0)))
    assert len(found.marks("errors.beyond-f16")) == len(found.marks("errors.errors-f16")) == 1
    assert place(found, "errors.beyond-f16")[0] > place(found, "errors.bounds-beyond-f16")[0] + 3
    assert place(found, "errors.errors-f16")[0] < place(found, "errors.bounds-errors-f16")[0]
    (group,) = (e for e in found.all("g") if e.attributes.get("id") == "errors.beyond-f16")
    assert "var(--bad)" in str([e.attributes for e in found.marks("errors.beyond-f16")]) + str(group.attributes)
    assert "gelu f16: beyond its bound" in found.all("svg")[0].text
    assert found.all("h1")[0].text == "Not verified" and "the bound on it" in found.all("article")[0].text


def test_text_is_no_formula(tmp_path: Path) -> None:
    found = page(files(tmp_path, a=beyond("gelu", FORMULA, 2.0, 1.0)))
    assert f"gelu {FORMULA}: beyond its bound" in found.all("svg")[0].text


def test_every_shape_has_a_mark(tmp_path: Path) -> None:
    shapes = [(1, 1), (1, 10), (100, 10), (0, 7), (3, 0)]
    structure = [replace(STRUCTURE, rows=rows, cols=cols) for rows, cols in shapes]
    seeded = [replace(SEEDED, rows=rows, cols=cols, name=str(n)) for rows, cols in shapes[:3] for n in range(2)]
    hard = [replace(EMPTY, rows=1, cols=1, compared=1)]
    other = replace(STRUCTURE, rows=1, cols=10)
    found = page(files(
        tmp_path, a=of("gelu", "f16", 0.75, None, cases=(*structure, *seeded, *hard)),
        b=of("gelu", "f32", 0.75, None, cases=(other, SEEDED)),
    ))  # fmt: skip
    counts = {kind: len(found.marks(f"coverage-1.shapes-{kind}")) for kind in ("structure", "seeded", "hard")}
    assert counts == {"structure": 5, "seeded": 4, "hard": 1}
    x, y = zip(*(place(found, "coverage-1.shapes-structure", n) for n in range(5)), strict=True)
    at = dict(zip(sorted(shapes), zip(x, y, strict=True), strict=True))
    decade = at[1, 10][0] - at[1, 1][0]
    assert decade > 10 and at[1, 10][1] == at[1, 1][1]
    assert at[100, 10][1] < at[1, 10][1] - 20, "more rows lie higher"
    assert at[3, 0][0] < at[1, 1][0] and at[0, 7][1] > at[1, 1][1]
    label = next(e.attributes["aria-label"] for e in found.all("svg") if "Shapes at which gelu" in str(e.attributes))
    assert label == "Shapes at which gelu was tried: 1 shape hard, 4 shapes seeded, 5 shapes structure"


def test_a_shape_that_differed_or_is_invalid_is_not_shown_as_covered(tmp_path: Path) -> None:
    wrong = build_statement(of("silu", "f16", 0.5, 2.0))
    wrong["predicate"]["verdict"] = "undecided"
    wrong["predicate"]["failure"] = "a line"
    refuted = replace(REFUTED, cases=(SEEDED, replace(WRONG, rows=5)))
    found = page(files(tmp_path, a=refuted, b=wrong))
    assert len(found.marks("coverage-1.shapes-seeded")) == 1
    assert found.marks("coverage-2") == [] and "No valid certificate." in found.text


def test_cases_are_counted_by_kind(tmp_path: Path) -> None:
    found = page(files(
        tmp_path, a=of("gelu", "f16", 0.75, None), b=of("gelu", "f32", 0.75, None),
        c=of("silu", "f16", 0.75, None, cases=(STRUCTURE, *(replace(SEEDED, seed=n) for n in range(7)))), d=REFUTED,
        e=beyond("tanh", "f16", 0.75, 0.5),
    ))  # fmt: skip
    ids = [e.attributes["id"] for e in found.all("g") if e.attributes.get("id", "").startswith("cases.cases-")]
    bars = {kind: [int(i.rsplit("-", 1)[1]) for i in ids if f"-{kind}-" in i] for kind in
            ("structure", "hard", "seeded", "not-equal")}  # fmt: skip
    assert bars == {"structure": [2, 0, 1], "hard": [2, 0, 0], "seeded": [2, 1, 7], "not-equal": [0, 1, 0]}
    (picture,) = (e for e in found.all("svg") if "by kind" in e.attributes.get("aria-label", ""))
    assert all(name in picture.text for name in ("gelu", "rms_norm", "silu", "6", "8", "not equal"))
    assert "tanh" not in picture.text
