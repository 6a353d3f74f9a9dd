"""Certificates are found in files and folders; whatever a file holds is a certificate or a reason why it is none."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pages import REFUTED, files
from sample import SAMPLE

from tokitai.errors import ArgumentError, UnavailableError
from tokitai.evidence import check
from tokitai.evidence.check import problems, well_formed
from tokitai.evidence.sign import keyid, public_key
from tokitai.evidence.statement import build_statement
from tokitai.report import certificates, gather, page, read, report

PAYLOAD_TYPE = "application/vnd.in-toto+json"


def envelope(statement: object, **changes: Any) -> dict[str, Any]:
    """A signed envelope as another part of the package writes it."""
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    one = {"keyid": "ab12", "sig": "AAAA"}
    return {"payload": payload, "payloadType": PAYLOAD_TYPE, "signatures": [one], **changes}


def test_files_and_folders_are_found_once(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    files(tmp_path, z=SAMPLE)
    files(below, y=REFUTED)
    (below / "y.md").write_text("not a certificate")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "alias.json").symlink_to(below / "y.json")
    found = certificates([tmp_path, below, below / "y.json", str(tmp_path / "z.json")])
    assert sorted(Path(c.path).resolve().name for c in found) == ["y.json", "z.json"]
    assert [c.problems for c in found] == [(), ()]
    shutil.copy(below / "y.json", tmp_path / "certificate")
    assert len(certificates([tmp_path / "certificate"])) == 1, "a file that is named may have any name"


@pytest.mark.parametrize(
    ("word", "said"),
    [("missing", "no such file"), ("empty", "no certificate in"), ("a\0b", "accepted"), ("x" * 5000, "accepted")],
)
def test_a_wrong_path_is_an_error(word: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="accepted") as caught:
        certificates([tmp_path / word])
    assert said in str(caught.value)


def test_nothing_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="no certificate in nothing"):
        certificates([])


def test_a_pipe_is_no_certificate(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (found,) = certificates([tmp_path])
    assert found.problems == ("no regular file",)
    with pytest.raises(ArgumentError, match="no file or folder"):
        certificates([tmp_path / "pipe.json"])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b"\xff\xfe\x00", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[" * 900 + b"]" * 900, "is not of type object"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too large"),
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b"[]", "is not of type object"),
        (b"{}", "'predicate' is missing"),
        (json.dumps({"payload": "e30=", "payloadType": "x", "signatures": [{}]}).encode(), "of payloadType"),
        (json.dumps(envelope({}, signatures=[])).encode(), "without a signature"),
        (json.dumps(envelope({}, payload="?")).encode(), "base64"),
        (json.dumps(envelope({}, payload=3)).encode(), "an envelope whose"),
        (json.dumps(envelope({})).encode(), "'predicate' is missing"),
    ],
)
def test_a_file_that_holds_none(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    found = read(path)
    assert found.predicate is None and any(said in problem for problem in found.problems), found.problems
    assert gather([found]).state == "invalid"


def test_a_file_that_cannot_be_read_or_is_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files(tmp_path, x=SAMPLE) / "x.json"
    monkeypatch.setattr(check, "LARGEST", path.stat().st_size)
    assert read(path).problems == ()
    monkeypatch.setattr(check, "LARGEST", path.stat().st_size - 1)
    assert read(path).problems[0].startswith("more than")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(check, "open_regular", refuse)
    assert read(path).problems == ("cannot be read: Permission denied",)


def test_a_signed_certificate_is_read_and_its_signature_never_believed(tmp_path: Path) -> None:
    (found,) = certificates([files(tmp_path, one=envelope(build_statement(SAMPLE)))])
    assert found.problems == () and found.signature == "signed, not checked: ab12"
    nameless = envelope(build_statement(SAMPLE), signatures=[{"sig": "AAAA"}, {"sig": "AAAA", "keyid": "k"}])
    (found,) = certificates([files(tmp_path, one=nameless)])
    assert found.signature == "signed, not checked: a key without a name, k"


def test_signatures_are_checked_with_a_key(tmp_path: Path) -> None:
    here = Path(__file__).parent / "v1"
    key = public_key(here / "key.pub.pem")
    (found,) = certificates([here / "silu.bf16.cpu.dsse.json"], key)
    assert found.problems == () and found.signature == f"good, by the key {keyid(key)}"
    other = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    for path, asked, said in [
        (here / "silu.bf16.cpu.dsse.json", other, "no signature by the key"),
        (here / "rms_norm.f32.cpu.json", key, "not signed"),
    ]:  # fmt: skip
        (found,) = certificates([path], asked)
        assert found.problems == (f"{said}, where a signature by the key {keyid(asked)} is asked for",)
        content = gather([found])
        assert content.state == "invalid" and said in page.build(content)


def test_a_certificate_that_contradicts_itself_is_still_shown(tmp_path: Path) -> None:
    statement = build_statement(SAMPLE)
    assert well_formed(statement) and problems(statement) == []
    statement["predicate"]["verdict"] = "refuted"
    assert well_formed(statement) and problems(statement) != []
    (found,) = certificates([files(tmp_path, one=statement)])
    assert found.predicate == statement["predicate"] and len(found.problems) == 2
    del statement["predicate"]["cases"][0]["rows"]
    assert not well_formed(statement)
    (found,) = certificates([files(tmp_path, one=statement)])
    assert found.predicate is None


def test_a_device_that_is_nested_too_deeply_is_no_fault(tmp_path: Path) -> None:
    statement = json.dumps(build_statement(SAMPLE)).replace('"an example"', "[" * 900 + "]" * 900)
    content = gather(certificates([files(tmp_path, one=statement)]))
    assert content.state in ("invalid", "verified")
    page.build(content)


def test_many_problems_are_told_in_part(tmp_path: Path) -> None:
    statement = build_statement(SAMPLE)
    statement["predicate"]["cases"] *= 100
    for case in statement["predicate"]["cases"]:
        case["rows"] = -1
    (entry,) = gather(certificates([files(tmp_path, one=statement)])).entries
    assert len(entry.problems) == 51 and entry.problems[-1] == "and more"


def test_where_no_page_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path, one=SAMPLE)
    for path, said in [
        (tmp_path, "a folder"), (tmp_path / "one.json", "one of the certificates"), (Path("/dev/null"), "no regular"),
        (tmp_path / "none" / "x.html", "No such file"), (tmp_path / "one.json" / "x.html", "Not a directory"),
        (tmp_path / "a\0b", "null byte"),
    ]:  # fmt: skip
        with pytest.raises(ArgumentError, match=said):
            report([tmp_path], path)
    assert [p.name for p in tmp_path.iterdir()] == ["one.json"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UnavailableError, match="No space left"):
        report([tmp_path], tmp_path / "x.html")
    assert [p.name for p in tmp_path.iterdir()] == ["one.json"], "what was written in part is removed"


def test_a_page_takes_the_place_of_another(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text("old")
    assert report([files(tmp_path, one=SAMPLE)], path).exit_code == 0
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>") and path.stat().st_mode & 0o777 == 0o644


def test_a_page_has_room_for_few_kinds_of_cases(tmp_path: Path) -> None:
    """Hundreds of certificates could have kinds of their own, each of which takes a table and a picture."""

    def with_kinds(first: int) -> dict[str, Any]:
        statement = build_statement(SAMPLE)
        case = statement["predicate"]["cases"][1]
        statement["predicate"]["cases"] += [{**case, "kind": "k" + "x" * (first + i)} for i in range(20)]
        return statement

    for i in range(3):
        (tmp_path / f"{i}.json").write_text(json.dumps(with_kinds(20 * i)))
    content = gather(certificates([tmp_path]))
    assert content.counts["verified"] == 1 and content.counts["invalid"] == 2
    assert content.in_state("invalid")[0].problems == (
        "its kinds of cases make them 46 (accepted on one page: at most 32)",
    )  # fmt: skip
