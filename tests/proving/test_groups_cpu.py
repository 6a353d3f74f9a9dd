"""Accesses of the CPU's grouped products, and what they write: proved as they are, refuted once source or header is
wrong."""

from __future__ import annotations

import pytest

from tests.proving.changed import obligations, refuted

TWICE, WRITTEN = "no element of {} is written twice", "every element of {} is written"
INSIDE, FITS = "{} is accessed inside", "index arithmetic fits its types"
LINEAR, WEIGHT = "grouped_linear", "grouped_linear_backward_weight"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "out"), [(LINEAR, "out_y"), (WEIGHT, "out_dweight")])
def test_products_of_all_groups_are_proved(name: str, out: str) -> None:
    found = obligations(name)
    assert {INSIDE.format(what) for what in ("in_offsets", "tiles", "right", out)} <= {*found}
    assert {TWICE.format(out), WRITTEN.format(out), FITS, "tiles has no conflicting accesses"} <= {*found}
    assert [o for o in found.values() if o.status != "proved"] == []


ROWS = "task.rows = min(max_rows, height - r)"
COLS = "c = (t - first) % n_tiles * max_cols"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "name", "source", "header"),
    [
        (LINEAR, INSIDE.format("out_y"), {}, {ROWS: "task.rows = max_rows"}),
        (LINEAR, INSIDE.format("out_y"), {}, {"task.row = ALONG_ROWS ? from + r : r": "task.row = from + r + 1"}),
        (LINEAR, INSIDE.format("out_y"), {}, {"task.cols = min(max_cols, cols - c)": "task.cols = max_cols"}),
        (LINEAR, INSIDE.format("out_y"), {"c = task.col + task_c": "c = task.col + task_c + 1"}, {}),
        (LINEAR, INSIDE.format("in_offsets"), {}, {"offsets[group + 1] - from": "offsets[group + 2] - from"}),
        (LINEAR, "tiles has no conflicting accesses", {}, {"return {0, 1, thread_number()}": "return {0, 1, 0}"}),
        (LINEAR, TWICE.format("out_y"), {}, {COLS: COLS.replace("max_cols", "(max_cols - 1)")}),
        (LINEAR, WRITTEN.format("out_y"), {}, {ROWS: "task.rows = min(max_rows, height - r) - (r > 0)"}),
        (LINEAR, WRITTEN.format("out_y"), {}, {"x < min(NR, width - q * NR)": "x < min(NR, width - q * NR) - 1"}),
        (WEIGHT, INSIDE.format("in_x"), {}, {"p + begin * stride + col": "p + (begin + 1) * stride + col"}),
    ],
)
def test_wrong_tasks_are_refuted(operator: str, name: str, source: dict[str, str], header: dict[str, str]) -> None:
    assert name in refuted(obligations(operator, source, header, only=[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "header"),
    [
        (WRITTEN, {"if (t < first) group = first = 0;": ""}),  # a thread that goes back finds no group
        (TWICE, {"first += m_tiles(group++) * n_tiles": "first += m_tiles(++group) * n_tiles"}),
        (FITS, {"tile_m = ceil_div(tile_m / 2, MR) * MR": "tile_m = tile_m / 2"}),
    ],
)
def test_a_search_that_loses_its_group_is_not_proved(name: str, header: dict[str, str]) -> None:
    what = [name.format("out_y"), FITS]
    assert {o.status for o in obligations(LINEAR, headers=header, only=what).values()} - {"proved"}
