"""Fixtures: a cache folder of its own for each test, and compilers that misbehave on purpose."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokitai.toolchain import folders
from tokitai.toolchain.cache import ENV_FOLDER
from tokitai.toolchain.compilers import ENV_COMPILER, Compiler, find_compiler

sys.path.insert(0, str(Path(__file__).parent))  # for `sample_kernels`, whatever pytest's import mode


@pytest.fixture(autouse=True)
def cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that holds this test's cache entries."""
    monkeypatch.setenv(ENV_FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv(ENV_COMPILER, raising=False)
    monkeypatch.setattr(folders, "_made", {})  # the temporary folders of other tests
    return tmp_path / "cache" / "v1"


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler()


@pytest.fixture
def wrapped(tmp_path: Path, compiler: Compiler) -> Callable[..., Compiler]:
    """Make a compiler out of shell lines: ``always`` run on every call, ``compiling`` only on one that writes a binary.

    The lines may end the script by ``exit``; else the real compiler runs after them. ``$REAL`` is its path.
    """

    def make(compiling: str = "", always: str = "", name: str = "wrapper") -> Compiler:
        path = tmp_path / name
        lines = [
            "#!/bin/sh",
            f"REAL={shlex.quote(str(compiler.path))}",
            always,
            'case " $* " in *" -o "*)',
            compiling or ":",
            ";; esac",
            'exec "$REAL" "$@"',
        ]
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o755)
        return find_compiler(str(path))

    return make
