"""Builds by NVRTC, which need no GPU: three architectures, the resource report, the cache, and what is refused."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest

from tokitai.backends.cuda import nvrtc
from tokitai.backends.cuda.nvrtc import Resources, arch_of, build, find_nvrtc, key_of, options_of, parse_report
from tokitai.backends.cuda.ptx import opcodes, read, scan
from tokitai.backends.machine_code import DIVISIONS, ROOTS, UNTOLD
from tokitai.errors import ArgumentError, CacheError, CompileError, CompilerMissingError, UnknownNameError
from tokitai.ops import registry
from tokitai.toolchain.build import Source
from tokitai.verification.sentences import read_code

HEADERS = {
    "rows.h": '#pragma once\n#include "inner/call.h"\n__device__ inline float twice(float x) { return x + x; }\n',
    "inner/call.h": "struct Call { void* tensors[4]; long long sizes[6]; float scalars[2]; void* workspace; };\n",
}
TEXT = """#include "rows.h"
extern "C" __global__ void __launch_bounds__(256, 2) work(const __grid_constant__ Call call) {
  __shared__ float kept[256];
  const float* x = static_cast<const float*>(call.tensors[0]);
  float* y = static_cast<float*>(call.tensors[1]);
  kept[threadIdx.x] = x[threadIdx.x] * call.scalars[1] + 2.0f;
  __syncthreads();
  y[threadIdx.x] = twice(kept[255 - threadIdx.x]) / x[3];
}
extern "C" __global__ void finish(const __grid_constant__ Call call) {
  static_cast<float*>(call.tensors[1])[0] = sqrtf(static_cast<const float*>(call.tensors[0])[0]);
}
"""
SOURCE = Source(TEXT, HEADERS, "sample")


@pytest.fixture
def one() -> Source:
    """A text as short as can be, for tests of what surrounds the compilation."""
    return Source('extern "C" __global__ void one(float* y) { *y = 1; }')


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_builds_without_a_gpu(arch: str) -> None:
    made = build(SOURCE, arch)
    assert made.read_cubin().startswith(b"\x7fELF")
    assert f".target {arch}" in made.read_ptx()
    assert set(made.resources) == {"work", "finish"}
    work = made.resources["work"]
    assert 0 < work.registers <= 128 and work.shared == 1024 and work.barriers == 1
    assert (work.spill_stores, work.spill_loads, work.stack) == (0, 0, 0)
    assert scan(made.read_ptx()) == [], "two roundings, a true division and a true square root"
    count = opcodes(made.read_ptx())
    assert (count["mul.rn.f32"], count["div.rn.f32"], count["sqrt.rn.f32"]) == (1, 1, 1)


def test_options_keep_the_bits() -> None:
    """The scan tells when an option that the bits hang on is gone."""
    text = Source(
        'extern "C" __global__ void f(float* y) { y[3] = y[0] * y[1] + y[2]; y[4] = y[0] / y[1]; y[5] = sqrtf(y[0]); }'
    )
    assert scan(build(text, "sm_90").read_ptx()) == []
    for option, reason in {
        "-fmad=false": "fused", "-ftz=false": "flushes", "-prec-div=true": "approximation",
        "-prec-sqrt=true": "approximation",
    }.items():  # fmt: skip
        name, _, value = option.partition("=")
        with pytest.MonkeyPatch.context() as patch:
            turned = f"{name}={'true' if value == 'false' else 'false'}"
            patch.setattr(nvrtc, "OPTIONS", tuple(turned if o == option else o for o in nvrtc.OPTIONS))
            found = scan(build(text, "sm_90").read_ptx())
        assert found and any(reason in f.reason for f in found), option


def test_spills_and_stack_are_reported() -> None:
    lines = "\n".join(f"  v[{i}] = x[{i} * 64 + threadIdx.x];" for i in range(96))
    sums = "\n".join(f"  x[{i} * 64 + threadIdx.x] = v[{i}] * v[{95 - i}];" for i in range(96))
    text = (
        f'extern "C" __global__ void __launch_bounds__(1024, 2) tight(float* x) {{\n  float v[96];\n{lines}\n'
        f"  __syncthreads();\n{sums}\n}}\n"
        'extern "C" __global__ void indexed(float* x, int n) {\n'
        "  float v[32]; for (int i = 0; i < n; ++i) v[i & 31] = x[i]; x[0] = v[n & 31]; }\n"
    )
    found = build(Source(text), "sm_90").resources
    assert found["tight"].registers <= 32
    assert found["tight"].spill_stores > 0 and found["tight"].spill_loads > 0
    assert found["indexed"].stack >= 128 and found["indexed"].spill_stores == 0


def test_report_of_functions_that_are_not_inlined() -> None:
    log = """ptxas info    : 8 bytes gmem, 4 bytes cmem[4]
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for _Z5innerf
    32 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 64 bytes cumulative stack size, 512 bytes smem, 448 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compiling entry function 'two' for 'sm_80'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 6 registers
