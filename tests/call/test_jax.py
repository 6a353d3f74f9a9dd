"""Arrays of JAX, in a process of their own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("on_jax.py")


def printed(*command: str) -> str:
    made = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=600)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-2000:]
    return made.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: it is in the extra dev")
def test_arrays_of_jax() -> None:
    found = printed("-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS))
    assert " passed" in found and "skipped" not in found


def test_jax_is_not_imported() -> None:
    called = "import sys, numpy as np; from tokitai import ops; ops.softmax(np.ones((2, 2), np.float32))"
    assert printed("-c", f"{called}; print('jax' in sys.modules)").strip() == "False"
