"""The scan of kernels for AMD GPUs: what it accepts, and that every forbidden change of a right text is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from tokitai.backends.hip import clang as hip
from tokitai.backends.hip.assembly import read_asm, read_ir, scan
from tokitai.emit.gpu_text import headers
from tokitai.errors import CompilerMissingError
from tokitai.toolchain.build import Source

try:
    hip.find_hip()
except CompilerMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

TEXT = """#include "rows.h"
namespace tokitai {
struct Call { const float* x; float* y; int64_t n, m; };
KERNEL(work, 64, 1) {
  const int i = thread_index();
  const S a = call.x[i], b = call.x[i + 64];
  call.y[i] = add(mul(a, b), a);
  call.y[i + 64] = fma(a, b, b);
  call.y[i + 128] = div(a, b);
  call.y[i + 192] = sqrt(a);
  call.y[i + 256] = sub(b, across<Add, WARP>(a));
  call.y[i + 320] = to_value(int32_t(call.n / call.m), S{});
}
}  // namespace tokitai
"""
SOURCE = Source(TEXT, headers(), "sample")
ARCHS = ("gfx90a", "gfx942", "gfx1030", "gfx1101", "gfx1201")


@cache
def texts(arch: str) -> tuple[str, str]:
    """Built once, whatever the cache folder of a test."""
    made = hip.build(SOURCE, arch, fma_allowed=True)
    return made.read("ir"), made.read("asm")


@pytest.mark.parametrize("arch", ARCHS)
def test_a_right_text_passes_and_is_counted(arch: str) -> None:
    ir, asm = texts(arch)
    assert scan(ir, asm, fma_allowed=True) == []
    asked, made = read_ir(ir, fma_allowed=True)[0]["work"], read_asm(asm)[0]["work"]
    exchanges = hip.ARCHITECTURES[arch].bit_length() - 1
    assert (asked["fma"], asked["fdiv"], asked["sqrt"], asked["fmul"]) == (1, 1, 1, 1)
    assert asked["fadd"] + asked["fsub"] == 2 + exchanges
    assert (made["division"], made["root"], made["wide"], made["fused"]) == (1, 1, 1, 1 + 5 + 2 + 2)


def test_an_fma_that_the_definition_does_not_hold_is_found() -> None:
    ir, asm = texts("gfx942")
    (found,) = scan(ir, asm)
    assert "does not hold" in found.reason and found.kernel == "work"


def swap(old: str, new: str) -> Callable[[str], str]:
    """Changes the first match; there must be one."""

    def change(text: str) -> str:
        changed, count = re.subn(old, new, text, count=1, flags=re.MULTILINE)
        assert count == 1, f"{old} is not in the text"
        return changed

    return change


IN_ASM = [
    # contracted: a product and a sum become one, or a product alone is fused with 0
    (r"^\s+v_(dual_)?mul_f32.*$", "\tv_fma_f32 v1, v2, v3, v4", "fused operations"),
    (r"^\s+(v_add_f32.*)$", "\tv_fmac_f32_e32 v1, v2, v3", "sums, differences and products"),
    (r"^\s+v_add_f32.*$", "\tv_mac_f32_e32 v1, v2, v3", "flushes"),
    (r"^\s+v_add_f32.*$", "\tv_mad_f32 v1, v2, v3, v4", "flushes"),
    (r"^(\s+v_add_f32.*)$", r"\1 clamp", "clamps"),
    (r"^(\s+v_add_f32.*)$", r"\1 mul:2", "flushes"),
    # approximate
    (r"^\s+v_div_fixup_f32.*$", "", "divisions"),
    (r"^\s+v_fma_f32.*$", "", "fused operations"),
    (r"^(\s+v_sqrt_f32.*)$", r"\1\n\1", "square roots"),
    (r"^(\s+)v_sqrt_f32(.*)$", r"\1v_rsq_f32\2", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_rcp_f32_e32 v1, v2\n\\1", "reciprocals"),
    (r"^(\s+s_endpgm)$", "\tv_exp_f32_e32 v1, v2\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_log_f32_e32 v1, v2\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_cvt_pkrtz_f16_f32 v1, v2, v3\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_mul_f16_e32 v1, v2, v3\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_fma_mix_f32 v1, v2, v3, v4\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_add_f64 v[0:1], v[2:3], v[4:5]\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_mfma_f32_32x32x2f32 a[0:31], v0, v1, a[0:31]\n\\1", "not on the list"),
    (r"^(\s+s_endpgm)$", "\tv_dot2_f32_f16 v1, v2, v3, v4\n\\1", "not on the list"),
    # atomics on floats
    (r"^(\s+s_endpgm)$", "\tglobal_atomic_add_f32 v0, v1, s[0:1]\n\\1", "no fixed order"),
    (r"^(\s+s_endpgm)$", "\tglobal_atomic_pk_add_f16 v0, v1, s[0:1]\n\\1", "no fixed order"),
    (r"^(\s+s_endpgm)$", "\tflat_atomic_max_f64 v[0:1], v[2:3]\n\\1", "no fixed order"),
    (r"^(\s+s_endpgm)$", "\tds_add_f32 v0, v1\n\\1", "no fixed order"),
    (r"^(\s+s_endpgm)$", "\tds_add_rtn_f32 v0, v1, v2\n\\1", "no fixed order"),
    # modes
    (r"float_denorm_mode_32 3$", "float_denorm_mode_32 0", "flushes"),
    (r"float_denorm_mode_16_64 3$", "float_denorm_mode_16_64 1", "flushes"),
    (r"float_round_mode_32 0$", "float_round_mode_32 3", "rounds another way"),
    (r"^\s+\.amdhsa_float_denorm_mode_32.*\n", "", "says nothing of denorm_mode_32"),
    (r"^(\s+s_endpgm)$", "\ts_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 0\n\\1", "changes how floats are rounded"),
    (r"^(\s+s_endpgm)$", "\ts_denorm_mode 0\n\\1", "changes how floats are rounded"),
    (r"^(\s+s_endpgm)$", "\ts_round_mode 15\n\\1", "changes how floats are rounded"),
]


@pytest.mark.parametrize(("old", "new", "reason"), IN_ASM)
@pytest.mark.parametrize("arch", ["gfx942", "gfx1030"])
def test_a_changed_assembly_is_found(arch: str, old: str, new: str, reason: str) -> None:
    ir, asm = texts(arch)
    found = scan(ir, swap(old, new)(asm), fma_allowed=True)
    assert any(re.search(reason, str(f)) for f in found), found


IN_IR = [
    (r"= fmul float", "= fmul contract float", "permits other arithmetic: contract"),
    (r"= fadd float", "= fadd reassoc nsz float", "permits other arithmetic: reassoc nsz"),
    (r"= fdiv float", "= fdiv arcp float", "permits other arithmetic: arcp"),
    (r"call noundef float @llvm.sqrt", "call afn noundef float @llvm.sqrt", "permits other arithmetic: afn"),
    (r"(= fdiv float .*)$", r"\1, !fpmath !7", "approximation"),
    (r"(call .*@llvm.sqrt.f32\(.*\))$", r"\1, !fpmath !7", "approximation"),
    (r"@llvm.sqrt.f32\(float %", "@llvm.amdgcn.rsq.f32(float %", "not on the list"),
    (r"@llvm.sqrt.f32\(float %", "@llvm.exp2.f32(float %", "not on the list"),
    (r"@llvm.fma.f32\(float %", "@llvm.fmuladd.f32(float %", "not on the list"),
    (r"= fadd float", "= fadd double", "computes in double"),
    (r"= fadd float", "= fadd half", "computes in half"),
    (r"= fadd float", "= frem float", "computes in float|asks for"),
    (r"(  ret void)", "  %q = atomicrmw fadd ptr %p, float 1.0 monotonic\n\\1", "no fixed order"),
    (r"(  ret void)", '  %q = call float asm "v_exp_f32 $0, $1", "=v,v"(float %p)\n\\1', "assembly"),
    (r"^attributes #0 = {", 'attributes #0 = { "denormal-fp-math-f32"="preserve-sign,preserve-sign"', "flushes"),
    (r"^attributes #0 = {", 'attributes #0 = { "unsafe-fp-math"="true"', "permits other arithmetic"),
    # as many operations as the assembly has not
    (r"^.*= fadd float.*\n", "", "sums, differences and products"),
    (r"^.*@llvm.fma.f32\(float.*\n", "", "fused operations"),
    (r"^.*= fdiv float.*\n", "", "divisions"),
]


@pytest.mark.parametrize(("old", "new", "reason"), IN_IR)
def test_a_changed_intermediate_text_is_found(old: str, new: str, reason: str) -> None:
    ir, asm = texts("gfx942")
    found = scan(swap(old, new)(ir), asm, fma_allowed=True)
    assert any(re.search(reason, str(f)) for f in found), found


def test_a_pair_of_instructions_is_two() -> None:
    line = "\tv_dual_mul_f32 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6\n\tv_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]\n"
    counts, found = read_asm(f"work:\n{line}")
    assert found == [] and counts["work"] == {"plain": 1, "fused": 3}


def test_whole_numbers_may_be_multiplied_without_subnormals() -> None:
    right = "work:\n\tv_madmk_f32 v1, v2, 0x4f800000, v3\n\tv_madmk_f32 v1, v2, 0xcf800000, v3\n"
    assert read_asm(right) == ({"work": {"fused": 2}}, [])
    (found,) = read_asm("work:\n\tv_madmk_f32 v1, v2, 0x3f800000, v3\n")[1]
    assert "flushes" in found.reason


VECTORS = """define amdgpu_kernel void @work() {
  %1 = fmul <2 x float> %a, %b
  %2 = extractelement <2 x float> %1, i64 0
  %3 = extractelement <2 x float> %1, i64 0
  %4 = fmul <2 x float> %a, %c
  store <2 x float> %4, ptr %p, align 8
  %5 = fadd float %2, 1.000000e+00
}
"""
PRODUCTS = "\tv_mul_f32_e32 v1, v2, v3\n\tv_pk_mul_f32 v[0:1], v[2:3], v[4:5]\n"
ANEW = "\tv_add_f32_e64 v6, |v5|, 1.0\n"


def differences(asm: str) -> list[str]:
    return [str(f) for f in scan(VECTORS, f"work:\n{asm}") if "asks for" in f.reason]


def test_elements_that_nothing_reads_may_be_left_out() -> None:
    """One of the four here; and those that are read may not."""
    assert read_ir(VECTORS)[0]["work"] == {"fmul": 4, "idle fmul": 1, "fadd": 1}
    assert differences(PRODUCTS + ANEW) == []
    assert differences(f"{PRODUCTS}\tv_mul_f32_e32 v1, v2, v3\n{ANEW}") == []
    (found,) = differences(PRODUCTS)
    assert "3 sums, differences and products: the intermediate text asks for 5" in found


def test_a_sum_with_a_constant_may_be_computed_anew() -> None:
    """Of a register that is kept; one of two registers, or a fused operation, may not."""
    assert differences(PRODUCTS + 3 * ANEW) == []
    assert differences(f"{PRODUCTS}{3 * PRODUCTS}{ANEW}") and differences(
        f"{PRODUCTS}{ANEW}\tv_fma_f32 v1, v2, v3, v4\n"
    )
