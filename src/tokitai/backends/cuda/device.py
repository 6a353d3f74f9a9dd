"""Run compiled kernels on an NVIDIA GPU, in the primary context that torch, CuPy and JAX use as well.

A kernel takes one parameter, a plain C struct, and its launch is ordered by a stream only, asynchronously. What
a kernel does wrong therefore shows in a later call (`Device.synchronize`), as an IllegalAddressError.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from ...errors import ArgumentError, DeviceError, DeviceMissingError, UnknownNameError
from . import driver as cuda_driver
from .driver import call, fail, probe
from .nvrtc import CudaArtifact, arch_of, find_nvrtc, missing

__all__ = ["Device", "DeviceMemory", "Module", "current_stream", "open_device", "probe"]

MOST_BLOCKS = 2**31 - 1
MOST_THREADS = 1024
ELSEWHERE = (201, 400)  # CUresult where the current context is not the kernel's
PORTABLE_CLUSTER = 8  # a larger one needs a GPU's consent


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig` of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid", "grid_y", "grid_z", "block", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("attribute_count", ctypes.c_uint),
    )  # fmt: skip


@lru_cache(maxsize=1)
def launcher() -> Callable[..., int]:
    """`cuLaunchKernelEx` itself: its bindings take as long as the driver does."""
    found = call("cuGetProcAddress", b"cuLaunchKernelEx", 11080, 0, about="cuLaunchKernelEx")
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
    return kind(int(found[0] if isinstance(found, tuple) else found))


@lru_cache(maxsize=1)
def clearer() -> Callable[..., int]:
    """`cuMemsetD32Async` itself."""
    found = call("cuGetProcAddress", b"cuMemsetD32Async", 3020, 0, about="cuMemsetD32Async")
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
    return kind(int(found[0] if isinstance(found, tuple) else found))


class DeviceMemory:
    """Memory on a device, freed together with this object.

    Freeing waits for everything that runs on the device (cuMemFree), so that no kernel under way loses its buffers.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device, self.nbytes, self.address = device, nbytes, 0
        if nbytes:
            with device.entered():
                self.address = int(call("cuMemAlloc", nbytes, about=f"{nbytes} bytes on device {device.index}"))
            # Not at exit: the driver may be gone by then, and it takes back what a process held.
            weakref.finalize(self, _free, device, self.address).atexit = False


def _free(device: Device, address: int) -> None:
    driver = cuda_driver.bindings()
    if driver.cuCtxPushCurrent(device.context)[0] == 0:
        driver.cuMemFree(address)  # fails only where the context is lost, and the memory with it
        driver.cuCtxPopCurrent()


