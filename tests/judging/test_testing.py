"""The pytest plugin: a right kernel passes, a wrong one fails with what is wrong, a marker says how it is judged."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tokitai.cli import run

ROOT = Path(__file__).parents[2]
TESTS = """
import numpy as np
import pytest

def double(x, *, factor):
    return (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)

@pytest.mark.tokitai(dtype="f16", seed=5, explain_seconds=0)
def test_right(assert_verified):
    made = assert_verified(double, "scale")
    assert (made.dtype, made.seed, made.verdict) == ("f16", 5, "verified")
    assert assert_verified(double, "scale", dtype="bf16").dtype == "bf16"

@pytest.mark.tokitai(dtype="f16", seed=5, explain_seconds=0)
def test_wrong(assert_verified):
    assert_verified(lambda x, *, factor: x + x, "scale")
"""


@pytest.mark.slow
def test_the_fixture_and_the_marker(tmp_path: Path) -> None:
    (tmp_path / "test_kernels.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "tokitai.testing", "test_kernels.py"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "as scale f16 on numpy: refuted" in done.stdout and "seed=5" in done.stdout


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tokitai": "tokitai.testing"}


def test_the_workflow_to_copy_has_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/how-to/judge-a-kernel.md").read_text()
    flow = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    steps = flow["jobs"]["judge"]["steps"]
    commands = [shlex.split(s["run"]) for s in steps if "run" in s]
    assert len(commands) == 3 and all("run" in s or "uses" in s for s in steps)
    (judge,) = (c for c in commands if c[0] == "tokitai")
    assert run(["judge", "--help"]) == 0
    shown = capsys.readouterr().out
    assert judge[1] == "judge" and all(word in shown for word in judge if word.startswith("--"))
    assert [c[:3] for c in commands if c[0] == "python"] == [["python", "-m", "pip"], ["python", "-m", "pytest"]]
