"""A host whose standard streams are closed, as daemons have them: nothing of the pool takes their numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOST = """
import os, sys
import numpy as np
from tokitai import ops
from tokitai.worker import Pool, call

x = np.linspace(-1, 1, 33, dtype=np.float32).reshape(3, 11)
with Pool(1) as pool:
    shared = pool.empty((3, 11))
    shared[...] = x
    for fd in (0, 1, 2):  # what a library prints must not land in a tensor, or in what a process is told
        try:
            os.write(fd, b"noise")
        except OSError:
            pass
    there = [call(pool, ops.softmax, a).tobytes() for a in (x, shared)]
    open(sys.argv[1], "w").write(str(there == [ops.softmax(x).tobytes()] * 2 and (shared == x).all()))
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "02", "012"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    words = " ".join(f"{n}{'<' if n == '0' else '>'}&-" for n in closed)
    environment = {**os.environ, "A": sys.executable, "B": HOST, "C": str(tmp_path / "answer")}
    ran = subprocess.run(
        ["bash", "-c", f'"$A" -c "$B" "$C" {words}'], env=environment, timeout=120, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "answer").read_text() == "True"
