"""ARCHITECTURE.md and CONTRIBUTING.md name paths that exist, and every package of src/tokitai has its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tokitai"
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "tests/cases/README.md")
PATH = re.compile(
    r"(?:src|tests|docs|tools|bench|examples|evidence|scripts|\.ci|\.github)(?:/[\w.*-]+)*/?|[\w-]+\.(?:toml|md)"
)


def paths(text: str) -> list[str]:
    """What stands in backquotes, or behind a link, and looks like a path."""
    quoted = [word for word in re.findall(r"`([^`\n]+)`|\]\(([^)#\s]+)\)", text) for word in word if word]
    return [word for word in quoted if PATH.fullmatch(word)]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    found = paths((ROOT / page).read_text())
    assert found
    assert [name for name in found if not (ROOT / name).exists()] == []


def test_every_package_has_a_line() -> None:
    named = set(paths((ROOT / "ARCHITECTURE.md").read_text()))
    found = [p for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    wanted = {f"src/tokitai/{p.name}" for p in found if not p.name.startswith("_")}
    assert wanted - named == set()
    assert "src/tokitai/lang" in wanted


def test_every_family_and_backend_is_named() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [p.parent.name for name in ("families", "backends") for p in (PACKAGE / name).glob("*/__init__.py")]
    assert [name for name in folders if not re.search(rf"\b{name}\b", text)] == []
    assert folders


def test_a_path_that_is_gone_is_found() -> None:
    assert paths("`src/tokitai/teapot.py` and [this](docs/a.md), `softmax`, `[x]`") == [
        "src/tokitai/teapot.py",
        "docs/a.md",
    ]
