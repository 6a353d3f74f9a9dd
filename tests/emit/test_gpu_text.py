"""The text of GPU kernels as NVRTC sees it, for every operator and format: three architectures, registers, PTX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.few import few_variants
from tokitai.backends.backend import Identity, source_digest
from tokitai.backends.cuda import nvrtc
from tokitai.backends.cuda.nvrtc import CudaArtifact
from tokitai.backends.cuda.ptx import START, Finding, opcodes, scan
from tokitai.emit.counters import sums_of
from tokitai.emit.cpp import KernelText
from tokitai.families import make_plan
from tokitai.families.attention import step_tiling
from tokitai.families.attention.gpu_kernels import emit_attention
from tokitai.families.attention.plan import AttentionPlan
from tokitai.families.grouped.gpu_kernels import emit_grouped
from tokitai.families.grouped.plan import GroupedPlan
from tokitai.families.matmul import tiling as gpu_product
from tokitai.families.matmul.gpu_kernels import emit_product
from tokitai.families.matmul.plan import ProductPlan
from tokitai.lang import FIXED_BITS, Graph, Node, Operator, Sizes
from tokitai.lower.gpu import FEW_SPILLS, Step
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import Edit, GpuKernel
from tokitai.runtime.kernel import is_attention, is_product
from tokitai.toolchain.build import Source
from tokitai.verification.verdict import Variant, variants

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
HERE = [o for o in registry().values() if not is_attention(o)]  # tested on its own below
FORMATS = [(o, fmt) for o in HERE for fmt in o.contract.formats]
CYCLE = ("f16", "bf16", "f32")

# Bytes that a thread may spill where it is more than FEW_SPILLS, by operator, format and columns. All for one reason:
# 8,192 columns of f32 are two chunks for each of 512 threads, of three inputs, the weights and two or one column sums,
# and 512 threads have 128 registers each.
SPILLS = {
    ("add_layer_norm_backward", "f32", 8192): 800,
    ("add_rms_norm_backward", "f32", 8192): 400,
}


@dataclass
class Built:
    """The kernels of a text that are never launched."""

    artifact: CudaArtifact

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        assert step.name in self.artifact.resources

    def spills(self, name: str) -> int:
        resources = self.artifact.resources[name]
        return resources.spill_stores + resources.spill_loads


@dataclass
class Compiler:
    """A target that compiles, and has no GPU."""

    arch: str
    name: str = "cuda"
    warp: int = 32
    shared_bytes: int = 160 << 10
    matrix_units: bool = False
    fused_units: bool = False
    integer_units: bool = False
    integer_warpgroups: bool = False
    warpgroups: bool = False

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Built, Identity]:
        arch = f"{self.arch}a" if "warpgroup.h" in text.headers else self.arch
        made = nvrtc.build(Source(text.text, text.headers, stem), arch, structure)
        about = ("nvrtc", made.nvrtc.version, made.nvrtc.digest, made.arch, made.options)
        return Built(made), Identity(
            structure, made.fingerprint, made.digest, source_digest(text), *about, sums_of(text)
        )

    def place(self, values: np.ndarray[Any, Any]) -> tuple[int, object]:
        return 0, None

    def workspace(self, nbytes: int) -> tuple[int, object]:
        return 0, None


def built(
    op: Operator, dtype: str, arch: str, cols: int = 1000, v: Variant | None = None, structure: bool = False,
    edit: Edit | None = None, rows: int = 4, matrix: bool = False,
) -> list[CudaArtifact]:  # fmt: skip
    """What a call with aligned tensors of so many columns compiles."""
    graph = op.trace(dtype) if v is None else op.trace(dtype, v.present, dict(v.options))
    kernel = GpuKernel(op, graph, make_plan(graph), structure, Compiler(arch, matrix_units=matrix), edit)
    rows = min(rows, op.contract.max_rows)
    sizes = [*([1] if kernel.plan.flat else []), rows, cols, *[cols] * kernel.matrices, *[0] * kernel.whole_count]
    if isinstance(kernel.plan, ProductPlan | AttentionPlan):
        sizes = [rows, cols, cols, 1, *[cols, 0] * kernel.matrices, *[0] * kernel.whole_count]
    addresses = [0] * len(kernel.tensor_sizes)
    kernel.launch_raw(addresses, sizes, [(rows, cols)], np.zeros(64, np.uint64), 0, place=0)
    found = [program.artifact for program, _ in kernel.programs.values()]  # type: ignore[attr-defined]
    assert found and all(a.resources for a in found)
    return found


def nodes(graph: Graph) -> Iterator[Node]:
    """Every node of a graph and of the functions that it calls."""

    def under(some: Iterable[Node]) -> Iterator[Node]:
        for n in some:
            yield n
            if n.body is not None:
                yield from under(n.body.nodes)

    yield from under(graph.nodes)


def asks_for_fma(op: Operator, dtype: str, v: Variant | None = None) -> bool:
    """Whether the definition holds a fused multiply-add: the sums of products do."""
    graph = op.trace(dtype) if v is None else op.trace(dtype, v.present, dict(v.options))
    return any(n.op in ("fma", "matmul") for n in nodes(graph))


def asks_for_f64(v: Variant) -> bool:
    """Whether it holds sums in f64."""
    return dict(v.options).get("accumulator") == "f64"


def findings(made: Iterable[CudaArtifact], fma_allowed: bool, f64_allowed: bool = False) -> list[Finding]:
    allowed = dict(fma_allowed=fma_allowed, f64_allowed=f64_allowed, quotients_allowed=fma_allowed)
    return [f for a in made for f in scan(a.read_ptx(), **allowed)]


def spilled(made: Iterable[CudaArtifact], allowed: int = FEW_SPILLS) -> dict[str, int]:
    """Bytes spilled, by kernel, where they are more than allowed."""
    each = {name: r.spill_stores + r.spill_loads for a in made for name, r in a.resources.items()}
    return {name: count for name, count in each.items() if count > allowed}


def names(value: object) -> str:
    return str(getattr(value, "name", value))


def rotated(i: int) -> str:
    """Formats take turns."""
    return CYCLE[i % 3]


# ------------------------------------------------------------------ every operator
FIRST = {make_plan(o.trace("f16")).family: o for o in reversed(HERE)}.values()  # of each family


def on_architectures(i: int, op: Operator) -> Iterator[tuple[Operator, str, str]]:
    """Every format on the architecture where spills are counted, one format in turn on each other. The first operator
    of each family has all formats on all of them."""
    formats = op.contract.formats
    for k, arch in enumerate(ARCHITECTURES):
        every = arch == "sm_90" or op in FIRST
        yield from ((op, dtype, arch) for dtype in (formats if every else (formats[(i + k) % len(formats)],)))


ON_EACH = [row for i, o in enumerate(HERE) for row in on_architectures(i, o)]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype", "arch"), ON_EACH, ids=names)
def test_every_kernel_compiles_to_what_was_asked_for(op: Operator, dtype: str, arch: str) -> None:
    made = built(op, dtype, arch)
    assert all(f".target {arch}" in a.read_ptx() for a in made)
    assert findings(made, asks_for_fma(op, dtype)) == []
    if arch == "sm_90":
        assert spilled(made) == {}


LONG = 8192


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), [(o, d) for o, d in FORMATS if not make_plan(o.trace(d)).flat], ids=names)
def test_long_rows_fit_into_registers(op: Operator, dtype: str) -> None:
    made = built(op, dtype, "sm_90", cols=min(LONG, op.contract.max_cols))
    assert findings(made, asks_for_fma(op, dtype)) == []
    assert spilled(made, SPILLS.get((op.name, dtype, LONG), FEW_SPILLS)) == {}
    if (op.name, dtype, LONG) in SPILLS:
        assert spilled(made), "no exception any more: take it out of the list"


VARIANTS = [(o, v, rotated(i)) for i, o in enumerate(HERE) for v in few_variants(o, rotated(i))[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "variant", "dtype"), VARIANTS, ids=names)
def test_every_variant_compiles(op: Operator, variant: Variant, dtype: str) -> None:
    made = built(op, dtype, "sm_90", v=variant)
    assert findings(made, asks_for_fma(op, dtype, variant), asks_for_f64(variant)) == []
    assert spilled(made) == {}


EXACT = {("accumulator", name) for name in FIXED_BITS}
PRODUCTS = [  # steps of units, and products in fixed point, are further below
    (o, v) for o in HERE if is_product(o) for v in variants(o, "f32") if not EXACT & {*v.options}
]
ON_ONE = [
    (o, v, rotated(i), ARCHITECTURES[i // 3 % 3], rows)
    for i, (o, v) in enumerate(PRODUCTS)
    for k, rows in enumerate((650, 1850))
    if o.name in ("linear", "grouped_linear") or i % 2 == k
]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "variant", "dtype", "arch", "rows"), ON_ONE, ids=names)
def test_larger_tiles_of_products_compile(op: Operator, variant: Variant, dtype: str, arch: str, rows: int) -> None:
    """Of two sizes beside the smallest, which few rows take; both for one operator of each family, in turn for the
    others. What threads read of slabs comes by 16 bytes, operands of
    the largest tiles as well."""
    made = built(op, dtype, arch, v=variant, rows=rows, cols=rows - rows % 8)
    assert findings(made, True, asks_for_f64(variant)) == []
    assert spilled(made) == {}
    used = opcodes(made[0].read_ptx())
    wide = "v2.[fb]64" if asks_for_f64(variant) else "v4.[fb]32"
    assert any(re.fullmatch(rf"ld\.shared\.{wide}", o) for o in used)
    assert used["ld.global.nc.v4.u32"] or rows == 650


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "arch"),
    [
        ("grouped_linear", "f16", "sm_90"), ("grouped_linear", "f32", "sm_80"),
        ("grouped_linear_backward_input", "f32", "sm_90"), ("grouped_linear_swiglu", "bf16", "sm_100"),
    ],
)  # fmt: skip
def test_groups_whose_sums_wait_for_others_have_large_tiles(name: str, dtype: str, arch: str) -> None:
    """Blocks take several tiles there, for which registers do not always do."""
    (made,) = built(registry()[name], dtype, arch, rows=1850, cols=4104)
    assert findings([made], True) == [] and spilled([made]) == {}
    assert ".maxntid 256" in made.read_ptx()


IN_F64 = Variant(frozenset(), (("accumulator", "f64"),))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize("rows", [4, 650, 1850])
@pytest.mark.parametrize("name", ["linear", "linear_swiglu", "linear_backward_weight"])
def test_sums_in_f64_by_matrix_units_compile(name: str, rows: int, arch: str) -> None:
    made = built(registry()[name], "f16", arch, v=IN_F64, rows=rows, cols=rows - rows % 8, matrix=True)
    assert [f for a in made for f in scan(a.read_ptx(), True, True, matrix_allowed=True)] == []
    assert spilled(made) == {}
    found = findings(made, True, True)
    assert found and all(f.instruction.startswith("mma.sync.aligned.m16n8k") for f in found), "never without a word"


IN_STEPS = Variant(frozenset(), (("accumulator", "fused16"),))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["linear", "linear_swiglu", "grouped_linear_swiglu", "grouped_linear_backward_weight"])
def test_products_by_warpgroups_compile(name: str, dtype: str) -> None:
    """Every tile that is offered: nothing is spilled, and the only products are the matrix unit's. Results of quotients
    without a branch are looked at for NaN, which an infinite dividend gives."""
    op = registry()[name]
    plan = make_plan(op.trace(dtype, (), {"accumulator": "fused16"}))
    assert isinstance(plan, ProductPlan)
    for tiling in gpu_product.pipelines(plan):
        text = (emit_grouped if isinstance(plan, GroupedPlan) else emit_product)(plan, tiling)
        assert ("const Quick quotients" in text.text) is ("odd |= any_nan(" in text.text) is ("swiglu" in name)
        made = nvrtc.build(Source(text.text, text.headers, name), "sm_90a")
        assert spilled([made]) == {} and made.resources["work"].stack == 0
        found = {o for o in opcodes(made.read_ptx()) if "mma" in o}
        kind = {"f16": "f16", "bf16": "bf16"}[dtype]
        assert found and all(f".f32.{kind}.{kind}" in o for o in found if o.startswith("wgmma.mma_async")), found


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("matrix", [False, True])
def test_products_by_steps_compile(arch: str, matrix: bool) -> None:
    """By warps' matrix units, and by integers."""
    op = registry()["linear"]
    graph = op.trace("bf16", IN_STEPS.present, dict(IN_STEPS.options))
    kernel = GpuKernel(op, graph, make_plan(graph), False, Compiler(arch, fused_units=matrix))
    for rows in (4, 650, 1850)[:: 1 if matrix else 2]:
        sizes = [rows, rows, 72, 1, *[72, 0] * kernel.matrices]
        kernel.launch_raw([0] * len(kernel.tensor_sizes), sizes, [(rows, rows)], np.zeros(64, np.uint64), 0, place=0)
    made = [program.artifact for program, _ in kernel.programs.values()]  # type: ignore[attr-defined]
    assert len(made) == (3 if matrix else 2)
    assert built(op, "bf16", arch, v=IN_STEPS, structure=True, rows=1850, cols=1856)
    assert all(("mma.sync" in a.read_ptx()) is matrix for a in made)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "linear_swiglu", "grouped_linear_backward_weight"])
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_products_in_fixed_point_by_matrix_units_compile(accumulator: str, name: str) -> None:
    """Every tile that is offered: nothing is spilled, and sums are those of integers."""
    op, variant = registry()[name], Variant(frozenset(), (("accumulator", accumulator),))
    graph = op.trace("bf16", variant.present, dict(variant.options))
    for rows in (4, 650, 1850):
        kernel = GpuKernel(op, graph, make_plan(graph), False, Compiler("sm_80", integer_units=True))
        sizes = [rows, rows, 72, 1, *[72, 0] * kernel.matrices]
        kernel.launch_raw([0] * len(kernel.tensor_sizes), sizes, [(rows, rows)], np.zeros(64, np.uint64), 0, place=0)
        made = [program.artifact for program, _ in kernel.programs.values()]  # type: ignore[attr-defined]
        assert spilled(made) == {} and findings(made, True) == []
        found = {o for a in made for o in opcodes(a.read_ptx()) if "mma" in o}
        assert len(found) == (1 if accumulator == "fixed8" else 4)
        assert all(re.fullmatch(r"mma\.sync\.aligned\.m16n8k32\.row\.col\.s32\.[su]8\.[su]8\.s32", o) for o in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "linear_swiglu"])
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_products_in_fixed_point_by_warpgroups_compile(accumulator: str, name: str) -> None:
    """Nothing is spilled, there is room in shared memory, and the only products are the matrix unit's, of integers."""
    plan = make_plan(registry()[name].trace("bf16", (), {"accumulator": accumulator}))
    assert isinstance(plan, ProductPlan)
    (tiling,) = gpu_product.pipelines(plan)
    assert tiling.shared_bytes(len(plan.products)) <= 227 << 10
    text = emit_product(plan, tiling)
    made = nvrtc.build(Source(text.text, text.headers, name), "sm_90a")
    assert spilled([made]) == {} and made.resources["work"].stack == made.resources["cut"].stack == 0
    assert findings([made], True) == []
    found = {o for o in opcodes(made.read_ptx()) if o.startswith(("mma", "wgmma.mma"))}
    assert len(found) == (1 if accumulator == "fixed8" else 4)
    step = rf"wgmma\.mma_async\.sync\.aligned\.m64n{tiling.cols}k32\.s32\.[su]8\.[su]8"
    assert all(re.fullmatch(step, o) for o in found), found


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [Sizes(4096, 4096, 64, 16), Sizes(4096, 4096, 128, 16)], ids=str)
def test_attention_by_warpgroups_compiles(sizes: Sizes) -> None:
    """Almost nothing is spilled, and the only products are the matrix unit's."""
    plan = make_plan(registry()["attention"].trace("bf16", None, {"accumulator": "fused16"}))
    assert isinstance(plan, AttentionPlan)
    tiling = step_tiling.by_warpgroups(plan, sizes, 8)
    assert tiling is not None and tiling.warpgroups
    text = emit_attention(plan, tiling)
    made = nvrtc.build(Source(text.text, text.headers, "attention"), "sm_90a")
    assert made.resources["work"].spill_loads <= step_tiling.FEW_SPILLS
    found = {o for o in opcodes(made.read_ptx()) if o.startswith(("mma", "wgmma.mma"))}
    assert found and all(".f32.bf16.bf16" in o for o in found), found


