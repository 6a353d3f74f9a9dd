"""Sums over entries as a GPU's threads share them, simulated: many tiles, long and short segments, columns
for several blocks, 64-bit places."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tokitai import ops
from tokitai.backends.backend import Array
from tokitai.backends.sim.target import SimTarget
from tokitai.families import make_plan
from tokitai.families.scatter import schedule as gpu_scatter
from tokitai.families.scatter.plan import ScatterPlan
from tokitai.families.scatter.schedule import scatter_steps, tiles_of, work_blocks, workspace_bytes
from tokitai.meaning import bits
from tokitai.runtime.gpu_kernel import Edit, GpuKernel
from tokitai.verification import cases

CASES = {  # rows, columns, entries
    "no rows": (0, 8, 5), "one row": (1, 8, 1), "fewer columns than a chunk": (2300, 1, 40),
    "whole chunks": (1500, 264, 300), "columns for two blocks": (70, 1100, 9),
    "most entries have no rows": (90, 16, 5000),
}  # fmt: skip


def chosen(how: str, rows: int, entries: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ids that are uniform, that follow a power law, that are all the last."""
    rng = np.random.default_rng(0)
    if how == "uniform":
        return rng.integers(0, entries, rows)
    return np.minimum(rng.zipf(1.3, rows) - 1, entries - 1) if how == "power law" else np.full(rows, entries - 1)


def equal(
    rows: int, cols: int, entries: int, how: str, target: SimTarget | None = None, edit: Edit | None = None
) -> bool:  # fmt: skip
    """Whether a gradient has the oracle's bits."""
    op = ops.get("embedding_backward")
    graph = op.trace("f16", frozenset({"dy", "ids"}))
    dy = np.random.default_rng(1).standard_normal((rows, cols)).astype(np.float16)
    tensors: dict[str, Array] = dict(dy=dy, ids=chosen(how, rows, entries))
    params = {**cases.defaults(op), "entries": entries}
    want = bits.evaluate(graph, tensors, (rows, cols), params)["dtable"]
    kernel = GpuKernel(op, graph, make_plan(graph), False, target or SimTarget(), edit)
    got = np.full((entries, cols), np.nan, np.float16)
    kernel.launch(tensors, dict(dtable=got), (rows, cols), kernel.scalar_table(rows, cols, params), 3)
    return got.tobytes() == want.tobytes()


@pytest.mark.parametrize("how", ["uniform", "power law", "one id"])
@pytest.mark.parametrize("what", CASES)
def test_every_entry_has_its_sum(what: str, how: str) -> None:
    assert equal(*CASES[what], how)


@pytest.mark.parametrize(("warp", "hip"), [(64, False), (32, True), (64, True)])
def test_whatever_the_warp(warp: int, hip: bool) -> None:
    assert equal(1100, 24, 300, "power law", SimTarget(warp=warp, hip=hip))


def test_places_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for some 2**31 rows and more."""
    assert not gpu_scatter.is_wide(2**31 - 1024) and gpu_scatter.is_wide(2**31 - 4)
    narrow = workspace_bytes(1500, 24, 300, 4)
    monkeypatch.setattr(gpu_scatter, "is_wide", lambda rows: True)
    assert workspace_bytes(1500, 24, 300, 4) == narrow + 4 * 2 * 1500 + 4 * 300
    seen: list[str] = []

    def look(text: str) -> str:
        seen.append(text)
        return text

    assert equal(1500, 24, 300, "power law", edit=look)
    assert any("typedef int64_t RowIndex;" in text for text in seen)


def test_tiles_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no more tiles than a block adds up; so they are longer where there are more rows."""
    assert [tiles_of(n) for n in (0, 1, 1024, 1025, 2**18, 2**18 + 1, 2**31)] == [0, 1, 1, 2, 256, 129, 256]
    monkeypatch.setattr(gpu_scatter, "MOST_TILES", 2)

    def fewer(text: str) -> str:
        return text.replace("MAX_TILES = 256;", "MAX_TILES = 2;")

    assert tiles_of(4500) == 2
    assert equal(4500, 8, 300, "uniform", edit=fewer)

    def last_first(text: str) -> str:
        return re.sub(r"t \+ k < block_index\(\)", "t + k > block_index()", fewer(text))

    assert not equal(4500, 8, 300, "uniform", edit=last_first), "tiles that change places"


def test_units_follow_rows_and_entries() -> None:
    """A block of 128 threads has 1,024 columns: of one unit, or of as many as are narrower."""
    graph = ops.get("embedding_backward").trace("f16", frozenset({"dy", "ids"}))
    plan = make_plan(graph)
    assert isinstance(plan, ScatterPlan)
    assert work_blocks(plan, 32, 1024, 64) == 2 + 2
    assert work_blocks(plan, 64, 1024, 64) == 4 + 4 + 2
    assert work_blocks(plan, 64, 1025, 64) == 2 * work_blocks(plan, 64, 1024, 64)
    assert work_blocks(plan, 64, 8, 64) == 1 and work_blocks(plan, 0, 8, 129 * 32) == 2
    assert [s.name for s in scatter_steps(plan, 0, 8, 5)] == ["find", "work"]
    assert {s.name for s in scatter_steps(plan, 64, 0, 5)} == {"count_0", "place_0", "find"}
