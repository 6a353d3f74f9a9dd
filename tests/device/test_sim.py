"""The simulated device: threads as fibers, in any order; what cannot be on a GPU ends with a message."""

from __future__ import annotations

import ctypes
import dataclasses
import platform
import resource
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokitai.backends.sim.device import LoadedSim, build_sim, load
from tokitai.emit.gpu_text import headers
from tokitai.errors import CacheError, KernelFaultError, UnknownNameError
from tokitai.toolchain.build import Source
from tokitai.toolchain.compilers import find_compiler

Array = np.ndarray[Any, Any]

TEXT = r"""
#include "rows.h"
using namespace tokitai;
struct Call { const float* x; float* y; int64_t n; };

// y[0] = the tree over x[0 ... 256), by the words that kernels use.
KERNEL(tree, 256, 1) {
  SHARED(S, memory, 2 * WARP);
  Cells cells{memory, WARP, 0};
  const S part[1][1] = {{call.x[thread_index()]}};
  S total[1];
  along_row<Add, 256, 1, 1>(part, total, cells);
  call.y[thread_index()] = total[0];
}
KERNEL(by_warp, 256, 1) { call.y[thread_index()] = across<Add, WARP>(call.x[thread_index()]); }
// Every thread reads what the thread after it wrote.
KERNEL(rotate, 256, 1) {
  SHARED(float, kept, 256);
  kept[thread_index()] = call.x[thread_index()];
  barrier();
  call.y[thread_index()] = kept[(thread_index() + 1) % block_size()];
}
KERNEL(rotate_without_barrier, 256, 1) {
  SHARED(float, kept, 256);
  kept[thread_index()] = call.x[thread_index()];
  call.y[thread_index()] = kept[(thread_index() + 1) % block_size()];
}
// One cell for two values: the second may come before the other warps have read the first.
KERNEL(one_cell, 256, 1) {
  SHARED(float, kept, 1);
  for (int k = 0; k < 2; ++k) {
    const float x = exchange(call.x[k], 1);
    if (thread_index() % 128 == 0 && thread_index() / 128 == call.n) kept[0] = x;
    barrier();
    call.y[k * 256 + thread_index()] = kept[0];
  }
}
// Nothing is left of what an earlier block wrote.
KERNEL(left_over, 32, 1) {
  SHARED(float, kept, 1);
  if (thread_index() == 0) call.y[block_index()] = kept[0], kept[0] = 1.0f;
}
KERNEL(who, 256, 1) {
  call.y[block_index() * block_size() + thread_index()] =
      float(1000000 * grid_size() + 10000 * block_index() + thread_index());
}
KERNEL(divergent, 256, 1) {
  if (thread_index() < call.n) barrier();
  call.y[thread_index()] = 1.0f;
}
KERNEL(lanes_missing, 256, 1) {
  if (thread_index() % WARP != 3) call.y[thread_index()] = exchange(call.x[thread_index()], 1);
}
KERNEL(barrier_meets_exchange, 256, 1) {
  if (thread_index() == 40) barrier();
  call.y[thread_index()] = exchange(call.x[thread_index()], 1);
  if (thread_index() != 40) barrier();
}
KERNEL(neighbours, 256, 1) { call.y[thread_index()] = exchange(call.x[thread_index()], 1); }
static float __attribute__((noinline)) deep(volatile const float* x, int64_t n) {
  volatile float room[256];
  for (int i = 0; i < 256; ++i) room[i] = x[0];
  return n ? deep(room, n - 1) + room[n % 256] : room[0];
}
KERNEL(recursion, 256, 1) { call.y[thread_index()] = deep(call.x, call.n); }
KERNEL(vectors, 256, 1) {
  Words16 w;
  if (thread_index() == 5) w = load16(reinterpret_cast<const char*>(call.x) + call.n), store16(call.y, w);
}
KERNEL(stores, 256, 1) {
  if (thread_index() == 6) store8(reinterpret_cast<char*>(call.y) + call.n, Words8{{1, 2}});
}
KERNEL(outside, 256, 1) {
  float kept[8];
  for (int i = 0; i < 8; ++i) kept[i] = call.x[i];
  call.y[thread_index()] = kept[call.n + thread_index() / 128];
}
KERNEL(copied, 256, 1) {
  Chunk<float> first[2], then[2];
  for (int i = 0; i < 2; ++i) load_chunk<8, FULL>(first[i], call.x, 8);
  for (int i = 0; i < call.n; ++i) then[i] = first[i];
  call.y[thread_index()] = element(then[1], 7);
}
KERNEL(halved, 256, 1) { call.y[thread_index()] = mul(call.x[thread_index()], 0.5f); }
"""


