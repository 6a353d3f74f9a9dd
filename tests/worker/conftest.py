"""A pool for each test, and a check that nothing of it is left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker import left


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert left.until(lambda: not left.processes(os.getpid()), 5), "worker processes are left"
    assert left.segments(os.getpid()) == 0, "shared memory is left"


@pytest.fixture
def small_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 16 MiB, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
