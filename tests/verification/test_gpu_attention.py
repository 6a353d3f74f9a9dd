"""Kernels of attention for GPUs, on the simulated device: the same bits and the same expression however they are laid
out; and wrong ones, all of which are refuted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from mutants import Edit

from tokitai import ops
from tokitai.backends.hip.target import HipTarget
from tokitai.backends.sim.target import SimTarget
from tokitai.errors import TargetMissingError
from tokitai.families import make_plan
from tokitai.families.attention import step_tiling
from tokitai.families.attention import tiling as gpu_attention
from tokitai.families.attention.plan import AttentionPlan
from tokitai.families.attention.tiling import attention_steps, fallbacks, handed_on, tiling_of, workspace_bytes
from tokitai.families.matmul import tiling as product_tiling
from tokitai.families.matmul.plan import ProductPlan
from tokitai.formats import format_of
from tokitai.lang import Operand, Outputs, Sizes, matmul, operator, outputs, storage, weighted_sum
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.verification import cases, run
from tokitai.verification.run import run_numbers, run_structure

# Tiles of 32 queries and steps of 64 keys, whole and not; batches; nothing along each side.
SMALL = (Sizes(35, 70, 9), Sizes(3, 5, 7, 2), Sizes(3, 0, 5), Sizes(0, 3, 5))


@pytest.fixture(autouse=True)
def few_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads forward and backward, aligned and not: `verify` takes more."""
    monkeypatch.setattr(run, "layouts", lambda *_: (run.PLAIN, run.Layout("odd", 2, offset=1, gap=3)))


def kernel(
    name: str, dtype: str, structure: bool, limit: bool = True, edit: Edit | None = None, arch: str | None = None
) -> GpuKernel:  # fmt: skip
    op = ops.get(name)
    graph = op.trace(dtype, ["limit"] if limit else [])
    if arch is not None:
        target = HipTarget(arch, True, inspect=False)
        return GpuKernel(op, graph, make_plan(graph), structure, target, edit)
    return GpuKernel(op, graph, make_plan(graph), structure, SimTarget(), edit)


def wrong(k: GpuKernel, size: Sizes) -> str | None:
    """What a run over numbers, or over hashes, shows."""
    graph = k.graph
    if not k.structure:
        return run_numbers(k, cases.seeded(k.operator, graph, "normal", size, 2), None, 2).failure
    integers = {
        t.name: cases.draw(k.operator, t, "normal", size, 5)
        for t in graph.inputs
        if not format_of(str(t.format)).is_float
    }
    params = cases.drawn_scalars(k.operator, graph, size)
    return run_structure(k, size, integers, params, seed=5).failure


@pytest.mark.parametrize(
    ("name", "dtype", "structure", "limit"),
    [
        ("attention", "f16", True, True), ("attention", "f32", False, False),
        ("attention_backward", "bf16", False, True), ("attention_backward", "f16", True, False),
    ],
)  # fmt: skip
def test_attention_is_the_definition(name: str, dtype: str, structure: bool, limit: bool) -> None:
    made = kernel(name, dtype, structure, limit)
    for size in SMALL:
        assert wrong(made, size) is None, size
    assert len(made.programs) == 1