@pytest.fixture(scope="module")
def kernels() -> LoadedSim:
    return load(build_sim(Source(TEXT, headers(), "sim_test"), find_compiler()))


@pytest.fixture(scope="module")
def wide() -> LoadedSim:
    return load(build_sim(Source(TEXT, headers(), "sim_test"), find_compiler(), warp=64))


def launch(
    kernels: LoadedSim, name: str, x: Array, size: int = 256, n: int = 0, grid: int = 1, block: int = 256,
    order: int = 0,
) -> Array:  # fmt: skip
    y = np.full(size, -1, np.float32)
    kernels.launch(name, grid, block, struct.pack("<qqq", x.ctypes.data, y.ctypes.data, n), order)
    return y


def noise(seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.uniform(1, 2, 256), rng.integers(-12, 12, 256)).astype(np.float32)


def tree(x: Array) -> np.float32:
    """Neighbours are added first."""
    while x.size > 1:
        x = x[0::2] + x[1::2]
    return np.float32(x[0])


ORDERS = (0, 1, 2, 3, 77)


@pytest.mark.parametrize("order", ORDERS)
def test_an_exchange_tree_has_the_bits_of_the_tree(kernels: LoadedSim, order: int) -> None:
    x = noise()
    assert tree(x) not in (x.sum(dtype=np.float64), np.add.accumulate(x)[-1]), "another order has other bits"
    assert np.array_equal(launch(kernels, "tree", x, order=order), np.full(256, tree(x)))
    by_warp = launch(kernels, "by_warp", x, order=order)
    assert np.array_equal(by_warp, np.repeat([tree(w) for w in x.reshape(-1, 32)], 32))


@pytest.mark.parametrize("order", ORDERS)
def test_warps_of_64_lanes(wide: LoadedSim, order: int) -> None:
    x = noise(1)
    assert np.array_equal(launch(wide, "tree", x, order=order), np.full(256, tree(x)))
    by_warp = launch(wide, "by_warp", x, order=order)
    assert np.array_equal(by_warp, np.repeat([tree(w) for w in x.reshape(-1, 64)], 64))


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_orders_shared_memory(kernels: LoadedSim, order: int) -> None:
    x = noise()
    assert np.array_equal(launch(kernels, "rotate", x, order=order), np.roll(x, -1))


def test_a_missing_barrier_shows_under_some_order(kernels: LoadedSim) -> None:
    x = noise()
    made = {order: launch(kernels, "rotate_without_barrier", x, order=order) for order in ORDERS}
    wrong = {order: int((y != np.roll(x, -1)).sum()) for order, y in made.items()}
    assert wrong[0] == wrong[1] == 255, "forward, each reads its neighbour's cell too early"
    assert wrong[2] == 1, "backward, only the last thread does"
    assert 0 < wrong[3] < 255 and 0 < wrong[77] < 255
    assert made[3].tobytes() != made[77].tobytes(), "two shuffles are two orders"
    assert made[3].tobytes() == launch(kernels, "rotate_without_barrier", x, order=3).tobytes()


def test_warps_run_ahead_of_each_other(kernels: LoadedSim) -> None:
    x = np.array([3, 4], np.float32)

    def right(order: int, n: int) -> bool:
        return np.array_equal(launch(kernels, "one_cell", x, size=512, n=n, order=order), np.repeat(x, 256))

    assert right(0, 0) and right(1, 0), "in turns, all have read before the next one writes"
    assert not right(2, 1) and not all(right(order, 0) for order in (3, 77, 78))


