"""Imports run one way, heavy packages stay where they belong, and `import tokitai` stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "tokitai"

# The layers stand in pyproject.toml, where import-linter reads them too. Here they are held against every import in a
# file, wherever it stands. Each row may import itself and the rows above it.
CONTRACTS = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
(LAYERS,) = (contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
ORDER = (*({name.strip() for name in row.split(":")} for row in reversed(LAYERS)), {"__init__", "__main__"})
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}

# What checks a certificate takes the standard library, and beside it the modules whose names begin so.
ALONE = {
    "evidence.check": (),
    "evidence.sign": ("cryptography.", "tokitai.errors.", "tokitai.evidence.check."),
}

LIGHT = {"numpy", "ml_dtypes", "filelock", "platformdirs", "tokitai"}  # all that `import tokitai` may bring


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """Every module below a package folder, as its dotted name without the package's own (`lang.values`)."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        yield ".".join(parts), path


def imported(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Every (line, absolute dotted name) that a file imports, wherever in the file it does so.

    `from x import y` counts as `x.y`: whether y is a module makes no difference to the rules below.
    """
    here = [package.name, *path.relative_to(package).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(package: Path) -> list[str]:
    """Every import that breaks a rule, as `module:line: what`."""
    found = []
    for module, path in modules(package):
        layer = module.partition(".")[0]
        if layer not in RANK:
            found.append(f"{module}: has no place in the order of layers")
            continue
        for line, name in imported(path, package):
            top, _, inner = name.partition(".")
            where = f"{module}:{line}"
            if top == "torch" and layer != "torch":
                found.append(f"{where}: imports {name}; torch is imported under {package.name}/torch alone")
            apart = ALONE.get(module)
            if apart is not None and top not in sys.stdlib_module_names and not name.startswith(apart):
                found.append(f"{where}: imports {name}; a certificate is checked without the rest of the package")
            if top == package.name:
                target = inner.partition(".")[0]
                target = target if target in RANK else "__init__"  # a name of the package itself
                if RANK[target] > RANK[layer]:
                    found.append(f"{where}: imports {name}, which lies above {layer}")
    return found


def test_imports_run_one_way() -> None:
    assert violations(PACKAGE) == []


def test_every_module_is_seen() -> None:
    assert {"errors", "lang", "lang.values", "evidence.check", "__init__"} <= {name for name, _ in modules(PACKAGE)}


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("lang/values.py", "from ..emit import cpp", "imports tokitai.emit.cpp"),
        ("emit/text.py", "from ..families import make_plan", "which lies above emit"),
        ("families/matmul/gpu.py", "from ...runtime import kernel", "which lies above families"),
        ("lang/values.py", "def f():\n    from tokitai.verification import suites", "lang.values:2"),
        ("lang/values.py", "import tokitai", "which lies above lang"),
        ("lang/values.py", "from .. import verification", "imports tokitai.verification"),
        ("formats.py", "from .lang.values import Value", "which lies above formats"),
        ("evidence/check.py", "import numpy", "without the rest of the package"),
        ("evidence/check.py", "from ..formats import f16", "without the rest of the package"),
        ("evidence/check.py", "import cryptography.exceptions", "without the rest of the package"),
        ("evidence/sign.py", "from .statement import write", "without the rest of the package"),
        ("verification/suites.py", "import torch.nn", "torch is imported under"),
        ("verification/suites.py", "import importlib\nimportlib.import_module('torch')", "verification.suites:2"),
        ("helpers.py", "", "has no place"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, text: str, wrong: str) -> None:
    path = tmp_path / "tokitai" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (found,) = violations(tmp_path / "tokitai")
    assert wrong in found


def test_right_imports_pass(tmp_path: Path) -> None:
    for file, text in {
        "lang/values.py": "import math\nimport numpy\nfrom ..formats import f16\nfrom . import graph",
        "evidence/check.py": "import json\nimport datetime",
        "evidence/sign.py": "import cryptography.exceptions\nfrom ..errors import Error\nfrom .check import read",
        "torch/functions.py": "import torch\nfrom ..runtime.kernel import compile",
        "__init__.py": "from .verification import verify",
    }.items():
        path = tmp_path / "tokitai" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert violations(tmp_path / "tokitai") == []


def test_import_tokitai_is_light() -> None:
    program = (
        "import sys, json; before = set(sys.modules); import tokitai; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    brought = {name for name in json.loads(done.stdout) if name not in sys.stdlib_module_names}
    assert brought - LIGHT == set()
    assert "tokitai" in brought
