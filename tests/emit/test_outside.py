"""Structure builds report accesses outside arrays of the kernel's own, where other variables lie."""

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
  #pragma omp parallel num_threads(threads)
  {
    room.some[sizes[0]] = 1;
    store(vector_at(vectors[1], sizes[1]), splat(S{}));
  }
  return 0;
}
""",
    headers(),
    "outside",
)
INDEX = r"^outside\.cpp:9: an index lies outside an array of type '.*\[4\]'$"
VECTOR = r"^outside\.cpp:10: a vector lies outside its array$"


def loaded(structure: bool) -> cpu.LoadedKernel:
    return cpu.load(build(SOURCE, find_compiler(), "avx2", structure))


@pytest.mark.parametrize(("sizes", "said"), [((4, 0), INDEX), ((-1, 0), INDEX), ((0, 9), VECTOR), ((0, -1), VECTOR)])
def test_an_access_outside_an_array_is_reported(sizes: tuple[int, int], said: str) -> None:
    kernel = loaded(structure=True)
    for inside in ((0, 0), (3, LANES), (2, 1)):
        assert kernel([], inside, threads=1) == 0
    for threads in (1, 3):
        with pytest.raises(KernelFaultError, match=said):
            kernel([], sizes, threads=threads)
        assert kernel([], (0, 0), threads=threads) == 0, "a message is told once"


def test_kernels_over_numbers_do_without_it() -> None:
    assert loaded(structure=False)([], (4, LANES + 1), threads=1) == 0
