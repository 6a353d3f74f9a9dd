"""The checker: it agrees with a JSON Schema library on structure, finds contradictions, and works alone."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from sample import SAMPLE, VALUES, Place, altered, at_place, paths, sha256

from tokitai.evidence import check as checker
from tokitai.evidence.check import SCHEMA, check, problems
from tokitai.evidence.statement import build_statement

HERE = Path(__file__).parent
SCHEMA_OBJECT = json.loads(SCHEMA.read_text())


def structure(statement: object) -> list[str]:
    return list(checker._structure(statement, SCHEMA_OBJECT, SCHEMA_OBJECT, "statement"))


@pytest.mark.slow
def test_structure_agrees_with_a_json_schema_library() -> None:
    """Every place of a statement, removed, with one key more, and with every one of VALUES in it."""
    statement, library = build_statement(SAMPLE), Draft202012Validator(SCHEMA_OBJECT)
    accepted = refused = 0
    for at in paths(statement):
        tries = [altered(statement, at, new) for new in (*VALUES, *([...] if at else []))]
        here = at_place(statement, at)
        if isinstance(here, dict):
            tries.append(altered(statement, at, {**here, "unexpected": 1}))
        for tried in tries:
            found = structure(tried)
            assert bool(found) is not library.is_valid(tried), (at, tried, found)
            accepted, refused = accepted + (not found), refused + bool(found)
    assert accepted > 100 and refused > 1000


def test_an_unknown_keyword_is_not_passed_over() -> None:
    with pytest.raises(NotImplementedError, match="maximum"):
        list(checker._structure(1, {"maximum": 3}, {}, "value"))


LATER = {"sums", "inner", "batch", "isolation", "suite", "layouts", "machine_code", "condition"}  # not in older ones


def test_the_schema_is_closed() -> None:
    """Every property that it names is required, but for those that certificates gained later; no other is accepted, and
    every pattern is for the whole text."""
    parts = [part for at in paths(SCHEMA_OBJECT) if isinstance(part := at_place(SCHEMA_OBJECT, at), dict)]
    closed = [part for part in parts if part.get("type") == "object" and "properties" in part]
    assert len(closed) == 15
    for part in closed:
        assert sorted(part["required"]) == sorted(part["properties"].keys() - LATER)
        assert part["additionalProperties"] is False
    patterns = [part["pattern"] for part in parts if isinstance(part.get("pattern"), str)]
    assert all(pattern.startswith("^") and pattern.endswith("$") for pattern in patterns) and len(patterns) >= 5


P = ("predicate",)
CASE = (*P, "cases", 1)
STATED = (*P, "error", "max_ulp_error")
F32 = (*P, "error", "condition", "f32")
CONTRADICTIONS: list[tuple[dict[Place, Any], str]] = [
    ({(*P, "cases"): []}, "there is no case"),
    ({(*P, "dtype"): "bf16"}, "dtype 'bf16' is not in the contract (f16, f32)"),
    ({(*P, "operator", "contract", "max_cols"): 16}, "cols=17 is more than the contract's 16"),
    ({(*CASE, "equal"): False}, "the verdict is verified, but 1 of 3 cases are not equal, first 'normal'"),
    ({(*CASE, "equal"): False, (*P, "verdict"): "undecided"}, "the verdict is undecided, but 1 of 3"),
    ({(*P, "verdict"): "refuted", (*P, "failure"): "a line"}, "refuted, but no case differs"),
    ({(*P, "failure"): "a line"}, "refuted comes with a failure"),
    ({(*CASE, "equal"): False, (*P, "verdict"): "refuted"}, "refuted comes with a failure"),
    ({(*CASE, "output_digests"): {"y": sha256("z")}}, "the digests of the outputs are not those of the oracle"),
    ({(*CASE, "output_digests"): {}}, "the digests of the outputs are not those of the oracle"),
    ({(*CASE, "output_digests"): {}, (*CASE, "oracle_digests"): {}}, "no oracle digest says to what"),
    ({(*CASE, "compared"): 0}, "equal, but no element was compared"),
    ({STATED: 0.5}, "stated as 0.5, but over the cases it is 0.75"),
    ({STATED: None}, "stated as None, but over the cases it is 0.75"),
    ({(*CASE, "max_ulp_error"): None, STATED: None}, "no error was measured, but it is said where"),
    ({(*P, "error", "bound"): 0.7}, "exceeds the proven bound 0.7"),
    ({(*CASE, "max_ulp_error"): "inf", STATED: "inf", (*P, "error", "bound"): 9.0}, "error inf exceeds"),
    ({(*F32, "elements"): 33}, "a histogram of 31 bins with 32 errors, of 33 elements"),
    ({(*F32, "histogram"): [32, *[0] * 31]}, "a histogram of 32 bins"),
    (
        {(*F32, "max_error"): 1.5},
        "of results in f32, the largest error against its condition is 1.5, but in the histogram 2^-1",
    ),
    ({(*F32, "max_error"): 0.0}, "is 0.0, but in the histogram 2^-1"),
    ({(*F32, "bound"): 0.5}, "is 0.625, the bound on it 0.5"),
    ({(*F32, "bound"): 2e6}, "the bound on it 2000000.0 (accepted: up to 1e6)"),
    ({(*F32, "probabilistic_bound"): 4.0}, "the probabilistic bound 4.0 exceeds the certain one 3.0"),
    ({(*F32, "unbounded"): 1}, "1 elements are said to have no bound, with 0 reasons"),
    ({(*F32, "why"): ["it is hard"]}, "0 elements are said to have no bound, with 1 reasons"),
    ({(*CASE, "max_ulp_error"): None, STATED: None, (*P, "error", "at"): None}, "measured, but against its condition"),
    ({(*P, "created"): "2026-02-30T12:00:00Z"}, "is no date"),
    ({(*P, "kernels", 0, "structure"): True}, "there are numeric cases, but no numeric kernel"),
    ({(*P, "kernels", 1, "structure"): False}, "there are structure cases, but no structure kernel"),
    ({(*P, "kernels", 0, "digest"): sha256("z")}, "is no kernel's binary or source"),
    ({("subject", 0): ...}, "a kernel's binary or source, is not a subject"),
    ({("subject", 0, "name"): "one", ("subject", 1, "name"): "one"}, "two subjects have one name"),
    ({("predicateType",): "https://tokitai.dev/verification/v9"}, "(accepted: 'https://tokitai.dev/verification/v1')"),
    ({(*CASE, "input_digests", "x"): sha256("x").upper()}, "does not match"),
    ({(*CASE, "input_digests", "x"): sha256("x") + "\n"}, "does not match"),
]


@pytest.mark.parametrize(("changes", "said"), CONTRADICTIONS)
def test_a_contradiction_is_found(changes: dict[Place, Any], said: str) -> None:
    statement = build_statement(SAMPLE)
    assert problems(statement) == []
    for at, new in changes.items():
        statement = altered(statement, at, new)
    assert any(said in problem for problem in problems(statement)), problems(statement)


def test_nothing_compared_is_not_verified() -> None:
    statement = build_statement(SAMPLE)
    statement["predicate"]["cases"] = statement["predicate"]["cases"][2:]
    statement["predicate"]["error"] = {"max_ulp_error": None, "at": None, "bound": None}
    assert problems(statement) == ["the verdict is verified, but no element was compared"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "too large"),
        ('{"a": 1, "b": 2, "a": 1}', "'a' stands twice"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "[] is not of type object"),
        ('{"predicateType": "https://tokitai.dev/verification/v1"}', "'_type' is missing"),
        ('{"seed": 1' + "0" * 400 + "}", "too large"),
    ],
)
def test_a_file_that_is_no_certificate(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(text)
    assert any(said in problem for problem in check(path))


def test_a_file_that_is_missing_or_binary(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert len(check(tmp_path / "missing")) == len(check(tmp_path / "binary")) == len(check(tmp_path)) == 1


def test_the_checker_works_alone(tmp_path: Path) -> None:
    """Two files, copied away, in an interpreter that sees no installed package."""
    shutil.copy(checker.__file__, tmp_path / "check.py")
    shutil.copy(SCHEMA, tmp_path / "schema.json")
    statement = build_statement(SAMPLE)
    (tmp_path / "good.json").write_text(json.dumps(statement))
    statement["predicate"]["cases"] = [{**statement["predicate"]["cases"][1], "equal": False}]
    (tmp_path / "bad.json").write_text(json.dumps(statement))
    shutil.copy(HERE / "v1" / "silu.bf16.cpu.dsse.json", tmp_path / "signed.json")

    def run(*names: str) -> tuple[int, str]:
        command = [sys.executable, "-I", "-S", "check.py", *names]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("good.json") == (0, "well-formed\n")
    assert run("signed.json") == (0, "signed.json: signed; the signature is not checked\nwell-formed\n")
    code, said = run("good.json", "bad.json")
    assert code == 1 and "bad.json: the verdict is verified, but 1 of 1 cases are not equal" in said
    assert run() == (2, "usage: python check.py CERTIFICATE...\n")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"payload": ...}, "an envelope whose 'payload' is null"),
        ({"payload": 3}, "an envelope whose 'payload' is 3"),
        ({"payload": "e30"}, "'payload' is not base64"),
        ({"payload": "e31="}, "'payload' is not base64"),
        ({"payload": "e3 0="}, "'payload' is not base64"),
        ({"payload": "é"}, "'payload' is not base64"),
        ({"payload": "+_==", "signatures": [{"sig": ""}]}, "'payload' is not base64"),
        ({"payload": ""}, "cannot be read as JSON"),
        ({"payload": "e30="}, "'_type' is missing"),
        ({"payload": "eyJhIjoxLCJhIjoyfQ=="}, "'a' stands twice"),
        ({"payloadType": ...}, "whose 'payloadType' is null"),
        ({"payloadType": "application/json"}, "(accepted: application/vnd.in-toto+json)"),
        ({"signatures": ...}, "whose 'signatures' is null"),
        ({"signatures": []}, "without a signature"),
        ({"signatures": ["x"]}, 'the signature "x"'),
        ({"signatures": [{}]}, "the signature {}"),
        ({"signatures": [{"sig": "e31="}]}, "'sig' is not base64"),
        ({"signatures": [{"sig": "", "keyid": 7}]}, "the signature"),
    ],
)
def test_an_envelope_that_is_malformed(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    envelope: Any = json.loads((HERE / "v1" / "silu.bf16.cpu.dsse.json").read_text())
    for name, value in changes.items():
        envelope = altered(envelope, (name,), value)
    (tmp_path / "x.json").write_text(json.dumps(envelope))
    (problem, *_) = check(tmp_path / "x.json")
    assert said in problem


def test_what_somebody_wrote_cannot_steer_the_terminal(tmp_path: Path) -> None:
    statement = build_statement(SAMPLE)
    case = statement["predicate"]["cases"][1]
    case.update(name="\x1b[2J\ud800", equal=True, output_digests={"\x1b\u202e": "x"})
    (tmp_path / "x.json").write_text(json.dumps(statement))
    found = check(tmp_path / "x.json")
    assert found and all(problem.isprintable() for problem in found)
    assert "\\x1b\\u202e" in found[0]


def test_not_every_problem_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({str(i): 0 for i in range(10_000)}))
    found = check(tmp_path / "x.json")
    assert len(found) == checker.MOST + 1 and found[-1] == "and more"


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "LARGEST", 1 << 20)
    (large := tmp_path / "large").write_bytes(b" " * (1 << 20) + b" ")
    assert check(large) == ["more than 1 MiB"]


@pytest.mark.parametrize("path", sorted((HERE / "certificates").glob("*.json")), ids=lambda path: path.name)
def test_old_certificates_are_accepted_for_ever(path: Path) -> None:
    """Never edit or remove a file of this folder: add one for each new version of the format."""
    assert check(path) == []


# ------------------------------------------------------------------ two readings, and what never ends
@pytest.mark.parametrize("key", ["_type", "subject", "predicateType", "predicate"])
def test_an_envelope_that_is_a_statement_as_well_is_refused(tmp_path: Path, key: str) -> None:
    """A reader of statements would see another certificate than a reader of envelopes."""
    envelope = json.loads((HERE / "v1" / "silu.bf16.cpu.dsse.json").read_text())
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**envelope, "note": "others are ignored, as DSSE demands"}))
    assert check(path) == []
    path.write_text(json.dumps({**envelope, key: build_statement(SAMPLE)[key]}))
    (problem,) = check(path)
    assert problem == f"an envelope with the statement's key {key!r}: two readings (accepted: one of them)"
    statement = build_statement(SAMPLE)
    for name in envelope:
        path.write_text(json.dumps({**statement, name: envelope[name]}))
        assert check(path), "a statement with an envelope's keys"


@pytest.mark.parametrize("kind", ["pipe", "socket", "/dev/zero", "/dev/tty", "folder"])
def test_what_is_no_regular_file_does_not_block(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind.replace("/", "")
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(str(path))
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(kind)
        (problem,) = check(path)
        assert "no regular file" in problem or "cannot be read" in problem


def test_a_statement_of_very_many_cases_or_kinds_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = build_statement(SAMPLE)
    case = statement["predicate"]["cases"][1]
    letters = "abcdefghijklmnopqrstuvwxyz"
    statement["predicate"]["cases"] = [{**case, "kind": a + b + c} for a in letters for b in letters for c in "abcde"]
    assert problems(statement) == ["3380 cases of 3380 kinds (accepted: at most 50000 of 32 kinds)"]
    monkeypatch.setattr(checker, "MOST_CASES", 10)
    statement["predicate"]["cases"] = [case] * 11
    assert problems(statement) == ["11 cases of 1 kinds (accepted: at most 10 of 32 kinds)"]


def test_a_key_that_stands_twice_is_found_at_once(tmp_path: Path) -> None:
    """Among a hundred thousand keys."""
    text = ", ".join(f'"k{i}": 0' for i in range(100_000))
    (tmp_path / "x.json").write_text(f'{{{text}, "k99999": 1}}')
    start = time.process_time()
    assert check(tmp_path / "x.json") == ["the key 'k99999' stands twice in one object"]
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "flag",
    ["-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-ffinite-math-only", "-ffp-contract=fast", "-fmad=true",
     "-ftz=true", "-prec-div=false", "-prec-sqrt=false", "--use_fast_math", "-mdaz-ftz",
     "-fgpu-flush-denormals-to-zero"],
)  # fmt: skip
def test_a_flag_that_changes_arithmetic_is_found(flag: str) -> None:
    statement = build_statement(SAMPLE)
    statement["predicate"]["flags"].append(flag)
    assert problems(statement) == [f'the flag "{flag}" lets results differ from IEEE 754']


def test_the_checker_imports_nothing_of_the_package() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "a relative import"
            imported.add(node.module.split(".")[0])
    assert imported <= sys.stdlib_module_names and "json" in imported
