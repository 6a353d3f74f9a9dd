"""The timing program of the reduce-scatter runs on CPUs, that of training steps makes its table; both say what they
need."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.ranks import RESULTS, main, page
from bench.ranks_training import main as training_main


def test_one_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu"]) == 2
    assert "accepted: started by torchrun" in capsys.readouterr().err


@pytest.mark.slow
def test_it_times_both_on_two_ranks() -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    given = ["-m", "bench.ranks", "--device", "cpu", "--megabytes", "1"]
    made = json.loads(subprocess.run([*torchrun, *given], capture_output=True, text=True, check=True).stdout)
    assert made["ranks"] == 2 and made["sent"] == 2**19 and made["tree_ms"] > 0 and made["peer_ms"] > 0


def test_the_page() -> None:
    """Scaling is the time of a step on one GPU over that on several."""
    about: dict[str, Any] = {"date": "2026-11-30", "device": "a GPU", "pytorch": "2", "nccl": "3"}
    times = about | {"accumulator": "fused16", "torch": {"milliseconds": 8.0}}
    steps = [times | {"ranks": n, "tokitai": {"milliseconds": 10.0 * n, "exchange": 0.25}} for n in (1, 2)]
    sizes = about | {"ranks": 2, "megabytes": 16, "sent": 2**23, "tree_ms": 0.2, "peer_ms": 0.1, "share": 0.5}
    lines = page([sizes, *steps]).splitlines()
    for row in (
        "| 2 | 16 | 8.0 | 0.200 ms | 0.100 ms | 0.50 |",
        "| fused16 | 1 | 10.0 ms | 1.00 |  | 8.0 ms | 1.00 |",
        "| fused16 | 2 | 20.0 ms | 0.50 | 25.0% | 8.0 ms | 1.00 |",
    ):
        assert row in lines


@pytest.mark.skipif(not RESULTS.exists(), reason="nothing was measured yet")
def test_the_page_is_what_was_measured() -> None:
    assert RESULTS.with_suffix(".md").read_text() == page([json.loads(x) for x in RESULTS.read_text().splitlines()])


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert training_main(["--steps", "3"]) == 2
    assert "accepted: more than 3" in capsys.readouterr().err
