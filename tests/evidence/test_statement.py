"""Certificates that are produced: valid against the published schema, free of contradictions, written whole."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from sample import SAMPLE, SEEDED, WRONG

from tokitai.errors import EvidenceError
from tokitai.evidence.check import SCHEMA, check
from tokitai.evidence.statement import LargestError, Verification, build_statement, tensor_digest, utc_now, write

LINE = "rms_norm f32 cpu rows=4 cols=8 seed=8 at y[0, 0]: 0x1 for 0x2"
REFUTED = replace(SAMPLE, cases=(SEEDED, WRONG), verdict="refuted", failure=LINE)


def validator() -> Draft202012Validator:
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("verification", [SAMPLE, REFUTED, replace(SAMPLE, verdict="undecided")])
def test_a_statement_follows_the_schema(verification: Verification, tmp_path: Path) -> None:
    path = write(build_statement(verification), tmp_path)
    validator().validate(json.loads(path.read_text()))
    assert check(path) == []


def test_a_statement_survives_writing(tmp_path: Path) -> None:
    statement = build_statement(SAMPLE)
    path = write(statement, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "rms_norm.f32.cpu.json"
    assert json.loads(path.read_text()) == statement


def test_subjects_are_every_binary_and_source_once() -> None:
    digests = [subject["digest"]["sha256"] for subject in build_statement(SAMPLE)["subject"]]
    assert sorted(digests) == sorted({d for k in SAMPLE.kernels for d in (k.digest, k.source_digest)})
    assert len(digests) == 3  # the two builds share their source


def test_numbers_become_plain_json() -> None:
    infinite = np.float32(np.inf)
    case = replace(SEEDED, rows=np.int64(4), equal=np.bool_(True), max_ulp_error=infinite, scalars={"eps": np.nan})
    statement = build_statement(replace(SAMPLE, cases=(case,), error=LargestError(float("inf"))))
    plain = statement["predicate"]["cases"][0]
    assert (plain["rows"], plain["equal"], plain["max_ulp_error"], plain["scalars"]) == (4, True, "inf", {"eps": "nan"})
    json.dumps(statement, allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cases": ()}, "there is no case"),
        ({"verdict": "refuted", "failure": "a line"}, "no case differs"),
        ({"cases": (*SAMPLE.cases, WRONG)}, "1 of 4 cases are not equal, first 'large values'"),
        ({"claims": ()}, "statement.predicate.claims: 0 entries, at least 1 wanted"),
        ({"kernels": ()}, "statement.subject"),
        ({"device": {"cpu": object()}}, "predicate.device.cpu: <object"),
    ],
)
def test_a_contradiction_is_not_written(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        build_statement(replace(SAMPLE, **changes))
    assert said in str(caught.value)


def test_writing_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    write(build_statement(SAMPLE), tmp_path)
    path = write(build_statement(REFUTED), tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert json.loads(path.read_text())["predicate"]["verdict"] == "refuted"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_failed_write_keeps_the_old_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(build_statement(SAMPLE), tmp_path)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(EvidenceError, match="cannot be written: no space left"):
        write(build_statement(REFUTED), tmp_path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EvidenceError, match="cannot be written"):
        write(build_statement(SAMPLE), tmp_path / "file")


def test_the_time_is_one_the_schema_accepts() -> None:
    build_statement(replace(SAMPLE, created=utc_now()))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int64, np.bool_])
def test_a_tensor_digest_depends_on_the_stored_elements_alone(dtype: Any) -> None:
    values = np.arange(24).reshape(4, 6).astype(dtype)
    padded = np.ones((4, 9), dtype)
    padded[:, :6] = values
    assert tensor_digest(padded[:, :6]) == tensor_digest(values)
    assert tensor_digest(np.asfortranarray(values)) == tensor_digest(values)
    changed = values.copy()
    changed.reshape(-1).view(np.uint8)[-1] ^= 1
    assert tensor_digest(changed) != tensor_digest(values)
    assert tensor_digest(values[:0]) == tensor_digest(np.zeros(0, np.float32))


def test_a_tensor_digest_is_the_same_on_every_machine() -> None:
    values = np.array([1.0, -2.0], np.float32)
    assert tensor_digest(values.astype(">f4")) == tensor_digest(values.astype("<f4"))
    assert tensor_digest(values) == hashlib.sha256(bytes.fromhex("0000803f 000000c0")).hexdigest()
