"""``tokitai report``: exit codes, both streams, and what is said where something is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command import Command

from tokitai.report import page

CERTIFICATE = Path(__file__).parents[1] / "evidence" / "certificates" / "v1.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one certificate that is verified."""
    found = tmp_path / "certificates"
    found.mkdir()
    shutil.copy(CERTIFICATE, found / "good.json")
    return found


def altered(folder: Path, name: str, verdict: str) -> None:
    """Another certificate with this verdict; one that is refuted has a case that differs."""
    statement = json.loads(CERTIFICATE.read_text())
    p = statement["predicate"]
    p["verdict"] = verdict
    if verdict == "refuted":
        p["failure"], p["cases"][0]["equal"], p["error"]["bound"] = "tokitai verify it --case x", False, None
    (folder / f"{name}.json").write_text(json.dumps(statement))


def test_a_page_is_written(tokitai: Command, folder: Path) -> None:
    done = tokitai("report", folder, "--html", "page.html")
    assert (done.code, done.out, done.err) == (0, "page.html: 1 verified of 1\n", "")
    assert "<h1>Verified</h1>" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("verdict", "code", "text"), [
    ("refuted", 1, "1 verified, 1 refuted of 2"), ("undecided", 3, "1 verified, 1 undecided of 2"),
])  # fmt: skip
def test_exit_codes(verdict: str, code: int, text: str, tokitai: Command, folder: Path) -> None:
    altered(folder, "other", verdict)
    done = tokitai("report", folder / "good.json", folder / "other.json", "--html", "page.html")
    assert (done.code, done.out) == (code, f"page.html: {text}\n")


def test_json_and_invalid_certificates(tokitai: Command, folder: Path) -> None:
    (folder / "torn\x1b[2J.json").write_text("{")
    done = tokitai("report", folder, "--html", "page.html", "--json")
    (problem,) = done.object["problems"]
    assert done.code == 1 and {key: value for key, value in done.object.items() if key != "problems"} == {
        "html": "page.html", "verdict": "invalid", "certificates": 2, "verified": 1, "undecided": 0, "invalid": 1,
        "refuted": 0,
    }  # fmt: skip
    assert problem["certificate"].endswith("torn\x1b[2J.json") and len(problem["problems"]) == 1
    assert "\x1b" not in done.err and "torn\\x1b[2J.json: cannot be read as JSON" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["certificates"], "--html"),
        (["--html", "page.html"], "CERT"),
        (["none", "--html", "page.html"], "none: no such file"),
        (["empty", "--html", "page.html"], "no certificate in empty"),
        (["certificates", "--html", "none/page.html"], "--html none/page.html: cannot be written"),
        (["certificates", "--html", "certificates/good.json"], "one of the certificates"),
    ],
)
def test_wrong_usage(words: list[str], said: str, tokitai: Command, folder: Path) -> None:
    Path("empty").mkdir()
    before = (folder / "good.json").read_bytes()
    done = tokitai("report", *words)
    assert (done.code, done.out) == (2, "") and said in done.err
    assert tokitai("report", *words, "--json").object["error"]
    assert not Path("page.html").exists() and (folder / "good.json").read_bytes() == before


def test_a_key_is_asked_for(tokitai: Command, folder: Path) -> None:
    v1 = CERTIFICATE.parents[1] / "v1"
    done = tokitai("report", v1 / "silu.bf16.cpu.dsse.json", "--html", "page.html", "--key", v1 / "key.pub.pem")
    assert done.code == 0 and "good, by the key" in Path("page.html").read_text(encoding="utf-8")
    done = tokitai("report", folder, "--html", "page.html", "--key", v1 / "key.pub.pem")
    assert done.code == 1 and "good.json: not signed, where a signature by the key" in done.err
    done = tokitai("report", folder, "--html", "other.html", "--key", CERTIFICATE)
    assert done.code == 2 and "no public key" in done.err and not Path("other.html").exists()


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_what_is_missing_is_named(
    missing: str, tokitai: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None if name == missing else object())
    done = tokitai("report", folder, "--html", "page.html")
    assert done.code == 3 and "is not installed; install with `pip install 'tokitai[report]'`" in done.err
    assert missing in done.err.lower() and not Path("page.html").exists()
