"""The GPUs on which calls run: their streams, copies and workspace, and the kernels of an operator there."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from ..backends.backend import Array, Target
from ..backends.cuda.driver import call
from ..backends.cuda.target import CudaProgram, CudaTarget
from ..backends.sim.device import SIM, open_sim
from ..backends.sim.target import SimTarget
from ..lang import Operator
from .gpu_kernel import GpuKernel, Ready, gpu_plan

Launcher = Callable[[int], None]  # puts a kernel into a stream


class GpuDevice(Protocol):
    """One device on which calls run."""

    @property
    def target(self) -> Target:
        """Where its kernels are built and run."""

    def __hash__(self) -> int: ...

    def capturing(self, stream: int) -> bool:
        """Whether what is put into a stream is recorded for a CUDA graph instead of being run."""

    def read(self, address: int, values: Array, stream: int) -> None:
        """Fill a contiguous array from the device, after the work of a stream."""

    def wait(self, stream: int) -> None:
        """Wait for the work of a stream."""

    def write(self, address: int, values: Array, stream: int) -> None:
        """Copy a contiguous array to the device, in the order of a stream; `values` may be changed afterwards."""

    def pinned(self, nbytes: int) -> Array:
        """Bytes of host memory that a captured copy may read at each replay."""

    def workspace(self, nbytes: int, stream: int) -> AbstractContextManager[int]:
        """Memory for the work that is put into a stream meanwhile."""


class CudaGpu:
    """An NVIDIA GPU. Raises DeviceMissingError where there is none."""

    def __init__(self, index: int) -> None:
        self.target = CudaTarget(index)
        self.device = self.target.device

    def capturing(self, stream: int) -> bool:
        """Asks the driver."""
        return self.device.capturing(stream)

    def wait(self, stream: int) -> None:
        """Faults of earlier launches show here."""
        with self.device.entered():
            call("cuStreamSynchronize", stream, about=f"stream {stream:#x}")

    def read(self, address: int, values: Array, stream: int) -> None:
        """Waits for the stream alone, not for the device."""
        self.wait(stream)
        with self.device.entered():
            call("cuMemcpyDtoH", values.ctypes.data, address, values.nbytes, about=f"{values.nbytes} bytes")

    def write(self, address: int, values: Array, stream: int) -> None:
        """From memory that is not pinned, so the driver has taken a copy when it returns."""
        with self.device.entered():
            about = f"{values.nbytes} bytes"
            call("cuMemcpyHtoDAsync", address, values.ctypes.data, values.nbytes, stream, about=about)

    def pinned(self, nbytes: int) -> Array:
        """It is never freed."""
        with self.device.entered():
            address = int(call("cuMemHostAlloc", nbytes, 0, about=f"{nbytes} bytes of pinned memory"))
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    @contextmanager
    def workspace(self, nbytes: int, stream: int) -> Iterator[int]:
        """From the driver's pool, in the order of the stream: calls in other streams have other memory."""
        with self.device.entered():
            address = int(call("cuMemAllocAsync", nbytes, stream, about=f"{nbytes} bytes of workspace"))
        try:
            yield address
        finally:
            with self.device.entered():
                call("cuMemFreeAsync", address, stream, about="workspace")


class SimGpu:
    """The simulated device. Its memory is this process's, and what is put into a stream has run by then."""

    def __init__(self) -> None:
        self.target = SimTarget()
        self.device = open_sim()

    def capturing(self, stream: int) -> bool:
        """There are no graphs."""
        return False

    def wait(self, stream: int) -> None:
        """There is nothing to wait for."""

    def read(self, address: int, values: Array, stream: int) -> None:
        """A copy."""
        self.device.download(address, values)

    def write(self, address: int, values: Array, stream: int) -> None:
        """A copy."""
        self.device.upload(values, address)

    def pinned(self, nbytes: int) -> Array:
        """All memory is."""
        return np.empty(nbytes, np.uint8)

    def workspace(self, nbytes: int, stream: int) -> AbstractContextManager[int]:
        """Poisoned like all new memory."""
        return self.device.room(nbytes)


@functools.cache
def gpu_device(index: int) -> GpuDevice:
    """The device of this index, or the simulated device, for as long as the process lives."""
    return SimGpu() if index == SIM else CudaGpu(index)


@functools.cache
def kernel_on(
    where: GpuDevice, operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]
) -> GpuKernel:
    """The kernels of an operator on a device; sources are compiled when a shape first needs them."""
    graph = operator.trace(dtype, present, dict(options))
    return GpuKernel(operator, graph, gpu_plan(graph, "cuda"), False, where.target)


def launchers(ready: Ready, call: Any) -> tuple[Launcher, ...]:
    """The launches of a call with all settled but the stream. ``call`` is an array of `ctypes`: the kernels'
    parameter, which is read at each launch."""
    program = ready.program
    if isinstance(program, CudaProgram):
        return tuple(program.bound(step, call) for step in ready.steps)
    return tuple(lambda stream, step=step: program.launch(step, bytes(call), 0, stream) for step in ready.steps)
