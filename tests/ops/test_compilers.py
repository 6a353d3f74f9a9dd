"""The same bits from every compiler, instruction set and thread count, and from another architecture under QEMU."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.errors import CompilerMissingError
from tokitai.families import emit_cpu, make_plan
from tokitai.lang import Operator
from tokitai.meaning import bits
from tokitai.runtime.kernel import Kernel, host_kernel
from tokitai.toolchain.build import Source, build, isas_here
from tokitai.toolchain.compilers import Compiler, find_compiler
from tokitai.verification import cases
from tokitai.verification.compare import first_mismatch
from tokitai.verification.run import Launch, Layout

pytestmark = pytest.mark.slow

SHAPES = [(5, 257), (67, 40), (1, 1)]
OPERATORS = [(op, "f16") for op in ops.registry().values()] + [(ops.softmax, "bf16"), (ops.softmax, "f32")]
FIRST = {make_plan(op.trace("f16")).family: op for op in reversed(ops.registry().values())}.values()  # of each family
WHOLE = (*FIRST, ops.softmax)  # have every build; the others have each compiler and each instruction set in turn


def builds(compilers: Sequence[str], isas: Sequence[str]) -> list[Any]:
    """Which operator and format is built by which compiler for which instruction set."""
    found = []
    for i, (op, dtype) in enumerate(OPERATORS):
        for k, compiler in enumerate(compilers):
            chosen = isas if op in WHOLE else [isas[(i + k) % len(isas)]]
            found += [
                pytest.param(op, dtype, compiler, isa, id=f"{op.name} {dtype}-{compiler}-{isa}") for isa in chosen
            ]
    return found


def compiler_or_skip(name: str) -> Compiler:
    try:
        return find_compiler(name)
    except CompilerMissingError as error:
        pytest.skip(f"{name} is not installed: {error}")


def inputs_of(kernel: Kernel) -> Any:
    """Noise, values of every size, special values, and numbers that only stay if subnormals do."""
    for how in ("normal", "wide", "special", "tiny"):
        for rows, cols in SHAPES:
            shape = min(rows, kernel.operator.contract.max_rows), cols
            yield cases.seeded(kernel.operator, kernel.graph, how, shape, seed=9)


@pytest.mark.parametrize(("op", "dtype", "compiler", "isa"), builds(["g++", "clang++-19"], isas_here()))
def test_compilers_instruction_sets_and_threads_agree_with_the_oracle(
    op: Operator, dtype: str, compiler: str, isa: Any
) -> None:
    compiler_or_skip(compiler)
    kernel = host_kernel(op, dtype=dtype, compiler=compiler, isa=isa)
    for case in inputs_of(kernel):
        want = bits.evaluate(kernel.graph, case.tensors, case.shape, case.params)
        scalars = kernel.scalar_table(*case.shape, case.params)
        entries = next((len(want[o.name]) for o in kernel.graph.outputs if o.space == "t"), None)
        for threads in (1, 2, 7):
            layout = Layout("here", threads, offset=threads - 1)
            got = Launch(kernel, case.shape, case.tensors, layout, entries).run(scalars)
            for name, values in got.items():
                mismatch = first_mismatch(name, values.reshape(want[name].shape), want[name])
                assert mismatch is None, f"{case.id}, {threads} threads: {mismatch}"


# ------------------------------------------------------------------ aarch64 under QEMU
DRIVER = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <vector>
// driver KERNEL FILE: for each case in the file, runs the kernel and writes all tensors back behind each other.
static FILE* file;
static int64_t number() { int64_t n; if (fread(&n, 8, 1, file) != 1) exit(3); return n; }
static std::vector<char> bytes() {
  std::vector<char> b(number());
  if (!b.empty() && fread(b.data(), 1, b.size(), file) != b.size()) exit(3);
  return b;
}
int main(int, char** argv) {
  typedef int32_t Kernel(void* const*, const int64_t*, const void*, void*, int32_t);
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
  Kernel* kernel = reinterpret_cast<Kernel*>(dlsym(library, "tokitai_kernel"));
  file = fopen(argv[2], "rb");
  for (int64_t cases = number(); cases > 0; --cases) {
    std::vector<int64_t> sizes(number());
    for (int64_t& s : sizes) s = number();
    std::vector<std::vector<char>> tensors(number());
    for (auto& t : tensors) t = bytes();
    std::vector<char> scalars = bytes();
    std::vector<char> workspace(number(), char(0xA5));
    int32_t threads = int32_t(number());
    std::vector<void*> places;
    for (auto& t : tensors) places.push_back(t.data());
    int32_t status = kernel(places.data(), sizes.data(), scalars.data(), workspace.data(), threads);
    if (status) return status;
    for (auto& t : tensors) fwrite(t.data(), 1, t.size(), stdout);
  }
  return 0;
}
"""
ROOT = "/usr/aarch64-linux-gnu"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver for aarch64, where a cross compiler, its libraries and QEMU are installed."""
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("qemu-aarch64 is not installed (Debian: qemu-user)")
    compiler = compiler_or_skip("aarch64-linux-gnu-g++")
    if not Path(ROOT, "lib/libgomp.so.1").exists():
        pytest.skip(f"{ROOT}/lib has no libgomp.so.1 (Debian: libgomp1-arm64-cross)")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    command = [compiler.path, "-O1", "-o", folder / "driver", folder / "driver.cpp", "-ldl"]
    subprocess.run(command, check=True)
    return folder / "driver"


def packed(
    kernel: Kernel, case: cases.Case, threads: int
) -> tuple[bytes, list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    """What the driver reads of a case, and name, dtype and shape of each tensor that it writes back."""
    scalars = kernel.scalar_table(*case.shape, case.params)
    given = {t.name: case.tensors[t.name] for t in kernel.graph.inputs}
    made = {
        o.name: np.empty(cases.size_of(o.space, case.shape, None, o.slots), kernel.element(o.format))
        for o in kernel.graph.outputs
    }
    sizes = kernel.sizes_of([given], [made], [case.shape], scalars)
    tensors = [case.tensors[t.name].tobytes() for t in kernel.graph.inputs]
    listed = [(t.name, case.tensors[t.name].dtype, case.tensors[t.name].shape) for t in kernel.graph.inputs]
    for o in kernel.graph.outputs:
        tensors.append(b"\xa5" * made[o.name].nbytes)
        listed.append((f"result {o.name}", made[o.name].dtype, made[o.name].shape))
    numbers = [struct.pack("<q", n) for n in (len(sizes), *sizes, len(tensors))]
    blocks = [struct.pack("<q", len(b)) + b for b in (*tensors, scalars.table.tobytes())]
    need = kernel.workspace_bytes([case.shape], threads, int(case.params.get("entries", 0)))
    return b"".join([*numbers, *blocks, struct.pack("<qq", need, threads)]), listed


@pytest.mark.parametrize(("op", "dtype", "compiler", "isa"), builds(["aarch64-linux-gnu-g++"], ["neon", "scalar"]))
def test_aarch64_has_the_same_bits(
    op: Operator, dtype: str, compiler: str, isa: Any, driver: Path, tmp_path: Path
) -> None:
    plan = make_plan(op.trace(dtype))
    text = emit_cpu(plan)
    artifact = build(Source(text.text, text.headers, op.name), find_compiler(compiler), isa)
    kernel = Kernel(op, plan.graph, plan, text, artifact)
    every = list(inputs_of(kernel))
    contents, lists = zip(*(packed(kernel, case, threads=2) for case in every), strict=True)
    (tmp_path / "input").write_bytes(b"".join([struct.pack("<q", len(every)), *contents]))
    command = ["qemu-aarch64", "-L", ROOT, driver, artifact.path, tmp_path / "input"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr.decode()}"
    start = 0
    for case, listed in zip(every, lists, strict=True):
        want = bits.evaluate(plan.graph, case.tensors, case.shape, case.params)
        for name, kind, shape in listed:
            size = int(np.prod(shape)) * kind.itemsize
            found = np.frombuffer(done.stdout[start : start + size], kind).reshape(shape)
            start += size
            expected = want[name.removeprefix("result ")] if name.startswith("result ") else case.tensors[name]
            mismatch = first_mismatch(name, found.reshape(expected.shape), expected)
            assert mismatch is None, f"{case.id}: {mismatch}"
    assert start == len(done.stdout)
