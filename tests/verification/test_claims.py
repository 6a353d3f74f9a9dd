"""A certificate claims what was done, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokitai import ops
from tokitai.verification import sentences, verify
from tokitai.verification.recheck import check_file
from tokitai.verification.verdict import Variant


def predicate_of(name: str, case: str, folder: Path, variant: Variant | None = None) -> Any:
    verdict = verify(ops.get(name), dtype="f32", case=case, out=folder, variant=variant)
    assert verdict.verdict == "verified" and verdict.certificate is not None
    return json.loads(verdict.certificate.read_text())["predicate"]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("softmax", "all inputs"), ("embedding", "all values of float inputs beside the drawn ids")],
)
def test_hashes_stand_for_floats_alone(name: str, inputs: str, tmp_path: Path) -> None:
    predicate = predicate_of(name, "structure/all inputs@3x17#0", tmp_path)
    assert predicate["proofs"][0]["statement"].startswith(f"for {inputs} at rows x cols of 3x17, the kernel evaluates")
    (claim,) = (c for c in predicate["claims"] if "under proofs" in c)
    assert f"evaluates the defined expression for {inputs}, but for a chance" in claim


@pytest.mark.parametrize(("name", "split"), [("softmax", True), ("dropout", False)])
def test_batches_were_split_where_it_says_so(name: str, split: bool, tmp_path: Path) -> None:
    claims = predicate_of(name, "seeded/normal@5x257#0", tmp_path)["claims"]
    assert any("in 1 of the cases, in batches split in two" in c for c in claims) is split
    assert any("split in two" in c for c in claims) is split


def test_variants_are_named_and_others_disclaimed(tmp_path: Path) -> None:
    alone = Variant(frozenset(), (("reduction", "sum"),))
    predicate = predicate_of("cross_entropy", "hard/another ignore index@2x2#0", tmp_path, alone)
    assert "It was run with: reduction=sum." in predicate["claims"]
    assert any(text.startswith("Combinations of optional inputs and options") for text in predicate["non_claims"])
    predicate = predicate_of("softmax", "seeded/normal@5x257#0", tmp_path)
    assert not any("It was run with" in text for text in predicate["claims"])
    assert not any(text.startswith("Combinations") for text in predicate["non_claims"])


def test_claims_from_before_an_operator_took_optional_inputs_are_those_of_none() -> None:
    old = ["a claim", "It was run with: its defaults; smooth=True."]
    assert sentences.as_now(ops.cross_entropy, old) == ["a claim", "It was run with: no optional input; smooth=True."]
    assert sentences.as_now(ops.dropout, old) == old
    found = sentences.stated_graphs(ops.cross_entropy, "f32", sentences.as_now(ops.cross_entropy, old))
    assert found is not None and found[0].digest == ops.cross_entropy.trace("f32", present=()).digest
    assert sentences.stated_graphs(ops.cross_entropy, "f32", old) is None


@pytest.mark.parametrize(("written", "status"), [("T stack[64];", "proved"), ("T stack[65];", "not proved")])
def test_an_order_of_sums_is_proved_of_definitions_on_record_alone(written: str, status: str, tmp_path: Path) -> None:
    """Where a header has another definition, the certificate says that the runs alone show what it does."""
    verdict = verify(
        ops.global_norm, dtype="f32", case="structure/all inputs@1x17#0", out=tmp_path,
        edit=lambda text: text.replace("T stack[64];", written),
    )  # fmt: skip
    assert verdict.certificate is not None and check_file(verdict.certificate, rerun=0).outcome == "recomputed"
    predicate = json.loads(verdict.certificate.read_text())["predicate"]
    found = {p["statement"]: p for p in predicate["proofs"] if p["statement"].startswith("order of sums")}
    joins, others = found.values()
    assert joins["status"] == status and " cpu/rows.h tree_over joins " in joins["statement"]
    assert ("known at the shapes that were run" in joins["how"]) is (status != "proved")
    assert (others["status"], others["how"]) == ("not proved", "known at the shapes that were run")
    (claim,) = (c for c in predicate["claims"] if c.startswith("Order of sums: "))
    assert ("for every count, proved" in claim) is (status == "proved")
