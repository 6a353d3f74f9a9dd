"""The tables in bench/results are those of the records beside them."""

from __future__ import annotations

import json

from bench import cpu_accumulators, cpu_report, gpu_report


def test_the_tables_of_a_gpu_are_those_of_its_records() -> None:
    assert (gpu_report.RESULTS / "gpu.md").read_text() == gpu_report.written()


def test_the_tables_of_products_on_the_cpu_are_those_of_its_records() -> None:
    assert (cpu_report.RESULTS / "cpu_products.md").read_text() == cpu_report.written()


def test_the_table_of_accumulators_on_the_cpu_is_that_of_its_records() -> None:
    records = [json.loads(line) for line in cpu_accumulators.RESULTS.open()]
    assert cpu_accumulators.RESULTS.with_suffix(".md").read_text() == cpu_accumulators.page(records)
    assert not any(any(r["differ"].values()) for r in records)
