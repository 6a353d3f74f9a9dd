"""Builds: flags, bits, diagnostics, and which files a hit depends on."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sample_kernels import HEAD, scale_of, scaling

from tokitai.backends.cpu import device as cpu
from tokitai.errors import ArgumentError, CompileError, CompilerMissingError, DeviceMissingError, UnknownNameError
from tokitai.toolchain import build as building
from tokitai.toolchain.build import ISAS, Source, build, flags_of, isas_here, native_isa
from tokitai.toolchain.compilers import Compiler, all_compilers, find_compiler


def test_flags_say_everything_and_keep_the_bits(compiler: Compiler) -> None:
    for machine, rows in ISAS.items():
        for isa in rows:
            flags = flags_of(replace(compiler, machine=machine), isa, structure=True, defines=["X=1"])
            assert {"-ffp-contract=off", "-fvisibility=hidden", "-std=c++17"} < set(flags)
            assert {f"-DTOKITAI_ISA_{isa.upper()}=1", "-DTOKITAI_STRUCTURE=1", "-DX=1"} < set(flags)
            assert sum(flag.startswith("-march=") for flag in flags) == 1
            assert not [flag for flag in flags if re.search("fast|native|unsafe|associative|reciprocal|finite", flag)]


ARITHMETIC = """
EXPORT int32_t tokitai_kernel(ARGUMENTS) {
    const float *a = (const float*)tensors[0], *b = (const float*)tensors[1], *c = (const float*)tensors[2];
    float* out = (float*)tensors[3];
    int64_t n = sizes[0];
    float sum = 0;
    #pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; ++i) {
        out[0 * n + i] = a[i] * b[i] + c[i];
        out[1 * n + i] = (a[i] + b[i]) - a[i];
        out[2 * n + i] = a[i] / b[i];
        out[3 * n + i] = a[i] / 3.0f;
        out[4 * n + i] = __builtin_sqrtf(a[i]);
        out[5 * n + i] = a[i] < b[i] ? a[i] / c[i] : b[i] * 0.0f;
        out[6 * n + i] = __builtin_fmaf(a[i], b[i], c[i]);
        out[7 * n + i] = a[i] == a[i] ? 0.0f - a[i] : c[i] + 0.0f;
    }
    for (int64_t i = 0; i < n; ++i) sum += __builtin_fabsf(c[i]) < 1e9f ? c[i] : 0.0f;
    out[8 * n] = sum;
    return 0;
}
"""


def hard_floats(count: int) -> np.ndarray:
    """All kinds of floats: any bit pattern, subnormals, zeros, infinities, and neighbours of 1."""
    random = np.random.default_rng(7)
    floats = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    floats[: count // 2] = random.standard_normal(count // 2).astype(np.float32)
    special = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
    patterns = np.array([*special, *(value | 1 << 31 for value in special)], np.uint32)
    places = random.choice(count, 8 * patterns.size, replace=False)
    floats[places] = np.resize(patterns.view(np.float32), places.size)
    return floats


@pytest.mark.parametrize(
    "name", [found.path.name for found in all_compilers() if found.machine == building.machine_here()]
)
@pytest.mark.parametrize("isa", isas_here())
def test_flags_keep_ieee_arithmetic(name: str, isa: building.Isa) -> None:
    n = 4099
    a, b, c = (np.roll(hard_floats(n), 1000 * shift) for shift in range(3))
    out = cpu.aligned_empty((9, n), np.float32)
    kernel = cpu.load(build(Source(HEAD + ARITHMETIC), find_compiler(name), isa))
    assert kernel([v.ctypes.data for v in (a, b, c, out)], [n], threads=2) == 0
    with np.errstate(all="ignore"):
        expected = [
            a * b + c,
            (a + b) - a,
            a / b,
            a / np.float32(3),
            np.sqrt(a),
            np.where(a < b, a / c, b * np.float32(0)),
        ]
        expected += [None, np.where(np.isnan(a), c + np.float32(0), np.float32(0) - a)]
        total = np.float32(0)
        for value in np.where(np.abs(c) < np.float32(1e9), c, np.float32(0)):
            total += value
    for row, want in enumerate(expected):
        if want is not None:
            assert want.dtype == np.float32
            same = (out[row].view(np.uint32) == want.view(np.uint32)) | (np.isnan(out[row]) & np.isnan(want))
            assert same.all(), f"expression {row}: {a[~same][0]!r}, {b[~same][0]!r}, {c[~same][0]!r}"
    assert out[8, 0].view(np.uint32) == total.view(np.uint32)
    moderate = (np.abs(a) < 1e3) & (np.abs(b) < 1e3) & (np.abs(c) < 1e3)
    assert (out[6] != out[0])[moderate].any(), "these inputs cannot tell fma from two roundings"


def test_macros_reach_the_text(compiler: Compiler) -> None:
    isa = native_isa()
    source = scaling(f"(FACTOR + 10 * TOKITAI_ISA_{isa.upper()})")
    plain = build(source, compiler, isa, defines=["FACTOR=3"])
    assert scale_of(plain) == 13
    shaped = scaling("FACTOR", "#ifdef TOKITAI_STRUCTURE\n#define FACTOR 5\n#else\n#define FACTOR 4\n#endif")
    assert scale_of(build(shaped, compiler, isa)) == 4
    assert scale_of(build(shaped, compiler, isa, structure=True)) == 5


def test_results_do_not_depend_on_the_order_of_builds(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C114: a binary made for one value never serves another; C119: nor does one that was loaded earlier."""
    seen = []
    for order in ([32, 1024], [1024, 32]):
        monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tmp_path / f"first-{order[0]}"))
        made = {z: build(scaling("Z"), compiler, native_isa(), defines=[f"Z={z}"]) for z in order}
        assert not any(artifact.cached for artifact in made.values())
        assert {z: scale_of(artifact) for z, artifact in made.items()} == {32: 32, 1024: 1024}
        seen.append({z: (artifact.fingerprint, artifact.digest) for z, artifact in made.items()})
    assert seen[0] == seen[1], "the bytes depend on where the cache lies"


