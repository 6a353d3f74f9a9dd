"""What the emitter prints: the same text in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import hashlib
from tokitai import ops
from tokitai.families import emit_cpu
from tokitai.families.rowwise.plan import plan_rows
junk = [object() for _ in range({count})]  # other addresses for what comes later
for name in ("layer_norm", "layer_norm_backward", "softmax", "gelu_erf_backward"):
    print(name, hashlib.sha256(emit_cpu(plan_rows(ops.get(name).trace("f16"))).text.encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_text_does_not_depend_on_hashes_or_addresses() -> None:
    """Else a kernel's fingerprint would change from process to process, and no cache entry be found again."""
    listings = set()
    for seed in range(4):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        command = [sys.executable, "-c", PROGRAM.format(count=seed * 1001)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        listings.add(done.stdout)
    assert len(listings) == 1
    assert all(line.split()[1] for line in listings.pop().splitlines())
