"""The page of a report: its structure, what it says first, and that nothing from a certificate is more than text."""

from __future__ import annotations

import copy
import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pages import REFUTED, REPLAY, UNDECIDED, Page, files, page, repeated, strings
from sample import EMPTY, SAMPLE, SEEDED, conditioned

from tokitai.evidence import archive
from tokitai.evidence.statement import LargestError, build_statement
from tokitai.report import build, certificates, gather

MEASURED = {
    "f16": conditioned(0.625, 3.0, "a divisor may be zero within its error bound"),
    "f32": conditioned(2.0, 9.5),
}
BOUNDED = replace(SAMPLE, dtype="f16", error=replace(SAMPLE.error, bound=2e30, condition=MEASURED))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder with a certificate in every state."""
    contradiction = build_statement(SAMPLE)
    contradiction["predicate"]["verdict"] = "undecided"
    contradiction["predicate"]["cases"][1]["equal"] = False
    return files(tmp_path, good=SAMPLE, refuted=REFUTED, undecided=UNDECIDED, torn="{", contradiction=contradiction)


def test_the_page_is_well_formed_and_needs_nothing_else(mixed: Path) -> None:
    found = page(mixed)
    ids = [e.attributes["id"] for e in found.elements if "id" in e.attributes]
    assert repeated(ids) == []
    targets = [e.attributes.get("href", e.attributes.get("xlink:href")) for e in found.all("a", "use")]
    assert targets and {t for t in targets if t is None or t[0] != "#" or t[1:] not in ids} == set()
    assert found.all("script", "img", "iframe", "object", "form") == []
    assert [e.attributes["href"] for e in found.all("link")] == ["data:,"]
    for e in found.elements:
        assert not any(name.startswith("on") or name == "src" for name in e.attributes), e.attributes
        assert "url(" not in e.attributes.get("style", "")
    assert "@import" not in found.all("style")[0].text and "url(" not in found.all("style")[0].text
    assert found.all("meta")[0].attributes == {"charset": "utf-8"}
    assert "default-src 'none'" in found.all("meta")[1].attributes["content"]
    assert found.all("meta")[2].attributes["content"].startswith("width=device-width")


def test_headings_tables_and_pictures_can_be_read_aloud(mixed: Path) -> None:
    found = page(mixed)
    levels = [int(e.tag[1]) for e in found.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    tables = found.all("table")
    assert len(tables) == 2 + 2 * 4 and len(found.all("caption")) == len(tables)
    assert all(e.attributes.get("scope") for e in found.all("th"))
    pictures = [e for e in found.all("svg") if e.attributes.get("class") == "picture"]
    assert len(pictures) == 4  # errors, their histogram, cases, the shapes of one operator
    assert all(e.attributes["role"] == "img" and len(e.attributes["aria-label"]) > 20 for e in pictures)
    assert found.all("html")[0].attributes["lang"] == "en" and found.all("title")[0].text


def test_colours_are_those_of_the_page_in_light_and_dark(mixed: Path) -> None:
    found = page(mixed)
    style = found.all("style")[0].text
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    used = {name for e in found.elements for name in re.findall(r"var\((--[a-z0-9]+)\)", e.attributes.get("style", ""))}
    assert {"--ink", "--grid", "--c1", "--c2"} <= used
    for name in used:
        assert f"{name}: #" in light and f"{name}: #" in dark, name
    in_pictures = [e.attributes.get("style", "") for e in found.elements if "svg" in e.above]
    assert [text for text in in_pictures if "#" in text] == [], "a colour that does not follow the page"


def test_failures_come_first_and_in_full(mixed: Path) -> None:
    found = page(mixed)
    assert found.all("h1")[0].text == "Not verified"
    assert "Of 5 certificates 1 verified; 1 refuted" in found.text and "2 invalid" in found.text
    assert found.all("h2")[0].text == "What failed, or is missing"
    shown = [e for e in found.all("article")]
    assert [e.attributes["class"].split()[1] for e in shown] == ["refuted", "invalid", "invalid", "undecided"]
    assert REPLAY in shown[0].text and "seeded/large values@4x8#8" in shown[0].text
    assert found.text.index(REPLAY) < found.text.index("What was compared")
    assert "the verdict is undecided, but 1 of 3 cases are not equal, first 'normal'" in shown[1].text
    assert "torn.json" in shown[2].text and "cannot be read as JSON" in shown[2].text


def test_an_invalid_certificate_counts_for_nothing(tmp_path: Path, mixed: Path) -> None:
    content = gather(certificates([mixed]))
    assert content.counts == {"verified": 1, "undecided": 1, "invalid": 2, "refuted": 1}
    assert [content.total(kind) for kind in ("structure", "seeded", "hard")] == [(1, 51, 1), (1, 32, 1), (1, 0, 1)]
    assert "83" in next(e.text for e in page(mixed).all("li") if "elements compared" in e.text)
    assert (content.state, content.exit_code) == ("refuted", 1)
    only = tmp_path / "only"
    only.mkdir()
    content = gather(certificates([files(only, torn="[]")]))
    assert (content.state, content.exit_code, content.facts(), content.readable) == ("invalid", 1, [], [])
    found = page(only)
    assert found.all("h1")[0].text == "Not verified" and "0 verified of 1 certificate" in found.text


def test_all_verified(tmp_path: Path) -> None:
    found = page(files(tmp_path, one=SAMPLE, other=BOUNDED))
    assert found.all("h1")[0].text == "Verified" and found.all("article") == []
    assert "In every case of 2 certificates, every result of 1 operator in f16, f32 had the bits" in found.text
    for said in ("an example", "g++ 12.2.0", "not signed", "Why one may believe it", "Nothing is said about other"):
        assert said in found.text, said
    rows = [e.text for e in found.all("tr") if "all" in e.above or "tbody" in e.above]
    assert any(
        re.search(r"f16\s*cpu\s*verified\s*1\s*1\s*1\s*3\s*83\s*0\.75\s*0\.625\s*3\*\s*1\.5\b", row) for row in rows
    ), rows


@pytest.mark.parametrize(("which", "code"), [(SAMPLE, 0), (REFUTED, 1), (UNDECIDED, 3)])
def test_the_state_is_the_verdict(which: Any, code: int, tmp_path: Path) -> None:
    content = gather(certificates([files(tmp_path, one=which)]))
    assert (content.state, content.exit_code) == (which.verdict, code)


def test_the_section_of_a_certificate_holds_all_of_it(tmp_path: Path) -> None:
    found = page(files(tmp_path, one=SAMPLE))
    (section,) = (e.text for e in found.all("div") if e.attributes.get("id") == "certificate-1")
    p = build_statement(SAMPLE)["predicate"]
    digests = [d for k in p["kernels"] for d in (k["digest"], k["source_digest"])]
    for said in [
        *digests, p["operator"]["graph_digest"], p["compiler"]["digest"], *p["claims"], *p["non_claims"], p["created"],
        *(proof["statement"] for proof in p["proofs"]), p["error"]["at"], "finite values", "-ffp-contract=off", "avx2",
        "Copyright and so on", "passes", "in roundings of the row's largest", "2,147,483,648 rows", "not signed",
        "one.json",
        "tokitai verify rms_norm --dtype f32 --device cpu", "one.json --rerun",
    ]:  # fmt: skip
        assert said in section, said
    assert len([e for e in found.all("details") if "open" in e.attributes]) == 0


EVIL = "</script></title></style></svg><script>alert(1)</script><img src=. onerror=a()>\"' onload='x' {{ 7*7 }} $x^{2$"


def test_every_string_of_a_certificate_stays_text(tmp_path: Path) -> None:
    """One certificate for each string in one, with markup in its place, and one for each key of an open object."""
    statement = build_statement(REFUTED)
    places = list(strings(statement))
    variants = []
    for at in places:
        changed = copy.deepcopy(statement)
        inner: Any = changed
        for key in at[:-1]:
            inner = inner[key]
        inner[at[-1]] = EVIL
        variants.append(changed)
    for name in ("device", "plan"):
        changed = copy.deepcopy(statement)
        changed["predicate"][name][EVIL] = {EVIL: [EVIL]}
        variants.append(changed)
    changed = copy.deepcopy(statement)
    changed["predicate"]["dtype"] = EVIL
    changed["predicate"]["operator"]["contract"]["formats"].append(EVIL)
    variants.append(changed)
    usual = {e.tag for e in page(files(tmp_path, usual=statement)).elements}
    (tmp_path / "<script>.json").write_text("{")
    found = page(files(tmp_path, **{f"evil{number}": v for number, v in enumerate(variants)}))
    assert len(places) > 40
    assert {e.tag for e in found.elements} == usual
    assert not any(name.startswith("on") for e in found.elements for name in e.attributes)
    assert found.text.count("<script>alert(1)</script>") > 20 and "/<script>.json" in found.text
    assert found.text.count("{{ 7*7 }}") > 20


def test_text_cannot_turn_the_line_round_or_break_the_file(tmp_path: Path) -> None:
    statement = build_statement(SAMPLE)
    statement["predicate"]["claims"] = ["a\u202eb", "c\x00d", "e\ud800f", "g\u00a0h"]
    content = gather(certificates([files(tmp_path, one=statement)]))
    assert content.state == "verified"
    text = build(content)
    assert text.encode("utf-8").count(b"\\u202e") and "a\\u202eb" in text and "e\\ud800f" in text and "c\\x00d" in text


def test_numbers_of_any_size_are_shown(tmp_path: Path) -> None:
    large = 10**18
    case = replace(SEEDED, rows=large, cols=large, compared=large, max_ulp_error=float("inf"))
    contract = replace(SAMPLE.operator.contract, max_rows=large, max_cols=large)
    sample = replace(
        SAMPLE, operator=replace(SAMPLE.operator, contract=contract), cases=(case, replace(SAMPLE.cases[0]), EMPTY),
        error=LargestError(float("inf"), "here", None),
    )  # fmt: skip
    text = page(files(tmp_path, one=sample)).text
    assert "inf" in text and f"{large + 51:,}" in text


@pytest.mark.slow
def test_the_same_certificates_give_the_same_bytes(mixed: Path) -> None:
    program = (
        "import sys; from tokitai.report import *; "
        "sys.stdout.buffer.write(build(gather(certificates(sys.argv[1:]))).encode())"
    )
    texts = set()
    for seed, words in (("1", [mixed]), ("2", sorted(mixed.iterdir(), reverse=True))):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "MPLBACKEND": "pdf"}
        command = [sys.executable, "-W", "error", "-c", program, *map(str, words)]
        texts.add(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)
    assert len(texts) == 1 and len(texts.pop()) > 20_000
    content = gather(certificates([mixed]))
    assert build(content) == build(content)


@pytest.mark.slow
def test_the_certificates_of_a_gpu_make_a_page_of_a_few_megabytes() -> None:
    folder = Path(__file__).parents[2] / "evidence" / "cuda"
    content = gather(certificates([folder]))
    names = [path.name for path in archive.members(folder)]
    assert len(content.entries) == len(names) >= 200
    text = build(content)
    assert len(text.encode()) < 5_000_000
    found = Page(text)
    operators = {name.partition(".")[0] for name in names}
    pictures = [e for e in found.all("svg") if e.attributes.get("class") == "picture"]
    assert len(pictures) == 3 + len(operators)  # errors, their histogram, cases, and the shapes of each operator
    assert len([e for e in found.all("summary") if "ulp" in e.text]) == len(content.entries)
