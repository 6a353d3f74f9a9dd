"""The timing programs of training steps: on a device that does nothing, replayed as a CUDA graph, and on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import graphed_step, step_host, steps_cpu  # noqa: E402
from bench.training import batches  # noqa: E402
from examples.mixture.model import Mixture, Shape  # noqa: E402
from tokitai.errors import ArgumentError  # noqa: E402

SMALL = Shape(vocabulary=2 * 128**2, features=16, layers=2, heads=1, key_heads=1, experts=3, hidden=16)


@pytest.mark.slow
def test_a_step_waits_for_no_device() -> None:
    """In a process of its own, whose tensors say that they lie on a GPU."""
    found = step_host.turn(Path(step_host.HERE))
    assert "a whole step" in found and len(found) == 5
    assert all(row["milliseconds"] > 0 and row["waits"] == 0 for row in found.values())


KEPT = """
import torch
from bench.step_host import SMALL, installed
from examples.mixture.model import Mixture

installed()
model = Mixture(SMALL, torch.bfloat16, "cpu")
sums = lambda: {n: p.expand_as(p).grad_fn.next_functions[0][0].metadata for n, p in model.named_parameters()}
total, _ = model.loss(torch.zeros(2, 9, dtype=torch.int64))
for node in sums().values():
    node["mark"] = True
assert all("mark" in node for node in sums().values())
total.backward()
del total, _
print([n for n, node in sums().items() if "mark" in node])
"""


@pytest.mark.slow
def test_nothing_of_a_step_keeps_its_graph() -> None:
    """Nodes that add up gradients keep the stream in which they were made, which no graph of CUDA can capture."""
    done = subprocess.run([sys.executable, "-c", KEPT], cwd=step_host.HERE, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Batches for a small model on the CPU, in place of the large one on a GPU."""
    monkeypatch.setattr(graphed_step, "LARGE", SMALL)
    monkeypatch.setattr(graphed_step, "Mixture", lambda shape, dtype, device: Mixture(shape, dtype, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    return batches(6, "cpu", batch=1, length=16)


@pytest.mark.slow
def test_runs_that_end_with_other_weights_are_told_apart(
    small: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(graphed: Callable[[Any], Any]) -> None:
        monkeypatch.setattr(graphed_step, "graphed", graphed)
        graphed_step.main()

    monkeypatch.setattr(graphed_step, "batches", lambda steps, device: small)
    monkeypatch.setattr(sys, "argv", ["graphed_step", "--layers", "1"])
    main(lambda step: step)
    found = json.loads(capsys.readouterr().out)
    assert found["eager"]["digest"] == found["graph"]["digest"] and found["eager"]["step"] >= found["eager"]["host"] > 0
    with pytest.raises(SystemExit, match="the graph ended with other weights"):
        main(lambda step: lambda batch: step(small[0]))


@pytest.mark.slow
def test_steps_on_the_cpu_make_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.jsonl"
    for name, value in dict(WIDTH=16, HEADS=2, LAYERS=1, BATCH=2, WARM=1).items():
        monkeypatch.setattr(steps_cpu, name, value)
    monkeypatch.setattr("sys.argv", ["steps_cpu", "--out", str(out), "--repeats", "1"])
    steps_cpu.main()
    records = [json.loads(line) for line in out.open()]
    assert [(r["model"], r["dtype"]) for r in records] == [(m, f) for m in steps_cpu.MODELS for f in steps_cpu.FORMATS]
    assert all(steps_cpu.page(records).count(f"| {m} | {f} |") == 1 for m in steps_cpu.MODELS for f in ("f32", "bf16"))


def test_two_models_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {"tokitai": lambda: 1.0, "torch": lambda: 1.1}
    monkeypatch.setattr(steps_cpu, "steps", lambda name, dtype: losses)
    with pytest.raises(ArgumentError, match="GPT, f32: first losses"):
        steps_cpu.measured("GPT", "f32", 1)
