"""Kernels of grouped products for GPUs, on the simulated device: the same bits and the same expression however they
are laid out and stored; and wrong ones, all of which are refuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from mutants import Edit

from tokitai import ops
from tokitai.backends.hip.target import HipTarget
from tokitai.backends.sim.target import SimTarget
from tokitai.families import make_plan
from tokitai.families.grouped.plan import GroupedPlan
from tokitai.families.matmul import tiling as gpu_product
from tokitai.families.matmul.plan import ProductPlan
from tokitai.families.matmul.tiling import Tiling, fallbacks, offered, product_steps, tiles_of, tiling_of
from tokitai.lang import Groups, Operand, Operator, Outputs, Sizes, grouped_matmul, i64, operator, outputs, storage
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.verification import cases
from tokitai.verification.run import PLAIN, Launch, run_numbers, run_structure
from tokitai.worker import Pool
from tokitai.worker.isolated import isolated_gpu

Choice = Callable[[ProductPlan, Sizes, int, bool], Tiling]
SIDES = {"r": "grouped_linear", "k": "grouped_linear_backward_weight"}
SMALL = {
    "r": (Sizes(150, 37, 12, 4, "r"), Sizes(90, 5, 7, 70, "r"), Sizes(5, 3, 0, 2, "r")),
    "k": (Sizes(37, 9, 70, 5, "k"), Sizes(9, 5, 40, 40, "k"), Sizes(3, 4, 0, 2, "k")),
}
LONG = {"r": Sizes(5, 1, 8200, 2, "r"), "k": Sizes(1, 2, 13000, 2, "k")}


def kernels(
    op: Operator, accumulator: str = "f32", tiling: Choice = tiling_of, edit: Edit | None = None, matrix: bool = False,
    dtype: str = "f16",
) -> tuple[GpuKernel, GpuKernel]:  # fmt: skip
    """The kernel over numbers and the one over hashes."""
    graph = op.trace(dtype, options=dict(accumulator=accumulator) if op.options else {})
    numbers, hashed = (
        GpuKernel(op, graph, make_plan(graph), s, SimTarget(matrix_units=matrix), edit, tiling) for s in (False, True)
    )
    return numbers, hashed


def wrong(kernel: GpuKernel, size: Sizes, seed: int = 2) -> str | None:
    """What a run over numbers, or over hashes, shows: with chains partitioned among one block, two, seven."""
    op, graph = kernel.operator, kernel.graph
    if kernel.structure:
        offsets = {t.name: cases.draw(op, t, "normal", size, seed) for t in graph.inputs if t == graph.offsets}
        return run_structure(kernel, size, offsets, {}, seed).failure
    return run_numbers(kernel, cases.seeded(op, graph, "normal", size, seed), None, 2).failure


# ------------------------------------------------------------------ tilings decide speed, never a bit
@pytest.mark.slow
@pytest.mark.parametrize(("side", "accumulator", "matrix"), [("r", "f32", False), ("k", "f64", True)])
def test_bits_do_not_depend_on_the_tiling(side: str, accumulator: str, matrix: bool) -> None:
    op = ops.get(SIDES[side])
    plan = make_plan(op.trace("f16", options=dict(accumulator=accumulator)))
    assert isinstance(plan, GroupedPlan)
    for which in range(len(list(offered(plan, 8, matrix)))):
        chosen: Choice = lambda p, s, width, units, i=which: list(offered(p, width, units))[i]  # type: ignore[misc]  # noqa: E731
        for kernel in kernels(op, accumulator, chosen, matrix=matrix):
            assert [wrong(kernel, s) for s in SMALL[side]] == [None] * 3, which


def test_a_tile_that_ends_early_leaves_whole_warps_idle() -> None:
    """Of the largest tile two warps are below each other: groups of 1, 64, 65 and 127 rows take one or both."""
    largest: Choice = lambda p, s, width, units: next(offered(p, width, units))  # noqa: E731
    for kernel in kernels(ops.get("grouped_linear"), tiling=largest)[:1]:
        case = cases.seeded(kernel.operator, kernel.graph, "normal", Sizes(257, 3, 5, 4, "r"), 1)
        case.tensors["offsets"][...] = [0, 1, 65, 130, 257]  # type: ignore[index]
        assert run_numbers(kernel, case, None, 3).failure is None


@pytest.mark.slow
def test_what_is_tried_where_registers_do_not_do_has_the_same_bits() -> None:
    for side, name in SIDES.items():
        plan = make_plan(ops.get(name).trace("f16"))
        assert isinstance(plan, GroupedPlan)
        tried = list(fallbacks(plan, next(offered(plan, 8))))[:4]
        assert {(t.tall, t.wide, t.depth) for t in tried} == {(16, 8, 16), (16, 8, 8), (8, 16, 8)}
        for t in tried[1:3]:
            chosen: Choice = lambda p, s, width, units, t=t: replace(t, width=width)  # type: ignore[misc]  # noqa: E731
            kernel, _ = kernels(ops.get(name), tiling=chosen)
            assert wrong(kernel, SMALL[side][0]) is None


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_bits_do_not_depend_on_who_adds_up_chains(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of one chain, two and more; in one block or in several; blocks that take several tiles."""
    for kernel in kernels(ops.get(SIDES[side])):
        assert wrong(kernel, LONG[side]) is None
    monkeypatch.setattr(gpu_product, "ROOMS", 3)
    for kernel in kernels(ops.get(SIDES[side])):
        assert wrong(kernel, LONG[side]) is None


