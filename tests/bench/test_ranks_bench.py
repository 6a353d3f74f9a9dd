"""The timing program of the reduce-scatter runs on CPUs, and says what it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.ranks import main


def test_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"]) == 2
    assert "accepted: started by torchrun" in capsys.readouterr().err


@pytest.mark.slow
def test_it_times_both_on_two_ranks() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    given = ["-m", "bench.ranks", "--device", "cpu", "--megabytes", "1"]
    made = json.loads(subprocess.run([*torchrun, *given], capture_output=True, text=True, check=True).stdout)
    assert made["ranks"] == 2 and made["sent"] == 2**19 and made["tree_ms"] > 0 and made["peer_ms"] > 0
