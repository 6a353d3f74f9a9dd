"""The timing of accumulators on the CPU: its products are right, and its records make a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import cpu_accumulators
from tokitai import ops
from tokitai.formats import FORMATS


@pytest.mark.slow
def test_records_make_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.jsonl"
    monkeypatch.setattr(cpu_accumulators, "SIZES", ((16, 24, 40),))
    monkeypatch.setattr("sys.argv", ["cpu_accumulators", "--out", str(out), "--repeats", "1"])
    cpu_accumulators.main()
    (record,) = map(json.loads, out.open())
    assert {*record["ms"]["wall"]} == {*record["ms"]["cpu"]} == {"OpenBLAS", *cpu_accumulators.ACCUMULATORS}
    assert cpu_accumulators.page([record]).count("| 16 x 24 x 40 |") == len(cpu_accumulators.ACCUMULATORS)


@pytest.mark.slow
def test_a_wrong_product_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "records.jsonl"
    monkeypatch.setattr(cpu_accumulators, "SIZES", ((16, 24, 40),))
    monkeypatch.setattr(cpu_accumulators, "differ", lambda made, a, b, name: int(name == "fixed16"))
    monkeypatch.setattr("sys.argv", ["cpu_accumulators", "--out", str(out), "--repeats", "1"])
    with pytest.raises(SystemExit, match=r"16 x 24 x 40: .*'fixed16': 1"):
        cpu_accumulators.main()
    assert not out.exists()


def test_a_wrong_product_is_counted() -> None:
    a, b = (np.random.default_rng(0).standard_normal((9, 33)).astype(FORMATS["bf16"].dtype) for _ in range(2))
    made = ops.matmul(a, b, layout="NT")
    assert cpu_accumulators.differ(made, a, b, "f32") == 0
    made[0, -1] *= 2
    assert cpu_accumulators.differ(made, a, b, "f32") == 1
