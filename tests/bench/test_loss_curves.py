"""Loss curves of the accumulators beside PyTorch's: the program, its table, and what is on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.loss_curves import LAST, PICTURE, PLAIN, RESULTS, by_name, main, table

PAGE = PICTURE.with_name("choose-an-accumulator.md")


@pytest.mark.slow
def test_a_few_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All begin with the same weights and see the same text: the first loss is that of the bf16 model, whose unit is
    2^-8; later ones show that they are three programs."""
    file = tmp_path / "curves.jsonl"
    assert main(["--steps", "3", "--seeds", "2", "--names", "PyTorch,f32,fused16", "--out", str(file)]) == 0
    runs = by_name([json.loads(line) for line in file.read_text().splitlines()])
    assert list(runs) == [PLAIN, "f32", "fused16"]
    for seed in range(2):
        first = [of[seed][0] for of in runs.values()]
        assert max(first) - min(first) <= max(first) * 2**-8
        assert len({tuple(of[seed]) for of in runs.values()}) == 3
    assert main(["--page", "--out", str(file)]) == 0
    assert file.with_suffix(".svg").read_text().count("<svg") == 1
    assert capsys.readouterr().out.splitlines()[2].startswith("| PyTorch | ")
    assert main(["--page", "--out", str(tmp_path / "none")]) == 2 and "no such file" in capsys.readouterr().err


def test_the_table() -> None:
    """Means of the last losses; the runs differ by 1 from PyTorch's of their seeds, which differ by 2."""
    records = [
        {"name": name, "seed": seed, "losses": [9.0, *[1.0 + 2 * seed + more] * LAST]}
        for name, more in ((PLAIN, 0), ("f32", 1))
        for seed in range(2)
    ]
    assert table(records).splitlines()[2:] == ["| PyTorch | 2.000 | 1.414 |  |", "| f32 | 3.000 | 1.414 | 1.000 |"]


def test_the_page_shows_what_was_recorded() -> None:
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert table(records) in PAGE.read_text() and f"({PICTURE.name})" in PAGE.read_text()
    runs = by_name(records)
    assert {len(x) for of in runs.values() for x in of.values()} == {300}
    assert all(of.keys() == runs[PLAIN].keys() for of in runs.values()) and len(runs[PLAIN]) == 4
