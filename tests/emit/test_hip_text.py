"""The text of GPU kernels as clang sees it for AMD GPUs, for every operator: architectures, registers, assembly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.few import few_variants
from tokitai.backends.backend import Identity, source_digest
from tokitai.backends.hip import clang as hip
from tokitai.backends.hip.assembly import read_ir
from tokitai.backends.hip.target import HipProgram
from tokitai.backends.machine_code import holds_f64, holds_fma
from tokitai.emit.counters import sums_of
from tokitai.emit.cpp import KernelText
from tokitai.errors import CompileError, CompilerMissingError
from tokitai.families import make_plan
from tokitai.families.attention.plan import AttentionPlan
from tokitai.families.matmul.plan import ProductPlan
from tokitai.lang import Operator
from tokitai.lower.gpu import FEW_SPILLS, Step
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import Edit, GpuKernel
from tokitai.runtime.kernel import is_attention, is_product
from tokitai.toolchain.build import Source
from tokitai.verification.verdict import Variant

try:
    hip.find_hip()
except CompilerMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

ARCHITECTURES = ("gfx90a", "gfx942", "gfx1030", "gfx1101", "gfx1201")
EVERY = [o for o in registry().values() if not is_attention(o)]  # tested on its own below


class Nothing:
    """Runs no kernel."""

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        assert step.block > 0

    def spills(self, name: str) -> int:
        return 0


@dataclass
class Compiler:
    """A target that compiles, holds launches against what was compiled, and has no GPU."""

    arch: str
    fma: bool
    f64: bool = False
    name: str = "hip"
    matrix_units: bool = False
    fused_units: bool = False
    integer_units: bool = False
    integer_warpgroups: bool = False
    warpgroups: bool = False
    shared_bytes: int = 0

    @property
    def warp(self) -> int:
        return hip.ARCHITECTURES[self.arch]

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[HipProgram, Identity]:
        source = Source(text.text, text.headers, stem)
        made = hip.build(source, self.arch, structure, self.fma, f64_allowed=self.f64)
        about = ("clang", made.compiler.clang.version, made.compiler.clang.digest, made.arch, made.flags)
        identity = Identity(structure, made.fingerprint, made.digest, source_digest(text), *about, sums_of(text))
        return HipProgram(made, Nothing(), identity), identity

    def place(self, values: np.ndarray[Any, Any]) -> tuple[int, object]:
        return 0, None

    def workspace(self, nbytes: int) -> tuple[int, object]:
        return 0, None


def built(
    op: Operator, dtype: str, arch: str, cols: int = 1000, v: Variant | None = None, structure: bool = False,
    edit: Edit | None = None, fma: bool | None = None, rows: int = 4,
) -> list[hip.HipArtifact]:  # fmt: skip
    """What a call with aligned tensors of so many columns compiles; each launch is held against it."""
    graph = op.trace(dtype) if v is None else op.trace(dtype, v.present, dict(v.options))
    target = Compiler(arch, holds_fma(graph) if fma is None else fma, holds_f64(graph))
    kernel = GpuKernel(op, graph, make_plan(graph), structure, target, edit)
    rows = min(rows, op.contract.max_rows)
    sizes = [*([1] if kernel.plan.flat else []), rows, cols, *[cols] * kernel.matrices, *[0] * kernel.whole_count]
    if isinstance(kernel.plan, ProductPlan | AttentionPlan):
        sizes = [rows, cols, cols, 1, *[cols, 0] * kernel.matrices, *[0] * kernel.whole_count]
    addresses = [0] * len(kernel.tensor_sizes)
    element = 8 if structure else 4
    table = np.zeros(len(kernel.scalar_table(rows, cols, dict.fromkeys(parameters(op), 1.0)).table) * element, np.uint8)
    kernel.launch_raw(addresses, sizes, [(rows, cols)], table, 0, place=0)
    found = [program.artifact for program, _ in kernel.programs.values()]  # type: ignore[attr-defined]
    assert found and all(a.resources for a in found)
    return found


def parameters(op: Operator) -> list[str]:
    return [p.name for p in op.params]


def spilled(made: list[hip.HipArtifact], few: int = 0) -> dict[str, int]:
    """Bytes of vector registers that a lane spills into scratch memory, by kernel, where there are more than a few."""
    return {name: 4 * r.spills for a in made for name, r in a.resources.items() if 4 * r.spills > few}


def names(value: object) -> str:
    return str(getattr(value, "name", value))


# ------------------------------------------------------------------ every operator
FIRST = {make_plan(o.trace("f16")).family: o for o in reversed(EVERY)}.values()  # of each family


def architectures(i: int, op: Operator) -> tuple[str, ...]:
    """One with wavefronts of 64 lanes and one with 32, in turn; all for the first operator of each family."""
    wide, narrow = ([a for a in ARCHITECTURES if hip.ARCHITECTURES[a] == lanes] for lanes in (64, 32))
    return ARCHITECTURES if op in FIRST else (wide[i % len(wide)], narrow[i % len(narrow)])


ON_EACH = [(o, a) for i, o in enumerate(EVERY) for a in architectures(i, o)]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "arch"), ON_EACH, ids=names)
def test_every_kernel_compiles_to_what_was_asked_for(op: Operator, arch: str) -> None:
    """`hip.build` refuses what the scan finds, and LDS and wavefronts that are not there."""
    made = built(op, "f16", arch)
    assert spilled(made) == {}
    assert all(r.warp == hip.ARCHITECTURES[arch] for a in made for r in a.resources.values())


# Formats and widths of wavefronts take turns.
OTHERS = [(o, ("bf16", "f32")[i % 2], ("gfx942", "gfx1101")[i // 2 % 2]) for i, o in enumerate(EVERY)]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype", "arch"), OTHERS, ids=names)
def test_every_format_compiles(op: Operator, dtype: str, arch: str) -> None:
    assert spilled(built(op, dtype, arch)) == {}


VARIANTS = [(o, v) for o in EVERY for v in few_variants(o)[1:]]
ON_ONE = [(o, v, ARCHITECTURES[i % 5]) for i, (o, v) in enumerate(VARIANTS)]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "variant", "arch"), ON_ONE, ids=names)
def test_every_variant_compiles(op: Operator, variant: Variant, arch: str) -> None:
    assert spilled(built(op, "f16", arch, v=variant)) == {}


PRODUCTS = [(o, v) for o in EVERY if is_product(o) for v in few_variants(o)]
LARGER = [(o, v, ARCHITECTURES[i % 5], (650, 1850)[i // 5 % 2]) for i, (o, v) in enumerate(PRODUCTS)]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "variant", "arch", "rows"), LARGER, ids=names)
def test_larger_tiles_of_products_compile(op: Operator, variant: Variant, arch: str, rows: int) -> None:
    assert spilled(built(op, "f16", arch, v=variant, rows=rows, cols=rows - rows % 8)) == {}


def test_sums_in_f64_are_refused_where_they_are_not_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    op, variant = registry()["linear"], Variant(frozenset(), (("accumulator", "f64"),))
    assert built(op, "f16", "gfx942", v=variant)
    monkeypatch.setitem(globals(), "holds_f64", lambda graph: False)
    with pytest.raises(CompileError, match=r"not on the list|computes in double"):
        built(op, "f16", "gfx942", v=variant)


LONG = 8192
# As `SPILLS` in test_gpu_text: threads with all of their registers, of two inputs, the weights and two column sums.
SPILLS = {("layer_norm_backward", "gfx1030"): 100, **{("layer_norm_backward", a): 252 for a in ("gfx1101", "gfx1201")}}
IN_ROWS = [o for o in EVERY if not make_plan(o.trace("f16")).flat]


@pytest.mark.slow
@pytest.mark.parametrize(("op", "arch"), [(o, ARCHITECTURES[i % 5]) for i, o in enumerate(IN_ROWS)], ids=names)
def test_long_rows_spill_no_more_than_a_schedule_may(op: Operator, arch: str) -> None:
    """A call takes a schedule of fewer registers where more is spilled than this; the last one keeps to it too."""
    allowed = SPILLS.get((op.name, arch), FEW_SPILLS)
    assert spilled(built(op, "f16", arch, cols=min(LONG, op.contract.max_cols)), allowed) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax", "clip_global_norm"])
def test_a_structure_build_compiles_and_holds_no_arithmetic_on_floats(name: str) -> None:
    for made in built(registry()[name], "f16", "gfx942", structure=True):
        counts, found = read_ir(made.read("ir"))
        assert found == [] and sum(counts.values(), Counter()).keys() <= {"fabs"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "arch", "rows"),
    [("attention", "f16", "gfx1101", 12800), ("attention_backward", "bf16", "gfx942", 4)],
)
def test_attention_compiles_to_what_was_asked_for(name: str, dtype: str, arch: str, rows: int) -> None:
    assert spilled(built(registry()[name], dtype, arch, cols=64, rows=rows)) == {}


# ------------------------------------------------------------------ where fused multiply-adds come from
FUSED = [o for o in EVERY if holds_fma(o.trace("f16"))]
TWO_ROUNDINGS = "INLINE S fma(S a, S b, S c) { return __fadd_rn(__fmul_rn(a, b), c); }"
ONE_ROUNDING = "INLINE S fma(S a, S b, S c) { return __fmaf_rn(a, b, c); }"


def replacing(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


@pytest.mark.slow
@pytest.mark.parametrize("op", FUSED[::4], ids=names)
def test_every_fused_multiply_add_is_one_of_the_text(op: Operator) -> None:
    """None is left in the intermediate text once the text's are taken away."""
    (count,) = [read_ir(a.read("ir"), True)[0]["work"]["fma"] for a in built(op, "f16", "gfx942")]
    assert count
    assert built(op, "f16", "gfx942", edit=replacing(ONE_ROUNDING, TWO_ROUNDINGS), fma=False)
    with pytest.raises(CompileError, match="does not hold"):
        built(op, "f16", "gfx942", fma=False)


