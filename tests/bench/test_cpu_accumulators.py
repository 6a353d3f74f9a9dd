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
    assert record["differ"] == dict.fromkeys(cpu_accumulators.ACCUMULATORS, 0)
    assert {*record["ms"]["wall"]} == {*record["ms"]["cpu"]} == {"OpenBLAS", *cpu_accumulators.ACCUMULATORS}
    assert cpu_accumulators.page([record]).count("| 16 x 24 x 40 |") == len(cpu_accumulators.ACCUMULATORS)


def test_a_wrong_product_is_counted() -> None:
    a, b = (np.random.default_rng(0).standard_normal((9, 33)).astype(FORMATS["bf16"].dtype) for _ in range(2))
    made = ops.matmul(a, b, layout="NT")
    assert cpu_accumulators.differ(made, a, b, "f32") == 0
    made[0, -1] *= 2
    assert cpu_accumulators.differ(made, a, b, "f32") == 1
