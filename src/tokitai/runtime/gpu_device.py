"""What a call on arrays of a GPU needs besides kernels: the device, its streams, and arrays as NumPy would see them.

Shapes, formats, strides and overlaps of device memory are judged by the same code as those of host memory: a *phantom*
is a NumPy array over an address that is never read.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from ..arrays.device_array import DeviceArray, DeviceView, handed_out
from ..arrays.libraries import array_at, library_of
from ..backends.cuda.device import current_stream
from ..backends.cuda.driver import call
from ..backends.sim.device import SIM, open_sim
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import Operator
from .checks import check_whole
from .gpu_kernel import GpuKernel, Ready, Target, gpu_plan
from .gpu_targets import CudaProgram, CudaTarget, SimTarget
from .kernel import Array

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

    def room(self, nbytes: int, stream: int) -> AbstractContextManager[int]:
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

    @contextmanager
    def room(self, nbytes: int, stream: int) -> Iterator[int]:
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

    def room(self, nbytes: int, stream: int) -> AbstractContextManager[int]:
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
    """The kernels of an operator on a device; texts are compiled when a shape first needs them."""
    graph = operator.trace(dtype, present, dict(options))
    return GpuKernel(operator, graph, gpu_plan(graph, "cuda"), False, where.target)


def launchers(ready: Ready, call: Any) -> tuple[Launcher, ...]:
    """The launches of a call with all settled but the stream. ``call`` is an array of `ctypes`: the kernels'
    parameter, which is read at each launch."""
    program = ready.program
    if isinstance(program, CudaProgram):
        return tuple(program.bound(step, call) for step in ready.steps)
    return tuple(lambda stream, step=step: program.launch(step, bytes(call), 0, stream) for step in ready.steps)


# ------------------------------------------------------------------ arrays
def phantom(view: DeviceView) -> Array:
    """A NumPy array that says where device memory lies. Its elements must not be touched."""
    return array_at(view.address, view.shape, view.strides, view.format, view.read_only, view.owner)


def copied(name: str, x: Any, shape: tuple[int, ...] | None = None) -> Any:
    """A copy in the caller's library, in the order of its current stream, of a shape to which it broadcasts. Raises
    ArgumentError where it has none."""
    library = library_of(x)
    if shape is not None and library in ("torch", "cupy"):
        x = x.expand(shape) if library == "torch" else sys.modules["cupy"].broadcast_to(x, shape)
    if library == "torch":
        return x.contiguous().clone() if x.is_contiguous() else x.contiguous()
    if library == "cupy":
        return x.copy(order="C")
    if isinstance(x, DeviceArray):
        made = (x if shape is None else x.broadcast_to(shape)).copy()
        x.device.wait(x.stream)  # the caller's stream may be another
        return made
    raise ArgumentError(
        f"{name}: needs a copy, which is made for torch and CuPy alone; accepted of {type(x).__name__}: contiguous "
        f"arrays and views with a row stride"
    )


def as_whole(name: str, x: Any, wanted: str, check: bool) -> Any:
    """Whole numbers of i32 or i64 in ``wanted``, the other of both, in the caller's library where that makes copies;
    else as they are. Raises ArgumentError for one out of range; without ``check``, which waits for the device, those
    become the range's ends."""
    library, dtype = library_of(x), FORMATS[wanted].dtype
    if library not in ("torch", "cupy"):
        return x
    if wanted == "i32":
        if check:
            check_whole(name, x.detach().cpu().numpy() if library == "torch" else x.get(), dtype)
        x = x.clip(-(2**31), 2**31 - 1)
    return x.to(getattr(sys.modules["torch"], dtype.name)) if library == "torch" else x.astype(dtype)


def as_columns(made: Any, example: Any, into: Any = None) -> Any:
    """Columns, which kernels give as f32 whole numbers, as i32: new, or where the caller wants them."""
    library = library_of(example)
    if library == "torch":
        return made.to(sys.modules["torch"].int32) if into is None else into.copy_(made)
    if into is not None:
        into[...] = made
        return into
    return handed_out(made, example).astype("int32")


def check_columns(operator: Operator, example: Any) -> None:
    """Columns are turned to i32 by the caller's library. Raises ArgumentError where that cannot be."""
    if operator.contract.places and library_of(example) not in ("torch", "cupy", "jax", "jaxlib"):
        raise ArgumentError(
            f"{operator.name} on {type(example).__name__} of a GPU: gives columns, which the caller's library turns to "
            f"i32; accepted: arrays of torch, CuPy or JAX, and arrays in host memory"
        )


# ------------------------------------------------------------------ streams
@functools.cache
def torch_streams() -> Callable[[int], int]:
    """What gives the handle of torch's current stream of a device."""
    torch = sys.modules["torch"]
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # makes no object of a stream
    return quick or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


def stream_of(example: Any) -> int:
    """The handle of the stream into which the library of `example` puts its work now; 0 is CUDA's default stream."""
    if library_of(example) == "torch":
        return torch_streams()(example.get_device())
    return current_stream(example)


def handle_of(stream: Any) -> int:
    """The handle of a stream: an integer, or an object of cuda.core, torch or CuPy. Raises ArgumentError."""
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    for name in ("__cuda_stream__", "cuda_stream", "ptr"):
        found = getattr(stream, name, None)
        found = found() if callable(found) else found
        if isinstance(found, tuple) and len(found) == 2:  # (version of the protocol, handle)
            found = found[1]
        if isinstance(found, int):
            return found
    raise ArgumentError(f"cuda_stream={stream!r}; accepted: a stream of torch, CuPy or cuda.core, or its handle")


def within(example: Any, stream: int, now: int, device: int) -> AbstractContextManager[Any]:
    """Make `stream` the current one of the library of `example`, so that what it allocates belongs there."""
    library = library_of(example)
    if stream == now or library not in ("torch", "cupy"):
        return nullcontext()
    cuda = sys.modules[library].cuda
    made: AbstractContextManager[Any]
    if library == "torch":
        made = cuda.stream(cuda.ExternalStream(stream, device=example.device))
    else:
        made = cuda.ExternalStream(stream, device)
    return made
