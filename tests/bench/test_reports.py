"""The tables in bench/results are those of the records beside them."""

from __future__ import annotations

from bench import cpu_report, gpu_report


def test_the_tables_of_a_gpu_are_those_of_its_records() -> None:
    assert (gpu_report.RESULTS / "gpu.md").read_text() == gpu_report.written()


def test_the_tables_of_products_on_the_cpu_are_those_of_its_records() -> None:
    assert (cpu_report.RESULTS / "cpu_products.md").read_text() == cpu_report.written()
