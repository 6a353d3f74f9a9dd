"""Kernels of matrix products for GPUs, on the simulated device: the same bits and the same expression however they are
laid out; and wrong ones, all of which are refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from mutants import Edit

from tokitai import ops
from tokitai.backends.cuda.matrix_checks import source
from tokitai.backends.hip.target import HipTarget
from tokitai.backends.sim.target import SimTarget
from tokitai.emit.cpp import KernelText
from tokitai.errors import TargetMissingError
from tokitai.families import make_plan
from tokitai.families.matmul import tiling as gpu_product
from tokitai.families.matmul.plan import ProductPlan
from tokitai.families.matmul.tiling import Tiling, offered, product_steps, tiling_of, together
from tokitai.lang import Operand, Outputs, Sizes, matmul, operator, outputs, storage
from tokitai.lower.gpu import Step
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.verification import cases
from tokitai.verification.run import run_numbers, run_structure
from tokitai.worker import Pool
from tokitai.worker.isolated import isolated_gpu

Options = Mapping[str, object]
SMALL = (Sizes(3, 5, 7), Sizes(37, 130, 41), Sizes(130, 18, 16), Sizes(2, 3, 0))
LONG = (Sizes(2, 3, 4100), Sizes(2, 1, 12300))


def kernels(
    name: str, dtype: str, options: Options, tiling: Callable[[ProductPlan, Sizes, int, bool], Tiling] = tiling_of,
    edit: Edit | None = None, matrix: bool = False,
) -> tuple[GpuKernel, GpuKernel]:  # fmt: skip
    """The kernel over numbers and the one over hashes."""
    op = ops.get(name)
    graph = op.trace(dtype, options=options)
    numbers, hashed = (
        GpuKernel(op, graph, make_plan(graph), s, SimTarget(matrix_units=matrix), edit, tiling) for s in (False, True)
    )
    return numbers, hashed


def wrong(kernel: GpuKernel, size: Sizes) -> str | None:
    """What a run over numbers, or over hashes, shows: with chains partitioned among one block, two, seven."""
    graph = kernel.graph
    if kernel.structure:
        params = cases.drawn_scalars(kernel.operator, graph, size)
        return run_structure(kernel, size, {}, params, seed=5).failure
    return run_numbers(kernel, cases.seeded(kernel.operator, graph, "normal", size, 2), None, 2).failure


# ------------------------------------------------------------------ tilings decide speed, never a bit
def every_tiling(accumulator: str, matrix: bool) -> Iterator[tuple[str, bool, int]]:
    plan = make_plan(ops.matmul.trace("f16", options=dict(accumulator=accumulator)))
    assert isinstance(plan, ProductPlan)
    for i in range(len(list(offered(plan, 8, matrix)))):
        yield accumulator, matrix, i


TILED = [t for how in (("f32", False), ("f64", False), ("f64", True)) for t in every_tiling(*how)]


@pytest.mark.slow
@pytest.mark.parametrize(("accumulator", "matrix", "which"), TILED)
@pytest.mark.parametrize(("layout", "dtype"), [("NN", "f16"), ("NT", "f32"), ("TN", "f16")])
def test_bits_do_not_depend_on_the_tiling(accumulator: str, matrix: bool, which: int, layout: str, dtype: str) -> None:
    seen: set[Tiling] = set()

    def tiling(plan: ProductPlan, sizes: Sizes, width: int, units: bool) -> Tiling:
        chosen = list(offered(plan, width, units))[which]
        seen.update([chosen] * (units is matrix))
        return chosen

    for kernel in kernels("matmul", dtype, dict(layout=layout, accumulator=accumulator), tiling, matrix=matrix):
        for size in SMALL:
            assert wrong(kernel, size) is None, (size, seen)
    assert len({(t.rows, t.matrix) for t in seen}) == 1 and {t.width for t in seen} >= {1, 8}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear_swiglu", "matmul"])
def test_bits_do_not_depend_on_who_adds_up_chains(name: str) -> None:
    """All in one block, where sums wait for each other; parts of several chains; each chain a part."""
    for size in (LONG[1], Sizes(33, 1, 4100)):
        for kernel in kernels(name, "f16", {}):
            assert wrong(kernel, size) is None
    plan = make_plan(ops.matmul.trace("f16"))
    assert isinstance(plan, ProductPlan)
    tiling = tiling_of(plan, LONG[1], 8)
    assert [together(tiling, LONG[1], most) for most in (1, 2, 3, 7)] == [4, 2, 2, 1]
    for most, names in ((1, ["work"]), (2, ["work", "finish"]), (7, ["work", "finish"])):
        steps = product_steps(tiling, LONG[1], most)
        assert [s.name for s in steps] == names and steps[0].in_turn is (most < 4)


@pytest.mark.slow
def test_blocks_that_keep_sums_take_several_tiles_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_product, "ROOMS", 1)
    for kernel in kernels("matmul", "f32", {}):
        assert wrong(kernel, Sizes(70, 3, 4099)) is None


def test_long_sums_of_few_results_are_shared_out_and_those_of_many_are_not() -> None:
    plan = make_plan(ops.linear_backward_weight.trace("f16"))
    assert isinstance(plan, ProductPlan)
    for size, blocks, kernels_in_all in (
        (Sizes(1024, 1024, 32768), 256, 2), (Sizes(8192, 8192, 8192), 1024, 1), (Sizes(64, 64, 65536), 16 * 4, 2),
        (Sizes(4096, 4096, 4096), 512, 1),
    ):  # fmt: skip
        tiling = tiling_of(plan, size, 8)
        steps = product_steps(tiling, size)
        assert (steps[0].grid, len(steps)) == (blocks, kernels_in_all), (size, tiling)


@pytest.mark.slow
@pytest.mark.parametrize("warp", [32, 64])
def test_the_hip_text_has_the_same_bits(warp: int) -> None:
    arch = {32: "gfx1101", 64: "gfx942"}[warp]
    for name, accumulator in (("linear", "f32"), ("linear_swiglu", "f64")):
        op = ops.get(name)
        graph = op.trace("f16", options=dict(accumulator=accumulator))
        target = HipTarget(arch, True, inspect=False, f64=True)
        for structure in (False, True):
            kernel = GpuKernel(op, graph, make_plan(graph), structure, target)
            for size in (SMALL[1], LONG[0]):
                assert wrong(kernel, size) is None


def test_in_a_worker_process() -> None:
    graph = ops.matmul.trace("f16")
    with Pool(1, deadline=60) as pool:
        for structure in (False, True):
            kernel = isolated_gpu(ops.matmul, graph, "sim", structure, None, pool)
            assert wrong(kernel, Sizes(7, 17, 33, 3)) is None
            assert kernel.identities()


@operator
def two_ways(x: Operand[storage], y: Operand[storage], z: Operand[storage]) -> Outputs:
    """Two products of one left operand, whose right ones are stored in two ways."""
    return outputs(made=matmul(x, y, "NN") + matmul(x, z, "NT"))


def test_products_that_gpus_have_no_kernels_for_are_refused() -> None:
    graph = two_ways.trace("f16")
    for target in ("sim", "cuda", "hip"):
        with pytest.raises(TargetMissingError, match=f"^two_ways: .* as NN, NT; accepted by {target}: up to 8, all"):
            gpu_plan(graph, target)
    with pytest.raises(TargetMissingError):
        GpuKernel(two_ways, graph, make_plan(graph), False, SimTarget())


@pytest.mark.slow
def test_registers_that_do_not_do_give_smaller_tiles() -> None:
    """A target whose larger tiles spill takes the first that does not, with the workspace that this needs."""

    class Short(SimTarget):
        def build(self, text, stem, structure):  # type: ignore[no-untyped-def]
            program, identity = super().build(text, stem, structure)
            tall = "#define PLAN_ROWS 32\n" not in text.text
            program.spills = lambda name: 8 * tall  # type: ignore[method-assign]
            return program, identity

    graph = ops.matmul.trace("f16")
    kernel = GpuKernel(ops.matmul, graph, make_plan(graph), False, Short())
    size = Sizes(650, 643, 3)
    assert wrong(kernel, size) is None
    assert {t.rows for t in kernel.programs} == {32}  # type: ignore[attr-defined]
    assert 64 in {t.rows for t in kernel.settled}


# ------------------------------------------------------------------ matrix units
@pytest.mark.slow
def test_several_products_by_matrix_units() -> None:
    for kernel in kernels("linear_swiglu", "f16", dict(accumulator="f64"), matrix=True):
        assert wrong(kernel, SMALL[1]) is None
        assert all(t.matrix for t in kernel.programs)  # type: ignore[attr-defined]
    for kernel in kernels("linear", "f16", dict(accumulator="f32"), matrix=True):
        assert wrong(kernel, SMALL[0]) is None
        assert not any(t.matrix for t in kernel.programs), "for f32 there are none"  # type: ignore[attr-defined]


AS_IT_IS = "multiply_in_order(c0, c1, c2, c3, a0, a1, b);"
UNITS = {
    "in order": (AS_IT_IS, True),
    "one product more, of zeros": (AS_IT_IS + " c3 = chain(-0.0, 0.0, c3);", True),
    "another sign": (AS_IT_IS.replace(" b)", " -b)"), False),
    "four products are added first": (
        "E s = NEUTRAL, t = NEUTRAL, u = NEUTRAL, v = NEUTRAL; multiply_in_order(s, t, u, v, a0, a1, b);"
        "c0 = add_sums(c0, s), c1 = add_sums(c1, t), c2 = add_sums(c2, u), c3 = add_sums(c3, v);",
        False,
    ),
    "sums that are rounded to f32": (AS_IT_IS + " c1 = double(float(c1));", False),
}


@pytest.mark.parametrize("units", UNITS)
def test_units_that_add_in_another_way_are_found(units: str) -> None:
    """The text of the test on a GPU, on fibers, whose units are what is written here."""
    made, (body, in_order) = source(), UNITS[units]
    pattern = r"(INLINE void multiply_add\(E& c0, E& c1, E& c2, E& c3, E a0, E a1, E b\)) \{ .* \}"  # of two
    edit = Edit(pattern, rf"\1 {{ {body} }}")
    text = KernelText(made.text, {n: edit(t) for n, t in made.headers.items()})
    program, _ = SimTarget().build(text, made.stem, False)
    wrongs = np.full(32 * 4, -1, np.int32)
    program.launch(Step("try_out", 4, 32), np.int64(wrongs.ctypes.data).tobytes(), 0, 0)
    assert edit.found and (not wrongs.any()) is in_order


# ------------------------------------------------------------------ wrong kernels
PLAIN: Options = {}
TURNED: Options = dict(layout="TN")
SLIPS: dict[str, tuple[str, Options, Edit]] = {
    "products behind the last one count": (
        "matmul", PLAIN, Edit(r"held\[i\]\.e\[e\] = k_padding<P, LEFT>\(\);", "held[i].e[e] = P{};"),
    ),
    "what lies behind the last product is read": ("matmul", PLAIN, Edit(r"\|\| there >= V", "|| there > 0")),
    "the left operand alone ends": (
        "matmul", TURNED, Edit(r"\(k < left \? lines - line : 0\)", "(!LEFT || k < left ? lines - line : 0)"),
    ),
    "a K-tile is overwritten while it is read": ("matmul", PLAIN, Edit(r"half \^= 1", "half ^= 0")),
    "no barrier between K-tiles": (
        "matmul", PLAIN, Edit(r"(\(half \^ 1\) \* K_TILE_SIZE\);\s*)barrier\(\);", r"\1"),
    ),
    "no barrier before the first K-tile": ("matmul", PLAIN, Edit(r"(put\(k_tiles\);\s*)barrier\(\);", r"\1")),
    "lines are swizzled where they are stored alone": ("matmul", PLAIN, Edit(r" \^ Left::swizzle\(k\)", "")),
    "the next K-tile is one product on": ("matmul", TURNED, Edit(r": DEPTH \* from\.stride,", ": from.stride,")),
    "the last product of a K-tile is left out": ("matmul", PLAIN, Edit(r"i < UNROLL_K;", "i + 1 < UNROLL_K;")),
    "products in another order": (
        "matmul", PLAIN, Edit(r"Right>\(k_tile, k \+ i\)", "Right>(k_tile, DEPTH - 1 - k - i)"),
    ),
    "factors of a product change places with the sum": ("matmul", PLAIN, Edit(r": fma\(a, b, c\);", ": fma(c, a, b);")),
    "a chain of another length": ("matmul", PLAIN, Edit(r"CHAIN = 4096", "CHAIN = 2048")),
    "the last of the sums is lost": ("matmul", PLAIN, Edit(r"if \(rest & 1\) add_pending\(pending\);", ";")),
    "sums of chains are not joined": ("matmul", PLAIN, Edit(r"if \(count > 1\) join_chain", "if (false) join_chain")),
    "sums of parts are lost": ("matmul", PLAIN, Edit(r"x = add_sums\(level\[i\+\+\], x\);", "++i;")),
    "the last part is lost": ("matmul", PLAIN, Edit(r"if \(rest & 1\) x = add_sums\(level\[i\], x\);", ";")),
    "nothing is minus zero": (
        "matmul", PLAIN, Edit(r"E empty_sum\(\) \{ return constant\(0\.0f", "E empty_sum() { return constant(-0.0f"),
    ),
    "the row behind the last one is written": ("matmul", PLAIN, Edit(r"r >= work\.rows", "r > work.rows")),
    "the column behind the last one is written": ("matmul", PLAIN, Edit(r"c >= work\.cols", "c > work.cols")),
    "no barrier before results are made": (
        "matmul", PLAIN, Edit(r"(= sum\[n\]\[y\]\[j\];\s*)barrier\(\);", r"\1"),
    ),
    "no barrier before the next rows": ("matmul", PLAIN, Edit(r"(at\(r, c, sums\);\s*\}\s*)barrier\(\);", r"\1")),
    "the second product is the first": (
        "linear_swiglu", PLAIN, Edit(r"k_tile \+ DEPTH \* \(ROWS \+ n \* COLS\) \+ k", "k_tile + DEPTH * ROWS + k"),
    ),
    "a result is made of the other product": (
        "linear_swiglu", PLAIN, Edit(r"result_of\(sums\[1\]\)", "result_of(sums[0])"),
    ),
    "all products of a batch are the first": ("matmul", PLAIN, Edit(r" \+ unit\.item \* in_b_batch", "")),
    "c is not read": ("matmul", PLAIN, Edit(r"load1\(in_c \+ r \* in_c_stride \+ c\)", "load1(in_c)")),
    "sums of chains are not added": (
        "matmul", PLAIN, Edit(r"E add_sums\(E a, E b\) \{ return add\(a, b\)", "E add_sums(E a, E b) { return b"),
    ),
    "an f64 sum of f32 factors": ("matmul", dict(accumulator="f64"), Edit(r"\? unary\(WIDEN_F64, x\) : x", "? x : x")),
}  # fmt: skip
SHAPES = (
    Sizes(3, 5, 7), Sizes(33, 37, 41), Sizes(3, 5, 7, 2), Sizes(2, 3, 0), Sizes(2, 3, 4100), Sizes(1, 2, 8200),
    Sizes(2, 1, 12300),
)  # fmt: skip


def refuted(name: str, options: Options, edit: Edit | None) -> bool:
    """Whether a structure run at any of a few shapes shows that a kernel evaluates something else."""
    _, kernel = kernels(name, "f16", options, edit=edit)
    return any(wrong(kernel, size) for size in SHAPES if kernel.operator.contract.batched or size.batch == 1)


@pytest.mark.slow
@pytest.mark.parametrize("slip", SLIPS)
def test_a_wrong_kernel_is_refuted(slip: str) -> None:
    name, options, edit = SLIPS[slip]
    found = refuted(name, options, edit)
    assert edit.found, f"{edit.pattern!r} is not in the text"
    assert found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("matmul", PLAIN), ("linear_swiglu", dict(accumulator="f64"))])
def test_the_right_kernel_survives(name: str, options: Options) -> None:
    assert not refuted(name, options, None)


def test_behind_the_last_product_sums_keep_their_sign() -> None:
    """-0 and +0 there make -0, to which every sum is equal: hashes know such a pair, numbers show it."""
    shown = Edit(r"LEFT \? Zeros<P>::minus\(\) : P\{\}", "P{}")
    for edit, equal in ((None, True), (shown, False)):
        kernel, _ = kernels("matmul", "f16", PLAIN, edit=edit)
        size = Sizes(2, 3, 5)
        case = cases.seeded(kernel.operator, kernel.graph, "normal", size, 0)
        signs = dict(a=-0.0, b=0.0, c=-0.0)
        zeros = replace(case, tensors={n: np.full_like(a, signs[n]) for n, a in case.tensors.items()})
        assert run_numbers(kernel, zeros, None, 3).equal is equal
    assert shown.found
