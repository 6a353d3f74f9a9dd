"""Loading and calling kernels, and what is said of this machine."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from sample_kernels import HEAD, scale_of, scaling

from tokitai.backends.cpu import device as cpu
from tokitai.errors import ArgumentError, CacheError, CompileError, DeviceMissingError
from tokitai.toolchain import build as building
from tokitai.toolchain.build import Source, build, isas_here, machine_here, native_isa
from tokitai.toolchain.compilers import Compiler


def test_a_foreign_binary_is_refused(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """C116: before it is mapped, let alone run."""
    monkeypatch.delenv("TOKITAI_ISA", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: pytest.fail("the foreign binary was opened"))
    artifact = build(scaling("2"), compiler, "scalar")
    elsewhere = "aarch64" if machine_here() == "x86_64" else "x86_64"
    foreign = replace(artifact, compiler=replace(compiler, machine=elsewhere))
    with pytest.raises(DeviceMissingError, match=f"built for {elsewhere} scalar.*this machine runs {machine_here()}"):
        cpu.load(foreign)
    monkeypatch.setattr(building, "cpu_features", lambda: frozenset({"sse2"}))
    for isa in ("avx512", "avx2", "neon"):
        with pytest.raises(DeviceMissingError, match=f"{isa}, but this machine runs {machine_here()} scalar"):
            cpu.load(replace(artifact, isa=isa))


def test_a_file_that_is_not_the_one_built_is_refused(compiler: Compiler) -> None:
    artifact = build(scaling("41"), compiler, native_isa())  # a kernel that no other test loads
    artifact.path.write_bytes(artifact.path.read_bytes() + b"\0")
    with pytest.raises(CacheError, match=artifact.digest):
        cpu.load(artifact)
    artifact.path.unlink()
    with pytest.raises(CacheError, match="build it again"):
        cpu.load(artifact)


def test_a_library_without_a_kernel_is_refused(compiler: Compiler) -> None:
    hidden = Source(HEAD + 'extern "C" int32_t tokitai_kernel(ARGUMENTS) { return 0; }')
    with pytest.raises(CompileError, match="exports no tokitai_kernel"):
        cpu.load(build(hidden, compiler, native_isa()))


ARGUMENTS = """
EXPORT int32_t tokitai_kernel(ARGUMENTS) {
    const uint64_t* hashes = (const uint64_t*)scalars;
    int64_t* out = (int64_t*)tensors[1];
    out[0] = *(int64_t*)tensors[0];
    out[1] = sizes[0];
    out[2] = sizes[1];
    out[3] = scalars ? (int64_t)hashes[1] : -1;
    out[4] = workspace ? *(int64_t*)workspace : -1;
    out[5] = threads;
    return -7;
}
"""


def test_arguments_arrive_unchanged(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cpu.load(build(Source(HEAD + ARGUMENTS), compiler, native_isa()))
    x, out, space = np.array([1 << 62]), np.zeros(6, np.int64), np.array([-5])
    scalars = np.array([1, 2**63 - 2], np.uint64)
    addresses = [x.ctypes.data, out.ctypes.data]
    assert kernel(addresses, [1 << 40, -3], scalars, space.ctypes.data, threads=9) == -7
    assert out.tolist() == [1 << 62, 1 << 40, -3, 2**63 - 2, -5, 9]
    monkeypatch.setenv(cpu.ENV_THREADS, "3")
    assert kernel(addresses, [0, 0]) == -7
    assert out.tolist() == [1 << 62, 0, 0, -1, -1, 3]
    with pytest.raises(ArgumentError, match="threads=0"):
        kernel(addresses, [0, 0], threads=0)
    with pytest.raises(ArgumentError, match="contiguous"):
        kernel(addresses, [0, 0], np.zeros(4, np.uint64)[::2])


WAITING = """
EXPORT int32_t tokitai_kernel(ARGUMENTS) {
    volatile int32_t* flags = (volatile int32_t*)tensors[0];
    flags[sizes[0]] = 1;
    for (int64_t i = 0; i < sizes[1]; ++i) if (flags[1 - sizes[0]]) return 0;
    return 1;
}
"""


def test_calls_run_at_the_same_time(compiler: Compiler) -> None:
    """Two calls, each of which waits for the other: with the interpreter lock held they would wait in vain."""
    kernel = cpu.load(build(Source(HEAD + WAITING), compiler, native_isa()))
    flags = np.zeros(2, np.int32)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(kernel, [flags.ctypes.data], [i, 10**10], threads=1) for i in range(2)]
        assert [call.result(timeout=60) for call in calls] == [0, 0]


def test_threads_load_one_handle(compiler: Compiler) -> None:
    artifact = build(scaling("2"), compiler, native_isa())
    with ThreadPoolExecutor(8) as pool:
        assert len({id(kernel) for kernel in pool.map(cpu.load, [artifact] * 8)}) == 1
    assert scale_of(artifact) == 2


SET_MODE = """
EXPORT int32_t tokitai_kernel(ARGUMENTS) {
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(0x1F80 | (unsigned)sizes[0]);
#else
    uint64_t mode = sizes[1];
    asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
    return 0;
}
"""


@pytest.mark.parametrize(
    ("mxcsr", "fpcr", "told"),
    [
        (0, 0, None),
        (0x8000, 1 << 24, "FTZ"),
        (0x0040, 1 << 24, "DAZ"),
        (0x2000, 2 << 22, "rounding is down"),
        (0x4000, 1 << 22, "rounding is up"),
        (0x6000, 3 << 22, "rounding is toward zero"),
    ],
)
def test_float_modes_are_detected(mxcsr: int, fpcr: int, told: str | None, compiler: Compiler) -> None:
    kernel = cpu.load(build(Source(HEAD + SET_MODE), compiler, native_isa()))
    found: list[str | None] = []

    def look() -> None:
        kernel([], [mxcsr, fpcr], threads=1)
        found.append(cpu.check_float_mode())

    thread = threading.Thread(target=look)  # the mode ends with its thread
    thread.start()
    thread.join()
    assert cpu.check_float_mode() is None
    if told is None:
        assert found == [None]
    else:
        assert found[0] and told in found[0]
        assert mxcsr not in (0x8000, 0x0040) or machine_here() != "x86_64" or ";" not in found[0]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.bool_])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 4), 17])
@pytest.mark.parametrize("align", [1, 64, 4096])
def test_aligned_empty(shape: tuple[int, ...] | int, dtype: type, align: int) -> None:
    array = cpu.aligned_empty(shape, dtype, align)
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    assert array.dtype == dtype
    assert array.flags.c_contiguous and array.flags.writeable
    assert array.size == 0 or array.ctypes.data % align == 0
    array[...] = 1
    assert (array == np.ones(array.shape, dtype)).all()


def test_aligned_empty_refuses() -> None:
    with pytest.raises(ArgumentError, match="align=48"):
        cpu.aligned_empty(3, np.float32, 48)
    with pytest.raises(ArgumentError, match="at least 0"):
        cpu.aligned_empty((3, -1), np.float32)


def test_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cpu.ENV_THREADS, raising=False)
    assert cpu.default_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv(cpu.ENV_THREADS, "5")
    assert cpu.default_threads() == 5
    for wrong in ("0", "-1", "two", "1.5", "٣", "4097", "1000000", "9" * 30):
        monkeypatch.setenv(cpu.ENV_THREADS, wrong)
        said = rf"^{cpu.ENV_THREADS}='?{wrong}'?; accepted: a whole number, 1 to 4096$"
        with pytest.raises(ArgumentError, match=said):
            cpu.default_threads()


def test_describe_is_plain_json() -> None:
    told = cpu.describe()
    assert json.loads(json.dumps(told)) == told
    assert told["isas"] == list(isas_here())
    assert told["cpu"] and told["cpu"] != "unknown"
    assert told["float_mode"] is None


NO_ROOM = """
import resource
import numpy as np
from tokitai import ops
from tokitai.errors import ArgumentError
x = np.ones((3, 3), np.float32)
want = ops.softmax(x, threads=2).tobytes()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29),) * 2)
try:
    ops.softmax(x, threads=1000)
except ArgumentError as error:
    print(error)
print(ops.softmax(x, threads=2).tobytes() == want)
"""


def test_threads_that_the_system_does_not_start_are_refused_and_the_process_lives() -> None:
    made = subprocess.run([sys.executable, "-c", NO_ROOM], capture_output=True, text=True, timeout=300)
    said, lives = made.stdout.splitlines()
    assert re.fullmatch(r"threads=1000; accepted: a whole number, 1 to \d+, as the system starts no more now .*", said)
    assert lives == "True" and made.returncode == 0
