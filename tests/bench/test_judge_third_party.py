"""Kernels that a user would call instead, judged: every row is one of an operator, and the page says what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import judge_third_party, third_party
from tokitai.ops import get


def test_every_kernel_is_one_of_an_operator() -> None:
    found = {n for n in vars(third_party) if n.startswith(("torch_", "liger_"))}
    assert found == set(third_party.JUDGED) and len(found) >= 17
    for op, results, without in third_party.JUDGED.values():
        operator = get(op)
        names = {o.name for o in operator.trace("f32").outputs}
        assert set(results.split(",") if results else ()) <= names
        assert set(without) <= {t.name for t in operator.tensors if t.optional}


@pytest.mark.slow
def test_what_is_found_is_written(tmp_path: Path) -> None:
    only = ["--only", "torch_softmax", "torch_swiglu", "--out", str(tmp_path)]
    assert judge_third_party.main(only) == 0 and judge_third_party.main(only) == 0
    records = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    assert len(records) == 12 and {r["verdict"] for r in records} == {"verified", "refuted"}
    page = (tmp_path / "judged.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| torch_")]
    assert [row[0].strip("| ") for row in rows] == ["torch_softmax"] * 3 + ["torch_swiglu"] * 3  # the latest of each
    assert all(row[2] == "verified" and row[3] == "0" for row in rows[:3])
    assert "the rounding-error bound is" in rows[3][-1] and rows[3][2] == "refuted"


def test_the_page_is_that_of_its_records() -> None:
    kept = judge_third_party.RESULTS / "judged.jsonl"
    records = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(records) > 80
    assert (judge_third_party.RESULTS / "judged.md").read_text() == judge_third_party.page(records)
