"""Obligations of the CPU's element-wise kernels: proved as they are, refuted once source, header or plan is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.proving.changed import changed_text, obligations, refuted
from tokitai.backends.cpu import device as cpu
from tokitai.families.elementwise.plan import FlatPlan
from tokitai.ops import registry
from tokitai.proving.prove import plan_of
from tokitai.toolchain.build import Source, build, native_isa
from tokitai.toolchain.compilers import find_compiler

SIZE = "size = min(TILE, shape[1] - begin);"


def written_by_silu(changes: Mapping[str, str], cols: int) -> int:
    """How many elements of a row a kernel writes that is run with these changes to its source."""
    plan = plan_of(registry()["silu"], "f32")
    made = changed_text(plan, changes, {})
    x, y, workspace = np.ones((1, cols), np.float32), np.zeros((1, cols), np.float32), np.zeros(8, np.int64)
    kernel = cpu.load(build(Source(made.text, made.headers, "silu"), find_compiler(), native_isa()))
    kernel([x.ctypes.data, y.ctypes.data], [1, 1, cols, cols, cols], np.zeros(1, np.float32), workspace.ctypes.data, 1)
    return int((y != 0).sum())


@pytest.mark.parametrize("name", ["silu", pytest.param("clip_global_norm", marks=pytest.mark.slow)])
def test_kernels_are_proved(name: str) -> None:
    found = obligations(name)
    assert len(found) > 10 and [o for o in found.values() if o.status != "proved"] == []


def test_a_product_of_sizes_in_32_bits_is_refuted() -> None:
    found = refuted(obligations("silu", {"r * shape[3]": "int32_t(r) * int32_t(shape[3])"}))
    sizes = found["index arithmetic fits its types"]
    assert sizes["rows"] * sizes["out_y_stride"] >= 2**31


def test_a_last_tile_that_is_lost_at_one_number_of_columns_is_refuted() -> None:
    lost = {SIZE: "size = min(TILE, shape[1] - begin) * (shape[1] != (1 << 20) + 1 || begin + TILE <= shape[1]);"}
    sizes = refuted(obligations("silu", lost, max_cols=2**21))["every element of out_y is written"]
    assert sizes["cols"] == 2**20 + 1
    assert written_by_silu({}, sizes["cols"]) == sizes["cols"]
    assert written_by_silu(lost, sizes["cols"]) < sizes["cols"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, set()),
        ({"element_word<1>(place + c": "element_word<1>(place + 1 + c"}, {1}),
        ({"place = r * shape[1] + begin;": "place = r * shape[1];"}, {0, 1}),
        ({"place = r * shape[1] + begin;": "place = r * shape[2] + begin;"}, {0, 1}),
    ],
)
def test_random_words_of_another_element_are_refuted(change: dict[str, str], words: set[int]) -> None:
    found = obligations("dropout", change)
    stated = {w: found[f"out_y is made of word {w} of its own elements"].status for w in (0, 1)}
    assert stated == {w: "refuted" if w in words else "proved" for w in (0, 1)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"const int64_t tiles = first_tile[count];": "const int64_t tiles = first_tile[count] - 1;"}, {"written"}),
        ({"within % across * TILE": "within % across * (TILE - 1)"}, {"written twice", "conflicting"}),
        ({SIZE: "size = min(TILE, shape[1]);"}, {"inside"}),
    ],
)
def test_wrong_tiles_are_refuted(changes: Mapping[str, str], names: set[str]) -> None:
    found = refuted(obligations("silu", changes))
    assert all(any(word in name and "out_y" in name for name in found) for word in names)


@pytest.mark.slow
@pytest.mark.parametrize("short", [4, 8])
def test_a_workspace_that_is_short_is_refuted(monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    """Of one sum, or of the tensors' tiles, where there are 2^14 + 1 columns."""
    asked = FlatPlan.workspace_bytes

    def less(self: FlatPlan, shapes: Any, element: int, threads: int = 1, entries: int = 0) -> int:
        ((_, cols),) = shapes
        return asked(self, shapes, element, threads, entries) - (short if cols == 2**14 + 1 else 0)

    monkeypatch.setattr(FlatPlan, "workspace_bytes", less)
    found = refuted(obligations("clip_global_norm"))
    assert any(sizes["cols"] == 2**14 + 1 for sizes in found.values())