def test_products_in_f64_are_found_where_they_are_not_defined() -> None:
    op = registry()["linear"]
    made = built(op, "f16", "sm_90", v=IN_F64)
    assert findings(made, True, True) == [] and any("f64" in f.reason for f in findings(made, True))


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), [(o, rotated(i)) for i, o in enumerate(HERE)], ids=names)
def test_every_structure_build_compiles_and_holds_no_float(op: Operator, dtype: str) -> None:
    for a in built(op, dtype, "sm_90", structure=True):
        assert a.structure
        on_floats = {o for o in opcodes(a.read_ptx()) if ".f32" in o or ".f16" in o or ".f64" in o}
        assert not on_floats - {"mov.f32"}


# ------------------------------------------------------------------ attention, whose texts are long
ATTENTION = [
    ("attention", "f16", "sm_80", 64, True, False), ("attention_backward", "bf16", "sm_90", 64, True, False),
    ("attention", "f32", "sm_100", 136, False, False), ("attention", "f32", "sm_90", 64, True, True),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "arch", "dim", "limit", "structure"), ATTENTION)
def test_attention_compiles_to_what_was_asked_for(
    name: str, dtype: str, arch: str, dim: int, limit: bool, structure: bool
) -> None:
    """The larger tiles; a structure build of the smaller ones, which holds no float."""
    op, v = registry()[name], Variant(frozenset({"limit"} if limit else ()))
    made = built(op, dtype, arch, cols=dim, v=v, structure=structure, rows=4 if structure else 12800)
    assert len(made) == 1 and made[0].resources.keys() == ({"work", "over_queries"} if op.backward_of else {"work"})
    if structure:
        assert not {o for o in opcodes(made[0].read_ptx()) if ".f32" in o or ".f64" in o} - {"mov.f32"}
    else:
        assert findings(made, True) == [] and spilled(made) == {}