# ------------------------------------------------------------------ the checks above can fail
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("return __fmul_rn(a, b);", "return __fmaf_rn(a, b, 0.0f);", "does not hold"),
        ("return __fdiv_rn(a, b);", "return a * __builtin_amdgcn_rcpf(b);", "not on the list"),
        ("return __fdiv_rn(a, b);", "return float(double(a) * (1.0 / double(b)));", "computes in double"),
        ("return __fsqrt_rn(a);", "return __builtin_amdgcn_sqrtf(a);", "not on the list"),
        ("return __fsqrt_rn(a);", "return a * __builtin_amdgcn_rsqf(a);", "not on the list"),
        ("return __fadd_rn(a, b);", '_Pragma("clang fp contract(fast)") return a + b;', "permits other arithmetic"),
        ("p->value = canonical(x);", "__atomic_fetch_add(&p->value, x, __ATOMIC_RELAXED);", "no fixed order"),
        ("p->value = canonical(x);", "p->value = __builtin_amdgcn_fmed3f(x, 0.0f, 1.0f);", "not on the list"),
    ],
)
def test_another_arithmetic_is_refused(old: str, new: str, reason: str) -> None:
    op = registry()["rms_norm"]
    assert built(op, "f32", "gfx1101", fma=True)
    with pytest.raises(CompileError, match=reason):
        built(op, "f32", "gfx1101", edit=replacing(old, new), fma="__fmaf" not in new)