def test_a_changed_text_is_another_kernel_in_the_same_process(compiler: Compiler) -> None:
    """C119: the same file name, twice."""
    first = build(scaling("2"), compiler, native_isa())
    assert scale_of(first) == 2
    second = build(scaling("3"), compiler, native_isa())
    assert scale_of(second) == 3
    assert scale_of(first) == 2
    assert cpu.load(first) is cpu.load(build(scaling("2"), compiler, native_isa()))


def test_an_edit_in_a_nested_header_is_noticed(compiler: Compiler, tmp_path: Path) -> None:
    """C112, with headers that the key cannot see: only the compiler's own report names them."""
    outer, inner = tmp_path / "a.h", tmp_path / "in side" / "b.h"
    inner.parent.mkdir()
    outer.write_text('#include "in side/b.h"\n')
    inner.write_text("#define S 2\n")
    source = scaling("S", f'#include "{outer}"')
    first = build(source, compiler, native_isa())
    assert scale_of(first) == 2
    assert build(source, compiler, native_isa()).cached
    inner.write_text("#define S 3\n")
    second = build(source, compiler, native_isa())
    assert (second.cached, second.healed) == (False, None)
    assert second.fingerprint != first.fingerprint
    assert scale_of(second) == 3
    os.utime(outer, ns=(1, 1))
    assert build(source, compiler, native_isa()).cached, "the same bytes under another time are the same file"
    assert not build(source, compiler, native_isa(), defines=["X=1"]).cached


def test_an_edit_in_a_given_header_is_another_key(compiler: Compiler) -> None:
    headers = {
        "outer.h": '#include "deep/inner.h"',
        "deep/inner.h": '#include "deep/value.h"',
        "deep/value.h": "#define S 2",
    }
    source = replace(scaling("S", '#include "outer.h"'), headers=headers)
    assert scale_of(build(source, compiler, native_isa())) == 2
    changed = replace(source, headers={**headers, "deep/value.h": "#define S 3"})
    assert scale_of(build(changed, compiler, native_isa())) == 3
    again = build(source, compiler, native_isa())
    assert again.cached
    assert scale_of(again) == 2


def test_a_header_that_changes_during_the_build_is_not_trusted(
    wrapped: Callable[..., Compiler], tmp_path: Path
) -> None:
    header = tmp_path / "a.h"
    header.write_text("#define S 2\n")
    once = f'"$REAL" "$@"; test -e {tmp_path}/done || echo "#define S 3" > {header}; touch {tmp_path}/done; exit 0'
    source = scaling("S", f'#include "{header}"')
    compiler = wrapped(once)
    assert scale_of(build(source, compiler, native_isa())) == 2
    second = build(source, compiler, native_isa())
    assert (second.cached, scale_of(second)) == (False, 3)
    assert build(source, compiler, native_isa()).cached


