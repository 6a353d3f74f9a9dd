"""What the programs that measure on a GPU share: records are kept with date and place, pages are what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from bench import gpu_fixed, gpu_fused, gpu_run


class Named:
    def describe(self) -> dict[str, str]:
        return {"name": "a GPU", "driver": "1", "nvrtc": "2"}


def test_a_record_is_kept_with_its_date_and_place(tmp_path: Path) -> None:
    target: Any = Named()
    for n in (1, 2, 1):
        gpu_run.keep({"n": n, "took": len((tmp_path / "x").read_text()) if n == 2 else 0}, target, tmp_path / "x")
    first, *_ = records = [json.loads(line) for line in (tmp_path / "x").open()]
    assert [r["n"] for r in records] == [1, 2, 1] and first["device"] == "a GPU" and first["date"][:2] == "20"
    text = gpu_run.page("Title", "Said.", "| n |\n|--:|", tmp_path / "x", ("n",), lambda r: f"| {r['n']} |")
    assert text.splitlines()[2].startswith("a GPU, driver 1, PyTorch ")
    assert text.endswith("\n\nSaid.\n\n| n |\n|--:|\n| 1 |\n| 2 |\n"), "the newest of each"


@pytest.mark.parametrize("program", [gpu_fixed, gpu_fused])
def test_the_page_is_what_was_measured(program: ModuleType) -> None:
    assert program.RESULTS.with_suffix(".md").read_text() == program.table(program.RESULTS)
