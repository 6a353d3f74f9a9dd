"""The readable form of a certificate: all of its sentences and cases, and always the same text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample import SAMPLE, SEEDED, WRONG

from tokitai.evidence.render import render
from tokitai.evidence.statement import build_statement

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["v1", "v1-isolated"])
def test_the_text_is_as_kept(name: str) -> None:
    statement = json.loads((HERE / "certificates" / f"{name}.json").read_text())
    assert render(statement) == (HERE / "certificates" / f"{name}.md").read_text()


def test_the_order_of_keys_makes_no_difference() -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: turned(item) for name, item in reversed(value.items())}
        return [turned(item) for item in value] if isinstance(value, list) else value

    statement = build_statement(SAMPLE)
    assert render(turned(statement)) == render(statement)


def test_a_refuted_certificate_says_so_first_and_how_to_see_it() -> None:
    line = "rms_norm f32 cpu rows=4 cols=8 seed=8 at y[0, 0]: 0x1 for 0x2"
    text = render(build_statement(replace(SAMPLE, cases=(SEEDED, WRONG), verdict="refuted", failure=line)))
    lines = text.splitlines()
    assert lines[2].startswith("**Refuted**") and "Verified" not in text
    assert f"    {line}" in lines
    assert "64 elements in 2 cases, of which 1 are equal." in lines
    assert [cells[9].strip() for row in lines if (cells := row.split("|"))[1:2] == [" seeded "]] == ["yes", "**no**"]


def test_a_cell_cannot_break_the_table() -> None:
    (row,) = [line for line in render(build_statement(SAMPLE)).splitlines() if "no rows" in line]
    assert "no rows \\| none" in row and row.replace("\\|", "").count("|") == 11


def test_what_is_missing_is_said() -> None:
    case = replace(SEEDED, max_ulp_error=None)
    text = render(build_statement(replace(SAMPLE, cases=(case,), proofs=(), error=type(SAMPLE.error)())))
    assert "The error against the exact value was not measured." in text
    assert "Nothing: the cases above are all there is." in text


def test_errors_stand_beside_bounds_in_the_same_measure() -> None:
    """Where errors were measured against their condition; elements without a bound are counted, with the reason."""
    statement = build_statement(SAMPLE)
    (said,) = statement["predicate"]["error"]["condition"].values()
    said.update(unbounded=3, why=["a divisor may be zero within its error bound"])
    text = render(statement)
    assert "proven bound |" in text and " ulp (" not in text
    assert "- 3 elements in f32 without a bound below 1e6: a divisor may be zero within its error bound." in text
    del statement["predicate"]["error"]["condition"]
    assert " ulp (" in render(statement)
