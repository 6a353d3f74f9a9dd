"""Accesses of the CPU's matrix products, and what they write: proved as they are, refuted once source or header is
wrong."""

from __future__ import annotations

import pytest

from tests.proving.changed import obligations, refuted

TWICE, WRITTEN = "no element of out_y is written twice", "every element of out_y is written"
TILES, RIGHT = "tiles has no conflicting accesses", "right has no conflicting accesses"
FITS = "index arithmetic fits its types"


@pytest.mark.slow
def test_two_products_of_one_operand_are_proved() -> None:
    found = obligations("linear_swiglu")
    assert {f"{name} is accessed inside" for name in ("in_x", "in_gate", "out_y", "right", "left", "tiles")} <= {*found}
    assert {TWICE, WRITTEN, TILES, RIGHT, FITS} <= {*found}
    assert [o for o in found.values() if o.status != "proved"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("out_y", {"to_r = r0 + i * MR + y": "to_r = r0 + i * MR + y + 1"}),
        ("out_y", {"at(to_r, to_c, Part{cols_left}, product)": "at(to_r, to_c, Full{}, product)"}),
        ("in_x", {"count = min(stop * MR, height) - begin * MR": "count = (stop - begin) * MR"}),
        ("in_weight", {"data + (c0 + c) * stride + k0": "data + (c0 + c + 1) * stride + k0"}),
        ("right", {"(n * panels + q) * NR * depth;": "(n * panels + q + 1) * NR * depth;"}),
        ("left", {"packed + (i - begin) * MR * depth": "packed + i * MR * depth"}),
        ("tiles", {"(alone ? 0 : q * m_panels + i)": "(alone ? 0 : q * m_panels + i + 1)"}),
    ],
)
def test_wrong_indices_are_refuted(name: str, header: dict[str, str]) -> None:
    what = f"{name} is accessed inside"
    assert what in refuted(obligations("linear", headers=header, only=[what]))


UNIT = "unit < blocks * cuts; unit += team.size"
STOP = "stop = m_panels * (block + 1) / blocks;"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "header"),
    [
        (TILES, {}, {"Team{0, 1, thread_number()}": "Team{0, 1, 0}"}),  # two teams in the same buffers
        (TILES, {}, {UNIT: UNIT.replace("team.size", "1")}),
        (RIGHT, {}, {"}\n          team_barrier(team);\n        }": "}\n        }"}),
        (TWICE, {}, {STOP: "stop = min(m_panels, m_panels * (block + 1) / blocks + 1);"}),
        (TWICE, {}, {"if (!last || n + 1 < N) continue;": "if (n + 1 < N) continue;"}),
        (WRITTEN, {}, {"x < min(NR, width - q * NR)": "x < min(NR, width - q * NR) - 1"}),
        (FITS, {"out_y + r * out_y_stride": "out_y + int32_t(r) * int32_t(out_y_stride)"}, {}),
    ],
)
def test_wrong_loops_and_types_are_refuted(name: str, source: dict[str, str], header: dict[str, str]) -> None:
    assert name in refuted(obligations("linear", source, header, only=[name]))


@pytest.mark.slow
def test_a_row_that_is_lost_at_one_number_of_rows_is_refuted() -> None:
    height = "height = min(BLOCK_M, rows - r0)"
    lost = {height: height.replace(")", " - (rows == 1000003 ? 1 : 0))")}
    assert refuted(obligations("linear", headers=lost, only=[WRITTEN]))[WRITTEN]["rows"] == 1000003


@pytest.mark.slow
def test_an_element_for_which_no_iteration_is_found_is_undecided() -> None:
    """Where units of work are counted in another way than the proof knows, nothing is known of what they write."""
    other = {UNIT: UNIT.replace("cuts;", "cuts - (rows == 1000003 ? 1 : 0);")}
    assert obligations("linear", headers=other, only=[WRITTEN])[WRITTEN].status == "undecided"
