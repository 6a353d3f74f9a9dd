"""The timing program of the reduce-scatter runs on CPUs, that of training steps makes its table; both say what they
need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.ranks import main
from bench.ranks_training import main as training_main
from bench.ranks_training import page_of


def test_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"]) == 2
    assert "accepted: started by torchrun" in capsys.readouterr().err


@pytest.mark.slow
def test_it_times_both_on_two_ranks() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    given = ["-m", "bench.ranks", "--device", "cpu", "--megabytes", "1"]
    made = json.loads(subprocess.run([*torchrun, *given], capture_output=True, text=True, check=True).stdout)
    assert made["ranks"] == 2 and made["sent"] == 2**19 and made["tree_ms"] > 0 and made["peer_ms"] > 0


def test_the_table_of_steps() -> None:
    """Scaling is the time of a step on one GPU over that on several."""
    one, two = (
        {"ranks": n, "tokitai": {"milliseconds": 10.0 * n, "exchange": 0.25}, "torch": {"milliseconds": 8.0}}
        for n in (1, 2)
    )
    assert page_of([one, two]).splitlines()[2:] == [
        "| 1 | 10.0 ms | 1.00 |  | 8.0 ms | 1.00 |",
        "| 2 | 20.0 ms | 0.50 | 25.0% | 8.0 ms | 1.00 |",
    ]


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert training_main(["--steps", "3"]) == 2
    assert "accepted: more than 3" in capsys.readouterr().err
