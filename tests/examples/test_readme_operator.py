"""The operator that the README shows is the one in examples/operators, is short, and is verified from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tokitai.cli.parse import operator_named
from tokitai.verification import verify

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "operators" / "l2_normalize.py"


def test_the_readme_shows_the_file_itself() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"<!-- file: l2_normalize\.py -->\n```python\n(.*?)```\n", readme, re.DOTALL)
    assert shown is not None
    assert shown[1] == FILE.read_text()


def test_every_operator_fits_on_25_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in FILE.parent.glob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 25} == {}
    assert FILE.name in lengths


@pytest.mark.slow
def test_it_is_verified_in_every_format(tmp_path: Path) -> None:
    words = ["verify", "l2_normalize.py:l2_normalize", "--json", "--out", "out"]
    (tmp_path / FILE.name).write_text(FILE.read_text())
    program = Path(sys.executable).with_name("tokitai")
    done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done
    results = {r["dtype"]: r for r in json.loads(done.stdout)["results"]}
    assert list(results) == ["f16", "bf16", "f32"]
    assert {r["verdict"] for r in results.values()} == {"verified"}
    assert {tuple(r["evidence"]) for r in results.values()} == {("structure", "hard", "seeded")}
    # Half an ulp is correct rounding; what is added is f32's own error, seen through the wider format.
    assert results["f16"]["max_ulp_error"] < 0.51
    assert results["bf16"]["max_ulp_error"] < 0.51
    assert results["f32"]["max_ulp_error"] < 5
    assert len(list((tmp_path / "out").glob("*.json"))) == 3


def test_it_scales_rows_to_unit_length() -> None:
    l2_normalize = operator_named(f"{FILE}:l2_normalize")
    x = np.random.default_rng(3).standard_normal((7, 300)).astype(np.float32)
    y = l2_normalize(x)
    assert np.abs(np.sqrt((y.astype(np.float64) ** 2).sum(axis=1)) - 1).max() < 1e-6
    np.testing.assert_array_equal(np.sign(y), np.sign(x))


def test_a_wrong_textbook_shows_in_the_error() -> None:
    """The verdict is about bits; that the definition is the right one shows in the error."""
    operator = operator_named(f"{FILE}:l2_normalize")
    right = operator.textbook
    assert right is not None
    case = "hard/squares overflow f16@1x2#0"
    assert (verify(operator, dtype="f16", case=case).max_ulp_error or 9) < 0.51
    operator.set_textbook(lambda x, *, eps: dict(y=x / ((x**2).sum(axis=1, keepdims=True) + eps)))
    try:
        assert (verify(operator, dtype="f16", case=case).max_ulp_error or 0) > 100
    finally:
        operator.set_textbook(right)
