"""Obligations of the CPU's scatter kernels: proved as they are, refuted once source, header or plan is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.proving.changed import changed_text, obligations, refuted
from tokitai.backends.cpu import device as cpu
from tokitai.families.scatter import plan as scatter
from tokitai.ops import registry
from tokitai.proving.prove import plan_of
from tokitai.toolchain.build import Source, build, native_isa
from tokitai.toolchain.compilers import find_compiler

INSIDE, WRITTEN, TWICE = "sums is accessed inside", "every element of out_dx is written", "written twice"
SHORT, LONG = "if (end - begin > CHAIN) continue;", "starts[entry + 1] - start > CHAIN ?"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedding_backward", "dispatch_backward"])
def test_kernels_are_proved(name: str) -> None:
    found = obligations(name)
    assert len(found) >= 14 and [o for o in found.values() if o.status != "proved"] == []
    assert any(o.assumes for o in found.values())  # the entries that rows choose are in range


@pytest.mark.parametrize(
    ("name", "changes", "headers"),
    [
        (WRITTEN, {SHORT: SHORT.replace(">", ">=")}, {}),
        (f"no element of out_dx is {TWICE}", {}, {LONG: LONG.replace("> CHAIN", ">= CHAIN")}),
        ("sums has no conflicting accesses", {"sums + slot * cols": "sums + slot / 2 * cols"}, {}),
        (INSIDE, {}, {"return 2 * (start / CHAIN + block) + (": "return 2 * (start / CHAIN + block) + 2 + ("}),
        ("order is accessed inside", {"slot < 2 * windows_of(rows)": "slot < 2 * windows_of(rows) + 1"}, {}),
        ("order is accessed inside", {}, {"begin + CHAIN < stop ? begin + CHAIN : stop": "begin + CHAIN"}),
        ("acc is accessed inside", {"min(cols, c0 + 512)": "cols"}, {}),
        ("index arithmetic fits its types", {"sums + slot * cols": "sums + int32_t(slot) * int32_t(cols)"}, {}),
    ],
)
def test_wrong_segments_are_refuted(name: str, changes: dict[str, str], headers: dict[str, str]) -> None:
    assert name in refuted(obligations("dispatch_backward", changes, headers, only=[name]))


def test_a_workspace_without_a_last_partial_window_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "windows", lambda rows: rows // 32)
    assert refuted(obligations("dispatch_backward", only=[INSIDE]))[INSIDE]["rows"] % 32


def test_an_entry_that_is_not_written_is_missing_in_a_run() -> None:
    """The kernel that is refuted for segments of 32 rows leaves out an entry that so many rows choose."""
    plan = plan_of(registry()["dispatch_backward"], "f32")
    made = changed_text(plan, {SHORT: SHORT.replace(">", ">=")}, {})
    kernel = cpu.load(build(Source(made.text, made.headers, "dispatch_backward"), find_compiler(), native_isa()))
    rows, cols = 32, 8
    tensors: list[np.ndarray[Any, Any]] = [
        np.ones((rows, cols), np.float32),
        np.zeros(rows, np.int64),
        np.ones(rows, np.float32),
    ]
    out, workspace = np.zeros((1, cols), np.float32), np.zeros(1 << 12, np.int64)
    kernel([a.ctypes.data for a in (*tensors, out)], [rows, cols, cols, cols, 1], np.zeros(1, np.float32),
           workspace.ctypes.data, 1)  # fmt: skip
    assert not out.any()
