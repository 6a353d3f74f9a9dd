"""The HIP source of every operator on fibers, in wavefronts of 32 and of 64 lanes; what `verify` says where there is no
AMD device, and that it refutes wrong kernels all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mutants import Edit

from tokitai.backends.hip import clang as hip
from tokitai.backends.hip.target import HipTarget
from tokitai.backends.machine_code import holds_fma
from tokitai.errors import ArgumentError, CompilerMissingError, UnknownNameError
from tokitai.evidence.check import check
from tokitai.families import make_plan
from tokitai.formats import format_of
from tokitai.lang import Operator
from tokitai.ops import get, registry
from tokitai.runtime.gpu_kernel import GpuKernel
from tokitai.runtime.kernel import is_attention
from tokitai.runtime.shapes import in_groups
from tokitai.verification import cases, verify
from tokitai.verification.run import run_numbers, run_structure
from tokitai.verification.verdict import variants

EVERY = [o for o in registry().values() if not is_attention(o)]  # test_gpu_attention.py
ARCHS = {32: "gfx1101", 64: "gfx942"}
FIRST = {make_plan(o.trace("f16")).family: o for o in reversed(EVERY)}.values()  # of each family


def names(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.mark.slow
@pytest.mark.parametrize("warp", ARCHS)
@pytest.mark.parametrize("op", EVERY, ids=names)
def test_every_hip_text_has_the_oracles_bits_and_structure(op: Operator, warp: int) -> None:
    graph = op.trace("f16")
    target = HipTarget(ARCHS[warp], holds_fma(graph), inspect=False)
    assert target.warp == warp
    numbers, hashed = (GpuKernel(op, graph, make_plan(graph), s, target) for s in (False, True))
    shape = in_groups(graph, (min(35, op.contract.max_rows), min(257, op.contract.max_cols)))
    if op in FIRST or EVERY.index(op) % 2 == list(ARCHS).index(warp):  # hashes on both widths, numbers on one in turn
        result = run_numbers(numbers, cases.seeded(op, graph, "normal", shape, 1), None, 3)
        assert result.equal and result.compared, result.failure
    integers = {t.name: cases.draw(op, t, "normal", shape, 1) for t in graph.inputs if not format_of(t.format).is_float}
    result = run_structure(hashed, shape, integers, cases.drawn_scalars(op, graph, shape), 1)
    assert result.equal and result.compared, result.failure


@pytest.mark.slow
@pytest.mark.parametrize("warp", ARCHS)
@pytest.mark.parametrize(
    ("name", "pattern", "new"),
    [
        ("exchange", r"thread_index\(\) \^ mask", "thread_index() ^ (mask > 1)"),
        ("exchange", r"\(WARP - 1\)\) << 2", "(WARP - 1)) << 1"),
        ("exchange", r"uint32_t\(x >> 32\), mask\)", "uint32_t(x), mask)"),
        ("barrier", r"__builtin_amdgcn_s_barrier\(\);\n", "\n"),
        ("grid", r"/ uint32_t\(block_size\(\)\)", ""),
        ("loads", r"(INLINE Words16 load16.*)\(p\)\)}", r"\1(p) + 1)}"),
        ("stores", r"(INLINE void store8.*)__builtin", r"\1if (false) __builtin"),
    ],
)
def test_a_wrong_header_is_refuted(warp: int, name: str, pattern: str, new: str) -> None:
    """What hip.h says in AMD's builtins is run: every wrong word shows."""
    op = get("softmax" if name == "grid" else "layer_norm_backward")
    graph = op.trace("f32" if name in ("loads", "stores") else "f16")
    plan, edit = make_plan(graph), Edit(pattern, new)
    target = HipTarget(ARCHS[warp], True, inspect=False)
    # blocks take rows of up to a warp's chunks in turn; pieces of eight and four need rows that allow them
    shape = {"grid": (70, 200), "loads": (5, 1024), "stores": (5, 1026)}.get(name, (5, 257))

    def run(with_edit: Edit | None) -> bool:
        kernel = GpuKernel(op, graph, plan, True, target, with_edit)
        if name in ("loads", "stores"):  # hashes are twice as wide: numbers take these accesses
            kernel = replace(kernel, structure=False)
            return run_numbers(kernel, cases.seeded(op, graph, "normal", shape, 1), None, 3).equal
        return run_structure(kernel, shape, {}, cases.settled(op, graph, cases.defaults(op)), 1).equal

    assert run(None)
    assert not run(edit) and edit.found


# ------------------------------------------------------------------ verify
def amd_compiler_missing() -> str | None:
    return hip.missing()


needs_clang = pytest.mark.skipif(amd_compiler_missing() is not None, reason=str(amd_compiler_missing()))
CASE = "seeded/normal@3x33#0"