# ------------------------------------------------------------------ where fused multiply-adds come from
FUSED = [(o, rotated(i)) for i, o in enumerate(HERE) if asks_for_fma(o, rotated(i))]
TWO_ROUNDINGS = "INLINE S fma(S a, S b, S c) { return __fadd_rn(__fmul_rn(a, b), c); }"
ONE_ROUNDING = "INLINE S fma(S a, S b, S c) { return __fmaf_rn(a, b, c); }"


QUOTIENT = "const S start = reciprocal_start(b);"


def in_two_roundings(text: str) -> str:
    return text.replace(ONE_ROUNDING, TWO_ROUNDINGS).replace(QUOTIENT, f"if (true) return div(a, b);\n{QUOTIENT}")


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), FUSED, ids=names)
def test_every_fused_multiply_add_is_one_of_the_text(op: Operator, dtype: str) -> None:
    """Where the definition holds some, the scan lets all pass: but none is left once the text's are taken away."""
    assert opcodes(built(op, dtype, "sm_90")[0].read_ptx())["fma.rn.f32"]
    assert findings(built(op, dtype, "sm_90", edit=in_two_roundings), fma_allowed=False) == []


def replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


# ------------------------------------------------------------------ where approximate reciprocals come from
@pytest.mark.parametrize("name", ["silu", "adamw"])
def test_an_approximate_reciprocal_is_the_start_of_a_quotient(name: str) -> None:
    op = registry()[name]
    (made,) = built(op, "f16", "sm_90")
    assert opcodes(made.read_ptx())[START] >= 8
    assert findings([made], fma_allowed=True) == []
    found = scan(made.read_ptx(), fma_allowed=True)
    assert len(found) == opcodes(made.read_ptx())[START] and {f.reason for f in found} == {"is an approximation"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const S r = fma(start, fma(-b, start, 1.0f), start);", "const S r = start;"),
        ("const S quotient = fma(-fma(q, b, -a), r, q);", "const S quotient = q;"),
        ("const S q = mul(a, r);", "const S q = mul(a, start);"),
        ("fma(-b, start, 1.0f)", "fma(-b, start, 2.0f)"),
        ("fma(-fma(q, b, -a), r, q)", "fma(-fma(q, a, -a), r, q)"),
        ("fma(-fma(q, b, -a), r, q)", "fma(-fma(q, b, -b), r, q)"),
        ("return quotient;", "return quotient + start;"),
    ],
)
def test_another_sequence_of_a_quotient_is_found(old: str, new: str) -> None:
    made = built(registry()["silu"], "f16", "sm_90", edit=replacing(old, new))
    assert {f.reason for f in findings(made, fma_allowed=True)} & {"is an approximation"}


