"""Verification of matrix products: a third size, batches, their certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.errors import ArgumentError, InputFileError, UnavailableError
from tokitai.evidence.check import check
from tokitai.lang import Sizes
from tokitai.verification import verify
from tokitai.verification.files import case_from_file
from tokitai.verification.recheck import recheck
from tokitai.verification.verdict import Variant
from tokitai.worker import Pool
from tokitai.worker.isolated import call

PLAIN, FULL = Variant(frozenset()), Variant(frozenset({"c"}))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A verification of one variant, with its certificate."""
    asked = dict(rows=5, cols=70, inner=41, batch=3)
    return verify(ops.matmul, shape=asked, dtype="f16", variant=FULL, out=tmp_path_factory.mktemp("certificates"))


def test_a_product_is_verified_at_the_sizes_asked_for(made: Any) -> None:
    assert (made.verdict, made.failure) == ("verified", None)
    assert made.evidence == ["structure", "hard", "seeded"]
    asked = [r for r in made.results if r.shape == Sizes(5, 70, 41, 3)]
    assert {r.kind for r in asked} == {"structure", "seeded"}
    assert made.shape == dict(rows=5, cols=70, inner=41, batch=3)
    assert any(r.id == "structure/all inputs@2x3x4096#0" for r in made.results)
    assert any(r.id == "structure/all inputs@2x3x5x40#0" for r in made.results), "more products than threads"


def test_its_certificate_holds_and_can_be_computed_again(made: Any) -> None:
    assert check(made.certificate) == [] and recheck(made.certificate, ops.matmul, sample=40) == []
    statement = json.loads(made.certificate.read_text())["predicate"]
    sides = ("rows", "cols", "inner", "batch")
    assert (5, 70, 41, 3) in {tuple(case[side] for side in sides) for case in statement["cases"]}
    assert "rows x cols x inner of 0x0x0" in statement["proofs"][0]["statement"]
    assert "70, inner 41, batch of 3" in made.certificate.with_suffix(".md").read_text()


@pytest.mark.slow
def test_another_oracle_is_found(made: Any, tmp_path: Path) -> None:
    """A digest of a product of another inner size is not that of the case."""
    statement = json.loads(made.certificate.read_text())
    for case in statement["predicate"]["cases"]:
        if case["inner"] == 41:
            case["inner"] = 40
    wrong = tmp_path / made.certificate.name
    wrong.write_text(json.dumps(statement))
    assert any("5x70x40x3" in line for line in recheck(wrong, ops.matmul, sample=500))


def test_one_case_can_be_run_again() -> None:
    verdict = verify(ops.matmul, dtype="f16", variant=PLAIN, case="seeded/normal@3x5x7x2#4")
    assert (verdict.verdict, [r.id for r in verdict.results]) == ("verified", ["seeded/normal@3x5x7x2#4"])


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("matmul", dict(rows=1, cols=2), "shape has rows, cols; accepted: rows, cols and inner, and for several"),
        ("matmul", dict(rows=1, cols=2, inner=-1), "inner=-1; accepted"),
        ("matmul", dict(rows=1, cols=2, inner=3, batch=0), "batch=0; accepted: at least 1"),
        ("linear", dict(rows=1, cols=2, inner=3, batch=2), "accepted: rows, cols and inner"),
        ("softmax", dict(rows=1, cols=2, inner=3), "softmax: shape has rows, cols, inner; accepted: rows and cols"),
    ],
)
def test_wrong_sizes_are_refused(name: str, shape: dict[str, int], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        verify(ops.get(name), shape=shape)


def test_in_a_worker_process() -> None:
    """Buffers go there with the strides of batches; the caller's own arrays do not, and that is said."""
    with Pool(1, deadline=60) as pool:
        for case in ("structure/all inputs@3x5x7x2#0", "seeded/normal@7x17x33x3#0"):
            verdict = verify(ops.matmul, dtype="f16", variant=PLAIN, case=case, pool=pool)
            assert (verdict.verdict, [r.id for r in verdict.results]) == ("verified", [case]), verdict.failure
        kernels = pool.counts.started
        with pytest.raises(UnavailableError, match="not offered for products and tables"):
            call(pool, ops.matmul, np.ones((2, 3), np.float32), np.ones((3, 4), np.float32), beta=0.0)
        assert pool.counts.started == kernels


def test_ones_own_operands(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.ones((2, 3, 8), np.float32), weight=np.ones((5, 8), np.float32))
    _, case = case_from_file(ops.linear, path, "f16")
    assert case.shape == Sizes(6, 5, 8) and case.tensors["x"].shape == (6, 8)
    np.savez(path, x=np.ones((2, 3, 8), np.float32), weight=np.ones((5, 7), np.float32))
    with pytest.raises(InputFileError, match=r"weight: shape \(5, 7\), 7 along inner; accepted beside x: 8"):
        case_from_file(ops.linear, path, "f16")
