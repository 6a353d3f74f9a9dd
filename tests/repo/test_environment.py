"""The page of environment variables lists exactly those that the code and the tests read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text()
OF_USERS, OF_TESTS = PAGE.split("The project's own tests", 1)
NAME = re.compile(r"TOKITAI_[A-Z_]+")


def named(paths: Iterable[Path]) -> set[str]:
    """What constants `ENV_...` hold, and what `os.environ` is asked for directly."""
    found: set[object] = set()
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("ENV_"):
            found.add(getattr(node.value, "value", None))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
            found.add(getattr(node.args[0], "value", None))
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            found.add(getattr(node.slice, "value", None))
    return {name for name in found if isinstance(name, str) and NAME.fullmatch(name)}


def listed(text: str) -> set[str]:
    return {name for row in re.findall(r"^\| (`TOKITAI.*?) \|", text, re.MULTILINE) for name in NAME.findall(row)}


def test_every_variable_that_the_package_reads_is_listed() -> None:
    found = named((ROOT / "src").rglob("*.py"))
    assert found == listed(OF_USERS)
    assert "TOKITAI_CXX" in found


def test_every_variable_that_tests_read_is_listed() -> None:
    read = {name for name in named(p for p in (ROOT / "tests").rglob("*.py")) if name not in listed(OF_USERS)}
    assert read == listed(OF_TESTS)
