"""Every operator's kernels for GPUs on the simulated device: verified, the same bits under other schedules, and refuted
where they are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mutants import Edit

from tests.few import few_variants
from tokitai.backends.sim.target import SimTarget
from tokitai.families import make_plan
from tokitai.families.rowwise.plan import RowPlan
from tokitai.families.rowwise.schedule import SLICE, Schedule, schedule_rows, separable, sliced
from tokitai.lang import Cols, Matrix, Operator, col_sum, columns, operator, outputs, row_max, row_sum, storage
from tokitai.lower.gpu import CHUNK
from tokitai.meaning import bits
from tokitai.ops import get, registry
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.runtime.kernel import is_attention
from tokitai.verification import Verdict, verify
from tokitai.verification.cases import Case, seeded
from tokitai.verification.run import PLAIN, Launch, run_numbers, run_structure
from tokitai.verification.verdict import Variant, variants

FORMATS = ("f16", "bf16", "f32")
HERE = [o for o in registry().values() if not is_attention(o)]  # test_gpu_attention.py
EVERY = [(o, FORMATS[i % 3]) for i, o in enumerate(HERE)]


def names(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), EVERY, ids=names)
def test_every_operator_is_verified(op: Operator, dtype: str) -> None:
    verdict = verify(op, device="sim", dtype=dtype, variant=variants(op)[0])
    assert (verdict.verdict, verdict.failure) == ("verified", None)
    assert {"structure", "seeded"} <= set(verdict.evidence)
    assert all(r.equal and r.outputs == r.oracle for r in verdict.results if r.kind != "derivative")
    numbers, hashed = verdict.kernels
    assert numbers.identities() and hashed.identities()


OTHERS = [(o, v) for o in HERE for v in few_variants(o)[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "variant"), OTHERS, ids=names)
def test_every_variant_is_the_definition_at_one_shape(op: Operator, variant: Variant) -> None:
    ragged = op.trace("f16", variant.present, dict(variant.options)).ragged
    shape = f"{min(3, op.contract.max_rows)}x257" + f"x40x3{ragged}" * bool(ragged)
    verdict = verify(op, device="sim", dtype="f16", variant=variant, case=f"structure/all inputs@{shape}#0")
    assert (verdict.verdict, verdict.failure, verdict.cases) == ("verified", None, 1)


# ------------------------------------------------------------------ schedules decide speed, never a bit
def others(plan: RowPlan, cols: int, width: int, warp: int) -> Iterator[Schedule]:
    """Schedules that nobody would choose for so many columns."""
    usual = schedule_rows(plan, cols, width, warp)
    yield fitting(usual, cols, threads=64, chunks=2, rows=1)
    yield fitting(usual, cols, threads=8, chunks=8, rows=16)
    yield fitting(usual, cols, threads=96, chunks=1, rows=1)
    yield replace(usual, ahead=usual.ahead + 1)
    yield replace(usual, ahead=1 if plan.running else 0)
    yield replace(usual, hoisted=not usual.hoisted)
    yield replace(usual, kept=False, staged=False, full=False, threads=64, chunks=1, rows=1, hoisted=False)
    yield replace(usual, kept=False, staged=False, full=False, threads=32, chunks=2, rows=2, hoisted=False)
    yield replace(usual, per_sm=3)
    yield replace(usual, exact=False, full=False)
    yield replace(usual, width=1)
    yield replace(fitting(usual, cols, threads=64, chunks=2, rows=1), staged=True, ahead=1 if plan.running else 0)
    yield replace(usual, staged=False)
    if separable(plan):
        yield replace(usual, apart=True, staged=False, hoisted=False, ahead=0)
        unkept = replace(usual, kept=False, staged=False, full=False, threads=64, chunks=1, rows=1, hoisted=False)
        yield replace(unkept, apart=True)


def fitting(usual: Schedule, cols: int, threads: int, chunks: int, rows: int) -> Schedule:
    full = cols == threads * chunks * CHUNK
    assert threads * chunks * CHUNK >= cols
    return replace(usual, threads=threads, chunks=chunks, rows=rows, full=full)


COUNT = 15
SHAPES = ((37, 512), (5, 257))


@pytest.mark.slow
@pytest.mark.parametrize("which", range(COUNT))
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm_backward", "softmax"])
def test_bits_do_not_depend_on_the_schedule(name: str, which: int) -> None:
    op = get(name)
    graph = op.trace("f16")
    plan = make_plan(graph)
    seen: set[Schedule] = set()

    def schedule(of: RowPlan, cols: int, width: int, warp: int) -> Schedule:
        every = [s for s in others(of, cols, width, warp) if s != schedule_rows(of, cols, width, warp)]
        chosen = every[which % len(every)]
        seen.add(chosen)
        return chosen

    for shape in SHAPES:
        kernel = GpuKernel(op, graph, plan, False, SimTarget(), schedule=schedule)
        case = seeded(op, graph, "normal", shape, seed=3)
        got = call(kernel, case)
        want = bits.evaluate(graph, case.tensors, shape, case.params)
        for o in graph.outputs:
            assert got[o.name].tobytes() == want[o.name].tobytes(), (o.name, seen)
    assert seen


def call(kernel: GpuKernel, case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """The results of one launch, whatever lies round them."""
    scalars = kernel.scalar_table(*case.shape, case.params)
    return Launch(kernel, case.shape, case.tensors, PLAIN).run(scalars)


@pytest.mark.slow
def test_bits_do_not_depend_on_the_size_of_a_warp() -> None:
    for name in ("layer_norm_backward", "softmax"):
        op = get(name)
        graph = op.trace("bf16")
        kernel = GpuKernel(op, graph, make_plan(graph), False, SimTarget(warp=64))
        for shape in ((37, 257), (3, 1025)):
            result = run_numbers(kernel, seeded(op, graph, "normal", shape, 1), None, 3)
            assert result.equal, result.failure


# ------------------------------------------------------------------ wrong kernels
@operator
def ranged(x: Matrix[storage], w: Cols[storage]) -> Any:
    """A maximum and a sum along rows, a sum down columns, element-wise results: a use of every tree there is."""
    y = x - row_max(x)
    mean = row_sum(y) / columns(x)
    return outputs(y=y * w, mean=mean, total=col_sum(y))


@operator
def summed(x: Matrix[storage]) -> Any:
    """One sum along rows, which threads share: several rows to a block where they are short."""
    return outputs(y=x - row_sum(x))


BARRIER = r"(mine\[k \* WARP \+ warp\] = total\[k\];\s*)barrier\(\);"
WRONG: dict[str, tuple[Operator, Edit]] = {
    "no barrier where warps meet": (summed, Edit(BARRIER, r"\1")),
    "one half of the cells": (ranged, Edit(r"phase \^= 1;", "")),
    "a tail that is not stored": (summed, Edit(r"if \(e < count\) p\[e\] = q\.e\[e\];", ";")),
    "a tail that is not loaded": (summed, Edit(r"FIT == RAGGED && e < count \? p\[e\]", "false ? p[e]")),
    "a tail that counts as padding would": (summed, Edit(r"c < cols \? (v\d+) : NEUTRAL_SUM", r"\1")),
    "lanes beyond the row count": (summed, Edit(r"c0 < cols \? (fold<Add, CHUNK>\(\w+\)) : \w+::neutral\(\)", r"\1")),
    "lanes are swapped": (summed, Edit(r"Op::of\(x, exchange\(x, d\)\)", "Op::of(x, exchange(x, N / 2 / d))")),
    "lanes are swapped within a warp": (
        summed,
        Edit(r"x\[i\] = Op::of\(x\[i\], exchange\(x\[i\], d\)\)", "x[i] = Op::of(x[i], exchange(x[i], L / 2 / d))"),
    ),
    "chunks are swapped": (summed, Edit(r"\(t / GROUP \* CHUNKS \* GROUP \+ t % GROUP\)", "(t * CHUNKS)")),
    "rows that are not there count": (ranged, Edit(r"if \(live\) (acc_\w+\[v)", r"\1")),
    "an element of the next column": (ranged, Edit(r"\+ e, x\[(k \+ )?e\]\);", r"+ e, x[\g<1>0]);")),
    "a block of rows too few": (ranged, Edit(r"over_blocks\(blocks,", "over_blocks(blocks - (blocks > 1),")),
    "slices are not neighbours": (ranged, Edit(r"begin = slice \* run, end = min\(blocks, begin \+ run\)",
                                              "begin = slice, end = min(blocks, slice + run)")),
    "no barrier between slices": (
        ranged, Edit(r"(cells\[thread_index\(\)\] = counter\.result\(NEUTRAL_SUM\);\s*)barrier\(\);", r"\1"),
    ),
    "a sum where a maximum is": (ranged, Edit(r"along_row<Maximum,", "along_row<Add,")),
    "a chunk further": (ranged, Edit(r"\+ v \* STEP", "+ v * CHUNK")),
    "all products of a batch stored as the first, where chains are partitioned": (
        get("matmul"), Edit(r"all_out_y \+ item \*", "all_out_y + 0 *"),
    ),
    "the same row as next": (get("softmax"), Edit(r"min\(r \+ grid_size\(\) \* ROWS, rows - 1\)", "r")),
    "an element behind the registers": (
        get("softmax"), Edit(r"e < CHUNK; (\+\+e\) \{\s*const int c = c0 \+ e;)", r"e <= CHUNK; \1"),
    ),
}  # fmt: skip
LINE = re.compile(r"tokitai verify \w+ --device sim --dtype f16(?: --without \w+)? --case '(structure/[^']*)': (.*)")


def examine(edit: Edit, op: Operator, case: str | None = None, dtype: str = "f16") -> Verdict:
    """Verify kernels from the edited text. The edit must have changed something."""
    verdict = verify(op, device="sim", dtype=dtype, edit=edit, variant=Variant(frozenset()), case=case)
    assert edit.found, f"{edit.pattern!r} is not in the text"
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        Edit(r"missed \|= 1u << v;", ""),
        Edit(r"if \(missed\) ROLLED", "if (false) ROLLED"),
        Edit(r"odd \|= any_nan\(values_y\);", ""),
        Edit(r"2 \* bits\(a\) - 2 <", "2 * bits(a) <"),
    ],
    ids=lambda e: e.pattern,
)
def test_a_quotient_that_is_missed_shows(edit: Edit) -> None:
    """Infinity and NaN are among the hard inputs; zeros are looked at only to save time."""
    verdict = verify(get("silu"), device="sim", dtype="f32", edit=edit, variant=Variant(frozenset()))
    assert edit.found and verdict.verdict == ("verified" if edit.pattern.endswith("2 <") else "refuted")


@pytest.mark.slow
def test_a_result_behind_the_last_one_shows() -> None:
    """Where the last chunk, which is not full, is computed element by element: for a NaN in it."""
    assert examine(Edit(r"\|\| c0 \+ e >= size\) continue;", "|| c0 + e > size) continue;"), get("clip")).failure


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        Edit(r"holds \|= [^;]*;", ""),
        Edit(r"uint32_t\(at - c0\)", "uint32_t(at - c0 - 8)"),
        Edit(r"(_row) \+ at, ", r"\1 + (at ^ 1), "),
        Edit(r"in_logits_row\[at\]", "in_logits_row[at ^ 1]"),
    ],
    ids=lambda e: e.pattern,
)
def test_another_column_than_the_target_shows(edit: Edit) -> None:
    assert examine(edit, get("cross_entropy_backward")).verdict == "refuted"


@pytest.mark.slow
@pytest.mark.parametrize("op", [ranged, summed], ids=names)
def test_the_right_kernel_is_verified(op: Operator) -> None:
    verdict = verify(op, device="sim", dtype="f16")
    assert (verdict.verdict, verdict.failure) == ("verified", None)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_refuted_by_the_structure_run(name: str) -> None:
    """Hashes show it whatever the inputs; the line that is printed shows it again."""
    op, edit = WRONG[name]
    verdict = examine(edit, op)
    assert verdict.verdict == "refuted" and verdict.failure is not None
    line = LINE.fullmatch(verdict.failure)
    assert line is not None, verdict.failure
    again = examine(edit, op, case=line[1])
    assert (again.verdict, again.cases) == ("refuted", 1)
    assert verify(op, device="sim", dtype="f16", case=line[1]).verdict == "verified", "the right one passes there"


# ------------------------------------------------------------------ rows from a table, a slice of each at a time
@pytest.mark.parametrize("warp", [32, 64])
@pytest.mark.parametrize(("name", "dtype"), [("dispatch", "bf16"), ("embedding", "f32")])
def test_slices_of_rows_are_whole_rows(name: str, dtype: str, warp: int) -> None:
    op = get(name)
    graph = op.trace(dtype)
    plan = make_plan(graph)
    assert isinstance(plan, RowPlan) and sliced(plan)
    for shape in ((9, SLICE), (9, SLICE + 1), (7, 3 * SLICE - 8), (1, 2 * SLICE + 17)):
        assert schedule_rows(plan, shape[1], CHUNK, warp).sliced is (shape[1] > SLICE)
        case = seeded(op, graph, "normal", shape, 1)
        indices = {k: v for k, v in case.tensors.items() if v.dtype == np.int64}
        numbers, hashed = (GpuKernel(op, graph, plan, s, SimTarget(warp=warp)) for s in (False, True))
        for result in (
            run_numbers(numbers, case, None, 3),
            run_structure(hashed, shape, indices, case.params, seed=1),
        ):
            assert result.equal, result.failure


def test_only_rows_from_one_table_are_sliced() -> None:
    plans = {o.name: make_plan(o.trace(o.contract.formats[0])) for o in HERE}
    assert {n for n, p in plans.items() if isinstance(p, RowPlan) and sliced(p)} == {"dispatch", "embedding"}
