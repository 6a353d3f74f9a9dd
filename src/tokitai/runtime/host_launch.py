"""The kernel of a call in host memory, to be launched again with other addresses and host scalars."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..arrays.dlpack import as_numpy
from ..backends.backend import Array
from ..backends.cpu import device as cpu
from .checks import check_indices, index_count
from .kernel import Kernel
from .launch_cache import CallSignature
from .problem import Problem

KEPT_WORKSPACE = 1 << 20  # bytes that a thread keeps from call to call
ALONE = 1 << 16  # bytes that one thread works through before another has woken up
ALONE_PRODUCTS = 1 << 17  # and multiplications of a product


@dataclass(slots=True)
class LaunchScalars:
    """Sizes and host scalars as the kernel takes them, and scalars by name."""

    sizes: Any  # an array of ctypes
    table: Array
    address: int  # of the table
    params: Mapping[str, float]


class Settled(NamedTuple):
    """A launch in one thread, all but addresses: ``function(pack(*addresses), sizes, table, workspace, 1)``."""

    function: Any  # of ctypes, which converts nothing: bytes, pointers of ctypes and small numbers are taken
    pack: Callable[..., bytes]
    sizes: bytes
    table: bytes  # of scalars
    workspace: int  # bytes


@dataclass(slots=True)
class HostLaunch:
    """`Launch` of a kernel for the CPU."""

    kernel: Kernel
    problem: Problem
    strides: tuple[int, ...]  # the sizes of a launch, but for whole scalars
    pack: Callable[..., bytes]  # addresses, as the kernel reads them
    alone: bool  # so small that more threads would only make it slower
    checks: bool
    loaded: cpu.LoadedKernel
    on_device: bool = False
    workspaces: dict[int, int] = field(default_factory=dict)  # bytes, by how many threads

    def scalars_of(self, params: Mapping[str, float]) -> LaunchScalars:
        """The sizes and host scalars of a launch."""
        made = self.kernel.scalar_table(self.problem.rows, self.problem.cols, params)
        sizes = (*self.strides, *made.whole)
        return LaunchScalars((ctypes.c_int64 * len(sizes))(*sizes), made.table, made.table.ctypes.data, params)

    def check(self, signature: CallSignature, addresses: list[int], scalars: LaunchScalars) -> None:
        """Check indices. Raises ArgumentError."""
        operator = self.kernel.operator
        named = {
            str(n): as_numpy(str(n), x)
            for n, x in zip(signature.form.named, signature.tensors, strict=True)
            if n in operator.contract.indices and x is not None
        }
        self.check_arrays(named, scalars)

    def check_arrays(self, named: Mapping[str, Array], scalars: LaunchScalars) -> None:
        """The same in the arrays of a call that choose elements."""
        operator = self.kernel.operator
        check_indices(operator, named, scalars.params, self.problem.sizes, self.problem.entries)

    def count_of(self, name: str) -> int:
        """How many values the indices of this name may have, from 0 on."""
        index = self.kernel.operator.contract.indices[name]
        return index_count(index, self.problem.sizes[1], self.problem.entries)

    def settled(self, scalars: LaunchScalars) -> Settled | None:
        """What runs it with these scalars; None where more threads than one may pay."""
        if not self.alone:
            return None
        return Settled(self.loaded.bare, self.pack, bytes(scalars.sizes), scalars.table.tobytes(), self._bytes(1))

    def _bytes(self, threads: int) -> int:
        """Of workspace that so many threads need."""
        need = self.workspaces.get(threads)
        if need is None:
            need = self.workspaces[threads] = self.kernel.workspace_bytes([self.problem.sizes], threads, 0)
        return need

    def __call__(self, scalars: LaunchScalars, addresses: Sequence[int], threads: int | None) -> None:
        """Run it, in so many threads, or by default in as many as pay."""
        threads = threads or (1 if self.alone else cpu.default_threads())
        need = self._bytes(threads)
        workspace = _workspace(need) if need else _NONE  # alive until the launch has run
        status = self.loaded.prepared(self.pack(*addresses), scalars.sizes, scalars.address, workspace[1], threads)
        if status:
            self.kernel.succeeded(status)


class _Workspaces(threading.local):
    """Workspace that a thread keeps from call to call: it runs one at a time."""

    kept = cpu.placed_empty((0,), np.dtype(np.uint8))


_workspaces = _Workspaces()


_NONE = cpu.placed_empty((0,), np.dtype(np.uint8))


def _workspace(size: int) -> tuple[Array, int]:
    """Workspace of so many bytes at least, and where it begins."""
    kept = _workspaces.kept
    if kept[0].size < size:
        kept = cpu.placed_empty((size,), np.dtype(np.uint8))
        if size <= KEPT_WORKSPACE:
            _workspaces.kept = kept
    return kept
