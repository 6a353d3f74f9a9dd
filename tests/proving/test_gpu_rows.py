"""Obligations of row-wise kernels of GPUs: proved as they are, refuted once source or plan is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.proving.changed import changed, refuted
from tokitai.emit.cpp import KernelText
from tokitai.errors import ProofError
from tokitai.families.rowwise import schedule as rowwise
from tokitai.lower.gpu import Step
from tokitai.ops import registry
from tokitai.proving.gpu_rows import row_cases
from tokitai.proving.obligation import Obligation
from tokitai.proving.prove import plan_of

SHORT = "work, 1 threads a row, 1 chunks a thread, 128 rows a block, 8 elements an access, in registers"
FEW = "work, 16 threads a row, 1 chunks a thread, 8 rows a block, 8 elements an access, in registers"
SLICES = "work, 32 threads a row, 2 chunks a thread, 4 rows a block, 8 elements an access, a slice of each at a time"
WARPS = "work, 64 threads a row, 4 chunks a thread, 1 rows a block, 8 elements an access, in registers"
STAGED = "work, 448 threads a row, 4 chunks a thread, 1 rows a block, 8 elements an access, in shared memory"
LONG = "1024 threads a row, 1 chunks a thread, 1 rows a block, 8 elements an access, read in each pass"
SUMS = "work, 96 threads a row, 4 chunks a thread, 1 rows a block, 8 elements an access, in shared memory"
WRITTEN, TWICE, INSIDE = (
    "every element of out_y is written", "no element of out_y is written twice", "out_y is accessed inside"
)  # fmt: skip
ALIGNED, LAUNCH = "accesses of several elements are aligned", "a launch has just these blocks"
MOST = 2**20 - 1  # columns, of which the last slice has one less than others


def obligations(
    name: str, chosen: str, changes: Mapping[str, str] = {}, headers: Mapping[str, str] = {}
) -> dict[str, Obligation]:  # fmt: skip
    """All obligations by name, of the first kernel in f16 of this schedule, whose source and headers are changed."""
    operator = registry()[name]
    plan: Any = plan_of(operator, "f16")

    def edited(text: KernelText) -> KernelText:
        return changed(text, {old: new for old, new in changes.items() if old in text.text}, headers)

    cases = row_cases(operator, plan.family.gpu.plan(plan, "cuda"), 32, "cuda", 20.0, edited)
    case = next(c for c in cases if c.name == chosen)
    return {o.name.removeprefix(": "): o for o in case.walked().obligations("")}


SLOW = [
    ("embedding", SLICES), ("softmax", WARPS), ("softmax", STAGED), ("softmax", f"work, {LONG}"),
    ("layer_norm_backward", SUMS), ("layer_norm_backward", "finish"),
    ("linear_backward_bias", f"columns, {LONG}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "chosen"), [("softmax", SHORT), *(pytest.param(*given, marks=pytest.mark.slow) for given in SLOW)]
)
def test_kernels_are_proved(name: str, chosen: str) -> None:
    found = obligations(name, chosen)
    assert len(found) >= 3 and [o for o in found.values() if o.status != "proved"] == []


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("out_y_row + first", "out_y_row + 1 + first", INSIDE),
        ("const bool live = row0 + thread_index() / THREADS < rows", "const bool live = row0 < rows", TWICE),
        ("first + v * STEP, new_y, cols - c0", "first + v * STEP, new_y, cols - c0 - (rows == 1000003)", WRITTEN),
    ],
)
def test_wrong_indices_are_refuted(old: str, new: str, wrong: str) -> None:
    assert wrong in refuted(obligations("softmax", SHORT, {old: new}))


PLACES = [  # an operator, its kernel, what is changed in its source or in headers, and what is wrong then
    ("softmax", SHORT, "kept_v3[v * CHUNK + e] = v3", "kept_v3[v * CHUNK + e + 1] = v3",
     "arrays of a thread are accessed inside"),
    ("softmax", WARPS, "mine[k * WARP + warp] =", "mine[(k + 1) * WARP + warp] =", "shared memory is accessed inside"),
    ("cross_entropy", FEW, "store1(out_loss + r,", "store1(out_loss + r + 1,", "out_loss is accessed inside"),
    ("cross_entropy_backward", FEW, "holds && within && live", "within && live",
     "no element of out_dlogits is written by two threads"),
    ("rms_norm_backward", FEW, "_v15 + block * cols", "_v15 + (block + 1) * cols", "workspace is accessed inside"),
    ("rms_norm_backward", FEW, "_v15 + block * cols", "_v15 + block0 * cols",
     "workspace has no conflicting accesses"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chosen", "old", "new", "wrong"), PLACES)
def test_wrong_places_are_refuted(name: str, chosen: str, old: str, new: str, wrong: str) -> None:
    headers = {old: new} if old.startswith("mine") else {}
    assert wrong in refuted(obligations(name, chosen, {} if headers else {old: new}, headers))


@pytest.mark.slow
def test_accesses_that_are_not_aligned_and_slices_that_overlap_are_refuted() -> None:
    assert ALIGNED in refuted(obligations("embedding", SLICES, {"out_y_row + first": "out_y_row + 1 + first"}))
    assert TWICE in refuted(obligations("embedding", SLICES, {"int(slice) * SPAN": "int(slice) * (SPAN - 8)"}))


def test_units_that_are_not_as_many_apart_as_blocks_are_not_walked() -> None:
    with pytest.raises(ProofError, match="accepted: as much as of one block to the next"):
        obligations("softmax", SHORT, {"row0 += grid_size() * ROWS": "row0 += (grid_size() + 1) * ROWS"})


@pytest.mark.slow
def test_a_last_slice_of_a_row_that_is_short_at_one_number_of_columns_is_refuted() -> None:
    short = {"new_y, cols - c0)": f"new_y, cols - c0 - (cols == {MOST}))"}
    assert refuted(obligations("embedding", SLICES, short))[WRITTEN]["cols"] == MOST


def test_a_plan_that_forgets_the_last_block_of_a_row_at_one_number_of_columns_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks share a row by slices, of which the last has fewer columns."""
    planned = rowwise.row_steps

    def fewer(plan: Any, schedule: Any, rows: int, cols: int) -> list[Step]:
        lost = -(-rows // schedule.rows) if cols == MOST else 0
        return [replace(s, grid=s.grid - lost) for s in planned(plan, schedule, rows, cols)]

    monkeypatch.setattr(rowwise, "row_steps", fewer)
    assert refuted(obligations("embedding", SLICES))[LAUNCH]["cols"] == MOST
