"""The pytest plugin: a right kernel passes, a wrong one fails with what is wrong, a marker says how it is judged."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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
