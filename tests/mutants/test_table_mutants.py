"""Slips in how rows are brought to the entries of a table, on the CPU and on the simulated device: all are refuted."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tokitai import ops
from tokitai.backends.sim.target import SimTarget
from tokitai.families import make_plan
from tokitai.families.scatter.schedule import passes_of
from tokitai.meaning import bits
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.verification import cases, verify
from tokitai.verification.verdict import variants

PLACE = r"for \(int64_t r = 0; r < rows; \+\+r\) (order\[starts\[entry_of\(r\) \+ 1\]\+\+\] = r;)"
CPU = {
    "equal ids change places": (PLACE, r"for (int64_t r = rows - 1; r >= 0; --r) \1"),
    "chains of 64": (r"CHAIN = 32", "CHAIN = 64"),
    "the last block of a long segment is left out": (
        r"blocks = windows_of\(starts\[entry \+ 1\] - start\)", "blocks = (starts[entry + 1] - start) / CHAIN",
    ),
    "two blocks of a window share a place": (r" \+ \(block == 0 && start % CHAIN != 0\)", ""),
    "an entry that nobody chose keeps what was there": (
        r"finish\(entry, c0, c1, \[&\]\(int64_t, auto\)[^;]*;[^;]*;", ";",
    ),
    "a chain starts from what was there": (
        r"add\(splat\(NEUTRAL_SUM\), (\w+)\)", r"add(load(acc + c - c0, lanes), \1)",
    ),
    "segments of 32 are long": (r"end - begin > CHAIN", "end - begin >= CHAIN"),
    "the last entry is left out": (r"entry < entries;", "entry < entries - 1;"),
}  # fmt: skip
GPU = {
    "equal digits change places": (
        r"ones_in\(same & \(\(uint64_t\(1\) << lane\) - 1\)\)", "ones_in(same >> lane >> 1)",
    ),
    "a window leaves its last segment out": (r"end = stop - start > CHAIN \? start : stop;", "end = start;"),
    "an entry that nobody chose keeps what was there": (r"start\[k\] == start\[k \+ 1\]", "start[k] > start[k + 1]"),
    "every row is the last of its entry": (r"last\[k\] = place == end - 1 \|\|", "last[k] = true ||"),
    "the second digit is not sorted": (r"key >> \(8 \* pass\)", "key"),
    "the tree takes a block twice": (r"slot_of\(start, block\)", "slot_of(start, block / 2 * 2)"),
    "the old gradient is not added": (
        r"const S (v\d+) = add\((v\d+), (v\d+)\);\n( *)values_dtable", r"const S \1 = \3;\n\4values_dtable",
    ),
}  # fmt: skip


def edited(pattern: str, replacement: str) -> tuple[Callable[[str], str], list[int]]:
    """An edit, and how often it found its pattern."""
    found = [0]

    def edit(text: str) -> str:
        text, count = re.subn(pattern, replacement, text)
        found[0] += count
        return text

    return edit, found


@pytest.mark.slow
@pytest.mark.parametrize(("device", "what"), [*(("cpu", w) for w in CPU), *(("sim", w) for w in GPU)])
def test_a_slip_is_refuted(device: str, what: str) -> None:
    edit, found = edited(*(CPU if device == "cpu" else GPU)[what])
    op = ops.get("embedding_backward")
    verdict = verify(op, device=device, dtype="f16", edit=edit, variant=variants(op)[0])
    assert found[0], "the text has nothing like it"
    assert verdict.verdict == "refuted", verdict.failure


@pytest.mark.slow
def test_the_sort_takes_as_many_passes_as_entries_have_digits() -> None:
    """Three of them, beyond 2**16 entries."""
    assert [passes_of(n) for n in (0, 1, 256, 257, 65536, 65537, 2**24, 2**31)] == [1, 1, 1, 2, 2, 3, 3, 4]
    op, entries, rows = ops.get("embedding_backward"), 70_000, 80
    graph = op.trace("f32", ())
    ids = np.random.default_rng(0).integers(0, entries, rows)
    ids[::2] = 65_600
    tensors = dict(dy=np.random.default_rng(1).standard_normal((rows, 1)).astype(np.float32), ids=ids)
    params = {**cases.defaults(op), "entries": entries}
    want = bits.evaluate(graph, tensors, (rows, 1), params)["dtable"]
    kernel = GpuKernel(op, graph, make_plan(graph), False, SimTarget())
    got = np.full((entries, 1), np.nan, np.float32)
    kernel.launch(tensors, dict(dtable=got), (rows, 1), kernel.scalar_table(rows, 1, params), 0)
    assert got.tobytes() == want.tobytes()