@needs_clang
@pytest.mark.slow
def test_an_operator_is_compiled_inspected_and_run_on_fibers(tmp_path: Path) -> None:
    op = get("scale")
    verdict = verify(op, device="hip", dtype="f16", variant=variants(op)[0], out=tmp_path)
    assert (verdict.verdict, verdict.exit_code, verdict.failure) == ("undecided", 3, None)
    assert {"structure", "seeded", "compiled"} <= set(verdict.evidence)
    assert str(verdict.not_run).startswith("compiled and inspected for gfx942, gfx1101, not run: ")
    assert all(r.equal for r in verdict.results)
    assert verdict.certificate is not None and check(verdict.certificate) == []
    predicate: dict[str, Any] = json.loads(verdict.certificate.read_text())["predicate"]
    assert (predicate["verdict"], predicate["target"], predicate["failure"]) == ("undecided", "hip", None)
    assert (predicate["isa"], predicate["compiler"]["kind"]) == ("gfx942", "clang")
    assert predicate["device"]["simulated"] and predicate["device"]["architectures"] == "gfx942, gfx1101"
    assert predicate["device"]["warp"] == "32, 64"
    assert any("compiled and inspected for gfx942, gfx1101, not run" in text for text in predicate["non_claims"])
    assert any("ran on the simulated device" in text for text in predicate["claims"])
    assert all(
        "on the simulated device" in proof["how"] for proof in predicate["proofs"] if "induction" not in proof["how"]
    )
    digests = {k["digest"] for k in predicate["kernels"]}
    for kernel in verdict.kernels:
        for program, _ in kernel.programs.values():  # type: ignore[attr-defined]
            if not kernel.structure:  # type: ignore[attr-defined]
                assert {program.artifact.digest, program.beside[0].digest} <= digests


@needs_clang
def test_a_wrong_kernel_is_refuted_and_can_be_certified_so(tmp_path: Path) -> None:
    edit = Edit(r"Op::of\(x, exchange\(x, d\)\)|Op::of\(x\[i\], exchange\(x\[i\], d\)\)", "x")
    text = Edit(r"x\[i\] = Op::of\(x\[i\], exchange\(x\[i\], d\)\)", "x[i] = Op::of(x[i], exchange(x[i], L / 2 / d))")
    op = get("softmax")
    verdict = verify(op, device="hip", arch="gfx942", dtype="f16", edit=text, variant=variants(op)[0], out=tmp_path)
    assert text.found and not edit.found
    assert (verdict.verdict, verdict.exit_code) == ("refuted", 1)
    assert verdict.failure is not None and verdict.failure.startswith("tokitai verify softmax --device hip --dtype f16")
    assert verdict.not_run is None
    assert verdict.certificate is not None and check(verdict.certificate) == []


@needs_clang
def test_code_that_the_scan_refuses_is_refuted() -> None:
    edit = Edit(r"return __fdiv_rn\(a, b\);", "return a * __builtin_amdgcn_rcpf(b);")
    verdict = verify(get("softmax"), device="hip", arch="gfx1101", dtype="f16", edit=replace_on_gpu(edit), case=CASE)
    assert (verdict.verdict, verdict.exit_code, verdict.not_run) == ("refuted", 1, None)
    assert verdict.evidence == []
    assert "made kernels that are refused" in str(verdict.failure) and "rcp" in str(verdict.failure)


def replace_on_gpu(edit: Edit) -> Any:
    """The edit, and the builtin for the fibers, which have none of that name."""

    def apply(text: str) -> str:
        changed = edit(text)
        start = '#pragma once\n#include "lanes.h"\n'
        stub = "#if TOKITAI_SIM\n#define __builtin_amdgcn_rcpf(x) (1 / (x))\n#endif\n"
        return changed.replace(start, start + stub)

    return apply


@needs_clang
def test_a_case_over_hashes_compiles_nothing_and_says_so(tmp_path: Path) -> None:
    verdict = verify(get("silu"), device="hip", dtype="f16", case="structure/all inputs@3x8#0", out=tmp_path)
    assert (verdict.verdict, verdict.evidence) == ("undecided", ["structure"])
    assert str(verdict.not_run).startswith("neither compiled nor run: ")
    assert verdict.certificate is not None
    assert "was compiled" not in verdict.certificate.read_text()


def test_without_a_clang_the_verdict_is_undecided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(hip.ENV_COMPILER, "no-such-clang")
    verdict = verify(get("silu"), device="hip", dtype="f16", case=CASE, out=tmp_path)
    assert (verdict.verdict, verdict.evidence, verdict.cases, verdict.certificate) == ("undecided", [], 0, None)
    assert "apt install clang-19 lld-19" in str(verdict.failure)
    with pytest.raises(CompilerMissingError, match="no-such-clang"):
        HipTarget("gfx942", False)


def test_architectures_that_there_are_not() -> None:
    with pytest.raises(UnknownNameError, match="gfx803"):
        verify(get("silu"), device="hip", arch="gfx803", dtype="f16")
    with pytest.raises(ArgumentError, match="goes with a device of several architectures, not with sim"):
        verify(get("silu"), device="sim", arch="gfx942", dtype="f16")
