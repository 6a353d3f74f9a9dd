"""The emitted text computes the definition for every number of lanes: also for wider vectors than this machine has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tokitai import ops
from tokitai.families import emit_cpu
from tokitai.families.rowwise.plan import plan_rows
from tokitai.lang import Matrix, Operator, Outputs, operator, outputs, row_max, storage
from tokitai.runtime.kernel import Kernel, build_text, host_kernel
from tokitai.toolchain.build import Isa, isas_here
from tokitai.verification.cases import Case, defaults, seeded
from tokitai.verification.run import run_numbers, run_structure

Edit = Callable[[str], str]
NAMES = ("layer_norm", "layer_norm_backward", "softmax")
# Whole blocks of 8, 64 and 256 columns, and one element more or less; rows whose tree of blocks has several levels.
SHAPES = ((3, 1), (2, 7), (3, 16), (3, 17), (2, 63), (3, 65), (2, 255), (33, 257), (2, 4097), (1, 66000))

needs_avx2 = pytest.mark.skipif("avx2" not in isas_here(), reason="this processor has no AVX2")


def with_lanes(count: int) -> Edit:
    """The text for vectors of so many lanes, each made of as many registers as it takes."""
    return lambda text: f"#define TOKITAI_LANES {count}\n{text}" if '#include "rows.h"' in text else text


def replaced(old: str, new: str) -> Edit:
    """A change of the headers that must find its place: `text_kernel` sees to that."""
    return lambda text: text.replace(old, new)


def text_kernel(op: Operator, dtype: str, isa: Isa, structure: bool, *edits: Edit) -> Kernel:
    """A kernel from the emitted text after the edits, each of which must change something."""
    graph = op.trace(dtype)
    plan = plan_rows(graph)
    emitted = emit_cpu(plan)
    texts = {"": emitted.text, **emitted.headers}
    for edit in edits:
        changed = {name: edit(text) for name, text in texts.items()}
        assert changed != texts, "the edit finds nothing to change"
        texts = changed
    return build_text(op, graph, plan, texts.pop(""), texts, None, isa, structure)


@pytest.mark.parametrize("name", NAMES)
def test_sixteen_lanes_evaluate_the_definition_on_any_processor(name: str) -> None:
    """A structure build for AVX-512 has no wide instruction in it."""
    kernel = host_kernel(ops.get(name), "f16", isa="avx512", structure=True)
    for shape in (*kernel.plan.family.shapes.branches(kernel.plan, 16), *SHAPES):
        assert run_structure(kernel, shape, {}, defaults(kernel.operator), 0).failure is None


@pytest.mark.parametrize("name", NAMES)
def test_four_lanes_evaluate_the_definition(name: str) -> None:
    kernel = text_kernel(ops.get(name), "f16", "scalar", True, with_lanes(4))
    for shape in (*kernel.plan.family.shapes.branches(kernel.plan, 4), *SHAPES):
        assert run_structure(kernel, shape, {}, defaults(kernel.operator), 0).failure is None


@pytest.mark.slow
@needs_avx2
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "f16") for name in NAMES), ("layer_norm", "bf16"), ("layer_norm", "f32")]
)
def test_sixteen_lanes_in_two_registers_have_the_same_bits(name: str, dtype: str) -> None:
    """The plan of AVX-512 in numbers. Its own instructions are not run here, only on a processor that has them."""
    op = ops.get(name)
    kernel = text_kernel(op, dtype, "avx2", False, with_lanes(16))
    for shape in SHAPES:
        for how in ("normal", "special"):
            assert run_numbers(kernel, seeded(op, kernel.graph, how, shape, 0), None, 2).failure is None


@needs_avx2
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("i % 2 * 2 + SIDE", "i % 4 + SIDE * 0"),  # lanes not paired with their neighbours
        ("i ^ (SIDE * D)", "i"),  # halves of a register not exchanged
        ("    pad(s, count, blocks * BLOCK);", ""),  # what was there before is added
        ("      pad(terms[k], cols - c, BLOCK);", ""),
        ("return where(lt(column_index(0), splat(int32_t(part.count))), x, splat(neutral));", "return x;"),
    ],
)
def test_a_wrong_tree_is_refuted(lanes: int, old: str, new: str) -> None:
    edits = (replaced(old, new), *([with_lanes(16)] if lanes == 16 else []))
    kernel = text_kernel(ops.get("layer_norm"), "f16", "avx2", True, *edits)
    assert any(run_structure(kernel, shape, {}, defaults(kernel.operator), 0).failure for shape in SHAPES)


@operator
def peak(x: Matrix[storage]) -> Outputs:
    """The largest element of each row."""
    return outputs(peak=row_max(x))


def peaks() -> Case:
    """Rows in which the order of zeros, or a NaN of either sign, decides."""
    zeros = np.array([[0.0, -0.0], [-0.0, -0.0], [-0.0, 0.0], [-1.0, -0.0], [-1.0, 0.0], [-np.inf, -np.inf]])
    rng = np.random.default_rng(0)
    rows = [np.where(rng.random((6, 70)) < 0.9, zeros[:, :1], zeros[:, 1:])]
    for strange in (np.nan, -np.nan, np.inf, -np.inf):
        row = rng.standard_normal((70, 70)).astype(np.float32)
        np.fill_diagonal(row, strange)
        rows.append(row)
    x = np.concatenate(rows).astype(np.float32)
    return Case("hard", "peaks", x.shape, 0, {"x": x}, {})


@pytest.mark.parametrize("isa", isas_here())
def test_a_row_maximum_orders_zeros_and_keeps_nan(isa: Isa) -> None:
    case = peaks()
    assert run_numbers(host_kernel(peak, "f32", isa=isa), case, None, 1).failure is None
    careless: tuple[tuple[str, str], ...] = (("m.signs &= pattern;", ""), ("m.size = where(", "where("))
    for old, new in careless:
        assert run_numbers(text_kernel(peak, "f32", isa, False, replaced(old, new)), case, None, 1).failure


@pytest.mark.slow
@needs_avx2
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_stores_round_the_caches_have_the_same_bits(dtype: str, lanes: int) -> None:
    edits = [replaced("STREAM_BYTES = 8 << 20", "STREAM_BYTES = 0"), *([with_lanes(16)] if lanes == 16 else [])]
    kernel = text_kernel(ops.get("layer_norm"), dtype, "avx2", False, *edits)
    for shape in ((3, 64), (5, 48), (3, 1000), (2, 33)):  # aligned rows and others
        assert run_numbers(kernel, seeded(kernel.operator, kernel.graph, "special", shape, 0), None, 2).failure is None
