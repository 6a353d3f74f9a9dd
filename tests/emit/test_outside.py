"""Structure builds report accesses outside arrays of the kernel's own, where other variables lie, and stores behind
pieces of a thread's memory, where others lie."""

from __future__ import annotations

import pytest

from tokitai.backends.cpu import device as cpu
from tokitai.emit.cpp import headers
from tokitai.errors import KernelFaultError
from tokitai.toolchain.build import Source, build
from tokitai.toolchain.compilers import find_compiler

LANES = 8
SOURCE = Source(
    """#include "rows.h"
extern "C" __attribute__((visibility("default")))
int32_t tokitai_kernel(void* const*, const int64_t* sizes, const void*, void*, int32_t threads) {
  using namespace tokitai;
  struct { int64_t before[8], some[4], behind[8]; } room = {};
  Stored vectors[3][2 * LANES] = {};
  int64_t memory[16 + 16 + 16] = {};
  #pragma omp parallel num_threads(threads)
  {
    room.some[sizes[0]] = 1;
    store(vector_at(vectors[1], sizes[1]), splat(S{}));
  }
  Guards guards = {};
  guards.behind(16);
  guards.set(memory);
  memory[sizes[2]] = 1;
  guards.check(memory);
  return 0;
}
""",
    headers(),
    "outside",
)
INDEX = r"^outside\.cpp:10: an index lies outside an array of type '.*\[4\]'$"
VECTOR = r"^outside\.cpp:11: a vector lies outside its array$"
PIECE = r"^outside\.cpp:17: a store behind a piece of a thread's memory$"


def loaded(structure: bool) -> cpu.LoadedKernel:
    return cpu.load(build(SOURCE, find_compiler(), "avx2", structure))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((4, 0, 0), INDEX), ((-1, 0, 0), INDEX), ((0, 9, 0), VECTOR), ((0, -1, 0), VECTOR), ((0, 0, 16), PIECE),
        ((0, 0, 31), PIECE),
    ],
)  # fmt: skip
def test_an_access_outside_an_array_is_reported(sizes: tuple[int, int, int], said: str) -> None:
    kernel = loaded(structure=True)
    for inside in ((0, 0, 0), (3, LANES, 15), (2, 1, 32)):
        assert kernel([], inside, threads=1) == 0
    for threads in (1, 3):
        with pytest.raises(KernelFaultError, match=said):
            kernel([], sizes, threads=threads)
        assert kernel([], (0, 0, 0), threads=threads) == 0, "a message is told once"


def test_kernels_over_numbers_do_without_it() -> None:
    assert loaded(structure=False)([], (4, LANES + 1, 16), threads=1) == 0
