"""The PTX scan: what it accepts, and that every forbidden line is found."""

from __future__ import annotations

import pytest

from tokitai.backends.cuda.ptx import Finding, opcodes, scan

HEAD = """//
// Generated: add.f32 in a comment is no instruction; nor is fma.rn.f32
.version 9.0
.target sm_90
.global .align 4 .f32 table[2] = {0f3F800000, 0f3F000000};

.visible .entry work(
	.param .u64 work_param_0
)
.maxntid 256
{
	.reg .pred 	%p<6>;
	.reg .f32 	%f<56>;
	.reg .f64 	%fd<6>;

"""

RIGHT = """	ld.param.u64 	%rd4, [work_param_0];
	ld.global.f32 	%f11, [%rd1+8];
	ld.global.L1::no_allocate.v4.f32 	{%f1, %f2, %f3, %f4}, [%rd1];
	add.rn.f32 	%f12, %f2, %f1;
	sub.rn.f32 	%f12, %f2, %f1;
	mul.rn.f32 	%f13, %f2, %f1;
	div.rn.f32 	%f15, %f2, %f1;
	sqrt.rn.f32 	%f16, %f2;
	neg.f32 	%f21, %f2;
	abs.f32 	%f21, %f2;
	setp.ltu.f32 	%p1, %f2, %f1;
	setp.lt.and.f32 	%p1, %f2, %f1, %p2;
	selp.f32 	%f22, %f2, %f1, %p1;
	mov.f32 	%f28, 0f3F800000;
	cvt.rn.f32.s32 	%f23, %r2;
	cvt.rzi.s32.f32 	%r3, %f2;
	cvt.rni.f32.f32 	%f3, %f2;
	cvt.rn.f16.f32 %rs1, %f2;
	cvt.rn.bf16x2.f32 %r1, %f2, %f3;
	cvt.f32.f16 %f10, %rs3;
	shfl.sync.bfly.b32 	%r8|%p2, %r4, %r6, %r5, %r7;
	mad.lo.s64 	%rd1, %rd2, %rd3, %rd4;
	atom.global.add.u32 	%r1, [%rd1], 1;
	@%p4 bra 	$L__BB0_2;
$L__BB0_2:
	st.global.v2.f32 	[%rd1+12], {%f12, %f13};
	ret;
"""


def text(body: str) -> str:
    return f"{HEAD}{body}\n}}\n"


def test_instructions_with_the_defined_bits_pass() -> None:
    assert scan(text(RIGHT)) == []
    assert opcodes(text(RIGHT))["div.rn.f32"] == 1
    assert sum(opcodes(text(RIGHT)).values()) == RIGHT.count(";")


WRONG = [
    ("add.f32 %f1, %f2, %f3;", "may fuse"),
    ("mul.f32 %f1, %f2, %f3;", "may fuse"),
    ("sub.f64 %fd1, %fd2, %fd3;", "may fuse"),
    ("add.rn.ftz.f32 %f1, %f2, %f3;", "flushes"),
    ("add.rz.f32 %f1, %f2, %f3;", "not on the list"),
    ("add.rm.f32 %f1, %f2, %f3;", "not on the list"),
    ("add.rn.sat.f32 %f1, %f2, %f3;", "clamps"),
    ("fma.rn.f32 %f1, %f2, %f3, %f4;", "fused"),
    ("mad.rn.f32 %f1, %f2, %f3, %f4;", "not on the list"),
    ("fma.rn.ftz.f32 %f1, %f2, %f3, %f4;", "flushes"),
    ("div.approx.f32 %f1, %f2, %f3;", "approximation"),
    ("div.full.f32 %f1, %f2, %f3;", "approximation"),
    ("div.full.ftz.f32 %f1, %f2, %f3;", "approximation"),
    ("sqrt.approx.f32 %f1, %f2;", "approximation"),
    ("sqrt.rz.f32 %f1, %f2;", "not on the list"),
    ("rcp.rn.f32 %f1, %f2;", "not on the list"),
    ("rcp.approx.ftz.f32 %f1, %f2;", "approximation"),
    ("rsqrt.approx.f32 %f1, %f2;", "approximation"),
    ("ex2.approx.f32 %f1, %f2;", "approximation"),
    ("lg2.approx.f32 %f1, %f2;", "approximation"),
    ("sin.approx.f32 %f1, %f2;", "approximation"),
    ("cos.approx.f32 %f1, %f2;", "approximation"),
    ("tanh.approx.f32 %f1, %f2;", "approximation"),
    ("atom.global.add.f32 %f1, [%rd1], %f2;", "no fixed order"),
    ("red.global.add.f32 [%rd1], %f2;", "no fixed order"),
    ("red.global.add.noftz.f16x2 [%rd1], %r2;", "no fixed order"),
    ("add.rn.f16 %rs1, %rs2, %rs3;", "not on the list"),
    ("fma.rn.bf16x2 %r1, %r2, %r3, %r4;", "not on the list"),
    ("cvt.rz.f16.f32 %rs1, %f2;", "not on the list"),
    ("cvt.rn.satfinite.e4m3x2.f32 %rs1, %f2, %f3;", "not on the list"),
    ("cvt.rna.tf32.f32 %r1, %f2;", "not on the list"),
    ("cvt.sat.f32.f32 %f1, %f2;", "clamps"),
    ("setp.lt.ftz.f32 %p1, %f2, %f3;", "flushes"),
    ("cvt.f64.f32 %fd1, %f2;", "computes in f64"),
    ("add.rn.f64 %fd1, %fd2, %fd3;", "computes in f64"),
    ("fma.rn.f64 %fd1, %fd2, %fd3, %fd4;", "computes in f64"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2};", "not on the list"),
]


