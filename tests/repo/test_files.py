"""Rules that hold for every file of the repository."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tokitai"

# Written in pieces, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(
    r"(?<![\w.~$}\])/-])/(?:ro" r"ot|wo" r"rk|ho" r"me|Us" r"ers)(?=[/\s\"'`:,;)]|$)", re.MULTILINE
)  # fmt: skip
REGISTRY_HOST = re.compile(
    r"\b(?:pypi" r"\.org|python" r"hosted\.org|download\.py" r"torch\.org|(?:conda\.)?ana" r"conda\.(?:org|com)|"
    r"np" r"mjs\.(?:org|com)|deb\.de" r"bian\.org|archive\.ub" r"untu\.com|apt\.ll" r"vm\.org|gh" r"cr\.io|"
    r"docker" r"\.io|pypi\.nvi" r"dia\.com)\b"
)  # fmt: skip


def repository_files() -> list[Path]:
    """Every file that is tracked, or would be: what git ignores is left out, and so are files being deleted."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in sorted(filter(None, listing.split("\0"))) if (path := ROOT / name).is_file()]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def hits(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Every match, as `line: the line`."""
    for match in pattern.finditer(text):
        number = text.count("\n", 0, match.start())
        yield f"{number + 1}: {text.splitlines()[number].strip()}"


def test_files_are_listed() -> None:
    assert {ROOT / "pyproject.toml", PACKAGE / "errors.py", Path(__file__)} <= set(repository_files())


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY_HOST], ids=["machine path", "registry host"])
def test_files_name_no_machine_and_no_registry(pattern: re.Pattern[str]) -> None:
    found = [
        f"{shown(path)}:{hit}"
        for path in repository_files()
        for hit in hits(pattern, path.read_bytes().decode(errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (MACHINE_PATH, "open('/" + "home/me/x')", True),
        (MACHINE_PATH, "cd /" + "work", True),
        (MACHINE_PATH, "in a/" + "work/b and ${X}/" + "home/y and ~/" + "work", False),
        (MACHINE_PATH, "/" + "homepage /" + "workspace", False),
        (REGISTRY_HOST, "https://files.python" + "hosted.org/packages", True),
        (REGISTRY_HOST, "pypi" + ".org", True),
        (REGISTRY_HOST, "https://tokitai.dev/verification/v1", False),
    ],
)
def test_what_is_looked_for_is_found(pattern: re.Pattern[str], text: str, found: bool) -> None:
    assert bool(list(hits(pattern, text))) is found
