"""`FILE.py:NAME` runs code: every command that takes one says so, and every page that shows one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import Command
from typer.main import get_command

from tokitai.cli.app import app
from tokitai.cli.parse import OWN_FILE

ROOT = Path(__file__).parents[2]
TAKING = {
    "show": ["operator"],
    "verify": ["operator"],
    "bench": ["operators"],
    "judge": ["kernel", "op"],
    "check": ["op"],
}


def test_every_parameter_that_takes_a_file_says_that_it_is_run() -> None:
    found: dict[str, list[str]] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params:
            said = f"{getattr(parameter, 'help', '') or ''} {parameter.metavar or ''}"
            if "FILE.py" in said:
                found.setdefault(name, []).append(parameter.name)
                assert OWN_FILE in said, (name, parameter.name)
    assert found == TAKING


@pytest.mark.parametrize(
    "words",
    [["show", "FILE:made", "--what", "graph"], ["verify", "FILE:made", "--case", "no", "--dtype", "f32"],
     ["bench", "FILE:nothing"], ["judge", "numpy.py:x", "--op", "FILE:nothing"],
     ["check", "--rerun", "--op", "FILE:nothing", "FILE"]],
)  # fmt: skip
def test_they_do_run_it(words: list[str], tmp_path: Path, tokitai: Command) -> None:
    mark, file = tmp_path / "mark", tmp_path / "own.py"
    file.write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\n"
        "from tokitai.lang import Matrix, operator, storage\n@operator\ndef made(x: Matrix[storage]):\n    return x\n"
    )
    (tmp_path / "numpy.py").write_text("def x(a):\n    return a\n")
    given = [w.replace("FILE", str(file)).replace("numpy.py", str(tmp_path / "numpy.py")) for w in words]
    tokitai(*given)
    assert mark.exists()


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]), ids=lambda p: p.name)
def test_every_page_that_names_a_file_says_that_it_is_run(page: Path) -> None:
    text = page.read_text()
    if re.search(r"\b\w+\.py:[A-Za-z_]\w*", re.sub(r"error: \S+", "", text)):
        assert re.search(r"runs (the code of )?(that|the) file|runs\s+the file's code|\[runs?\]\(#filepyname", text), (
            page
        )


def test_the_pages_are_seen() -> None:
    assert len([p for p in ROOT.glob("docs/**/*.md") if "FILE.py:NAME" in p.read_text()]) >= 4