"""  # noqa: E501
    assert parse_report(log) == {"one": Resources(40, 16, 28, 48, 512, 456, 2), "two": Resources(6, 0, 0, 0, 0, 0)}


def test_a_second_build_comes_from_the_cache() -> None:
    first, second = build(SOURCE, "sm_90"), build(SOURCE, "sm_90")
    assert (first.cached, second.cached) == (False, True)
    assert (first.digest, first.fingerprint, first.resources) == (second.digest, second.fingerprint, second.resources)
    assert first.path == second.path and first.ptx == second.ptx


def test_one_fingerprint_is_one_binary(one: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("first", "second folder"):
        monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tmp_path / name))
        made = build(one, "sm_90")
        assert not made.cached
        found.append((made.fingerprint, made.digest, made.ptx_digest))
    assert found[0] == found[1]


def test_everything_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    here = find_nvrtc()
    base = key_of(SOURCE, here, options_of("sm_90"))
    other = nvrtc.Nvrtc(here.version, "0" * 64, here.builtins, here.path)
    keys = [
        key_of(Source(TEXT + " ", HEADERS, "sample"), here, options_of("sm_90")),
        key_of(Source(TEXT, {**HEADERS, "rows.h": HEADERS["rows.h"] + "\n"}, "sample"), here, options_of("sm_90")),
        key_of(SOURCE, here, options_of("sm_80")),
        key_of(SOURCE, here, options_of("sm_90", structure=True)),
        key_of(SOURCE, here, options_of("sm_90", defines=["A=1"])),
        key_of(SOURCE, other, options_of("sm_90")),
        key_of(SOURCE, nvrtc.Nvrtc(here.version, here.digest, "0" * 64, here.path), options_of("sm_90")),
        key_of(SOURCE, nvrtc.Nvrtc("13.9", here.digest, here.builtins, here.path), options_of("sm_90")),
    ]
    assert len({base, *keys}) == len(keys) + 1
    assert key_of(SOURCE, here, options_of("sm_90")) == base
    monkeypatch.setattr(nvrtc, "OPTIONS", nvrtc.OPTIONS[1:])
    assert key_of(SOURCE, here, options_of("sm_90")) != base


def test_structure_and_defines_reach_the_text() -> None:
    text = Source(
        "#if TOKITAI_STRUCTURE != 1 || WIDTH != 4\n#error wrong\n#endif\n"
        'extern "C" __global__ void one(float* y) { *y = WIDTH; }'
    )
    assert build(text, "sm_80", structure=True, defines=["WIDTH=4"]).structure
    with pytest.raises(CompileError, match="#error"):
        build(text, "sm_80", defines=["WIDTH=4"])


def test_a_wrong_text_is_told_with_the_log_and_kept() -> None:
    with pytest.raises(CompileError) as caught:
        build(Source('extern "C" __global__ void one(float* y) { *y = nothing; }', stem="bad"), "sm_90")
    message = str(caught.value)
    assert '"nothing" is undefined' in message and "-arch=sm_90" in message
    kept = Path(message.partition("source:")[2].split()[0])
    assert "nothing" in kept.read_text() and "undefined" in (kept.parent / "messages.txt").read_text()


def test_files_that_lie_about_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray.h").write_text("#define ONE 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"stray\.h"):
        build(Source('#include "stray.h"\nextern "C" __global__ void one(float* y) { *y = ONE; }'), "sm_80")


def test_a_text_without_kernels_is_refused() -> None:
    with pytest.raises(CompileError, match="no kernel"):
        build(Source("__device__ int x;"), "sm_80")


def test_a_build_without_its_report_is_refused(one: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "OPTIONS", tuple(o for o in nvrtc.OPTIONS if o != "-Xptxas=-v"))
    with pytest.raises(CompileError, match="no resource report of one"):
        build(one, "sm_80")


def test_options_from_the_environment_are_refused(one: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVRTC_APPEND_FLAGS", "-use_fast_math")
    with pytest.raises(CompileError, match="NVRTC_APPEND_FLAGS='-use_fast_math'"):
        build(one, "sm_80")


@pytest.mark.parametrize("which", ["path", "ptx"])
def test_a_changed_file_is_not_read(one: Source, which: str) -> None:
    made = build(one, "sm_80")
    file: Path = getattr(made, which)
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(CacheError, match="build it again"):
        made.read_cubin() if which == "path" else made.read_ptx()


def test_what_is_not_accepted(one: Source) -> None:
    with pytest.raises(UnknownNameError, match="sm_70"):
        build(one, "sm_70")
    with pytest.raises(ArgumentError, match="NAME=VALUE"):
        build(one, "sm_80", defines=["1X"])
    with pytest.raises(ArgumentError, match="header"):
        build(Source(one.text, {"../x.h": ""}), "sm_80")


def test_architecture_of_a_gpu() -> None:
    gpus = {(8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_86", (8, 9): "sm_89", (9, 0): "sm_90", (10, 0): "sm_100"}
    assert {gpu: arch_of(gpu) for gpu in gpus} == gpus
    assert arch_of((10, 3)) == "sm_103" and arch_of((12, 1)) == "sm_120"
    for gpu in ((7, 5), (11, 0)):
        with pytest.raises(UnknownNameError, match="architecture"):
            arch_of(gpu)


def test_missing_bindings_are_told(one: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.partition(".")[0] == "cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    find_nvrtc.cache_clear()
    try:
        with pytest.raises(CompilerMissingError, match=r"pip install 'tokitai\[cuda\]'"):
            build(one, "sm_80")
        assert "cuda-bindings is missing" in str(nvrtc.missing())
    finally:
        find_nvrtc.cache_clear()


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def nvrtcVersion(self) -> None:
            raise RuntimeError("Failed to dlopen libnvrtc.so.13\nmore")

    monkeypatch.setattr(nvrtc, "_bindings", Broken)
    find_nvrtc.cache_clear()
    try:
        assert "libnvrtc.so.13" in str(nvrtc.missing()) and "tokitai[cuda]" in str(nvrtc.missing())
    finally:
        find_nvrtc.cache_clear()


FAST = """extern "C" __global__ void f(float* y) {
  y[3] = __fmaf_rn(y[0], y[1], y[2]); y[4] = y[0] / y[1]; y[5] = sqrtf(y[0]); y[6] = __expf(y[7]);
}
"""


def test_what_the_ptx_holds_is_counted_and_named() -> None:
    """For a definition with fused multiply-adds, which alone lets those pass; --use_fast_math sets four options."""
    graph, none = registry()["gelu_erf"].trace("f32"), registry()["scale"].trace("f32")
    right = build(Source(FAST.replace("__expf(y[7])", "y[7]")), "sm_90")
    code = read("0" * 64, right.read_ptx(), graph)
    assert code.findings == () and code.counts == {UNTOLD: 1, DIVISIONS: 1, ROOTS: 1} and code.missing is None
    assert "; no contraction among the others, no flush" in read_code([code])  # which are asked for it does not tell
    assert ["fused" in f for f in read("0" * 64, right.read_ptx(), none).findings] == [True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            nvrtc, "OPTIONS", (*(o for o in nvrtc.OPTIONS if not o.endswith(("=true", "=false"))), "--use_fast_math")
        )
        found = read("0" * 64, build(Source(FAST), "sm_90").read_ptx(), graph).findings
    for instruction in ("fma.rn.ftz.f32", "div.approx.ftz.f32", "sqrt.approx.ftz.f32", "ex2.approx.ftz.f32"):
        assert any(instruction in f for f in found), found
