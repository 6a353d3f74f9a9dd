"""Every example in README.md, CONTRIBUTING.md and docs/ does what it says. `documents.py` says how it is run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `documents`, whatever pytest's import mode

from documents import RUN, Block, DocumentError, Reader, blocks, make_targets, steps

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
TARGETS = make_targets((ROOT / "Makefile").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS)
def test_examples_do_what_they_say(document: str, tmp_path: Path) -> None:
    assert shutil.which("tokitai", path=str(Path(sys.executable).parent)), "tokitai is not installed beside Python"
    reader = Reader(tmp_path, TARGETS)
    for block in blocks(document, (ROOT / document).read_text()):
        reader.follow(block)


def test_examples_that_are_not_run_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """A block may be left out, but only with a reason; all of them are printed here."""
    left_out = [b for name in DOCUMENTS for b in blocks(name, (ROOT / name).read_text()) if b.reason is not None]
    with capsys.disabled():
        for block in left_out:
            print(f"\nnot run: {block.where}: {block.reason}", end="")
    assert [b.where for b in left_out if b.language not in RUN] == [], "these languages are never run"


def read(text: str) -> list[Block]:
    return list(blocks("page.md", text))


def fenced(language: str, text: str, above: str = "") -> str:
    return f"Words.\n\n{above}\n```{language}\n{text}\n```\n"


def follow(folder: Path, *parts: str) -> None:
    reader = Reader(folder, {"verify", "test"})
    for block in read("\n".join(parts)):
        reader.follow(block)


@pytest.mark.parametrize(
    "parts",
    [
        [fenced("python", "x = 3"), fenced("python", "assert x == 3", "<!-- continues -->")],
        [fenced("python", "open('f', 'w').write('1')"), fenced("sh", "test -e f")],
        [fenced("python", "value = 7", "<!-- file: given.py -->"), fenced("python", "import given; given.value / 7")],
        [fenced("console", "$ echo one 23 two\none ... two\n$ true")],
        [fenced("console", "$ echo a \\\n> b\na b")],
        [fenced("console", "$ exit 3", "<!-- exits with 3 -->")],
        [fenced("sh", "exit 9", "<!-- not run: it would fail -->")],
        [fenced("sh", "make verify\nmake PYTHON=python3.12 test  # long\nmake")],
        [fenced("text", "$ exit 9")],
    ],
)
def test_right_examples_pass(tmp_path: Path, parts: list[str]) -> None:
    follow(tmp_path, *parts)


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ([fenced("python", "x = 3"), fenced("python", "print(x)")], "NameError"),
        ([fenced("python", "1 / 0")], "page.md:4"),
        ([fenced("sh", "false\ntrue")], "exit code 1, not 0"),
        ([fenced("console", "$ false\n$ true")], "exit code 1, not 0"),
        ([fenced("console", "$ echo one\ntwo")], "shown:\ntwo"),
        ([fenced("console", "$ true", "<!-- exits with 1 -->")], "exit code 0, not 1"),
        ([fenced("console", "echo one")], "before the first command"),
        ([fenced("sh", "make teapot")], "no such target"),
        ([fenced("bash", "true")], "write 'sh'"),
        ([fenced("sh", "true", "<!-- skip -->")], "'<!-- skip -->' above a block"),
        ([fenced("sh", "true", "<!-- not run: -->")], "above a block"),
        (["```sh\ntrue\n"], "not closed"),
    ],
)
def test_wrong_examples_are_found(tmp_path: Path, parts: list[str], wrong: str) -> None:
    with pytest.raises(DocumentError) as caught:
        follow(tmp_path, *parts)
    assert wrong in str(caught.value)


def test_steps_of_a_console_block() -> None:
    (block,) = read(fenced("console", "$ a \\\n> b\nout\nmore\n$ c"))
    assert list(steps(block)) == [("a \\\nb", "out\nmore\n"), ("c", "")]