def test_shared_memory_is_poisoned_before_each_block(kernels: LoadedSim) -> None:
    found = launch(kernels, "left_over", noise(), size=3, grid=3, block=32)
    assert found.tobytes() == b"\xa5" * 12


def test_what_threads_know_of_their_place(kernels: LoadedSim) -> None:
    found = launch(kernels, "who", noise(), size=3 * 70, grid=3, block=70)
    assert np.array_equal(found, [3e6 + 1e4 * b + t for b in range(3) for t in range(70)])


@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_never_come_together(kernels: LoadedSim, order: int) -> None:
    def says(name: str, n: int = 0) -> str:
        with pytest.raises(KernelFaultError) as caught:
            launch(kernels, name, noise(), n=n, order=order)
        return str(caught.value)

    assert says("divergent", 100) == "kernel divergent, block 0: thread 0 is at a barrier for ever, thread 100 ended"
    assert says("lanes_missing") == "kernel lanes_missing, block 0: thread 0 is at an exchange for ever, thread 3 ended"
    assert says("barrier_meets_exchange") == (
        "kernel barrier_meets_exchange, block 0: thread 0 is at a barrier for ever, thread 32 at an exchange"
    )
    assert launch(kernels, "divergent", noise(), n=256, order=order).tolist() == [1] * 256, "and it goes on"


def test_a_block_that_is_no_whole_number_of_warps_cannot_exchange(kernels: LoadedSim) -> None:
    assert launch(kernels, "neighbours", noise(), block=64)[0] == noise()[1]
    with pytest.raises(KernelFaultError, match="thread 32 is at an exchange for ever"):
        launch(kernels, "neighbours", noise(), block=48)


def test_a_stack_that_is_too_small_is_told(kernels: LoadedSim) -> None:
    assert launch(kernels, "recursion", np.ones(1, np.float32), n=50).tolist() == [51] * 256
    with pytest.raises(KernelFaultError, match="kernel recursion: thread 0 needs more than 131072 bytes of stack"):
        launch(kernels, "recursion", np.ones(1, np.float32), n=140)
    with pytest.raises(KernelFaultError, match="thread 255 needs"):
        launch(kernels, "recursion", np.ones(1, np.float32), n=140, order=2)
    assert launch(kernels, "recursion", np.ones(1, np.float32), n=3).tolist() == [4] * 256


def test_texts_share_the_memory_of_their_threads(kernels: LoadedSim, tmp_path: Path) -> None:
    """Kept by each text, the stacks of its threads filled the address space of a process that verified many."""
    mapped = lambda: int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()  # noqa: E731
    want, before = launch(kernels, "rotate", noise()), mapped()
    for i in range(3):
        path = tmp_path / f"{i}.so"
        path.write_bytes(kernels.artifact.path.read_bytes())
        assert (launch(LoadedSim(dataclasses.replace(kernels.artifact, path=path)), "rotate", noise()) == want).all()
    assert mapped() - before < 16 << 20, "the stacks of 256 threads take 48 MiB"


def test_a_misaligned_access_is_told(kernels: LoadedSim) -> None:
    x = np.arange(64, dtype=np.float32)
    start = -x.ctypes.data % 16 // 4  # a multiple of 16 bytes
    found = launch(kernels, "vectors", x[start:], n=16)
    wrong = r"kernel vectors, block 0: thread 5 accesses 16 bytes at an address that is no multiple of 16"
    for offset in (1, 4, 8, 15):
        with pytest.raises(KernelFaultError, match=wrong):
            launch(kernels, "vectors", x[start:], n=offset)
    assert found[:4].tolist() == [start + 4, start + 5, start + 6, start + 7]
    with pytest.raises(KernelFaultError, match="thread 6 accesses 8 bytes"):
        launch(kernels, "stores", x, n=4)
    assert launch(kernels, "halved", np.arange(256, dtype=np.float32))[9] == 4.5, "the next launch works"


