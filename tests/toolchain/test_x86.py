"""The scan of x86-64 code: what it accepts, and that each change of the arithmetic is found and refuted by name."""

from __future__ import annotations

import json
import platform
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample_kernels import HEAD

from tokitai import ops, verify
from tokitai.backends.cpu import x86
from tokitai.backends.machine_code import DIVISIONS, FUSED, MERGED, PLAIN, ROOTS
from tokitai.runtime.kernel import host_kernel
from tokitai.toolchain.build import HERE, Isa, Source, build
from tokitai.toolchain.compilers import Compiler, find_compiler
from tokitai.verification.derived import departures
from tokitai.verification.recheck import check_file

NO_OBJDUMP = pytest.mark.skipif(shutil.which("objdump") is None, reason=x86.MISSING)
pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="kernels for x86-64; this is " + platform.machine()
)

# ------------------------------------------------------------------ single instructions
LINES = (
    "S fma(S a, S b, S c)",
    "return a + b;",
    "return c ? a : b;",
    "ldmxcsr(0x1F80)",
    "ldmxcsr(0x9FC0)",
    "for (c + 1)",
    "const int64_t m = int64_t(size * unit);",
    "return (__m512) __builtin_ia32_cvtudq2ps512_mask (",
)
RIGHT = [
    ("vaddps %ymm1,%ymm2,%ymm3", 2, PLAIN),
    ("mulss 0x8(%rdi),%xmm0", 2, PLAIN),
    ("vdivpd %zmm1,%zmm2,%zmm3", 2, DIVISIONS),
    ("vsqrtss %xmm1,%xmm1,%xmm2", 2, ROOTS),
    ("vfmadd231ps %zmm1,%zmm2,%zmm3", 1, FUSED),
    ("call 1030 <fmaf@plt>", 0, FUSED),
    ("vfmadd132ps %zmm8,%zmm6,%zmm0{%k2}{z}", 3, MERGED),
    ("vfnmadd213sd %xmm1,%xmm2,%xmm3", 0, MERGED),
    ("vfmadd231ps %zmm1,%zmm2,%zmm3", 6, MERGED),
    ("vldmxcsr 0x4(%rsp)", 4, None),
    ("vcvtps2ph $0x0,%ymm1,%xmm2", 2, None),
    ("vrndscalesd $0xb,%xmm0,%xmm0,%xmm2", 7, None),
    ("vcvtudq2ps {rz-sae},%zmm0,%zmm0", 8, None),
    ("call 1050 <ldexp@plt>", 2, None),
    ("roundss $0x4,%xmm0,%xmm0", 2, None),
    ("vrndscaleps $0x8,%zmm1,%zmm2", 2, None),
    ("vcvtdq2ps %ymm1,%ymm2", 2, None),
    ("vmaxps %ymm1,%ymm2,%ymm3", 2, None),
    ("vpmaxsd %ymm1,%ymm2,%ymm3", 2, None),
    ("push %rbp", 2, None),
    ("call 1040 <GOMP_parallel@plt>", 2, None),
    ("rep stos %al,%es:(%rdi)", 2, None),
    ("vucomiss %xmm1,%xmm2", 2, None),
]
WRONG = [
    ("vfmadd231ps %ymm1,%ymm2,%ymm3", 2, "does not ask for: return a \\+ b"),
    ("vfnmsub132sd %xmm1,%xmm2,%xmm3", 2, "does not ask for: return a \\+ b"),
    ("vfmadd231ps %zmm1,%zmm2,%zmm3{%k1}", 2, "does not ask for"),
    ("rcpps %xmm1,%xmm2", 1, "approximation"), ("rsqrtss %xmm1,%xmm2", 1, "approximation"),
    ("vrcpps %ymm1,%ymm2", 1, "approximation"), ("vrcp14ps %zmm1,%zmm2", 1, "approximation"),
    ("vrsqrt14ps %zmm1,%zmm2", 1, "approximation"), ("vrsqrt28ss %xmm1,%xmm2,%xmm3", 1, "approximation"),
    ("vexp2ps %zmm1,%zmm2", 1, "approximation"), ("vrcpph %zmm1,%zmm2", 1, "approximation"),
    ("vaddps {rz-sae},%zmm1,%zmm2,%zmm3", 2, "another way"), ("vcvtps2ph $0x3,%ymm1,%xmm2", 2, "another way"),
    ("vroundps $0x9,%ymm1,%ymm2", 2, "another way"), ("vcvtudq2ps {rz-sae},%zmm0,%zmm0", 2, "another way"),
    ("vrndscalesd $0xb,%xmm0,%xmm0,%xmm2", 0, "another way"), ("vaddph %zmm1,%zmm2,%zmm3", 2, "not on the list"),
    ("vfmadd132ph %zmm1,%zmm2,%zmm3", 1, "not on the list"), ("vcvtneps2bf16 %ymm1,%xmm2", 2, "not on the list"),
    ("vdpps $0xff,%ymm1,%ymm2,%ymm3", 2, "not on the list"), ("fmulp %st,%st(1)", 2, "not on the list"),
    ("vdpbf16ps %zmm1,%zmm2,%zmm3", 2, "not on the list"), ("vreduceps $0x0,%zmm1,%zmm2", 2, "not on the list"),
    ("ldmxcsr (%rsp)", 5, "changes how floats"), ("vldmxcsr -0x4(%rsp)", 0, "changes how floats"),
    ("call 1050 <expf@plt>", 2, "elsewhere"), ("jmp 1060 <_ZGVdN8v_expf@plt>", 2, "elsewhere"),
]  # fmt: skip


