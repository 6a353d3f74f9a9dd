"""`tokitai check`: certificates are called by what was checked of them, and no more; never a traceback."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, Command
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tokitai.errors import UsageError
from tokitai.evidence.sign import envelope, keyid, public_key
from tokitai.verification.recheck import AS_STATED, FIRST_AS_STATED, Checked, overall

V1 = Path(__file__).parents[1] / "evidence" / "v1"
PLAIN, SIGNED, KEY = V1 / "rms_norm.f32.cpu.json", V1 / "silu.bf16.cpu.dsse.json", V1 / "key.pub.pem"
KEYS = {
    "file", "outcome", "problems", "operator", "dtype", "device", "verdict", "cases", "signature", "keyids", "signer",
    "rerun", "as_stated", "lacking",
}  # fmt: skip
LACKING = r"lacks \d+ of the suite's \d+ cases"
SIGNER = keyid(public_key(KEY))[:16]
SMALL_CASE = ("--dtype", "f32", "--case", "seeded/normal@3x17#0", "--out", "out")


def refuted(predicate: Any) -> None:
    """As a run would have it that saw another result."""
    predicate.update(verdict="refuted", failure="tokitai verify rms_norm ...")
    predicate["cases"][1].update(equal=False, output_digests={})
    predicate["claims"] = [line.replace("all equal", "not all equal") for line in predicate["claims"][:-1]]


def undecided(predicate: Any) -> None:
    predicate.update(verdict="undecided")


def altered(folder: Path, change: Callable[[Any], object], name: str = "altered.json") -> Path:
    statement = json.loads(PLAIN.read_text())
    change(statement["predicate"])
    (folder / name).write_text(json.dumps(statement))
    return folder / name


def test_one_line_a_certificate(tokitai: Command) -> None:
    done = tokitai("check", PLAIN, SIGNED)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"well-formed       rms_norm             f32   cpu   verified     2 cases, not signed: {PLAIN}",
        f"well-formed       silu                 bf16  cpu   verified     1 case, signature not checked: {SIGNED}",
    ]
    again = tokitai("check", SIGNED, "--key", KEY, "--rerun")
    assert again.out.startswith("partly recomputed ")
    state = f"1 case, signed by {SIGNER}, 1 of 1 recomputed, {LACKING}"
    assert re.search(f"{state}: {re.escape(str(SIGNED))}\n$", again.out)


def test_with_json_it_is_one_object(tokitai: Command) -> None:
    done = tokitai.process("check", SIGNED, PLAIN, "--json", "--rerun", "--key", KEY)
    assert (done.code, done.err, set(done.object)) == (1, "", {"results", "verdict"})
    good, bad = done.object["results"]
    assert done.object["verdict"] == "invalid" and set(good) == set(bad) == KEYS
    assert good == {
        "file": str(SIGNED), "outcome": "partly recomputed", "problems": [], "operator": "silu", "dtype": "bf16",
        "device": "cpu",
        "verdict": "verified", "cases": 1, "signature": "good", "keyids": good["keyids"], "signer": good["keyids"][0],
        "rerun": {"cases": 1, "of": 1}, "lacking": good["lacking"], "as_stated": [*AS_STATED, *FIRST_AS_STATED],
    }  # fmt: skip
    assert re.fullmatch(LACKING, good["lacking"])
    assert (bad["outcome"], bad["signature"], bad["operator"], bad["rerun"]) == ("invalid", "none", None, None)
    assert bad["problems"] == [f"it is not signed (accepted: signed by the key {good['keyids'][0]})"]


def test_a_signature_by_another_key_is_invalid(tokitai: Command) -> None:
    key = Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tokitai.folder / "other.pem").write_bytes(pem)
    done = tokitai("check", SIGNED, "--key", "other.pem")
    assert done.code == 1 and done.out.startswith("invalid           signature wrong: ")
    assert f"no signature on it is one by the key {keyid(key)} (it says by " in done.out


@pytest.mark.parametrize(
    ("change", "code", "outcome", "said"),
    [
        (refuted, 1, "refuted", "well-formed, but its verdict is refuted: tokitai verify rms_norm ..."),
        (undecided, 3, "undecided", "well-formed, but its verdict is undecided"),
        (lambda p: p.update(created="2026-02-30T12:00:00Z"), 1, "invalid", "created '2026-02-30T12:00:00Z' is no date"),
        (lambda p: p.pop("plan"), 1, "invalid", "statement.predicate: 'plan' is missing"),
    ],
)
def test_what_is_not_a_certificate_of_a_verified_kernel(
    tokitai: Command, change: Callable[[Any], object], code: int, outcome: str, said: str
) -> None:
    path = altered(tokitai.folder, change)
    done = tokitai("check", path, "--json")
    assert (done.code, done.object["verdict"], done.object["results"][0]["outcome"]) == (code, outcome, outcome)
    assert done.object["results"][0]["problems"] == [said]
    lines = tokitai("check", path, PLAIN).out.splitlines()
    assert lines[0].startswith(f"{outcome:<18}") and lines[1] == f"  {said}"
    assert lines[2].startswith("well-formed ")


def test_the_oracle_of_a_refuted_kernel_is_computed_again_as_well(tokitai: Command) -> None:
    path = altered(tokitai.folder, refuted)
    found = tokitai("check", path, "--rerun", "--json").object["results"][0]
    assert (found["outcome"], found["rerun"]) == ("refuted", {"cases": 2, "of": 2})
    altered(tokitai.folder, lambda p: (refuted(p), p["cases"][1]["oracle_digests"].update(y="0" * 64)))
    assert tokitai("check", path, "--rerun", "--json").object["results"][0]["outcome"] == "invalid"


def test_the_worst_outcome_counts(tokitai: Command) -> None:
    bad = [altered(tokitai.folder, c, f"{c.__name__}.json") for c in (undecided, refuted)]
    assert [tokitai("check", PLAIN, *some).code for some in ((), bad[:1], bad[1:], bad)] == [0, 3, 1, 1]
    outcomes = ["recomputed", "partly recomputed", "well-formed", "undecided", "refuted", "invalid"]
    for i, worst in enumerate(outcomes):
        assert overall([Checked("x", o) for o in outcomes[: i + 1]]) == worst  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing was checked"):
        overall([])


# ------------------------------------------------------------------ files and folders
def test_a_folder_stands_for_every_certificate_below(tokitai: Command) -> None:
    deep = tokitai.folder / "all" / "deep"
    deep.mkdir(parents=True)
    (deep / "b.json").write_bytes(PLAIN.read_bytes())
    (tokitai.folder / "all" / "a.dsse.json").write_bytes(SIGNED.read_bytes())
    (deep / "b.md").write_text("not one")
    (deep / "folder.json").mkdir()
    done = tokitai("check", "all", "--json")
    assert [r["file"] for r in done.object["results"]] == ["all/a.dsse.json", "all/deep/b.json"]
    assert done.code == 0
    (deep / "c.json").write_text('{"scripts": {}}')
    done = tokitai("check", "all", "--json")
    assert (done.code, [r["outcome"] for r in done.object["results"]]) == (1, ["well-formed", "well-formed", "invalid"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'CERT"),
        (["empty"], "empty: no file below it ends in .json"),
        ([PLAIN, "empty"], "empty: no file below it ends in .json"),
        (["missing.json"], "missing.json: no such file"),
        ([PLAIN, "--cases", "3"], "--cases, --seed and --op go with --rerun"),
        ([PLAIN, "--op", "small.py:small"], "--cases, --seed and --op go with --rerun"),
        ([PLAIN, "--rerun", "--cases", "-1"], "--cases"),
        ([PLAIN, "--rerun", "--cases", "x"], "--cases"),
        ([PLAIN, "--rerun", "--op", "nope"], "no operator named 'nope'"),
        ([PLAIN, "--rerun", "--op", "nope.py:x"], "nope.py: no such file"),
        ([PLAIN, "--rerun", "--op", "silu", "--op", "silu"], "silu is given twice"),
        ([PLAIN, "--key", "missing.pem"], "missing.pem: cannot be read (No such file or directory)"),
        ([PLAIN, "--key", "empty"], "empty: cannot be read (Is a directory)"),
        ([PLAIN, "--key", PLAIN], "no public key that can be read"),
    ],
)
def test_wrong_usage(tokitai: Command, words: list[str | Path], said: str) -> None:
    (tokitai.folder / "empty").mkdir()
    done = tokitai("check", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and said in done.err
    assert set(tokitai("check", *words, "--json").object) == {"error", "kind"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b"\xff\xfe\x00", "cannot be read as JSON"),
        (SIGNED.read_bytes()[:-100], "cannot be read as JSON"),
        (PLAIN.read_bytes().decode().encode("utf-16"), "cannot be read as JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1" + b"0" * 5000 + b"]", "too large"),
        (b"[]", "[] is not of type object"),
        (b'{"payload": "e30="}', "'payloadType' is null"),
    ],
)
def test_a_file_that_is_no_certificate_is_invalid(tokitai: Command, data: bytes, said: str) -> None:
    (tokitai.folder / "x").write_bytes(data)
    for more in ([], ["--rerun"]):
        done = tokitai("check", "x", "--json", *more)
        assert (done.code, done.object["results"][0]["outcome"]) == (1, "invalid")
        assert said in done.object["results"][0]["problems"][0]


def test_a_file_that_cannot_be_read_is_undecided(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tokitai.verification.recheck.read", refuse)
    done = tokitai("check", PLAIN, "--json")
    (found,) = done.object["results"]
    assert (done.code, found["problems"]) == (3, ["cannot be read: Permission denied"])


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (tokitai.folder / "all").mkdir()
    (tokitai.folder / "all" / "a.json").write_bytes(PLAIN.read_bytes())

    def walk(folder: Path, onerror: Callable[[OSError], None]) -> Any:
        yield folder, [], ["a.json"]
        onerror(PermissionError(13, "Permission denied", "all/closed"))

    monkeypatch.setattr(os, "walk", walk)
    done = tokitai("check", "all")
    assert done.code == 2 and "all/closed: cannot be listed (Permission denied)" in done.err


@pytest.mark.slow
def test_names_that_are_no_text(tokitai: Command) -> None:
    name = os.fsdecode(b"\xff\x1b.json")
    (tokitai.folder / name).write_bytes(PLAIN.read_bytes())
    assert r"not signed: \udcff\x1b.json" in tokitai("check", name).out
    done = tokitai.process("check", tokitai.folder / name, "--json")
    assert (done.code, done.object["results"][0]["file"]) == (0, str(tokitai.folder / name))
    missing = tokitai.process("check", os.fsdecode(b"\xfe"), "--json")
    assert (missing.code, missing.object["kind"]) == (2, "UsageError")


# ------------------------------------------------------------------ computed again
def test_another_digest_is_found(tokitai: Command) -> None:
    def change(predicate: Any) -> None:
        for digests in ("output_digests", "oracle_digests"):
            predicate["cases"][1][digests]["y"] = "0" * 64

    path = altered(tokitai.folder, change)
    assert tokitai("check", path).code == 0, "its parts agree"
    done = tokitai("check", path, "--rerun", "--cases", "0", "--json")
    assert (done.code, done.object["verdict"]) == (1, "invalid")
    assert done.object["results"][0]["problems"] == ["case seeded/normal@3x17#0: another digest of oracle y"]
    assert done.object["results"][0]["rerun"] == {"cases": 2, "of": 2}


def test_other_scalars_are_found(tokitai: Command) -> None:
    path = altered(tokitai.folder, lambda p: p["cases"][0].update(scalars={"eps": 1e-5}))
    done = tokitai("check", path, "--rerun")
    assert done.code == 1
    assert "#0: its scalars are {'eps': 1e-05}, where the definition's are {'eps': 1e-06}" in done.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p["operator"].update(graph_digest="1" * 64), "another definition of rms_norm: 1111"),
        (lambda p: p["operator"].update(numerics_version=9), "those of numerics version 9, which is"),
        (lambda p: p["operator"].update(name="mine"), "it is about mine, which is no operator known here"),
        (lambda p: [c.update(kind="yours") for c in p["cases"]], "none of its cases can be recomputed"),
        (lambda p: [c.update(rows=1 << 20) for c in p["cases"]], "none of its cases can be recomputed"),
        (lambda p: (p.update(dtype="f8"), p["operator"]["contract"].update(formats=["f8"])), "has no format f8 here"),
    ],
)
def test_what_cannot_be_computed_again_is_undecided(
    tokitai: Command, change: Callable[[Any], object], said: str
) -> None:
    path = altered(tokitai.folder, change)
    assert tokitai("check", path).code == 0
    done = tokitai("check", path, "--rerun", "--json")
    (found,) = done.object["results"]
    assert (done.code, found["outcome"], found["rerun"]["cases"]) == (3, "undecided", 0)
    (problem,) = found["problems"]
    assert problem.startswith("nothing was recomputed: ") and said in problem


def test_an_operator_of_your_own(tokitai: Command, small: str) -> None:
    words = ("--option", "sign=minus", "--without", "w")
    assert tokitai("verify", small, *SMALL_CASE, *words).code == 0
    assert tokitai("check", "out").code == 0
    done = tokitai("check", "out", "--rerun")
    assert done.code == 3 and "it is about small, which is no operator known here" in done.out
    again = tokitai("check", "out", "--rerun", "--op", small, "--cases", "0", "--json")
    assert (again.code, again.object["results"][0]["rerun"]) == (0, {"cases": 1, "of": 1})
    (tokitai.folder / "other.py").write_text(SMALL.replace("-x * by", "-x * by - 1"))
    done = tokitai("check", "out", "--rerun", "--op", "other.py:small")
    assert done.code == 3 and "another definition of small" in done.out


def test_how_many_cases_are_computed_again(tokitai: Command) -> None:
    def change(predicate: Any) -> None:
        predicate["cases"] *= 10

    path = altered(tokitai.folder, change)
    for words, wanted in (([], 6), (["--cases", "3"], 3), (["--cases", "0"], 20), (["--cases", "99"], 20)):
        found = tokitai("check", path, "--rerun", *words, "--json").object["results"][0]
        assert found["rerun"] == {"cases": wanted, "of": 20}


# ------------------------------------------------------------------ verify --sign
@pytest.fixture
def secret(tokitai: Command) -> str:
    """The body of a private key, whose halves lie in the folder as key.pem and pub.pem."""
    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tokitai.folder / "key.pem").write_bytes(text)
    (tokitai.folder / "pub.pem").write_bytes(public)
    return text.decode().splitlines()[1]


def test_verify_signs_and_check_says_so(tokitai: Command, small: str, secret: str) -> None:
    done = tokitai("verify", small, *SMALL_CASE, "--without", "w", "--sign", "key.pem", "--json")
    assert (done.code, done.object["certificate"]) == (0, "out/small.f32.cpu.dsse.json")
    found = tokitai("check", "out", "--key", "pub.pem", "--json").object["results"]
    assert [(r["outcome"], r["signature"]) for r in found] == [("well-formed", "good")]
    told = done.out + done.err + "".join(p.read_text() for p in (tokitai.folder / "out").iterdir())
    assert secret not in told and secret[-43:] not in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "out", "--sign", "missing.pem"], "missing.pem: cannot be read (No such file"),
        (["--out", "out", "--sign", "pub.pem"], "pub.pem: a public key; accepted: an Ed25519 private key"),
        (["--dtype", "f32", "--case", "seeded/normal@3x17#0", "--sign", "key.pem"], "writes no certificate; add --out"),
    ],
)
def test_a_key_that_cannot_sign_is_told_before_anything_runs(
    tokitai: Command, small: str, secret: str, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setattr("tokitai.cli.app.verify_many", lambda *_, **__: pytest.fail("run"))
    done = tokitai("verify", small, *words)
    assert (done.code, done.out) == (2, "") and said in done.err
    assert not (tokitai.folder / "out").exists()


def test_an_envelope_of_another_kind_of_statement_is_invalid(tokitai: Command, secret: str) -> None:
    key = serialization.load_pem_private_key((tokitai.folder / "key.pem").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    other = json.dumps({"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1"})
    (tokitai.folder / "slsa.json").write_text(json.dumps(envelope(other.encode(), key)))
    done = tokitai("check", "slsa.json", "--key", "pub.pem")
    signed = f"signed by {keyid(key.public_key())[:16]}"
    assert done.code == 1 and done.out.startswith(f"invalid           {signed}: slsa.json\n  statement: ")
