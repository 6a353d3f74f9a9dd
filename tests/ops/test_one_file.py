"""An operator is one file: everything else that the package has of an operator follows from it.

A copy of the package gets a file with an operator and its backward, and nothing else. It is listed, verified,
differentiated by torch, mutated, documented and timed as one that was always there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("src", "tests", "tools", "docs", "bench", "pyproject.toml", "README.md")
FILE = "src/tokitai/ops/softsign_gain.py"
PAGE = "docs/reference/each-operator.md"
DEFINITION = '''\
"""Softsign with a gain for each column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..lang import Cols, Contract, Gradient, HardInput, Matrix, Outputs, col_sum, operator, outputs, storage

CONTRACT = Contract(domain="finite values")


@operator(contract=CONTRACT, gradient=Gradient(autocast="f32"))
def softsign_gain(x: Matrix[storage], gain: Cols[storage]) -> Outputs:
    """y = gain x / (1 + |x|)."""
    return outputs(y=gain * x / (1 + abs(x)))


@operator(contract=CONTRACT, backward_of=softsign_gain)
def softsign_gain_backward(dy: Matrix[storage], x: Matrix[storage], gain: Cols[storage]) -> Outputs:
    """dx = dy gain / (1 + |x|)**2; dgain is the column sum of dy x / (1 + |x|)."""
    bend = 1 + abs(x)
    return outputs(dx=dy * gain / bend / bend, dgain=col_sum(dy * x / bend))


@softsign_gain.set_textbook
def textbook(x: Any, gain: Any) -> dict[str, Any]:
    """Bergstra et al., "Quadratic polynomials learn better image features" (2009), with a gain."""
    return dict(y=gain * x / (1 + np.abs(x)))


@softsign_gain_backward.set_textbook
def textbook_backward(dy: Any, x: Any, gain: Any) -> dict[str, Any]:
    """The quotient rule."""
    return dict(dx=dy * gain / (1 + np.abs(x)) ** 2, dgain=(dy * x / (1 + np.abs(x))).sum(axis=0, keepdims=True))


@softsign_gain.set_hard_inputs
@softsign_gain_backward.set_hard_inputs
def hard() -> Iterator[HardInput]:
    yield HardInput("both sides of zero", dict(x=[[0.0, -0.0, 2.0**-24, -1.0, 1024.0, -60000.0]]))
