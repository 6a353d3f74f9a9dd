"""The tables in bench/results are those of the records beside them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import cpu_accumulators, cpu_report, gpu_report, steps_cpu
from tokitai import ops


def test_the_tables_of_a_gpu_are_those_of_its_records() -> None:
    assert (gpu_report.RESULTS / "gpu.md").read_text() == gpu_report.written()


def test_the_tables_of_products_on_the_cpu_are_those_of_its_records() -> None:
    assert (cpu_report.RESULTS / "cpu_products.md").read_text() == cpu_report.written()


def test_the_table_of_accumulators_on_the_cpu_is_that_of_its_records() -> None:
    records = [json.loads(line) for line in cpu_accumulators.RESULTS.open()]
    assert cpu_accumulators.RESULTS.with_suffix(".md").read_text() == cpu_accumulators.page(records)


@pytest.mark.slow
def test_an_accumulator_whose_corner_is_wrong_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OneBitOff:
        trace = staticmethod(ops.matmul.trace)

        def __call__(self, *arrays: Any, **options: Any) -> Any:
            result = ops.matmul(*arrays, **options)
            if options["accumulator"] == "fixed16":
                result.view("uint16")[0, -1] ^= 1
            return result

    out = tmp_path / "records.jsonl"
    monkeypatch.setattr(cpu_accumulators, "SIZES", ((16, 16, 32),))
    monkeypatch.setattr(cpu_accumulators, "ops", SimpleNamespace(matmul=OneBitOff()))
    monkeypatch.setattr("sys.argv", ["cpu_accumulators", "--out", str(out), "--repeats", "1"])
    with pytest.raises(SystemExit, match=r"16 x 16 x 32: .*\{'fixed16': 1\}"):
        cpu_accumulators.main()
    assert not out.exists()


def test_the_table_of_steps_on_the_cpu_is_that_of_its_records() -> None:
    records = [json.loads(line) for line in steps_cpu.RESULTS.open()]
    assert steps_cpu.RESULTS.with_suffix(".md").read_text() == steps_cpu.page(records)
