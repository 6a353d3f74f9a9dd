"""Run compiled kernels on this machine's processor.

A kernel is one C function, the same for every operator:

    int32_t tokitai_kernel(void* const* tensors, const int64_t* sizes, const void* scalars, void* workspace,
                           int32_t threads)

Calls release the interpreter lock and may run at the same time in several threads.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import ArgumentError, CacheError, CompileError, DeviceMissingError, KernelFaultError
from ...toolchain.build import ISAS, Artifact, cpu_features, isas_here, machine_here
from ...toolchain.fingerprint import file_digest
from ...toolchain.folders import no_execution
from ...toolchain.outside import messages_of
from .kept import room
from .threads import Started

SYMBOL = "tokitai_kernel"
ENV_THREADS = "TOKITAI_NUM_THREADS"
MOST_THREADS = 4096  # more than a machine has processors


_started = Started()


class LoadedKernel:
    """A kernel in this process. Calling it runs it and returns its status, 0 where all went well."""

    def __init__(self, artifact: Artifact, function: Any, library: Any) -> None:
        self.artifact = artifact
        self.function, self._outside = function, messages_of(library)
        self._library = library

    @functools.cached_property
    def bare(self) -> Any:
        """The function, which converts no argument: it takes bytes, pointers of ctypes and numbers of C's int."""
        function = self._library[SYMBOL]
        function.restype = ctypes.c_int32
        return function

    def __call__(
        self,
        tensors: Sequence[int],
        sizes: Sequence[int],
        scalars: NDArray[Any] | None = None,
        workspace: int | None = None,
        threads: int | None = None,
    ) -> int:
        """Run on the addresses `tensors`; `scalars` is a contiguous array of what the kernel takes (uint64 hashes in a
        structure build), `workspace` an address, `threads` at least 1 (`default_threads()`).

        Nothing is checked here but the thread count: the addresses must hold what the kernel's plan says. Raises
        KernelFaultError where a structure build leaves an array of its own.
        """
        count = check_threads(threads) or default_threads()
        if scalars is not None and not scalars.flags.c_contiguous:
            raise ArgumentError(f"scalars: strides {scalars.strides} (accepted: a contiguous array)")
        status = self.prepared(
            (ctypes.c_void_p * len(tensors))(*tensors),
            (ctypes.c_int64 * len(sizes))(*sizes),
            None if scalars is None else scalars.ctypes.data,
            workspace,
            count,
        )
        if said := self._outside():
            raise KernelFaultError(said)
        return status

    def prepared(self, tensors: Any, sizes: Any, scalars: int | None, workspace: int | None, threads: int) -> int:
        """The same on packed bytes or arrays of ctypes, and addresses. Raises ArgumentError where the system starts no
        such number of threads."""
        if threads > _started.most:
            _started.attempt(threads)
        return int(self.function(tensors, sizes, scalars, workspace, threads))


_loaded: dict[tuple[str, str], LoadedKernel] = {}
_loading = threading.Lock()
_runtimes: dict[int, Any] = {}  # how each OpenMP runtime that kernels brought is paused, by address
OMP_PAUSE_HARD = 2


def _end_threads() -> None:
    """End the OpenMP threads that wait for this thread's next call. A child of a fork would wait for them for ever, as
    it has none of them; both sides start new ones when they need them. (LLVM's runtime sees to that itself.)"""
    for pause in list(_runtimes.values()):
        pause(OMP_PAUSE_HARD)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)


def load(artifact: Artifact) -> LoadedKernel:
    """The kernel in `artifact`, loaded once for each fingerprint, whatever its name.

    Raises DeviceMissingError where this machine does not run its instruction set or its libraries are missing,
    CacheError where the file is not the one that was built, CompileError where it holds no kernel.
    """
    with _loading:
        identity = (artifact.fingerprint, artifact.digest)
        if identity not in _loaded:
            _loaded[identity] = LoadedKernel(artifact, *_open(artifact))
        return _loaded[identity]


def check_runs_here(artifact: Artifact) -> None:
    """Raise DeviceMissingError where this machine does not run the artifact's instruction set."""
    here = machine_here()
    runs = isas_here()
    if artifact.compiler.machine != here or not (artifact.structure or artifact.isa in runs):
        raise DeviceMissingError(
            f"{artifact.path.name}: built for {artifact.compiler.machine} {artifact.isa}, "
            f"but this machine runs {here} {', '.join(runs) or '(nothing known)'}"
        )