class Device:
    """One GPU. `open_device` gives the same object for the same index.

    Raises DeviceMissingError where there is none, and UnknownNameError for one that no kernel is built for.
    """

    def __init__(self, index: int = 0) -> None:
        problem = probe()
        if problem:
            raise DeviceMissingError(f"device cuda:{index}: {problem}")
        count = int(call("cuDeviceGetCount"))
        if not 0 <= index < count:
            there = "one CUDA device" if count == 1 else f"{count} CUDA devices"
            numbers = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            raise DeviceMissingError(f"device cuda:{index}: this process sees {there}; accepted: {numbers}")
        self.index = index
        self._device = call("cuDeviceGet", index)
        name: bytes = call("cuDeviceGetName", 256, self._device)
        self.name = name.partition(b"\0")[0].decode(errors="replace").strip()
        major, minor = self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")
        self.capability = (major, minor)
        self.arch = arch_of(self.capability)
        self.multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        self.l2_bytes = self._attribute("L2_CACHE_SIZE")
        self.shared_bytes = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")  # that a launch can ask for
        self.memory_bytes = int(call("cuDeviceTotalMem", self._device))
        # Retained for as long as the process lives: modules and memory of the other libraries depend on it, too.
        self.context = call("cuDevicePrimaryCtxRetain", self._device, about=f"device cuda:{index} ({self.name})")
        self._handle = int(self.context)
        self._modules: dict[tuple[str, str], Module] = {}
        self._loading = threading.Lock()

    def __repr__(self) -> str:
        return f"<Device cuda:{self.index} {self.name}, {self.arch}>"

    def _attribute(self, name: str) -> int:
        return cuda_driver.attribute(self._device, name)

    def describe(self) -> dict[str, Any]:
        """This GPU, as certificates and `doctor` show it: plain JSON values."""
        return {
            "name": self.name,
            "capability": f"{self.capability[0]}.{self.capability[1]}",
            "arch": self.arch,
            "multiprocessors": self.multiprocessors,
            "memory_bytes": self.memory_bytes,
            "l2_bytes": self.l2_bytes,
            "driver": cuda_driver.driver_version(),
            "nvrtc": None if missing() else find_nvrtc().version,
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this GPU's context the current one of this thread, and the caller's again afterwards."""
        pushed = self._enter()
        try:
            yield
        finally:
            if pushed:
                cuda_driver.bindings().cuCtxPopCurrent()

    def _enter(self) -> bool:
        """Whether the context had to be pushed."""
        status, now = cuda_driver.bindings().cuCtxGetCurrent()
        if status == 0 and int(now) == self._handle:
            return False
        call("cuCtxPushCurrent", self.context)
        return True

    def synchronize(self) -> None:
        """Wait for everything that runs on the GPU. Here the faults of earlier launches show."""
        with self.entered():
            call("cuCtxSynchronize", about=f"device cuda:{self.index}")

    def allocate(self, nbytes: int) -> DeviceMemory:
        """Memory whose address is a multiple of 256. Raises DeviceOutOfMemoryError; 0 bytes have the address 0."""
        if nbytes < 0:
            raise ArgumentError(f"nbytes={nbytes}; accepted: at least 0")
        return DeviceMemory(self, nbytes)

    def upload(self, values: NDArray[Any], address: int) -> None:
        """Copy an array to the GPU, after everything that runs there has ended."""
        self._copy("cuMemcpyHtoD", address, values, up=True)

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Fill a contiguous array from the GPU, after everything that runs there has ended."""
        if not values.flags.writeable:
            raise ArgumentError("values: is read-only; accepted: an array that can be written")
        self._copy("cuMemcpyDtoH", address, values, up=False)

    def _copy(self, function: str, address: int, values: NDArray[Any], up: bool) -> None:
        if not values.flags.c_contiguous:
            raise ArgumentError(f"values: strides {values.strides} (accepted: a C-contiguous array)")
        with self.entered():
            call("cuCtxSynchronize", about=f"device cuda:{self.index}")
            if values.nbytes:
                here = values.ctypes.data
                pair = (address, here) if up else (here, address)
                call(function, *pair, values.nbytes, about=f"{values.nbytes} bytes at {address:#x}")

    def copy_rows(self, source: int, pitch: int, to: int, width: int, rows: int, stream: int = 0) -> None:
        """Copy ``rows`` rows of ``width`` bytes, which begin ``pitch`` bytes apart, to where they lie densely: on the
        GPU, in the order of a stream."""
        driver = cuda_driver.bindings()
        what = driver.CUDA_MEMCPY2D()
        what.srcMemoryType = what.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        what.srcDevice, what.srcPitch, what.dstDevice, what.dstPitch = source, pitch, to, width
        what.WidthInBytes, what.Height = width, rows
        with self.entered():
            call("cuMemcpy2DAsync", what, stream, about=f"{rows} rows of {width} bytes at {source:#x}")

    def wait(self, stream: int) -> None:
        """Wait for the work of a stream."""
        with self.entered():
            call("cuStreamSynchronize", stream, about=f"device cuda:{self.index}")

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set `nbytes` bytes, after everything that runs on the GPU has ended."""
        with self.entered():
            call("cuCtxSynchronize", about=f"device cuda:{self.index}")
            if nbytes:
                call("cuMemsetD8", address, byte, nbytes, about=f"{nbytes} bytes at {address:#x}")
                call("cuCtxSynchronize")

    def capturing(self, stream: int) -> bool:
        """Whether what is put into a stream is recorded for a CUDA graph."""
        pushed = self._enter()
        try:
            return int(call("cuStreamIsCapturing", stream, about="a stream")) != 0
        finally:
            if pushed:
                cuda_driver.bindings().cuCtxPopCurrent()

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Set a multiple of 4 bytes to 0, in the order of a stream."""
        pushed = self._enter()  # stream 0 is one of each context
        try:
            status = clearer()(address, 0, nbytes // 4, stream)
        finally:
            if pushed:
                cuda_driver.bindings().cuCtxPopCurrent()
        if status != 0:
            fail(status, "cuMemsetD32Async", f"{nbytes} bytes at {address:#x}")

    def load(self, artifact: CudaArtifact) -> Module:
        """The kernels of `artifact` on this GPU, loaded once for each fingerprint.

        Raises DeviceMissingError where they are built for other GPUs, CacheError where the file is not as built.
        """
        with self._loading:
            identity = (artifact.fingerprint, artifact.digest)
            if identity not in self._modules:
                self._modules[identity] = Module(self, artifact)
            return self._modules[identity]

    def time_ms(self, run: Callable[[], object], stream: int = 0) -> float:
        """Milliseconds on the GPU between the beginning and the end of what `run` puts into `stream`."""
        with self.entered():
            events = [call("cuEventCreate", 0) for _ in range(2)]
            try:
                call("cuEventRecord", events[0], stream)
                run()
                call("cuEventRecord", events[1], stream)
                call("cuEventSynchronize", events[1], about=f"device cuda:{self.index}")
                return float(call("cuEventElapsedTime", *events))
            finally:
                for event in events:
                    cuda_driver.bindings().cuEventDestroy(event)


@lru_cache(maxsize=64)
def open_device(index: int = 0) -> Device:
    """The GPU with this index among those that the process sees, opened once."""
    return Device(index)


class Module:
    """The kernels of one source on one GPU. It stays loaded for as long as the process lives."""

    def __init__(self, device: Device, artifact: CudaArtifact) -> None:
        self.device, self.artifact = device, artifact
        major, minor = divmod(int(artifact.arch[3:].rstrip("a")), 10)
        if major != device.capability[0] or minor > device.capability[1]:
            raise DeviceMissingError(
                f"{artifact.path.name}: built for {artifact.arch}, but cuda:{device.index} ({device.name}) runs "
                f"{device.arch}"
            )
        runs, built = int(call("cuDriverGetVersion")) // 1000, artifact.nvrtc.version
        if int(built.partition(".")[0]) > runs:
            raise DeviceMissingError(
                f"{artifact.path.name}: built by NVRTC {built}, but the NVIDIA driver here runs CUDA {runs}; install "
                f"a newer driver (580 or later for CUDA 13)"
            )
        image = artifact.read_cubin()
        with device.entered():
            self._module = call("cuModuleLoadData", image, about=artifact.path.name)
        self._kernels: dict[str, tuple[Any, int]] = {}
        self._allowed: dict[str, int] = {}
        driver = cuda_driver.bindings()
        self._launch, self._launch_ex = driver.cuLaunchKernel, driver.cuLaunchKernelEx

    def _kernel(self, name: str) -> tuple[Any, int]:
        """The handle of a kernel, and the size of the struct that it takes (-1 where the driver does not tell)."""
        if name not in self.artifact.resources:
            raise UnknownNameError("kernel", name, self.artifact.resources)
        with self.device.entered():
            function = call("cuModuleGetFunction", self._module, name.encode(), about=f"kernel {name}")
            try:
                _, size = call("cuFuncGetParamInfo", function, 0, about=f"kernel {name}")
            except (AttributeError, DeviceMissingError, DeviceError):  # older than CUDA 12.4, or no parameter
                size = -1
        self._kernels[name] = (function, int(size))
        return self._kernels[name]

    def launch(
        self, name: str, grid: int, block: int, call: bytes, stream: int = 0, cluster: int = 1, shared: int = 0
    ) -> None:
        """Put one kernel into `stream`: `grid` CTAs of `block` threads, `cluster` CTAs to a cluster (sm_90 and later).
        Each CTA has `shared` bytes of shared memory beside what the kernel declares.

        `call` holds the bytes of the kernel's parameter, which are copied before this returns; nothing is checked but
        their number. Raises ArgumentError, UnknownNameError and DeviceError.
        """
        function, size = self._kernels.get(name) or self._kernel(name)
        if not 1 <= grid <= MOST_BLOCKS:
            raise ArgumentError(f"kernel {name}: grid={grid} (accepted: 1 to {MOST_BLOCKS})")
        if not 1 <= block <= MOST_THREADS:
            raise ArgumentError(f"kernel {name}: block={block} (accepted: 1 to {MOST_THREADS})")
        if size not in (-1, len(call)):
            raise ArgumentError(f"kernel {name}: {len(call)} bytes of parameters (accepted: {size})")
        if shared:
            self._allow(name, function, shared)
        # The driver wants an array of pointers, one to each parameter: this object is one that points to the bytes.
        parameters = ctypes.c_char_p(call)
        pushed = self.device._enter()
        try:
            if cluster == 1:
                (status,) = self._launch(function, grid, 1, 1, block, 1, 1, shared, stream, parameters, 0)
            else:
                config = self._clustered(name, function, grid, block, stream, cluster)
                config.sharedMemBytes = shared
                (status,) = self._launch_ex(config, function, parameters, 0)
        finally:
            if pushed:
                cuda_driver.bindings().cuCtxPopCurrent()
        if status != 0:
            shape = f"grid {grid}, block {block}" + (f", cluster {cluster}" if cluster != 1 else "")
            fail(status, "cuLaunchKernel", f"kernel {name} ({shape})")

    def _allow(self, name: str, function: Any, shared: int) -> None:
        """Ask for as much shared memory at launches of a kernel, more than which needs a word beforehand."""
        if shared > self._allowed.get(name, 0):
            attribute = cuda_driver.bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            with self.device.entered():
                call("cuFuncSetAttribute", function, attribute, shared, about=f"kernel {name}, {shared} shared bytes")
            self._allowed[name] = shared

    def bound(self, name: str, grid: int, block: int, call: Any, shared: int = 0) -> Callable[[int], None]:
        """A launch of one kernel with all settled but the stream: what calls repeat. ``call`` is an array of
        `ctypes` that holds the kernel's parameter, as many bytes as the first `launch` was checked with; what it holds
        at a launch is copied then."""
        function, _ = self._kernels.get(name) or self._kernel(name)
        if shared:
            self._allow(name, function, shared)
        config = LaunchConfig(grid, 1, 1, block, 1, 1, shared)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        run, at, handle, pointers = launcher(), ctypes.addressof(config), int(function), ctypes.addressof(parameters)
        alive = config, parameters, call

        def launch(stream: int) -> None:
            config.stream = stream
            status = run(at, handle, pointers, None)
            if status != 0:
                self._launch_again(status, lambda: run(at, handle, pointers, None), name, alive[0])

        return launch

    def _launch_again(self, status: int, run: Callable[[], int], name: str, config: LaunchConfig) -> None:
        """Another context may be the current one of this thread, or none: a kernel runs in its own or not at all."""
        if status in ELSEWHERE and self.device._enter():
            try:
                status = run()
            finally:
                cuda_driver.bindings().cuCtxPopCurrent()
        if status != 0:
            fail(status, "cuLaunchKernelEx", f"kernel {name} (grid {config.grid}, block {config.block})")

    def _clustered(self, name: str, function: Any, grid: int, block: int, stream: int, cluster: int) -> Any:
        driver = cuda_driver.bindings()
        if self.device.capability < (9, 0):
            raise ArgumentError(f"kernel {name}: cluster={cluster} (accepted on {self.device.arch}: 1)")
        if not 1 <= cluster <= 16 or grid % cluster:
            raise ArgumentError(f"kernel {name}: cluster={cluster} for {grid} CTAs (accepted: 1 to 16, a divisor)")
        if cluster > PORTABLE_CLUSTER:
            allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            call("cuFuncSetAttribute", function, allowed, 1, about=f"kernel {name}, cluster {cluster}")
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x = cluster
        attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
        config.sharedMemBytes = 0
        config.hStream = driver.CUstream(stream)
        config.attrs = [attribute]
        config.numAttrs = 1
        return config


def current_stream(example: Any = None) -> int:
    """The stream that the library of `example` puts its work into now (torch, CuPy); else 0, CUDA's default stream."""
    library = type(example).__module__.partition(".")[0]
    module = sys.modules.get(library)
    if library == "torch" and module is not None:
        return int(module.cuda.current_stream(example.device).cuda_stream)
    if library == "cupy" and module is not None:
        return int(module.cuda.get_current_stream().ptr)
    return 0