def test_another_compiler_version_is_a_miss(wrapped: Callable[..., Compiler]) -> None:
    """C111: the same path and the same source after an upgrade."""
    says = 'test "$1" = --version && {{ echo "g++ (Fake) {0}"; exit 0; }}'
    first = build(scaling("2"), wrapped(always=says.format("98.0")), native_isa())
    assert build(scaling("2"), wrapped(always=says.format("98.0")), native_isa()).cached
    second = build(scaling("2"), wrapped(always=says.format("99.0")), native_isa())
    assert not second.cached
    assert second.fingerprint != first.fingerprint
    assert second.compiler.version == "g++ (Fake) 99.0"


def test_a_failing_compiler_is_quoted(compiler: Compiler, cache_root: Path) -> None:
    with pytest.raises(CompileError) as caught:
        build(Source("int main( {", stem="broken"), compiler, native_isa())
    message = str(caught.value)
    assert str(compiler.path) in message and compiler.title in message and "-ffp-contract=off" in message
    assert "error:" in message.partition("command:")[2], "the compiler's words come last"
    kept = re.search(r"source: +(.+)", message)
    assert kept and Path(kept[1]).read_text() == "int main( {"
    assert not list(cache_root.glob("*/entry.json"))


@pytest.mark.parametrize(
    ("misdeed", "told"),
    [
        (': > kernel.so; echo "out of luck" >&2; exit 1', "exit status 1.*out of luck"),
        (": > kernel.so; exit 0", "kernel.so missing or empty"),
        ("exit 0", "kernel.so missing or empty"),
        ("echo half > kernel.so; kill -9 $$", "exit status -9"),
        ('"$REAL" "$@"; rm compiler.d; exit 0', "compiler.d missing or empty"),
    ],
    ids=["fails with an empty output", "empty output", "no output", "killed", "no report of what was read"],
)
def test_a_failed_compiler_never_publishes(
    misdeed: str, told: str, wrapped: Callable[..., Compiler], tmp_path: Path, cache_root: Path
) -> None:
    """C109: it goes wrong once; the next call builds."""
    compiler = wrapped(f"if ! test -e {tmp_path}/once; then touch {tmp_path}/once; {misdeed}; fi")
    with pytest.raises(CompileError, match=f"(?s){told}"):
        build(scaling("2"), compiler, native_isa())
    assert not list(cache_root.glob("*/entry.json"))
    second = build(scaling("2"), compiler, native_isa())
    assert (second.cached, second.healed, scale_of(second)) == (False, None, 2)
    assert not list(cache_root.glob("*.build-*"))