def _open(artifact: Artifact) -> tuple[Any, Any]:
    """The kernel in a library, and the library."""
    check_runs_here(artifact)
    try:
        found = file_digest(artifact.path)
    except OSError as error:
        raise CacheError(f"{artifact.path}: cannot be read: {error}; build it again") from error
    if found != artifact.digest:
        raise CacheError(f"{artifact.path}: sha256 is {found}, not {artifact.digest} as built; build it again")
    try:
        library = ctypes.CDLL(str(artifact.path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        cause = no_execution(artifact.path.parent) or error
        raise DeviceMissingError(f"{artifact.path}: cannot be loaded: {cause}") from error
    try:
        function = library[SYMBOL]  # by item: a function object of its own, not shared with others
    except AttributeError as error:
        raise CompileError(
            f'{artifact.path}: exports no {SYMBOL} (accepted: extern "C" with visibility("default"))'
        ) from error
    pause = getattr(library, "omp_pause_resource_all", None)  # found in the runtime that the library is linked with
    if pause is not None and getattr(library, "__kmpc_fork_call", None) is None:
        _runtimes[ctypes.cast(pause, ctypes.c_void_p).value or 0] = pause
    function.restype = ctypes.c_int32
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int32]  # which take arrays of ctypes, bytes and addresses
    return function, library


def aligned_empty(shape: Sequence[int] | int, dtype: DTypeLike, align: int = 64) -> NDArray[Any]:
    """An uninitialised C-contiguous array whose first byte lies at a multiple of `align` bytes (a power of two)."""
    if align < 1 or align & (align - 1):
        raise ArgumentError(f"align={align}; accepted: a power of two")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(size < 0 for size in sizes):
        raise ArgumentError(f"shape={sizes}; accepted: sizes of at least 0")
    return placed_empty(sizes, np.dtype(dtype), align)[0]


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _address_in_head(array: NDArray[Any]) -> int:
    """Of CPython's object the field behind its head: `data` of PyArrayObject_fields, a part of NumPy's binary
    interface. Twenty times as fast as asking for it by name."""
    return ctypes.c_size_t.from_address(id(array) + object.__basicsize__).value


_EXAMPLE = np.empty(3, np.uint8)
_READS_HEAD = sys.implementation.name == "cpython" and _address_in_head(_EXAMPLE) == _address(_EXAMPLE)
address_of = _address_in_head if _READS_HEAD else _address
"""Where an array (no subclass) begins in memory."""


def placed_empty(shape: tuple[int, ...], dtype: np.dtype[Any], align: int = 64) -> tuple[NDArray[Any], int]:
    """The same, unchecked, and its address."""
    count = math.prod(shape) * dtype.itemsize
    raw = room(count + align)
    address = address_of(raw)
    start = -address % align
    return np.ndarray(shape, dtype, raw.data, start), address + start


def check_threads(threads: object, name: str = "threads") -> int | None:
    """A whole number of threads that a kernel can be run in, or None. Raises ArgumentError."""
    if threads is None:
        return None
    whole = isinstance(threads, (int, np.integer)) and not isinstance(threads, bool)
    if not whole or not 1 <= threads <= MOST_THREADS:  # type: ignore[operator]
        raise ArgumentError(f"{name}={threads!r}; accepted: a whole number, 1 to {MOST_THREADS}")
    return int(threads)  # type: ignore[call-overload,no-any-return]


def default_threads() -> int:
    """``$TOKITAI_NUM_THREADS``, else the number of processors that this process may use. Raises ArgumentError."""
    wanted = os.environ.get(ENV_THREADS)
    return _threads_named(wanted) if wanted else _processors()


@functools.cache
def _threads_named(wanted: str) -> int:
    check_threads(int(wanted) if re.fullmatch(r"\d{1,9}", wanted, flags=re.ASCII) else wanted, ENV_THREADS)
    return int(wanted)


def _processors() -> int:
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(here, MOST_THREADS)


def describe() -> dict[str, Any]:
    """This machine, as certificates and `doctor` show it: plain JSON values."""
    machine = machine_here()
    features = cpu_features()
    shown = set().union(*(row.needs for row in ISAS.get(machine, {}).values()))
    return {
        "cpu": _cpu_model(),
        "machine": machine,
        "isas": list(isas_here()),
        "features": sorted(shown & features),
        "cores": _processors(),
        "threads": default_threads(),
        "os": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "float_mode": check_float_mode(),
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, flags=re.MULTILINE)
    if found:
        return found[1].strip()
    parts = re.findall(r"^CPU (?:implementer|part|variant)\s*:\s*(\S+)$", text, flags=re.MULTILINE)[:3]
    return " ".join(parts) or platform.processor() or "unknown"


# Bytes in and bytes out: a value that is computed or compared is at the mercy of the mode that is looked for.
_PROBES = struct.unpack("=4d", struct.pack("=4Q", 1, 1 << 52, 1023 << 52, (1023 - 60) << 52))


def check_float_mode() -> str | None:
    """What is wrong with the floating-point mode of the calling thread, or None where it is IEEE 754's default.

    A library built with -ffast-math can switch a whole thread to flush-to-zero when it is loaded. Python's own floats
    follow the mode, so that they show it.
    """
    subnormal, normal, unit, step = _PROBES
    found: list[str] = []
    if struct.pack("=d", normal * (unit / (unit + unit))) == bytes(8):
        found.append("results that are subnormal become zero (FTZ)")
    if struct.pack("=d", subnormal * (unit / step)) == bytes(8):
        found.append("operands that are subnormal count as zero (DAZ)")
    up, down, most = unit + step > unit, -unit - step < -unit, unit - step < unit
    if up or down or most:
        mode = "up" if up else "down" if down else "toward zero"
        found.append(f"rounding is {mode} instead of to nearest")
    return "; ".join(found) or None


_AS_IT_IS = nullcontext()


def default_float_mode() -> AbstractContextManager[None]:
    """IEEE 754's default mode in this thread while host scalars are computed, then the caller's again."""
    return _AS_IT_IS if check_float_mode() is None else _default_float_mode()


@contextmanager
def _default_float_mode() -> Iterator[None]:
    libm = ctypes.CDLL(find_library("m"))
    saved = ctypes.create_string_buffer(64)  # fenv_t: 32 bytes on x86-64, 8 on aarch64
    libm.fegetenv(saved)
    libm.fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV
    try:
        yield
    finally:
        libm.fesetenv(saved)
