"""Kernels for AMD GPUs are built by clang alone: what is made, what is refused, and what is told where it cannot be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tokitai import ops, verify
from tokitai.backends.hip import clang as hip
from tokitai.backends.hip.clang import build, find_hip, flags_of, key_of, parse_metadata
from tokitai.emit.gpu_text import headers
from tokitai.errors import ArgumentError, CacheError, CompileError, CompilerMissingError, UnknownNameError
from tokitai.toolchain.build import Source
from tokitai.toolchain.compilers import identify

try:
    find_hip()
except CompilerMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.slow  # each compiles
BEGIN = '#include "rows.h"\nnamespace tokitai {\nstruct Call { const float* x; float* y; int64_t n; };\n'
END = "}  // namespace tokitai\n"


LLC = shutil.which("llc-19")


def wrapper(folder: Path, name: str, lines: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def instead_of_assembly(folder: Path, command: str) -> Path:
    """A clang whose assembly another command makes."""
    real = find_hip().clang.path
    step = f'for a in "$@"; do last=$a; done\ncase $last in *.s) exec {command} kernels.ll -o $last;; esac\n'
    return wrapper(folder, "clang++", f'{step}exec {real} "$@"')


def source(body: str, stem: str = "sample") -> Source:
    return Source(f"{BEGIN}{body}{END}", headers(), stem)


SHARED = source("""
KERNEL(work, 256, 1) {
  SHARED(float, kept, 256);
  kept[thread_index()] = call.x[thread_index()];
  barrier();
  call.y[thread_index()] = div(kept[255 - thread_index()], sqrt(add(mul(call.x[0], call.x[1]), call.x[2])));
}
KERNEL(finish, 64, 1) { call.y[thread_index()] = exchange(call.x[thread_index()], 1); }
""")


@pytest.mark.parametrize("arch", hip.ARCHITECTURES)
def test_builds_without_a_gpu(arch: str) -> None:
    made = build(SHARED, arch)
    assert made.path.read_bytes()[:20] == hip.ELF
    assert set(made.resources) == {"work", "finish"}
    work = made.resources["work"]
    assert (work.shared, work.argument, work.threads, work.warp) == (1024, 24, 256, hip.ARCHITECTURES[arch])
    assert 0 < work.registers < 64 and (work.spills, work.scratch) == (0, 0)
    assert f'amdgcn-amd-amdhsa--{arch}"' in made.read("asm") and f'"target-cpu"="{arch}"' in made.read("ir")


@pytest.mark.skipif(shutil.which("llvm-readelf-19") is None, reason="llvm-readelf-19 is not here: apt install llvm-19")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1201"])
def test_the_code_object_carries_the_metadata_that_was_read(arch: str) -> None:
    made = build(SHARED, arch)
    notes = subprocess.run(["llvm-readelf-19", "--notes", made.path], capture_output=True, text=True, check=True)
    text = re.sub(r"^ {8}", "", notes.stdout, flags=re.MULTILINE)
    assert parse_metadata(f".amdgpu_metadata{text}.end_amdgpu_metadata") == made.resources


@pytest.mark.parametrize(
    ("flag", "turned", "reason"),
    [
        ("-ffp-contract=off", "-ffp-contract=fast", "contract"),
        ("-fhip-fp32-correctly-rounded-divide-sqrt", "-fno-hip-fp32-correctly-rounded-divide-sqrt", "approximation"),
        ("-fno-gpu-flush-denormals-to-zero", "-fgpu-flush-denormals-to-zero", "flushes"),
        ("-O3", "-Ofast", "permits other arithmetic"),
    ],
)
def test_flags_keep_the_bits(monkeypatch: pytest.MonkeyPatch, flag: str, turned: str, reason: str) -> None:
    """A build without one of the flags that the bits hang on is refused."""
    assert flag in hip.FRONT
    monkeypatch.setattr(hip, "FRONT", tuple(turned if f == flag else f for f in hip.FRONT))
    with pytest.raises(CompileError, match=f"made kernels that are refused(.|\n)*{reason}"):
        build(SHARED, "gfx942")


@pytest.mark.skipif(LLC is None, reason="llc-19 is not here: apt install llvm-19")
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1101"])
def test_a_back_end_that_contracts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str) -> None:
    """The intermediate text is right; the counts show what becomes of it."""
    contracting = instead_of_assembly(tmp_path, f"{LLC} -O3 --fp-contract=fast -mcpu={arch}")
    monkeypatch.setenv(hip.ENV_COMPILER, str(contracting))
    with pytest.raises(CompileError, match="fused operations: the intermediate text asks for"):
        build(source("KERNEL(one, 64, 1) { call.y[0] = add(mul(call.x[0], call.x[1]), call.x[2]); }\n"), arch)


@pytest.mark.parametrize(("flag", "turned", "reason"), [
    ("-fno-gpu-flush-denormals-to-zero", "-fgpu-flush-denormals-to-zero", "flushes subnormal numbers to zero"),
    ("-fhip-fp32-correctly-rounded-divide-sqrt", "-fno-hip-fp32-correctly-rounded-divide-sqrt", "is an approximation"),
])  # fmt: skip
def test_a_verification_refutes_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, turned: str, reason: str
) -> None:
    """Of a refused build no binary is kept, so that there is no certificate."""
    monkeypatch.setattr(hip, "FRONT", tuple(turned if f == flag else f for f in hip.FRONT))
    verdict = verify(ops.silu, dtype="f32", device="hip:gfx942", shape=dict(rows=2, cols=8), out=tmp_path)
    assert (verdict.verdict, verdict.certificate) == ("refuted", None) and reason in str(verdict.failure)


REFUSED = [
    ("KERNEL(one, 64, 1) { SHARED(float, kept, 16385); kept[thread_index()] = call.x[0]; barrier();\n"
     "call.y[0] = kept[call.n]; }\n", r"takes 65540 bytes of LDS, where there are 65536|local memory .* exceeds"),
    ('extern "C" __attribute__((global)) void one(const Call a, int b) { a.y[b] = 1; }\n', "no single argument"),
    ('extern "C" __attribute__((global)) void one(float* y) { *y = 1; }\n', "no single argument by value"),
    ("INLINE int two() { return 2; }\n", "no kernel in the text"),
    ("KERNEL(one, 64, 1) { call.y[0] = fma(call.x[0], call.x[1], call.x[2]); }\n", "does not hold"),
    ("KERNEL(one, 64, 1) { call.y[0] = __builtin_amdgcn_rcpf(call.x[0]); }\n", "not on the list"),
    ("KERNEL(one, 64, 1) { __atomic_fetch_add(call.y, call.x[0], __ATOMIC_RELAXED); }\n", "no fixed order"),
    ("KERNEL(one, 64, 1) { __builtin_amdgcn_s_setreg(0x801, 0); call.y[0] = 1; }\n", "not on the list"),
    ("INLINE float elsewhere(float);\nKERNEL(one, 64, 1) { call.y[0] = elsewhere(1); }\n", "undefined|not defined"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_what_is_refused(body: str, reason: str) -> None:
    with pytest.raises(CompileError, match=reason):
        build(source(body), "gfx942")


def test_other_wavefronts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip, "FRONT", (*hip.FRONT, "-mwavefrontsize64"))
    monkeypatch.setattr(hip, "BACK", (*hip.BACK, "-Xclang", "-target-feature", "-Xclang", "+wavefrontsize64"))
    with pytest.raises(CompileError, match="wavefronts have 64 lanes, not 32"):
        build(source("KERNEL(one, 64, 1) { call.y[0] = 1; }\n", "wide"), "gfx1030")


def test_spills_are_reported() -> None:
    lines = "".join(f"  v[{i}] = call.x[{i} * 64 + thread_index()];\n" for i in range(160))
    sums = "".join(f"  call.y[{i} * 64 + thread_index()] = mul(v[{i}], v[{159 - i}]);\n" for i in range(160))
    found = build(source(f"KERNEL(tight, 1024, 1) {{ float v[160];\n{lines}barrier();\n{sums}}}\n"), "gfx942")
    assert found.resources["tight"].spills > 0 and found.resources["tight"].scratch > 0


def test_a_second_build_comes_from_the_cache() -> None:
    first, second = build(SHARED, "gfx942"), build(SHARED, "gfx942")
    assert (first.cached, second.cached) == (False, True)
    assert (first.digest, first.fingerprint, first.resources) == (second.digest, second.fingerprint, second.resources)


def test_one_fingerprint_is_one_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the cache lies: clang would put a symbol into each that is named after the folder."""
    found = []
    for name in ("first", "second folder"):
        monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tmp_path / name))
        made = build(SHARED, "gfx942")
        assert not made.cached and not re.search(rb"__hip_cuid_\w", made.path.read_bytes())
        found.append((made.fingerprint, made.digest, dict(made.texts)))
    assert found[0] == found[1]


