"""PyTorch's kernels on a GPU are judged as those on the processor; one that loses the GPU's context costs its own
case."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokitai
from tokitai.judging import Judgement
from tokitai.ops import get

pytestmark = pytest.mark.gpu

THEIRS = """
import torch

def right(x):
    return torch.softmax(x, -1)

def wrong(x):
    y = torch.softmax(x, -1)
    y[:, 256:] = 0
    return y

def changes(x):
    return x.copy_(torch.softmax(x, -1)).clone()

def uninitialised(x):
    return torch.empty_like(x)

def loses_the_context(x):
    if tuple(x.shape) == (67, 130):
        torch.zeros(4, device=x.device)[torch.full((1,), 9, device=x.device)].sum().item()
    return torch.softmax(x, -1)
"""


def judged(folder: Path, name: str, dtype: str = "f16") -> Judgement:
    (folder / "theirs.py").write_text(THEIRS)
    return tokitai.judge((folder / "theirs.py", name), get("softmax"), dtype=dtype, device="cuda:0", seed=0)


def wrong(made: Judgement) -> str:
    return "\n".join(f"{f.case}: {f.what} {f.where}" for f in made.failures)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_right_kernel(tmp_path: Path, dtype: str) -> None:
    made = judged(tmp_path, "right", dtype)
    assert made.verdict == "verified" and made.cases > 40, wrong(made)
    assert made.notes["views"] == "read rightly"


@pytest.mark.parametrize(("name", "says"), [
    ("wrong", "5 of 1285 elements, all in column 256"), ("changes", "changed its input x"), ("uninitialised", "y["),
])  # fmt: skip
def test_wrong_ones(tmp_path: Path, name: str, says: str) -> None:
    made = judged(tmp_path, name)
    assert made.verdict == "refuted" and says in wrong(made)


def test_c123_a_context_that_is_lost_costs_one_case(tmp_path: Path) -> None:
    made = judged(tmp_path, "loses_the_context")
    assert [f.case for f in made.failures] == ["seeded/normal@67x130#0"], wrong(made)
    assert made.cases > 40
