"""A module of tests that is skipped as a whole fails continuous integration, unless it is listed with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.module_skips import MAY_BE_SKIPPED

ROOT = Path(__file__).parents[2]
ALL = "import pytest\n\n@pytest.mark.skip(reason='no teapot')\ndef test_one(): pass\n"
SOME = ALL + "\ndef test_two(): pass\n"
MARKED = "import pytest\npytestmark = [pytest.mark.gpu, pytest.mark.skip(reason='no teapot')]\ndef test_one(): pass\n"
HALF = (
    MARKED.replace("pytestmark = [pytest.mark.gpu, ", "pytestmark = [") + "\n@pytest.mark.gpu\ndef test_two(): pass\n"
)
AT_IMPORT = "import pytest\npytest.skip('no teapot', allow_module_level=True)\n"
NONE = "def test_one(): pass\n"


def run(folder: Path, modules: dict[str, str], ci: bool, *words: str) -> subprocess.CompletedProcess[str]:
    for name, text in modules.items():
        (folder / name).write_text(text)
    (folder / "conftest.py").write_text("from tests.module_skips import pytest_configure\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true" if ci else ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, "."]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "ci", "code"),
    [
        (ALL, True, 1),
        (AT_IMPORT, True, 1),
        (HALF, True, 1),
        (MARKED, True, 0),
        (SOME, True, 0),
        (ALL, False, 0),
    ],
    ids=["every test", "at import", "one marked gpu", "all marked gpu", "one of two", "not in continuous integration"],
)
def test_a_module_that_is_skipped_as_a_whole(tmp_path: Path, module: str, ci: bool, code: int) -> None:
    done = run(tmp_path, {"test_a.py": module, "test_b.py": NONE}, ci)
    assert done.returncode == code, done.stdout
    assert ("test_a.py: Skipped: no teapot" in done.stdout) is (module not in (SOME, MARKED)), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", [ALL, AT_IMPORT])
def test_it_is_found_from_several_processes(tmp_path: Path, module: str) -> None:
    done = run(tmp_path, {"test_a.py": module, "test_b.py": NONE}, True, "-n", "2")
    assert done.returncode == 1, done.stdout
    assert "test_a.py: Skipped: no teapot" in done.stdout


def test_modules_that_may_be_skipped_exist() -> None:
    assert [name for name in MAY_BE_SKIPPED if not (ROOT / name).is_file()] == []