@pytest.mark.parametrize("told", [True, False], ids=["told by the system", "looked for"])
def test_time_limit_ends_the_whole_compiler(
    wrapped: Callable[..., Compiler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    if not told:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        assert build(scaling("3"), find_compiler(), native_isa()).seconds > 0
    compiler = wrapped(f"sleep 60 & echo $! > {tmp_path}/pid; wait; exit 0")
    monkeypatch.setattr(building, "COMPILE_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(CompileError, match=r"did not end within 0\.5 s"):
        build(scaling("2"), compiler, native_isa())
    assert time.monotonic() - started < 10
    status = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    deadline = time.monotonic() + 5
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the compiler's own child still runs"
        time.sleep(0.02)


def test_clang_without_openmp_names_the_package(tmp_path: Path) -> None:
    path = tmp_path / "clang++"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1" in --version) echo "Debian clang version 19.1.7 (3)";;\n'
        "-dM) printf '#define __clang__ 1\\n#define __GNUC__ 4\\n#define __x86_64__ 1\\n';;\n"
        "-print*) echo;;\n"
        "*) echo '/usr/bin/ld: cannot find -lomp: No such file or directory' >&2; exit 1;; esac\n"
    )
    path.chmod(0o755)
    with pytest.raises(CompilerMissingError, match="apt install libomp-19-dev"):
        build(scaling("2"), find_compiler(str(path)), "scalar")


def test_an_undefined_symbol_is_an_error_of_the_build(compiler: Compiler) -> None:
    with pytest.raises(CompileError, match=r"undefined reference to.*nowhere"):
        build(scaling("nowhere()", "float nowhere();"), compiler, native_isa())


def test_an_old_compiler_that_lacks_the_architecture_says_which_one_it_is(wrapped: Callable[..., Compiler]) -> None:
    """C117: not a bare 'invalid option'."""
    compiler = wrapped('echo "cc1plus: error: bad value (x86-64-v3) for -march= switch" >&2; exit 1')
    with pytest.raises(CompileError) as caught:
        build(scaling("2"), compiler, native_isa())
    assert all(part in str(caught.value) for part in (str(compiler.path), compiler.title, "-march=", "x86-64-v3"))


def test_wrong_arguments_are_refused(compiler: Compiler) -> None:
    x86 = replace(compiler, machine="x86_64")
    with pytest.raises(UnknownNameError, match=r"avx513.*did you mean avx512"):
        flags_of(x86, "avx513")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"isa='neon'.*x86_64.*accepted: avx512, avx2, scalar"):
        flags_of(x86, "neon")
    with pytest.raises(ArgumentError, match="riscv64"):
        flags_of(replace(compiler, machine="riscv64"), "scalar")
    for define in ("-ffast-math", "", "A B", "1X=2"):
        with pytest.raises(ArgumentError, match="NAME or NAME=VALUE"):
            flags_of(x86, "avx2", defines=[define])
    for stem in ("-o", "a/b", "", "a b"):
        with pytest.raises(ArgumentError, match="stem="):
            build(replace(scaling("2"), stem=stem), x86, "scalar")
    for name in ("/etc/x.h", "../x.h", "entry.json", "a/../../x.h", "-x.h"):
        with pytest.raises(ArgumentError, match="header"):
            build(replace(scaling("2"), headers={name: ""}), x86, "scalar")


@pytest.mark.parametrize(
    ("machine", "features", "isas"),
    [
        ("x86_64", "", ("scalar",)),
        ("x86_64", "v3", ("avx2", "scalar")),
        ("x86_64", "v3 without f16c", ("scalar",)),
        ("AMD64", "v4", ("avx512", "avx2", "scalar")),
        ("x86_64", "v4 without avx512vl", ("avx2", "scalar")),
        ("aarch64", "asimd", ("neon", "scalar")),
        ("arm64", "", ("scalar",)),
        ("riscv64", "", ()),
    ],
)
def test_isas_of_a_machine(machine: str, features: str, isas: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {"v3": ISAS["x86_64"]["avx2"].needs, "v4": ISAS["x86_64"]["avx512"].needs}
    base, _, missing = features.partition(" without ")
    monkeypatch.delenv("TOKITAI_ISA", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(building, "cpu_features", lambda: (sets.get(base, frozenset({base}))) - {missing})
    assert isas_here() == isas


def test_the_widest_set_may_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(building, "cpu_features", lambda: ISAS["x86_64"]["avx2"].needs)
    for said, isas in {"": ("avx2", "scalar"), "avx2": ("avx2", "scalar"), "scalar": ("scalar",)}.items():
        monkeypatch.setenv("TOKITAI_ISA", said)
        assert isas_here() == isas
    for said in ("avx512", "AVX2", "neon"):
        monkeypatch.setenv("TOKITAI_ISA", said)
        with pytest.raises(DeviceMissingError, match=f"TOKITAI_ISA='{said}': this machine runs avx2, scalar"):
            isas_here()


@pytest.mark.parametrize("isa", ["neon", "scalar"])
def test_a_cross_compiler_is_usable_by_name(isa: building.Isa) -> None:
    names = [found.path.name for found in all_compilers() if found.machine == "aarch64"]
    if not names:
        pytest.skip("no compiler for aarch64 here: apt install g++-aarch64-linux-gnu")
    artifact = build(scaling("2"), find_compiler(names[0]), isa)
    assert artifact.path.read_bytes()[18] == 183, "e_machine is not EM_AARCH64"


@pytest.mark.slow  # a time limit says something only where the machine is not overloaded
def test_a_first_build_is_quick(compiler: Compiler) -> None:
    lines = "\n".join(f"static float f{i}(float x) {{ return x * {i}.5f + {i}; }}" for i in range(250))
    calls = "\n".join(f"    y = f{i}(y);" for i in range(250))
    body = f"float y = sizes[0];\n{calls}\n    *(float*)tensors[0] = y;\n    return 0;"
    kernel = f"EXPORT int32_t tokitai_kernel(ARGUMENTS) {{\n{body}\n}}"
    artifact = build(Source("\n".join([HEAD, lines, kernel])), compiler, native_isa())
    assert artifact.seconds < 3
