"""Obligations of the CPU's row-wise kernels: proved as they are, refuted once source, header or plan is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import z3

from tests.proving.changed import changed_text, obligations, refuted
from tokitai.backends.cpu import device as cpu
from tokitai.errors import ProofError
from tokitai.families import emit_cpu, make_plan
from tokitai.families.rowwise.plan import RowPlan
from tokitai.ops import registry
from tokitai.proving.cpu import CpuCalls, whole_text
from tokitai.proving.prove import prove
from tokitai.toolchain.build import Source, build, native_isa
from tokitai.toolchain.compilers import find_compiler


def written_by_embedding(headers: Mapping[str, str], cols: int) -> int:
    """How many elements of a row of ones a kernel writes, which is run with these changes to a header."""
    plan = make_plan(registry()["embedding"].trace("f32", frozenset(), {}))
    made = changed_text(plan, {}, headers)
    tensors = {
        "table": np.ones((1, cols), np.float32), "y": np.zeros((1, cols), np.float32), "other": np.zeros(1, np.int64)
    }  # fmt: skip
    names = [*(t.name for t in plan.graph.inputs), *(o.name for o in plan.graph.outputs)]
    given = [tensors.get(name, tensors["other"]) for name in names]
    sizes = [1, cols, *(cols for a in given if a.ndim == 2)]
    kernel = cpu.load(build(Source(made.text, made.headers, "embedding"), find_compiler(), native_isa()))
    kernel([a.ctypes.data for a in given], sizes, np.zeros(1, np.float32), None, 1)
    return int(tensors["y"].sum())


def test_an_embedding_is_proved() -> None:
    made = prove(registry()["embedding"], "f16")
    assert made.status == "proved" and len(made.obligations) >= 7
    assert any(o.assumes for o in made.obligations)  # the entry that a row chooses is one of the table's


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "layer_norm_backward", "cross_entropy"])
def test_kernels_are_proved(name: str) -> None:
    assert [o for o in prove(registry()[name], "f16").obligations if o.status != "proved"] == []


def test_a_product_of_sizes_in_32_bits_is_refuted() -> None:
    narrow = {"out_y + r * out_y_stride": "out_y + int32_t(r) * int32_t(out_y_stride)"}
    sizes = refuted(obligations("embedding", narrow))["index arithmetic fits its types"]
    assert sizes["rows"] * sizes["out_y_stride"] >= 2**31


def test_a_tail_that_is_lost_at_one_number_of_columns_is_refuted() -> None:
    lost = {"if (c < end) at(c, Part{end - c});": "if (c < end && end != (1 << 20) + 1) at(c, Part{end - c});"}
    found = refuted(obligations("embedding", headers=lost, max_cols=2**21))
    sizes = found["every element of out_y is written"]
    assert sizes["cols"] == 2**20 + 1
    assert written_by_embedding({}, sizes["cols"]) == sizes["cols"]
    assert written_by_embedding(lost, sizes["cols"]) < sizes["cols"]


def test_a_tail_beyond_its_row_is_refuted() -> None:
    wide = {"if (c < end) at(c, Part{end - c});": "if (c < end) at(c, Full{});"}
    found = refuted(obligations("embedding", headers=wide))
    assert {"out_y is accessed inside", "in_table is accessed inside"} <= found.keys()
    assert found["out_y is accessed inside"]["cols"] % 8


@pytest.mark.slow
def test_a_last_partial_block_that_is_lost_is_refuted() -> None:
    """Of a plan with blocks of 32 rows."""
    lost = {"(rows + 31) / 32": "rows / 32"}
    found = refuted(obligations("add_rms_norm_backward", lost))
    assert found["every element of out_dx is written"]["rows"] % 32


def test_blocks_that_overlap_are_refuted() -> None:
    wide = {"min(rows, (block + 1) * 1)": "min(rows, (block + 1) * 1 + 1)"}
    found = refuted(obligations("embedding", wide))
    assert {"no element of out_y is written twice", "out_y has no conflicting accesses"} <= found.keys()


@pytest.mark.slow
def test_a_workspace_one_element_short_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RowPlan.workspace_bytes

    def short(self: RowPlan, shapes: Any, element: int, threads: int = 1, entries: int = 0) -> int:
        ((_, cols),) = shapes
        return asked(self, shapes, element, threads, entries) - (element if cols == 2**20 - 3 else 0)

    monkeypatch.setattr(RowPlan, "workspace_bytes", short)
    found = refuted(obligations("softmax"))
    assert found["the workspace has room for its parts"]["cols"] == 2**20 - 3


def test_numbers_of_the_headers_are_read_there() -> None:
    _, headers = whole_text(emit_cpu(make_plan(registry()["softmax"].trace("f16"))), 16)
    calls = CpuCalls(16, z3.Int("threads"))
    of = {name: value.term for name, value in calls.constants(16, headers).items()}
    assert of == {"Four::count": 64, "LANES": 16, "INTERLEAVE": 4, "JOINED": 16, "BLOCK": 256, "TILE": 16384}
    other = headers.replace("constexpr int INTERLEAVE = 4;", "constexpr int INTERLEAVE = 2;")
    assert other != headers and calls.constants(16, other)["Four::count"].term == 32
    with pytest.raises(ProofError, match="TILE: no definition"):
        calls.constants(16, headers.replace("constexpr int64_t TILE = 16384;", ""))