# ------------------------------------------------------------------ the checks above can fail
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("return __fadd_rn(a, b);", "return a + b;", None),  # -fmad=false keeps two roundings
        ("return __fmul_rn(a, b);", "return __fmaf_rn(a, b, 0.0f);", "fused"),
        ("return __fdiv_rn(a, b);", "return __fdividef(a, b);", "approximation"),
        ("return __fdiv_rn(a, b);", "return float(double(a) * (1.0 / double(b)));", "f64"),
        ("return __fsqrt_rn(a);", "return __frsqrt_rn(a) * a;", "not on the list|approximation|f64"),
        ("INLINE S canonical(S x) {", "INLINE S canonical(S x) { x = __saturatef(x);", "clamps"),
    ],
)
def test_another_arithmetic_is_found(old: str, new: str, reason: str | None) -> None:
    op = registry()["rms_norm"]
    changed = findings(built(op, "f32", "sm_90", edit=replacing(old, new)), asks_for_fma(op, "f32"))
    assert findings(built(op, "f32", "sm_90"), asks_for_fma(op, "f32")) == []
    if reason is None:
        assert changed == []
    else:
        assert changed and any(re.search(reason, f.reason) for f in changed)


def test_a_schedule_that_asks_for_too_much_spills() -> None:
    op = registry()["softmax_backward"]

    def tight(text: str) -> str:
        return re.sub(r"KERNEL\(work, (\d+), \d+\)", r"KERNEL(work, \1, 2048 / \1)", text)  # 32 registers

    assert spilled(built(op, "f32", "sm_90", edit=tight))


def test_exceptions_are_of_kernels_that_there_are() -> None:
    assert {key[:2] for key in SPILLS} <= {(o.name, dtype) for o, dtype in FORMATS}
    assert {key[2] for key in SPILLS} <= {LONG}
