"""The timing program of training steps: runs of a small model on the CPU, its table, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import training
from bench.training import COMPILED, EAGER, LARGE, batches, made, main, measured, page, recorded
from examples.mixture.flops import flops, utilisation
from examples.mixture.model import Mixture, Shape
from tokitai.errors import ArgumentError

SMALL = Shape(vocabulary=2 * 128**2, features=16, layers=2, heads=1, key_heads=1, experts=3, hidden=16)


def small(steps: int) -> list[torch.Tensor]:
    return batches(steps, "cpu", batch=2, length=16)


@pytest.mark.slow
def test_all_runs_of_a_small_model() -> None:
    graphs: list[Any] = []

    def counted(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return graph

    found = made(SMALL, ["f32", "fused16"], small(4), torch.device("cpu"), counted)
    assert list(found["runs"]) == ["tokitai, f32", "tokitai, fused16", EAGER, COMPILED]
    assert found["runs"][COMPILED]["losses"] == found["runs"][EAGER]["losses"]
    assert found["runs"][COMPILED] | {"graphs": 2, "breaks": 0} == found["runs"][COMPILED] and len(graphs) == 2
    assert len({run["digest"] for run in found["runs"].values() if "digest" in run}) == 2, "another accumulator"
    for run in found["runs"].values():
        assert 0 < run["host_ms"] <= run["milliseconds"] and len(run["losses"]) == 4
    torch.compiler.reset()


@pytest.mark.slow
def test_another_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "ours", lambda *_: {"losses": [1.0], "digest": "0"})
    monkeypatch.setattr(training, "theirs", lambda *_: {"losses": [1.1]})
    with pytest.raises(ArgumentError, match=r"first loss 1.0; accepted beside torch's: 1.1"):
        measured(SMALL, ["f32"], small(1), None)
    digests = iter("01")
    monkeypatch.setattr(training, "ours", lambda *_: {"losses": [1.1], "digest": next(digests)})
    with pytest.raises(ArgumentError, match="f32: 0 and 1; accepted: the same weights"):
        measured(SMALL, ["f32"], small(1), None)


def test_the_table_is_that_of_the_records(tmp_path: Path) -> None:
    assert training.RESULTS.with_suffix(".md").read_text() == page(recorded(training.RESULTS))
    run = {"milliseconds": 50.0, "host_ms": 20.0, "device_ms": 49.0, "gigabytes": 2.0, "losses": [3.0, 2.5]}
    record: dict[str, Any] = {
        "device": "NVIDIA H200", "torch": "2", "date": "d", "weights": 1, "tokens_a_step": 1, "flops_a_step": 989.4e10,
        "runs": {"tokitai, fused16": run, EAGER: run | {"milliseconds": 100.0}},
    }  # fmt: skip
    record["runs"][COMPILED] = run | {"graphs": 2, "breaks": 0}
    file = tmp_path / "training.jsonl"
    file.write_text(json.dumps(record))
    assert main(["--page", "--out", str(file)]) == 0
    rows = file.with_suffix(".md").read_text().splitlines()
    assert "| tokitai, fused16 | 50.0 | 20.0 | 49.0 | 2.00 | 20.0% | 2.0 | 2.5 |" in rows
    assert rows[-1] == "The compiled model is 2 graphs, 0 breaks."


def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for given, message in (
        (["--steps", "3"], "accepted: more than 3"),
        (["--accumulators", "f32,f8"], "'f8'"),
        (["--device", "cuda:9"], "torch sees"),
    ):
        assert main(given) > 0
        assert message in capsys.readouterr().err


def test_operations_of_a_step() -> None:
    """Six for each weight that a token meets and each pair of tokens, of which a causal half counts."""
    weights = {n: p.numel() for n, p in Mixture(LARGE, torch.bfloat16, "meta").named_parameters() if p.ndim > 1}
    part = {w: LARGE.chosen / LARGE.experts if w.endswith(("gate_up", "down")) else 1 for w in weights}
    met = sum(n * part[w] for w, n in weights.items()) - weights["embedding.weight"]
    pairs = 1024 * 1025 / 2 * LARGE.layers * 2 * LARGE.heads * LARGE.dim
    assert flops(LARGE, 8, 1024) == 6 * (8 * 1024 * met + 8 * pairs)
    assert utilisation(494.7e12, "NVIDIA H200") == 0.5 and utilisation(1.0, "cpu") is None