def test_a_launch_that_the_code_object_is_not_for_is_told() -> None:
    (made,) = built(registry()["silu"], "f16", "gfx942")
    program = HipProgram(made, Nothing(), None)  # type: ignore[arg-type]
    (name, have), *_ = made.resources.items()
    call = bytes(have.argument)
    program.launch(Step(name, 1, have.threads), call, 0, 0)
    for step, given, says in (
        (Step("nothing", 1, 64), call, "gfx942: the code object holds no kernel nothing"),
        (Step(name, 1, have.threads), call + bytes(8), f"takes {have.argument} bytes, the launch gives"),
        (Step(name, 1, 2 * have.threads), call, f"takes {have.threads} threads, the launch has"),
        (Step(name, 1, 32), call, "32 threads are no whole wavefronts of 64"),
    ):
        with pytest.raises(CompileError, match=re.escape(says)):
            program.launch(step, given, 0, 0)


def test_a_text_that_asks_for_too_many_registers_spills() -> None:
    """What the tests above count, they would count."""

    def tight(text: str) -> str:
        return text.replace("amdgpu_flat_work_group_size(threads, threads)",
                            "amdgpu_flat_work_group_size(threads, threads), amdgpu_num_vgpr(24)")  # fmt: skip

    assert spilled(built(registry()["softmax_backward"], "f32", "gfx942", edit=tight))