def listing(instruction: str, line: int) -> str:
    """What objdump prints of one instruction on a line of the source; line 0 is of several."""
    rows = f"{HERE}/kernel.cpp:\nkernel.cpp   {line}   0x1100   x\nkernel.cpp   -   0x1110\n"
    return f"{rows}\n0000000000001100 <work>:\n    1100:\t{instruction}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernel.cpp").write_text("\n".join(LINES))
    return tmp_path


@pytest.mark.parametrize(("instruction", "line", "kind"), RIGHT)
def test_what_the_source_asks_for_passes(folder: Path, instruction: str, line: int, kind: str | None) -> None:
    assert x86.scan(listing(instruction, line), folder) == ({kind: 1} if kind else {}, [])


@pytest.mark.parametrize(("instruction", "line", "reason"), WRONG)
def test_a_wrong_instruction_is_found(folder: Path, instruction: str, line: int, reason: str) -> None:
    (found,) = x86.scan(listing(instruction, line), folder)[1]
    assert found.kernel == "work" and found.instruction == instruction
    assert re.search(reason, found.reason)


def test_code_of_no_source_asks_for_nothing(folder: Path) -> None:
    """As what a linker adds: there is no table of line numbers for it."""
    bare = listing("vfmadd231ps %ymm1,%ymm2,%ymm3", 1).partition("\n\n")[2]
    (found,) = x86.scan(bare, folder)[1]
    assert "of no source" in found.reason
    assert x86.scan(listing("vfmadd231ps %ymm1,%ymm2,%ymm3", 1).replace("1100:", "1110:"), folder)[1]


def test_a_source_that_cannot_be_read_refutes_nothing(tmp_path: Path) -> None:
    counts, found = x86.scan(listing("vfmadd231ps %ymm1,%ymm2,%ymm3", 2), tmp_path)
    assert (counts, found) == ({MERGED: 1}, [])


def test_a_row_names_its_file_whatever_the_heading(folder: Path) -> None:
    """As where a unit's code begins with a function of a header."""
    text = listing("vfmadd231ps %ymm1,%ymm2,%ymm3", 2).replace(f"{HERE}/kernel.cpp:", f"CU: {HERE}/other.cpp:")
    (found,) = x86.scan(text, folder)[1]
    assert "does not ask for: return a + b" in found.reason


# ------------------------------------------------------------------ what compilers make
BODY = """
EXPORT int32_t tokitai_kernel(ARGUMENTS) {
    float* x = static_cast<float*>(tensors[0]);
    for (int64_t i = 0; i < sizes[0]; ++i)
        %s;
    return 0;
}
"""
CONTRACTED = r"fused multiply-add that the source does not ask for: x\[i\] = "
PLANTED: list[tuple[str, Isa, str, str]] = [
    ("x[i] = x[i] * x[i + 1] + x[i + 2]", "avx2", "-ffp-contract=fast", CONTRACTED),
    ("x[i] = x[i] * x[i + 1] - x[i + 2]", "avx512", "-ffp-contract=fast", CONTRACTED),
    ("x[i] = x[i + 2] - x[i] * x[i + 1]", "avx2", "-Ofast -ffp-contract=fast", CONTRACTED),
    ("x[i] = x[i] / x[i + 99]", "avx2", "-ffast-math", "vrcpps.*is an approximation"),
    ("x[i] = x[i] / x[i + 99]", "scalar", "-ffast-math", "rcpps.*is an approximation"),
    ("x[i] = 1 / __builtin_sqrtf(x[i])", "scalar", "-ffast-math -mrecip", "rsqrt[ps]s.*is an approximation"),
    ("x[i] = 1 / __builtin_sqrtf(x[i])", "avx512", "-ffast-math", "vrsqrt(14)?ps.*is an approximation"),
    ("x[i] = x[i] / x[i + 99]", "avx512", "-ffast-math -mprefer-vector-width=512", "vrcp(14)?ps.*is an approximation"),
    ("x[i] = __builtin_expf(x[i])", "avx2", "-O1", "expf.*is a function that is defined elsewhere"),
    ("x[i] = __builtin_ia32_rcpss(__v4sf{x[i]})[0]", "scalar", "-O3", "rcpss.*is an approximation"),
    ("__builtin_ia32_ldmxcsr(0x9FC0)", "scalar", "-O3", "ldmxcsr.*whether subnormal numbers count"),
    ("x[i] = float(static_cast<long double>(x[i]) * x[i] / 3)", "avx2", "-O3", "fdiv.*not on the list"),
]  # fmt: skip