def test_larger_tiles_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_attention, "ENOUGH", 1)
    made = kernel("attention_backward", "f16", True)
    assert wrong(made, SMALL[0]) is None
    assert {t.rows for t in made.programs} == {64}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_long_sums_and_blocks_that_take_tiles_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of 4096 along keys, queries and the K dimension, whose sums wait; in one room for several tiles."""
    monkeypatch.setattr(gpu_attention, "ROOMS", 1)
    monkeypatch.setattr(run, "layouts", lambda *_: (run.PLAIN,))
    for name, size in (
        ("attention_backward", Sizes(33, 4099, 1)), ("attention_backward", Sizes(4101, 3, 1)),
        ("attention", Sizes(2, 3, 4097)),
    ):  # fmt: skip
        assert wrong(kernel(name, "f16", True, limit=False), size) is None, size


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "structure"), [("gfx942", True), ("gfx1101", False)])
def test_the_hip_text_has_the_same_bits(arch: str, structure: bool) -> None:
    """Warps of 64 and of 32 lanes."""
    assert wrong(kernel("attention", "bf16", structure, arch=arch), SMALL[0]) is None


def plan_of(name: str) -> AttentionPlan:
    plan = make_plan(ops.get(name).trace("f16"))
    assert isinstance(plan, AttentionPlan)
    return plan


def test_memory_grows_with_rows_alone() -> None:
    for name, values in (("attention", 0), ("attention_backward", 1)):
        plan = plan_of(name)
        assert len(handed_on(plan)) == values
        for size in (Sizes(4096, 4096, 64, 96), Sizes(2048, 1024, 128, 8)):
            assert workspace_bytes(plan, tiling_of(plan, size, 8), size, False) == 4 * values * size.batch * size[0]
        long = Sizes(16384, 16384, 64, 96)
        assert workspace_bytes(plan, tiling_of(plan, long, 8), long, False) < 2**28


def test_few_queries_take_smaller_tiles_and_long_heads_two_pieces() -> None:
    forward, backward = plan_of("attention"), plan_of("attention_backward")
    for plan, size, rows, pieces in (
        (forward, Sizes(1024, 1024, 64, 96), 64, 1), (forward, Sizes(128, 128, 64, 12), 32, 1),
        (forward, Sizes(1024, 1024, 128, 96), 64, 2), (backward, Sizes(1024, 1024, 128, 96), 64, 1),
    ):  # fmt: skip
        tiling = tiling_of(plan, size, 8)
        assert (tiling.rows, tiling.pieces) == (rows, pieces)
        tried = fallbacks(tiling)
        assert next(tried) == tiling and all(t.pieces == 1 for t in tried)
    steps = attention_steps(backward, tiling_of(backward, Sizes(1024, 2048, 64, 96), 8), Sizes(1024, 2048, 64, 96))
    assert [(s.name, s.grid) for s in steps] == [("work", 1536), ("over_queries", 3072)]


@pytest.mark.parametrize("width", [1, 8])
def test_what_is_tried_where_registers_lack_reads_no_wider(width: int) -> None:
    """An operand that is read element by element lies at any address."""
    by_steps = [
        make_plan(ops.get(name).trace("bf16", None, {"accumulator": "fused16"}))
        for name in ("attention", "attention_backward")
    ]
    tilings = [(step_tiling, step_tiling.tiling_of(p, Sizes(4096, 4096, d, 16), width, atom=True))
               for p in by_steps if isinstance(p, AttentionPlan) for d in (64, 80, 128, 256)]  # fmt: skip
    tilings += [(step_tiling, replace(t, warpgroups=True)) for _, t in tilings if t.whole]
    tilings += [(gpu_attention, tiling_of(plan_of("attention"), Sizes(4096, 4096, d, 16), width)) for d in (64, 128)]
    for module, tiling in tilings:
        assert {t.width for t in module.fallbacks(tiling)} == {width}, tiling
    some = make_plan(ops.get("matmul").trace("bf16", None))
    assert isinstance(some, ProductPlan)
    for n in (64, 1000, 8192):
        chosen = product_tiling.tiling_of(some, Sizes(n, n, n), width)
        assert {t.width for t in product_tiling.fallbacks(some, chosen)} == {width}, chosen


@operator
def two_sums(q: Operand[storage], k: Operand[storage], v: Operand[storage], w: Operand[storage]) -> Outputs:
    """A result made of two weighted sums."""
    scores = matmul(q, k, "NT")
    return outputs(y=weighted_sum(scores, v, None) + weighted_sum(scores, w, None))


def test_results_of_several_sums_are_refused() -> None:
    for target in ("sim", "cuda", "hip"):
        says = f"^two_sums: y is made of 2 weighted sums; accepted by {target}: one"
        with pytest.raises(TargetMissingError, match=says):
            gpu_plan(two_sums.trace("f16"), target)


# ------------------------------------------------------------------ wrong kernels
SOME, FEW, LONG, DEEP = SMALL[0], Sizes(35, 3, 9), Sizes(2, 4099, 1), Sizes(5, 6, 70)


@dataclass(frozen=True)
class Slip:
    """An edit of the text, and the size at which a structure run shows it."""

    pattern: str
    by: str
    size: Sizes = SOME
    name: str = "attention"
    limit: bool = True


SLIPS = {
    "weights behind the last key count": Slip(
        r"column < count \? x\[i \+ e\]\[j\] : weight_padding\(\)", "x[i + e][j]", limit=False
    ),
    "a sum takes what is not there": Slip(
        r"(g \* QUAD \+ e\) < count) \? (x\[i\]\[[^]]*\]) : NEUTRAL_SUM", r"\1 ? \2 : \2"
    ),
    "a maximum takes what is not there": Slip(r"if \(column_here\(j\) < count\)", "if (true)"),
    "no barrier before weights are read": Slip(r"(right\.put\(k_tiles\);\s*)barrier\(\);", r"\1"),
    "no barrier between K-tiles": Slip(r"(right\.put\(k_tiles \+ \(half \^ 1\) \* HALF\);\s*)barrier\(\);", r"\1"),
    "keys that are not seen are met": Slip(r"if \(SOME && !attended\(i, line\)\) continue;", ""),
    "all queries see what one sees": Slip(r"low = min\(low, ", "low = max(low, ", FEW),
    "weights of other rows": Slip(r" \^ weight_swizzle\(line\)", ""),
    "sums of rows change places": Slip(r"if \(lane_here\(\) == i\)", "if (lane_here() == (i ^ 1))"),
    "what is not seen is left out of sums": Slip(r"(\bfill\(value_v\d+), (v\d+)\)", r"\1, NEUTRAL_SUM)"),
    "a query that sees nothing": Slip(r"\? k_tiles\[e\] : empty_sum\(\)", "? k_tiles[e] : k_tiles[e]", SMALL[2]),
    "no barrier behind results": Slip(r"(store1\(out \+ [^;]*;\s*\}\s*)barrier\(\);", r"\1", DEEP),
    "sums of chains are lost": Slip(r"tile\.join_chain\(pending, [^;]*;", ";", LONG, limit=False),
    "values of the next row": Slip(
        r"min\(r0 \+ thread_index\(\), rows - 1\)", "min(r0 + thread_index() + 1, rows - 1)",
        name="attention_backward",
    ),
    "one key more than a query sees": Slip(
        r"(row_at\(line_here\(\), i\)) < row_v", r"\1 <= row_v", name="attention_backward"
    ),
    "the values of another head": Slip(
        r"(= values\[0 \* batch \* rows) \+ item \* rows", r"\1", SMALL[1], "attention_backward"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_a_wrong_kernel_is_refuted(slip: str) -> None:
    s = SLIPS[slip]
    edit = Edit(s.pattern, s.by)
    found = wrong(kernel(s.name, "f16", True, s.limit, edit), s.size)
    assert edit.found, f"{edit.pattern!r} is not in the text"
    assert found


@pytest.mark.slow
def test_the_right_kernel_survives() -> None:
    """The sizes at which wrong ones are refuted and that no test above takes."""
    made = kernel("attention", "f16", True)
    assert [wrong(made, size) for size in (FEW, LONG, DEEP)] == [None] * 3
    assert wrong(kernel("attention", "f16", True, limit=False), LONG) is None