def test_an_index_outside_an_array_is_told(kernels: LoadedSim) -> None:
    """Of registers, or of memory within a struct: on a GPU it may be anything, here it is another variable."""
    x = noise()
    assert launch(kernels, "outside", x, n=6)[128] == x[7]
    for n in (7, 8):
        wrong = (
            rf"^sim_test.cpp:\d+, block 0: the index of thread {128 * (n == 7)} lies outside an array of type 'float"
        )
        with pytest.raises(KernelFaultError, match=wrong):
            launch(kernels, "outside", x, n=n)
    start = -x.ctypes.data % 16 // 4
    assert launch(kernels, "copied", x[start:], n=2)[5] == x[start + 7]
    with pytest.raises(KernelFaultError, match=r"^sim_test.cpp:\d+, block 0: .*thread 0 .*outside an"):
        launch(kernels, "copied", x[start:], n=3)
    with pytest.raises(KernelFaultError, match="thread 6 accesses 8 bytes"):
        launch(kernels, "stores", x, n=4)
    assert launch(kernels, "halved", np.arange(256, dtype=np.float32))[9] == 4.5, "the next launch works"


def test_wrong_launches(kernels: LoadedSim) -> None:
    with pytest.raises(UnknownNameError, match="no kernel named 'nothing'"):
        launch(kernels, "nothing", noise())
    for grid, block in ((0, 32), (1, 0), (1, 257), (-1, 32)):
        with pytest.raises(KernelFaultError, match=rf"kernel tree: grid {grid}, block {block}; accepted: blocks of 1"):
            launch(kernels, "tree", noise(), grid=grid, block=block)


def test_a_changed_binary_is_not_loaded(tmp_path: Path, kernels: LoadedSim) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(kernels.artifact.path.read_bytes() + b"x")
    with pytest.raises(CacheError, match="has changed since it was built"):
        LoadedSim(dataclasses.replace(kernels.artifact, path=copy))


# ------------------------------------------------------------------ the caller's floating-point mode
MODE = 'extern "C" __attribute__((visibility("default"))) '
MODES = f"""#include <xmmintrin.h>
{MODE}unsigned get_mode() {{ return _mm_getcsr(); }}
{MODE}void set_mode(unsigned m) {{ _mm_setcsr(m); }}
"""


@pytest.fixture
def mode(tmp_path: Path) -> tuple[Callable[[], int], Callable[[int], None]]:
    """Reads and sets the register that decides on rounding and on subnormal numbers."""
    if platform.machine() != "x86_64":
        pytest.skip("sets MXCSR, a register of x86-64")
    (tmp_path / "mode.cpp").write_text(MODES)
    made = tmp_path / "mode.so"
    compiler = str(find_compiler().path)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, tmp_path / "mode.cpp"], check=True)
    library = ctypes.CDLL(str(made))
    library.set_mode.argtypes = [ctypes.c_uint]
    return library.get_mode, library.set_mode


@pytest.mark.parametrize("bits", [0x8040, 0x6000, 0xE040], ids=["flush to zero", "toward zero", "both"])
def test_the_callers_mode_is_not_used_and_is_restored(
    kernels: LoadedSim, mode: tuple[Callable[[], int], Callable[[int], None]], bits: int
) -> None:
    get, put = mode
    x = np.ldexp(np.arange(1, 257, dtype=np.float32), -149)  # subnormal numbers; odd ones are rounded
    want = launch(kernels, "halved", x)
    assert want[0] == 0 and want[2] == x[1] and want[1] == x[0] and want[255] == x[127]
    y = np.zeros(256, np.float32)
    call = struct.pack("<qqq", x.ctypes.data, y.ctypes.data, 0)
    before = get()
    put(0x1F80 | bits)
    try:
        kernels.launch("halved", 1, 256, call)
        after = get()
    finally:
        put(before)
    assert after & 0xFFC0 == (0x1F80 | bits) & 0xFFC0
    assert y.tobytes() == want.tobytes()
