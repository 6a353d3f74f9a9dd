"""Obligations of element-wise kernels of GPUs: proved as they are, refuted once source, header or plan is wrong."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import z3

from tests.proving.changed import changed, refuted
from tokitai.backends.sim import device as sim
from tokitai.emit.cpp import KernelText
from tokitai.errors import KernelFaultError, ProofError
from tokitai.families.elementwise import schedule as flat
from tokitai.families.elementwise.gpu_kernels import emit_flat
from tokitai.ops import registry
from tokitai.proving import gpu_kernel
from tokitai.proving.gpu_flat import flat_cases
from tokitai.proving.gpu_kernel import worst
from tokitai.proving.obligation import Obligation
from tokitai.proving.prove import plan_of, prove
from tokitai.toolchain.build import Source
from tokitai.toolchain.compilers import find_compiler

SIZE = "const int size = int(min<int64_t>(TILE, entry[1] - begin)"
STORE = "store_chunk<WIDTH, RAGGED>(out_y + c0, new_y, size - c0);"
TARGETS = ((32, "cuda"), (32, "hip"), (64, "hip"))  # lanes of a warp
WRITTEN, TWICE = "every element of out_y is written", "no element of out_y is written twice"
ALIGNED = "accesses of several elements are aligned"
INSIDE, FITS = "out_y is accessed inside", "index arithmetic fits its types"


def source(name: str, changes: Mapping[str, str], headers: Mapping[str, str] = {}) -> KernelText:
    plan: Any = plan_of(registry()[name], "f16")
    return changed(emit_flat(plan, 8, flat.schedule_flat(plan)), changes, headers)


def obligations(
    name: str, changes: Mapping[str, str] = {}, headers: Mapping[str, str] = {}, rows: str = "one row"
) -> dict[str, Obligation]:
    """All obligations by name, of a kernel in f16 whose source and headers are changed, for so many rows."""
    operator = registry()[name]
    cases = flat_cases(operator, plan_of(operator, "f16"), 32, "cuda", 20.0, source(name, changes, headers))
    return {o.name.removeprefix(": "): o for o in worst("", (c for c in cases if c.name.startswith(rows)))}


def written_by_silu(changes: Mapping[str, str], cols: int, blocks: int) -> int:
    """How many elements of a row of ones a kernel writes that is run with these changes to its source."""
    made = source("silu", changes)
    x, y = np.ones(cols, np.float16), np.zeros(cols, np.float16)
    loaded = sim.load(sim.build_sim(Source(made.text, made.headers, "silu"), find_compiler()))
    entry = [1, cols, 0, 0, 0, cols, cols, x.ctypes.data, y.ctypes.data]
    call = struct.pack("<5q4q9qqf4xq", 1, blocks, 0, 1, 1, 0, 0, 0, 0, *entry, 0, 0.0, 0)
    loaded.launch("work", blocks, 128, call)
    return int((y != 0).sum())


@pytest.mark.parametrize("rows", ["one row", "several rows"])
def test_kernels_are_proved(rows: str) -> None:
    found = obligations("silu", rows=rows)
    assert len(found) >= 7 and [o for o in found.values() if o.status != "proved"] == []


@pytest.mark.slow
def test_elements_behind_totals_of_the_same_launch_are_proved() -> None:
    found = prove(registry()["adamw"], "f16", "cuda")
    assert found.status == "proved" and len(found.obligations) > 20


def test_a_source_is_walked_once_for_targets_that_compile_it_alike() -> None:
    plan, operator = plan_of(registry()["silu"], "f16"), registry()["silu"]
    keys = [[c.key for c in flat_cases(operator, plan, warp, target, 20.0)] for warp, target in TARGETS]
    assert keys[0] == keys[1] != keys[2]


def test_a_case_of_no_size_is_no_proof() -> None:
    operator = registry()["silu"]
    kernel = next(flat_cases(operator, plan_of(operator, "f16"), 32, "cuda", 20.0)).walked()
    kernel.walk.knows.append(z3.Int("cols") < 1)
    with pytest.raises(ProofError, match="no sizes and launches are as the case says"):
        list(kernel.obligations(""))


@pytest.mark.parametrize(
    ("changes", "headers", "names"),
    [
        ({STORE: STORE.replace("out_y + c0", "out_y + c0 + 1")}, {}, {INSIDE, WRITTEN}),
        ({}, {"if (e < count) p[e] = q.e[e];": "if (e <= count) p[e] = q.e[e];"}, {INSIDE}),
        pytest.param({}, {"if (e < count) p[e] = q.e[e];": "p[e] = q.e[e];"}, {INSIDE}, marks=pytest.mark.slow),
        ({"(within - r * across_row) * TILE": "(within - r * across_row) * (TILE - 8)"}, {}, {TWICE}),
    ],
)
def test_wrong_indices_are_refuted(changes: dict[str, str], headers: dict[str, str], names: set[str]) -> None:
    assert names <= refuted(obligations("silu", changes, headers)).keys()


def test_a_product_of_sizes_in_32_bits_is_refuted() -> None:
    narrow = {"r * entry[6]": "int32_t(r) * int32_t(entry[6])"}
    found = obligations("silu", narrow, rows="several rows")
    sizes = refuted(found)[FITS]
    assert sizes["rows"] * sizes["out_y_stride"] >= 2**31


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("missed |= 1u << v;", "missed |= 1u << (v & 1);", {WRITTEN, TWICE}),
        ("if (!(missed >> v & 1) || c0", "if (c0", {TWICE}),
        ("if (missed) ROLLED", "if (missed & 1) ROLLED", {WRITTEN}),
        ("i < CHUNKS * CHUNK", "i < CHUNKS * CHUNK - 1", {WRITTEN}),
    ],
)
def test_just_the_chunks_that_are_left_out_are_computed_once_more(old: str, new: str, names: set[str]) -> None:
    assert names <= refuted(obligations("silu", {old: new})).keys()


def test_a_store_that_is_not_aligned_is_refuted_and_fails_on_the_simulated_device() -> None:
    shifted = {STORE: STORE.replace("out_y + c0", "out_y + c0 + 1")}
    cols = refuted(obligations("silu", shifted))[ALIGNED]["cols"]
    assert cols >= 8  # of which the first 8 are one access, here of one tile
    with pytest.raises(KernelFaultError, match="accesses 16 bytes at an address that is no multiple of 16"):
        written_by_silu(shifted, min(cols, flat.TILE), 1)


def test_a_last_tile_that_is_short_at_one_number_of_columns_is_refuted_and_fails_on_the_simulated_device() -> None:
    short = {SIZE: SIZE + " - (entry[1] == (1 << 20) + 1)"}
    sizes = refuted(obligations("silu", short))[WRITTEN]
    assert sizes["cols"] == 2**20 + 1
    blocks = flat.tiles_of(1, sizes["cols"])
    assert written_by_silu({}, sizes["cols"], blocks) == sizes["cols"]
    assert written_by_silu(short, sizes["cols"], blocks) < sizes["cols"]


def test_a_launch_of_other_blocks_than_the_kernel_has_tiles_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2^14 + 1 columns, of which the plan forgets the last tile."""
    asked = flat.tiles_of
    monkeypatch.setattr(flat, "tiles_of", lambda rows, cols: asked(rows, cols) - (cols == 2**14 + 1))
    monkeypatch.setattr(gpu_kernel, "_known", {})
    found = refuted(obligations("silu"))
    assert found["a launch has just these blocks"]["cols"] == 2**14 + 1
