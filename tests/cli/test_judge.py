"""``tokitai judge`` as a user meets it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from command import Command

KERNELS = """
import numpy as np

def right(x):
    wide = x.astype(np.float32)
    e = np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf))
    return (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)

def wrong(x):
    print("a word of its own")
    y = right(x)
    y[:, 256:] = 0
    return y

def hangs(x):
    while True:
        pass
"""


@pytest.fixture(autouse=True)
def theirs(tokitai: Command) -> None:
    (tokitai.folder / "kernels.py").write_text(KERNELS)


def test_a_right_kernel(tokitai: Command) -> None:
    done = tokitai("judge", "kernels.py:right", "--op", "softmax", "--dtype", "f16")
    assert done.code == 0 and done.out.startswith("right as softmax f16 on numpy: verified, ")
    assert "of the rounding-error bound, in whatever order" in done.out and "called again" in done.out


@pytest.mark.slow
def test_a_wrong_one_and_the_line_that_replays_it(tokitai: Command) -> None:
    done = tokitai("judge", "kernels.py:wrong", "--op", "softmax", "--dtype", "bf16")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[0].startswith("wrong as softmax bf16 on numpy: refuted, ") and " wrong" in lines[0]
    assert lines[2].startswith("  y[") and "the definition gives 0x" in lines[2]
    assert re.fullmatch(r"  \d+ of \d+ elements, all in columns? 256( to \d+)?", lines[3])
    again = tokitai(*shlex.split(lines[4])[1:])
    assert again.code == 1 and again.out.splitlines()[2] == lines[2]


@pytest.mark.slow
def test_one_object(tokitai: Command) -> None:
    done = tokitai.process("judge", "kernels.py:wrong", "--op", "softmax", "--dtype", "f16", "--json")
    assert done.code == 1 and done.object["verdict"] == "refuted"
    assert done.object["share_of_allowance"] == "inf" or done.object["share_of_allowance"] > 1
    assert "a word of its own" not in done.out


def test_a_call_that_does_not_end(tokitai: Command) -> None:
    done = tokitai("judge", "kernels.py:hangs", "--op", "softmax", "--seconds", "1")
    assert done.code == 3 and "undecided" in done.out and "no answer before the deadline" in done.out


@pytest.mark.parametrize(("words", "says"), [
    (["kernels.py", "--op", "softmax"], "kernels.py: no kernel; accepted: FILE.py:NAME"),
    ([":right", "--op", "softmax"], "no kernel; accepted"),
    (["kernels.py:left", "--op", "softmax"], "no function 'left'; accepted: hangs, right, wrong"),
    (["none.py:right", "--op", "softmax"], "none.py: no such file"),
    (["kernels.py:right", "--op", "softmin"], "no operator named 'softmin'; did you mean"),
    (["kernels.py:right", "--op", "layer_norm"], "right is called as (x, gamma, beta, eps="),
    (["kernels.py:right", "--op", "softmax", "--dtype", "f8"], "no storage format of softmax named 'f8'"),
    (["kernels.py:right", "--op", "softmax", "--device", "tpu"], "device='tpu'; accepted: numpy"),
    (["kernels.py:right", "--op", "softmax", "--shape", "rows=3"], "cols is missing"),
    (["kernels.py:right", "--op", "softmax", "--results", "z"], "no result of softmax named 'z'"),
    (["kernels.py:right", "--op", "softmax", "--case", "x"], "no case 'x'"),
    (["kernels.py:right", "--op", "softmax", "--without", "x"], "no optional input of softmax named 'x'"),
    (["kernels.py:right", "--op", "softmax", "--seconds", "0"], "--seconds"),
    (["kernels.py:right"], "--op"),
])  # fmt: skip
def test_wrong_usage(tokitai: Command, words: list[str], says: str) -> None:
    done = tokitai("judge", *words)
    assert done.code == 2 and says in done.err and "Traceback" not in done.err and done.out == ""


@pytest.mark.slow
def test_an_operator_of_ones_own(tokitai: Command, small: str) -> None:
    (tokitai.folder / "mine.py").write_text(
        "def twice(x, w, *, by):\n    return (x.astype('f4') * by * w.astype('f4')).astype(x.dtype)\n"
    )
    done = tokitai("judge", "mine.py:twice", "--op", small, "--dtype", "f16")
    assert done.code == 0, done.out
    assert sys.modules.get("mine") is None and Path("mine.py").is_file()