def gcc() -> Compiler:
    return find_compiler("g++")


NO_GCC = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the flags are GCC's; no g++ is on PATH: apt install g++"
)


@NO_OBJDUMP
@NO_GCC
@pytest.mark.parametrize(("statement", "isa", "flags", "reason"), PLANTED)
def test_a_compiler_that_computes_otherwise_is_found(
    wrapped: Callable[..., Compiler], statement: str, isa: Isa, flags: str, reason: str
) -> None:
    """A compiler by another name that adds flags of its own. Nothing runs: any processor will do."""
    source = Source("typedef float __v4sf __attribute__((vector_size(16)));" + HEAD + BODY % statement)
    found = x86.read(build(source, wrapped(f'set -- "$@" {flags}'), isa)).findings
    assert any(re.search(reason, f) for f in found), found


@NO_OBJDUMP
def test_a_library_that_flushes_subnormals_when_it_is_loaded_is_found(wrapped: Callable[..., Compiler]) -> None:
    """Some compilers link such a constructor under -ffast-math."""
    flushing = "__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);"
    set_mode = f"__attribute__((constructor)) static void start() {{ {flushing} }}"
    (found,) = x86.read(build(Source(HEAD + set_mode + BODY % "x[i] *= 2"), find_compiler(), "scalar")).findings
    assert "whether subnormal numbers count" in found


@NO_OBJDUMP
@pytest.mark.parametrize("isa", ["avx512", "avx2", "scalar"])
@pytest.mark.parametrize("name", ["g++", "clang++-19"])
def test_a_right_kernel_is_counted(name: str, isa: Isa) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"no {name} is on PATH")
    code = x86.read(host_kernel(ops.layer_norm, "f16", compiler=name, isa=isa).artifact)
    assert code.missing is None and code.findings == () and "GNU objdump" in code.listing
    assert code.counts[PLAIN] > 20 and code.counts[FUSED] > 2 and code.counts[DIVISIONS] > 1 and code.counts[ROOTS]


# ------------------------------------------------------------------ certificates
def of_gelu(tmp_path: Path, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    verdict = verify(
        ops.gelu_erf, dtype="f32", case="seeded/normal@3x40#0", shape=dict(rows=3, cols=40), out=tmp_path, **kwargs
    )
    return verdict, json.loads(verdict.certificate.read_text())["predicate"]


@NO_OBJDUMP
@NO_GCC
@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("-ffp-contract=fast", "is a fused multiply-add that the source does not ask for: INLINE V add(V a, V b)"),
        ("-ffast-math", "machine code: x86-64 code"),
    ],
)
def test_a_verdict_names_the_machine_code(
    wrapped: Callable[..., Compiler], tmp_path: Path, flags: str, reason: str
) -> None:
    verdict, predicate = of_gelu(tmp_path, compiler=str(wrapped(f'set -- "$@" {flags}').path))
    assert verdict.verdict == "refuted" and reason in verdict.failure
    assert predicate["machine_code"][0]["findings"]
    assert any("may compute something else than the source asks for" in claim for claim in predicate["claims"])
    assert not verdict.results, "no library that may change this process is loaded"
    assert list(departures(predicate, ops.gelu_erf)) == []
    found = check_file(verdict.certificate)
    assert found.outcome == "refuted" and len(found.problems) == 1, found.problems


@NO_OBJDUMP
def test_a_certificate_claims_what_was_read(tmp_path: Path) -> None:
    verdict, predicate = of_gelu(tmp_path)
    assert verdict.verdict == "verified"
    (claim,) = [c for c in predicate["claims"] if c.startswith("Machine code")]
    (code,) = predicate["machine_code"]
    assert all(f"{count} {kind}" in claim for kind, count in code["counts"].items()) and "no contraction" in claim
    assert check_file(verdict.certificate, rerun=0).problems == []


def test_a_certificate_says_which_tool_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, **_: None if name == "objdump" else f"/usr/bin/{name}")
    verdict, predicate = of_gelu(tmp_path)
    assert verdict.verdict == "verified"
    assert not [c for c in predicate["claims"] if c.startswith("Machine code")]
    assert f"Machine code of 1 binaries was not read: {x86.MISSING}." in predicate["non_claims"]
    assert check_file(verdict.certificate, rerun=0).problems == []