def test_everything_is_in_the_key() -> None:
    here, flags = find_hip(), flags_of("gfx942")
    other = hip.HipCompiler(here.clang, here.linker, "0" * 64)
    keys = [
        key_of(source("int a;"), here, flags, False), key_of(source("int b;"), here, flags, False),
        key_of(source("int a;"), other, flags, False), key_of(source("int a;"), here, flags_of("gfx90a"), False),
        key_of(source("int a;"), here, flags_of("gfx942", structure=True), False),
        key_of(source("int a;"), here, flags_of("gfx942", defines=("A=1",)), False),
        key_of(source("int a;"), here, flags, True),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_a_changed_text_is_not_read() -> None:
    made = build(SHARED, "gfx942")
    file = made.path.with_name("kernels.s")
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(CacheError, match="build it again"):
        made.read("asm")
    file.unlink()
    with pytest.raises(CacheError, match="cannot be read"):
        made.read("asm")


def test_what_is_not_accepted() -> None:
    with pytest.raises(UnknownNameError, match="gfx803"):
        build(SHARED, "gfx803")
    with pytest.raises(ArgumentError, match="NAME=VALUE"):
        build(SHARED, "gfx942", defines=("1X",))
    with pytest.raises(CompileError, match="error: use of undeclared identifier 'nothing'"):
        build(source("int a = nothing;"), "gfx942")


def test_files_that_lie_about_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stray.h").write_text("#define ONE 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPATH", str(tmp_path))
    for name in ('"stray.h"', "<stdint.h>", "<hip/hip_runtime.h>"):
        with pytest.raises(CompileError, match=r"file not found|stray\.h: was read, and did not come with the text"):
            build(Source(f"#include {name}\n{SHARED.text}", headers()), "gfx942")


# ------------------------------------------------------------------ which compiler
def test_a_wrapper_such_as_hipcc_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_hip().clang.path
    called = wrapper(tmp_path, "hipcc", f'exec {real} "$@"')
    monkeypatch.setenv(hip.ENV_COMPILER, str(called))
    assert find_hip().clang.path == called
    assert build(SHARED, "gfx942").compiler.clang.path == called


def test_a_compiler_that_is_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = find_hip().clang.path
    old = wrapper(tmp_path, "hipcc", f'[ "$1" = --version ] && echo "clang version 15.0.7" || exec {real} "$@"')
    monkeypatch.setenv(hip.ENV_COMPILER, str(old))
    wanted = r"hipcc \(clang version 15\.0\.7\) is older than Clang 17.*apt install"
    with pytest.raises(CompilerMissingError, match=wanted):
        find_hip()
    assert "older" in str(hip.missing())


def test_a_compiler_that_leaves_square_roots_approximate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As older back ends do: the flag is taken, and the root is one instruction."""
    real = find_hip().clang.path
    command = f"{real} {' '.join(hip.BACK)} -mcpu=gfx942 -x ir -S"
    cut = wrapper(tmp_path, "cut", f'{command} $1 -o $3 && sed -i "0,/v_fma_f32/s/v_fma_f32.*//" $3')
    monkeypatch.setenv(hip.ENV_COMPILER, str(instead_of_assembly(tmp_path, str(cut))))
    with pytest.raises(CompileError, match="fused operations"):
        build(SHARED, "gfx942")


def test_gcc_and_missing_programs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hip.ENV_COMPILER, "no-such-clang")
    with pytest.raises(CompilerMissingError, match="'no-such-clang': no such program; install one with `apt install"):
        find_hip()
    if shutil.which("g++"):
        monkeypatch.setenv(hip.ENV_COMPILER, "g++")
        with pytest.raises(CompilerMissingError, match="is not Clang"):
            find_hip()
    monkeypatch.delenv(hip.ENV_COMPILER)
    real = identify(find_hip().clang.path).path
    monkeypatch.setattr(hip, "CANDIDATES", ("clang++-17",))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "none is on PATH" in str(hip.missing())
    text = f'[ "$1" = -print-prog-name=ld.lld ] && echo ld.lld || exec {real} "$@"'
    monkeypatch.setattr(hip, "CANDIDATES", (str(wrapper(tmp_path, "clang++", text)),))
    with pytest.raises(CompilerMissingError, match=r"no linker ld\.lld; install it with `apt install lld-\d+`"):
        find_hip()
    assert os.environ["PATH"] == str(tmp_path)
