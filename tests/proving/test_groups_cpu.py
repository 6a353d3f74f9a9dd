"""Accesses of the CPU's grouped products: proved as they are, refuted once source or header is wrong."""

from __future__ import annotations

import pytest

from tests.proving.changed import obligations, refuted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grouped_linear", "grouped_linear_backward_weight"])
def test_accesses_are_proved_to_lie_inside(name: str) -> None:
    found = obligations(name)
    assert {"in_offsets is accessed inside", "tiles is accessed inside", "right is accessed inside"} <= {*found}
    assert [o for o in found.values() if o.status != "proved"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "name", "source", "header"),
    [
        ("grouped_linear", "out_y", {}, {"task.rows = min(max_rows, height - r)": "task.rows = max_rows"}),
        ("grouped_linear", "in_x", {}, {"task.row = ALONG_ROWS ? from + r : r": "task.row = from + r + 1"}),
        ("grouped_linear", "in_weight", {}, {"task.cols = min(max_cols, cols - c)": "task.cols = max_cols"}),
        ("grouped_linear", "in_offsets", {}, {"offsets[group + 1] - from": "offsets[group + 2] - from"}),
        ("grouped_linear", "out_y", {"c = task.col + task_c": "c = task.col + task_c + 1"}, {}),
        ("grouped_linear_backward_weight", "in_x", {}, {"p + begin * stride + col": "p + (begin + 1) * stride + col"}),
    ],
)
def test_wrong_tasks_are_refuted(operator: str, name: str, source: dict[str, str], header: dict[str, str]) -> None:
    what = f"{name} is accessed inside"
    assert what in refuted(obligations(operator, source, header, only=[what]))
