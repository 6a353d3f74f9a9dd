"""Run the source of GPU kernels on this machine's processor: every thread a fiber, warps and barriers in software.

A stand-in for a GPU that checks bits, structure, barriers and shuffles of a kernel, slowly; it says nothing of speed.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CacheError, DeviceMissingError, KernelFaultError, UnknownNameError
from ...toolchain.build import SIMULATED, Artifact, Source, build, machine_here
from ...toolchain.compilers import Compiler
from ...toolchain.fingerprint import file_digest
from ...toolchain.outside import messages_of
from ..cpu.device import aligned_empty

SIM = -1  # the simulated device's number, where GPUs count from 0
POISON = 0xFF  # every byte of new memory: NaN in every format

# What the compiler calls for an access outside an array whose size it knows: registers on a GPU, memory of other
# variables here. The thread stops, and with it its block. It stands behind a kernel's source, which it does not change.
OUTSIDE = r"""
namespace tokitai {
namespace sim {
struct Outside {  // as the compilers lay it out
  const char* file;
  uint32_t line, column;
  const char* type;  // two numbers of 16 bits, then its name
};
static char outside[256];
static void stop(void* where, const char* what) {
  const Outside& at = *static_cast<const Outside*>(where);
  if (!outside[0]) {  // the first thread is reported
    const int n = snprintf(outside, 128, "%s:%u, block %lld: ", at.file, at.line, static_cast<long long>(block_number));
    snprintf(outside + (n < 128 ? n : 127), 128, what, current, at.type + 4);
  }
  for (;;) leave(WAITING);
}
}  // namespace sim
}  // namespace tokitai

extern "C" __attribute__((used, visibility("hidden"))) void __ubsan_handle_out_of_bounds(void* where, void*) {
  tokitai::sim::stop(where, "the index of thread %d lies outside an array of type %s");
}
extern "C" __attribute__((used, visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(void* where, void*) {
  tokitai::sim::stop(where, "thread %d reaches outside an object, for %s");
}
extern "C" __attribute__((visibility("default"))) char* tokitai_outside() { return tokitai::sim::outside; }
"""


def build_sim(
    source: Source, compiler: Compiler, structure: bool = False, warp: int = 32, hip: bool = False
) -> Artifact:  # fmt: skip
    """Compile a source of GPU kernels for the simulated device: as CUDA or, over AMD's builtins, as HIP.

    Raises what `toolchain.build.build` raises.
    """
    names = (SIMULATED, f"TOKITAI_WARP={warp}", *(("TOKITAI_HIP=1",) if hip else ()))
    return build(replace(source, text=source.text + OUTSIDE), compiler, "scalar", structure, names)


class _Stacks(threading.local):
    """Memory for the fibers of whatever source a thread runs: kept by each, it would add up to gigabytes."""

    size, address = 0, 0

    def at_least(self, size: int) -> int:
        """The address of that many bytes; only pages that are touched take memory."""
        if size > self.size:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.size, self.address = size, ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        return self.address


_stacks = _Stacks()


class LoadedSim:
    """The kernels of one library in this process. Its launches are serialized."""

    def __init__(self, artifact: Artifact) -> None:
        if artifact.compiler.machine != machine_here():
            raise DeviceMissingError(
                f"{artifact.path.name}: built for {artifact.compiler.machine}, but this machine is {machine_here()}"
            )
        if file_digest(artifact.path) != artifact.digest:
            raise CacheError(f"{artifact.path}: has changed since it was built; build it again")
        self.artifact = artifact
        self._library = ctypes.CDLL(str(artifact.path))
        self._message = self._library.tokitai_sim_message
        self._message.restype = ctypes.c_char_p
        self._library.tokitai_sim_stack_bytes.restype = ctypes.c_size_t
        self._outside = messages_of(self._library)
        self._library.tokitai_sim_use_stacks.argtypes = [ctypes.c_void_p]
        self._running = threading.Lock()  # fibers and shared memory are those of the library
        self._kernels: dict[str, Any] = {}

    def launch(self, name: str, grid: int, block: int, call: bytes, order: int = 0) -> None:
        """Run one kernel. ``order`` picks the order of threads: 0 and 1 forward, 2 backward, others shuffled. From
        2 on warps run ahead of each other, as far as barriers let them.

        Raises UnknownNameError, and KernelFaultError where threads cannot come together or a stack is too small.
        """
        function = self._kernels.get(name)
        if function is None:
            try:
                function = self._library[f"tokitai_sim_{name}"]
            except AttributeError as error:
                raise UnknownNameError("kernel", name, ()) from error
            function.restype = ctypes.c_int32
            function.argtypes = [ctypes.c_int64, ctypes.c_int32, ctypes.c_char_p, ctypes.c_uint64]
            self._kernels[name] = function
        with self._running:
            self._library.tokitai_sim_use_stacks(_stacks.at_least(self._library.tokitai_sim_stack_bytes()))
            if function(grid, block, call, order):
                raise KernelFaultError(self._why())

    def _why(self) -> str:
        """The message of a launch that failed."""
        return self._outside() or self._message().decode(errors="replace")


_loaded: dict[tuple[str, str], LoadedSim] = {}
_loading = threading.Lock()


def load(artifact: Artifact) -> LoadedSim:
    """The kernels in `artifact`, loaded once for each fingerprint. Raises DeviceMissingError, CacheError."""
    with _loading:
        identity = (artifact.fingerprint, artifact.digest)
        if identity not in _loaded:
            _loaded[identity] = LoadedSim(artifact)
        return _loaded[identity]


class SimMemory:
    """Memory of the simulated device, which is this process's own. It is poisoned when it is new and when it is freed,
    so that what is read too early or too late is not what was expected."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, memory = nbytes, aligned_empty(nbytes, np.uint8, 256)
        self.address = int(memory.ctypes.data) if nbytes else 0
        memory.fill(POISON)
        weakref.finalize(self, memory.fill, POISON)


class SimDevice:
    """What `cuda.Device` offers for arrays, on the simulated device. Nothing runs beside the caller."""

    index = SIM
    name = "the simulated device"

    def allocate(self, nbytes: int) -> SimMemory:
        """Memory whose address is a multiple of 256; 0 bytes have the address 0."""
        return SimMemory(nbytes)

    def upload(self, values: NDArray[Any], address: int) -> None:
        """Copy a contiguous array to the device."""
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Fill a contiguous array from the device."""
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def copy_rows(self, source: int, pitch: int, to: int, width: int, rows: int, stream: int = 0) -> None:
        """Copy ``rows`` rows of ``width`` bytes, which begin ``pitch`` bytes apart, to where they lie densely."""
        for row in range(rows):
            ctypes.memmove(to + row * width, source + row * pitch, width)

    def wait(self, stream: int) -> None:
        """All work has ended when it is put into a stream."""

    @contextmanager
    def room(self, nbytes: int) -> Iterator[int]:
        """The address of memory for a while."""
        memory = self.allocate(nbytes)
        yield memory.address
        del memory


@lru_cache(maxsize=1)
def open_sim() -> SimDevice:
    """The simulated device."""
    return SimDevice()