@pytest.mark.parametrize(("line", "reason"), WRONG)
@pytest.mark.parametrize("form", ["\t{}", "\t@%p1 {}", "\t@!%p1 {}", "$L1: {}", "\t{{ .reg .f32 %t; {} }}"])
def test_a_wrong_instruction_is_found(line: str, reason: str, form: str) -> None:
    body = f"{RIGHT}{form.format(line)}\n{RIGHT}"
    (found,) = scan(text(body))
    assert isinstance(found, Finding) and found.kernel == "work"
    assert reason in found.reason and line.split()[0] in str(found)
    assert found.line == (HEAD + RIGHT).count("\n") + 1


def test_what_a_definition_asks_for_passes() -> None:
    fma, f64 = "\tfma.rn.f32 %f1, %f2, %f3, %f4;\n", "\tcvt.f64.f32 %fd1, %f2;\n\tadd.rn.f64 %fd1, %fd2, %fd3;\n"
    assert scan(text(fma), fma_allowed=True) == []
    assert scan(text(f64), f64_allowed=True) == []
    assert len(scan(text(fma + f64))) == 3
    assert len(scan(text(fma + f64), fma_allowed=True)) == 2
    assert len(scan(text("\tfma.rz.f32 %f1, %f2, %f3, %f4;\n"), fma_allowed=True)) == 1
    assert len(scan(text("\tfma.rn.f64 %fd1, %fd2, %fd3, %fd4;\n"), f64_allowed=True)) == 1


QUOTIENT = """
	mov.{kind} 	%f9, 0f3F800000;
	rcp.approx.ftz.f32 %f1, %f2;
	neg.f32 	%f3, %f2;
	fma.rn.f32 	%f4, %f3, %f1, %f9;
	fma.rn.f32 	%f5, %f1, %f4, %f1;
	mov.{kind} 	%f6, {numerator};
	mul.rn.f32 	%f7, %f6, %f5;
	fma.rn.f32 	%f8, %f7, %f2, {negated};
	neg.f32 	%f10, %f8;
	fma.rn.f32 	%f11, %f10, %f5, %f7;
"""


@pytest.mark.parametrize("kind", ["f32", "b32"])
def test_a_quotient_of_a_constant_may_begin_with_an_approximation(kind: str) -> None:
    allowed = dict(fma_allowed=True, quotients_allowed=True)
    right = QUOTIENT.format(kind=kind, numerator="0f40000000", negated="0fC0000000")
    assert scan(text(right), **allowed) == []
    for wrong in ("0f40000000", "0fC0000001", "0f00000000"):
        (found,) = scan(text(QUOTIENT.format(kind=kind, numerator="0f40000000", negated=wrong)), **allowed)
        assert "approximation" in found.reason


def test_a_function_from_elsewhere_is_found() -> None:
    (found,) = scan(f".extern .func (.param .b32 r) vprintf\n(\n);\n{text(RIGHT)}")
    assert "elsewhere" in found.reason and found.line == 1