'''
GRADIENT = """\
import numpy as np, torch
from tokitai import ops
from tokitai.torch import functional, operators

assert functional.softsign_gain is operators.softsign_gain
torch.manual_seed(1)
x, gain, dy = torch.randn(3, 5, 7), torch.randn(7), torch.randn(3, 5, 7)
leaves = x.clone().requires_grad_(), gain.clone().requires_grad_()
operators.softsign_gain(*leaves).backward(dy)

def loss(x, gain):
    return float((ops.softsign_gain.textbook(x, gain)["y"] * dy.double().numpy()).sum())

h, wide = 2.0**-20, [x.double().numpy(), gain.double().numpy()]
for k, leaf in enumerate(leaves):
    found = np.empty(leaf.shape)
    for place in np.ndindex(*leaf.shape):
        ends = []
        for step in (h, -h):
            moved = [w.copy() for w in wide]
            moved[k][place] += step
            ends.append(loss(*moved))
        found[place] = (ends[0] - ends[1]) / (2 * h)
    np.testing.assert_allclose(leaf.grad.numpy(), found, rtol=1e-5, atol=1e-6)
"""
DERIVED = (  # the tests that run over all operators
    "tests/torch/test_derived.py", "tests/ops/test_textbooks.py",
    "tests/meaning/test_derivative.py", "tests/meaning/test_bounds.py", "tests/mutants/test_mutants.py",
    "tests/cases/test_every_operator.py", "tests/bench/test_bench.py",
)  # fmt: skip
BOTH = ("softsign_gain", "softsign_gain_backward")

pytestmark = pytest.mark.slow


class Copy:
    """The package in a folder of its own, with one more file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skipped = shutil.ignore_patterns("__pycache__")
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, folder / part, ignore=skipped)
            else:
                shutil.copy(ROOT / part, folder / part)
        self.before = self.digests()
        (folder / FILE).write_text(DEFINITION)

    def digests(self) -> dict[str, str]:
        """Of every file of the copy."""
        files = (p for part in PARTS for p in [self.folder / part, *(self.folder / part).rglob("*")] if p.is_file())
        return {
            str(p.relative_to(self.folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in files if "__pycache__" not in p.parts
        }  # fmt: skip

    def run(self, *arguments: str) -> str:
        """What a Python command of the copy prints; it must succeed."""
        env = {**os.environ, "PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *arguments]
        ran = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=1500)
        assert ran.returncode == 0, f"{' '.join(arguments)}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
        return ran.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    made = Copy(tmp_path_factory.mktemp("copy"))
    made.run("-m", "tools.operators_page")
    yield made
    changed = {f for f, digest in made.digests().items() if made.before.get(f) != digest}
    assert changed == {FILE, PAGE}, "the page is written by a command, the file by hand, and nothing else"


def test_it_is_listed_and_shown(copy: Copy) -> None:
    listed = {o["operator"]: o for o in json.loads(copy.run("-m", "tokitai", "ops", "--json"))["operators"]}
    assert set(BOTH) <= set(listed) and listed[BOTH[1]]["backward_of"] == BOTH[0]
    assert "gain * x / (1 + abs(x))" in copy.run("-m", "tokitai", "show", BOTH[0])


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("name", BOTH)
def test_it_is_verified(copy: Copy, tmp_path: Path, name: str, device: str) -> None:
    said = copy.run(
        "-m", "tokitai", "verify", name, "--device", device, "--dtype", "f16", "--out", str(tmp_path), "--json"
    )  # fmt: skip
    assert "verified" in said
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["predicate"]["verdict"] == "verified"


def test_its_function_for_torch_has_the_textbooks_gradient(copy: Copy) -> None:
    copy.run("-c", GRADIENT)


def test_the_tests_that_run_over_all_operators_run_over_it(copy: Copy) -> None:
    said = copy.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *DERIVED, "-k", BOTH[0],
        "--junit-xml", str(copy.folder.parent / "derived.xml"),
    )  # fmt: skip
    ran = (copy.folder.parent / "derived.xml").read_text()
    missed = [f for f in DERIVED if f.removesuffix(".py").rpartition("/")[2] not in ran]
    assert missed == [], f"{missed} have no test of it\n{said}"


def test_no_wrong_program_of_it_survives(copy: Copy, tmp_path: Path) -> None:
    for name in BOTH:
        out = tmp_path / f"{name}.json"
        copy.run(
            "-m", "tests.mutants.score", name, "--device", "cpu", "--sample", "12", "--out", str(out)
        )  # fmt: skip
        (found,) = json.loads(out.read_text()).values()
        assert found["run"] >= 12 and found["survivors"] == []


def test_it_is_documented(copy: Copy) -> None:
    text = (copy.folder / PAGE).read_text()
    of_it = text.split("\n## softsign_gain\n")[1].split("\n## ")[0]
    assert "y = gain x / (1 + |x|)." in of_it
    assert "| `tokitai.torch.operators` | `softsign_gain(x, gain) -> y` |" in of_it
    assert "[`softsign_gain_backward`](#softsign_gain_backward)" in of_it
    copy.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/torch/test_reference.py")


def test_it_is_timed(copy: Copy, tmp_path: Path) -> None:
    for name in BOTH:
        copy.run(
            "-m", "tokitai", "bench", name, "--dtype", "f32", "--shape", "64x33", "--blocks", "1", "--out",
            str(tmp_path / "bench.jsonl"),
        )  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "bench.jsonl").read_text().splitlines()]
    assert [r["operator"] for r in records] == list(BOTH)
