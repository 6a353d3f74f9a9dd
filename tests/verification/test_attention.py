"""Attention as it is verified: files of one's own, certificates, worker processes, devices without kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokitai import ops, verify
from tokitai.backends.cuda import target as cuda
from tokitai.errors import DeviceMissingError
from tokitai.evidence.check import check
from tokitai.lang import Sizes
from tokitai.verification.files import case_from_file
from tokitai.verification.recheck import recheck
from tokitai.verification.verdict import Variant
from tokitai.worker import Pool


def test_the_users_own_tensors(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    q, k = np.ones((4, 6, 3), np.float32), np.ones((2, 7, 3), np.float32)
    np.savez(path, q=q, k=k, v=k * 0.5)
    _, case = case_from_file(ops.attention, path, "f16")
    assert case.shape == Sizes(12, 7, 3, 2) and case.tensors["q"].shape == (2, 12, 3)
    verdict = verify(ops.attention, dtype="f16", inputs=path, variant=Variant(frozenset()), case=case.id)
    assert (verdict.verdict, verdict.cases) == ("verified", 1), verdict.failure


@pytest.mark.slow
def test_a_certificate_can_be_checked_again(tmp_path: Path) -> None:
    """What the backward pass takes from the forward pass is computed again from the seeds."""
    shape = dict(rows=10, cols=12, inner=8, batch=2)
    verdict = verify(ops.attention_backward, dtype="f16", shape=shape, out=tmp_path)
    assert verdict.verdict == "verified" and verdict.certificate is not None, verdict.failure
    assert check(verdict.certificate) == []
    assert recheck(verdict.certificate, ops.attention_backward, sample=12) == []


def test_in_a_worker_process() -> None:
    with Pool(1, deadline=60) as pool:
        for case in ("structure/all inputs@3x5x7x2#0", "seeded/normal@3x5x7x2#0"):
            variant = Variant(frozenset({"limit"}))
            verdict = verify(ops.attention, dtype="f16", variant=variant, case=case, pool=pool)
            assert (verdict.verdict, [r.id for r in verdict.results]) == ("verified", [case]), verdict.failure


def test_a_missing_gpu_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(index: int) -> None:
        raise DeviceMissingError(f"cuda:{index}: there is no GPU")

    monkeypatch.setattr(cuda, "open_device", missing)
    verdict = verify(ops.attention, dtype="f16", device="cuda", variant=Variant(frozenset()))
    assert (verdict.verdict, verdict.failure) == ("undecided", "cuda:0: there is no GPU")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "attention_backward"])
def test_the_simulated_device_is_verified_at_one_shape(name: str) -> None:
    verdict = verify(ops.get(name), dtype="bf16", device="sim", case="structure/all inputs@3x5x7x2#0")
    assert (verdict.verdict, verdict.failure) == ("verified", None) and verdict.cases == 3, (
        "with a limit, without, in steps"
    )
