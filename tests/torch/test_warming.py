"""`warm` builds what a step needs, and leaves everything else as it was; builds are told to those who watch."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.torch.test_derived import equal, noise
from tokitai.toolchain import progress
from tokitai.toolchain.progress import Build
from tokitai.torch import functional, warm
from tokitai.torch.optim import AdamW
from tokitai.torch.warming import Terminal

COLD = """
import torch
from tokitai.toolchain import progress
from tokitai.torch import functional, warm
from tokitai.torch.optim import AdamW

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8, dtype=torch.bfloat16))

    def forward(self, x, target):
        return functional.cross_entropy(functional.silu(x) * self.weight, target)

model, x, target = Model(), torch.ones(2, 8, dtype=torch.bfloat16), torch.tensor([1, 2])
optimizer = AdamW(model.parameters(), lr=1.0)
made = warm(model, x, target, optimizer=optimizer)
print(sorted(made.kernels))
assert not optimizer.state and model.weight.grad is None and (model.weight == 1).all()
later = []
with progress.watched(later.append):
    model(x, target).backward()
    optimizer.step()
print(later, warm(model, x, target, optimizer=optimizer).kernels)
"""


@pytest.mark.slow
def test_a_cold_start(tmp_path: Path) -> None:
    """In an empty cache: all kernels of a step are compiled by `warm`, none by the step, none by another `warm`."""
    environment = {**os.environ, "TOKITAI_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COLD], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "['adamw', 'cross_entropy', 'cross_entropy_backward', 'silu']"  # x needs no gradient
    assert second == "[] ()"


class Counting(torch.nn.Module):
    """A model with a parameter, a buffer that changes, and random numbers."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(noise(1, 8))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return functional.softmax(x * self.weight + torch.rand(8))


@pytest.mark.slow
def test_nothing_is_changed() -> None:
    model, x = Counting(), noise(2, 3, 8).requires_grad_()
    model(x).sum().backward()
    optimizer = AdamW(model.parameters(), lr=0.1)
    optimizer.step()
    before = [model.weight.detach().clone(), model.weight.grad, x.grad, model.seen.clone(), torch.get_rng_state()]
    state = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in optimizer.state[model.weight].items()}
    made = warm(model, x, optimizer=optimizer)
    assert made.seconds > 0
    after = [model.weight, model.weight.grad, x.grad, model.seen, torch.get_rng_state()]
    assert all(equal(a, b) for a, b in zip(after, before, strict=True))
    assert model.weight.grad is before[1]
    assert list(optimizer.state) == [model.weight]
    now = optimizer.state[model.weight]
    assert all(equal(now[n], v) if isinstance(v, torch.Tensor) else now[n] == v for n, v in state.items())
    with pytest.raises(ZeroDivisionError):  # also where the model fails
        warm(lambda: 1 / 0)


def test_builds_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Also those that fail; a terminal shows one line at a time, anything else nothing."""
    told: list[Build] = []
    with caplog.at_level("INFO", "tokitai"), progress.watched(told.append), pytest.raises(KeyError), \
            progress.building("silu", "cpu"):  # fmt: skip
        raise KeyError
    assert [(b.name, b.target, b.seconds is None) for b in told] == [("silu", "cpu", True), ("silu", "cpu", False)]
    assert "compiled silu for cpu in" in caplog.text
    with progress.building("silu", "cpu"):
        assert len(told) == 2  # it is not watched any more

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    for stream, shown in ((Screen(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        for build in (Build("silu", "cpu"), Build("silu", "cpu", 1.0)):
            terminal(build)
        assert ("compiling silu for cpu" in stream.getvalue()) == shown
        assert stream.getvalue().endswith("\r" if shown else "")
