"""A verdict says what kept a kernel from harm, and what did not: a kernel for a GPU is in no sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokitai.cli.judge import judgement_text
from tokitai.judging import Judgement
from tokitai.judging.containment import limits_for, not_contained

APPLIED = ["no core files", "memory: 5"]
OPEN = "files, network, processes and memory of this user"


@pytest.mark.parametrize(
    ("device", "unconfined", "why"),
    [
        ("cuda:0", False, "a GPU's driver and compilers need what a sandbox refuses"),
        ("cuda:1", True, "as asked"), ("cpu", True, "as asked"), ("numpy", True, "as asked"),
    ],
)  # fmt: skip
def test_what_is_in_no_sandbox_is_said_to_be_in_none(device: str, unconfined: bool, why: str) -> None:
    assert not limits_for(device, Path("theirs.py"), "scratch", unconfined).sandbox
    said = not_contained(APPLIED, device, unconfined)
    assert said == ["a process of its own", *APPLIED, f"not contained ({why}): {OPEN}"]
    made = Judgement("softmax", "theirs", "f16", device, contained=said)
    assert said[-1] in made.as_json()["containment"] and said[-1] in judgement_text(made, "")


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_what_is_in_a_sandbox_is_not_said_to_be_in_none(device: str) -> None:
    assert limits_for(device, Path("theirs.py"), "scratch", unconfined=False).sandbox
    assert not [line for line in not_contained(APPLIED, device, unconfined=False) if OPEN in line]
    missing = "seccomp: no filter"
    assert f"not contained on this machine: {missing}" in not_contained([missing], device, unconfined=False)