def test_launches_do_not_know_how_long_groups_are() -> None:
    """There are blocks for all tiles that groups can have; with one chain along k each has one, else all are many."""
    plan = make_plan(ops.grouped_linear.trace("f16"))
    assert isinstance(plan, GroupedPlan)
    rng = np.random.default_rng(1)
    for rows, groups in ((1, 1), (7, 3), (300, 200), (1000, 3), (5000, 64), (2, 64), (0, 4)):
        size = Sizes(rows, 300, 500, groups, "r")
        tiling = tiling_of(plan, size, 8)
        (step,) = product_steps(tiling, size)
        assert tiling.once and step.grid == tiles_of(tiling, size) and not step.in_turn
        across = -(-size[1] // tiling.cols)
        spread = [np.full(rows, 0), np.arange(rows) % groups, rng.integers(0, groups, rows)]
        took = [int((-(-np.bincount(s, minlength=groups) // tiling.rows)).sum()) for s in spread]
        few = min(rows, groups)
        worst = few + (rows - few) // tiling.rows  # one row in each group, all others in one
        assert max(took) <= worst == step.grid // across
    long = Sizes(4096, 4096, 8192, 64, "r")
    assert not tiling_of(plan, long, 8).once
    assert product_steps(tiling_of(plan, long, 8), long)[0].grid == gpu_product.ROOMS


# ------------------------------------------------------------------ how operands are stored
@operator
def rows_stored_in_columns(x: Operand[storage], w: Operand[storage], ends: Groups[i64]) -> Outputs:
    """Rows are neighbours in memory: a group may begin at any element."""
    return outputs(y=grouped_matmul(x, w, ends, "TN"))


@operator
def inner_sides_stored_in_rows(x: Operand[storage], y: Operand[storage], ends: Groups[i64]) -> Outputs:
    """The same of what is summed over, in both operands."""
    return outputs(z=grouped_matmul(x, y, ends, "NT", share="inner"))


@pytest.mark.parametrize(("op", "side"), [(rows_stored_in_columns, "r"), (inner_sides_stored_in_rows, "k")])
def test_groups_that_begin_anywhere_are_read_by_elements(op: Operator, side: str) -> None:
    for kernel in kernels(op):
        assert wrong(kernel, SMALL[side][0]) is None
        assert {t.width for t in kernel.settled} == {1}
    aligned, _ = kernels(ops.get(SIDES[side]))
    case = cases.seeded(aligned.operator, aligned.graph, "normal", Sizes(40, 16, 24, 3, side), 1)
    Launch(aligned, case.shape, case.tensors, PLAIN).run(aligned.scalar_table(*case.shape, {}))
    assert {t.width for t in aligned.settled} == {8}


# ------------------------------------------------------------------ targets
@pytest.mark.slow
@pytest.mark.parametrize("warp", [32, 64])
def test_the_hip_text_has_the_same_bits(warp: int) -> None:
    target = HipTarget({32: "gfx1101", 64: "gfx942"}[warp], True, inspect=False)
    for side, name in SIDES.items():
        graph = ops.get(name).trace("f16")
        for structure in (False, True):
            kernel = GpuKernel(ops.get(name), graph, make_plan(graph), structure, target)
            assert wrong(kernel, SMALL[side][1]) is None


@pytest.mark.slow
def test_in_a_worker_process() -> None:
    op = ops.get("grouped_linear_swiglu")
    with Pool(1, deadline=60) as pool:
        for structure in (False, True):
            kernel = isolated_gpu(op, op.trace("f16"), "sim", structure, None, pool)
            assert wrong(kernel, Sizes(25, 9, 12, 3, "r")) is None and kernel.identities()


# ------------------------------------------------------------------ wrong kernels
TILES = r"ceil_div\(offsets\[g \+ 1\] - offsets\[g\], ROWS\)"
SLIPS: dict[str, tuple[str, Edit]] = {
    "a group begins where all do": ("rk", Edit(r"begin = offsets\[group\]", "begin = offsets[0]")),
    "a group ends one place early": ("rk", Edit(r"(offsets\[group \+ 1\] - begin)", r"\1 - (\1 > 1)")),
    "tiles are rounded down": ("r", Edit(TILES, "(offsets[g + 1] - offsets[g]) / ROWS")),
    "columns do not count": ("r", Edit(r", ROWS\) \* each", ", ROWS)")),
    "groups that were passed do not count": ("r", Edit(r"      at -= all;", "")),
    "only as many groups as lanes": ("r", Edit(r"first < groups; first", "first < 1; first")),
    "a unit is that of the first group": ("r", Edit(r"at - over_warp\(passed \? own : 0\)", "at")),
    "rows of results are those of the group": ("r", Edit(r"r = group\.begin \+ row;", "r = row;")),
    "rows of an operand are those of the group": ("r", Edit(r"in_x \+ group\.begin \* in_x_stride", "in_x")),
    "the weights are those of the first group": ("r", Edit(r" \+ group\.index \* in_weight_batch", "")),
    "a warp with one row is idle": ("r", Edit(r"DOWN \* THREAD_M >= left\.lines", "DOWN * THREAD_M + 1 >= left.lines")),
    "the left operand begins at the first place": ("k", Edit(r"in_dy \+ group\.begin \* in_dy_stride", "in_dy")),
    "the right operand begins at the first place": ("k", Edit(r"in_x \+ group\.begin \* in_x_stride", "in_x")),
    "the result is that of the first group": ("k", Edit(r" \+ group\.index \* out_dweight_batch", "")),
    "an empty group is passed over": ("k", Edit(r"if \(unit\.slice >= mine\.slices\)", "if (!group.count)")),
    "sums have as many parts as the longest": (
        "k", Edit(r"over_slices\(Work\(.*?\)\.slices,", "over_slices(work.slices,"),
    ),
    "parts are those of the first group": ("k", Edit(r"index\(unit\.slice, n, unit\.item", "index(unit.slice, n, 0")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_a_wrong_kernel_is_refuted(slip: str) -> None:
    sides, edit = SLIPS[slip]
    for side in sides:
        _, kernel = kernels(ops.get(SIDES[side]), edit=edit)
        found = any(wrong(kernel, size) for size in (*SMALL[side], LONG[side]))
        assert edit.found, f"{edit.pattern!r} is not in the text"
        assert found, side


@pytest.mark.slow
def test_the_right_kernel_survives() -> None:
    for side, name in SIDES.items():
        assert [wrong(k, SMALL[side][0]) for k in kernels(ops.get(name))] == [None, None]
