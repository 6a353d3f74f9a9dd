"""Fixtures of the command line's tests. Makes `command` importable from this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `command`, whatever pytest's import mode

from command import SMALL, Command


@pytest.fixture
def tokitai(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, in an empty folder, with a folder of its own for certificates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Command(tmp_path, capfd)


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A user's operator, as the command line names it."""
    (tmp_path / "small.py").write_text(SMALL)
    return "small.py:small"
