"""Run an operator on one of our devices, and say what was launched and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ..backends.backend import Identity, Program
from ..backends.cpu import device as cpu
from ..backends.cuda.target import CudaProgram, CudaTarget
from ..backends.sim.target import SimProgram, SimTarget
from ..emit.cpp import KernelText
from ..errors import DeviceMissingError, UnknownNameError
from ..formats import FORMATS
from ..lang import Operator, extent
from ..runtime.binding import bind, check_params
from ..runtime.call import call
from ..runtime.gpu_kernel import GpuKernel, gpu_plan
from ..runtime.kernel import Kernel, KernelBase, Scalars, host_kernel
from ..toolchain.build import native_isa
from .reply import Reply

Array = np.ndarray[Any, Any]
T = TypeVar("T")

DEVICES = ("cpu", "sim", "cuda")
STORAGE = "f16"  # of every family


@dataclass(frozen=True)
class Launch:
    """One launch: blocks, threads of a block, milliseconds."""

    grid: int
    block: int
    milliseconds: float


@dataclass(frozen=True)
class Ran:
    """The results of an operator by name, and the launches that made them."""

    results: Mapping[str, Array]
    launches: tuple[Launch, ...]

    @property
    def milliseconds(self) -> float:
        """Of all launches, without copies to and from the device."""
        return sum(one.milliseconds for one in self.launches)

    @property
    def largest(self) -> Launch:
        """The launch with the most threads; of none the figures are 0."""
        return max(self.launches, key=lambda one: one.grid * one.block, default=Launch(0, 0, 0.0))


class Runner:
    """A device, opened by the first request. Raises UnknownNameError; requests raise UnavailableError."""

    def __init__(self, device: str) -> None:
        if device not in DEVICES:
            raise UnknownNameError("device", device, DEVICES)
        self.device = device
        self.launches: list[Launch] = []
        self._kernels: dict[object, KernelBase] = {}

    @cached_property
    def target(self) -> CudaTarget | SimTarget | None:
        """Where the texts of GPU kernels are built and run; None on the processor."""
        if self.device == "cpu":
            return None
        return _WatchedSim(self.launches) if self.device == "sim" else _WatchedCuda(self.launches)

    @cached_property
    def names(self) -> tuple[str, str]:
        """The name of the device, and its architecture as kernels are built for it."""
        if self.target is None:
            return str(cpu.describe()["cpu"]), native_isa()
        about = self.target.describe()
        if self.device == "sim":
            return f"simulated GPU, warps of {about['warp']}, on {about['cpu']}", "sim"
        return str(about["name"]), str(about["arch"])

    def run(self, operator: Operator, tensors: Mapping[str, Array], shape: tuple[int, int], **given: Any) -> Ran:
        """Run on contiguous arrays of the operator's formats, those of storage f16. Results in place replace them."""
        _, params, options = bind(operator, (), {**tensors, **given})
        check_params(operator, params)
        kernel = self._kernel(operator, frozenset(tensors), tuple(sorted(options.items())))
        results = {
            o.name: tensors[o.name] if o.inplace else cpu.aligned_empty(extent(o.space, shape), FORMATS[o.format].dtype)
            for o in kernel.graph.outputs
        }
        self.launches.clear()
        self._launch(kernel, tensors, results, shape, kernel.scalar_table(*shape, params))
        return Ran(results, tuple(self.launches))

    def call(self, operator: Operator, result: str, *args: Array, **given: Any) -> Ran:
        """Run an operator with one result as its users do, on the processor. Raises DeviceMissingError elsewhere."""
        if self.target is not None:
            raise DeviceMissingError(f"{operator.name} on {self.device}; accepted: cpu")
        self.launches.clear()
        made = timed(lambda: call(operator, *args, **given), self.launches)
        return Ran({result: made}, tuple(self.launches))

    def _kernel(
        self, operator: Operator, present: frozenset[str], options: tuple[tuple[str, object], ...]
    ) -> KernelBase:
        key = (operator.name, present, options)
        if key not in self._kernels:
            if self.target is None:
                made: KernelBase = host_kernel(operator, STORAGE, present, dict(options))
            else:
                graph = operator.trace(STORAGE, present, dict(options))
                made = GpuKernel(operator, graph, gpu_plan(graph, self.device), False, self.target)
            self._kernels[key] = made
        return self._kernels[key]

    def _launch(
        self, kernel: KernelBase, tensors: Mapping[str, Array], results: Mapping[str, Array], shape: tuple[int, int],
        scalars: Scalars,
    ) -> None:  # fmt: skip
        if isinstance(kernel, Kernel):
            cpu.load(kernel.artifact)
            if any(a.size for a in results.values()):
                timed(lambda: kernel.launch(tensors, results, shape, scalars, cpu.default_threads()), self.launches)
        elif self.device == "sim":
            kernel.launch(tensors, results, shape, scalars, 0)
        else:
            placed = {id(a): _Placed(a) for a in (*tensors.values(), *results.values())}
            given, made = ({n: placed[id(a)] for n, a in some.items()} for some in (tensors, results))
            kernel.launch_buffers([given], [made], [shape], scalars, 0)

    def describe(self, reply: Reply, ran: Ran, **sizes: int) -> None:
        """The lines of a reply before its arrays."""
        reply.put("DEVICE_NAME", self.names[0])
        reply.put("GFX", self.names[1])
        for name, size in sizes.items():
            reply.put(name, size)
        reply.put("GRID", ran.largest.grid)
        reply.put("BLOCK", ran.largest.block)
        reply.put("KERNEL_TIME_MS", f"{ran.milliseconds:.6f}")


def timed(run: Callable[[], T], launches: list[Launch]) -> T:
    """Run on the processor, which has no grid: one block of one thread."""
    begin = time.perf_counter()
    made = run()
    launches.append(Launch(1, 1, (time.perf_counter() - begin) * 1e3))
    return made


class _Placed:
    """An array as a buffer without guard zones."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.raw: Array = array.reshape(-1).view(np.uint8)

    def start(self) -> int:
        """The array is all of the buffer."""
        return 0


class _Watch:
    """Stands before what launches kernels, and keeps the figures of each launch."""

    def __init__(self, inner: Any, launches: list[Launch], time_ms: Callable[[Callable[[], object]], float]) -> None:
        self._inner, self._launches, self._time_ms = inner, launches, time_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def launch(self, name: str, grid: int, block: int, *rest: Any) -> None:
        taken = self._time_ms(lambda: self._inner.launch(name, grid, block, *rest))
        self._launches.append(Launch(grid, block, taken))


class _WatchedSim(SimTarget):
    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self._launches = launches

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        program, identity = super().build(text, stem, structure)
        assert isinstance(program, SimProgram)
        program.loaded = _Watch(program.loaded, self._launches, _wall_ms)
        return program, identity


def _wall_ms(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e3


class _WatchedCuda(CudaTarget):
    def __init__(self, launches: list[Launch]) -> None:
        super().__init__()
        self._launches = launches

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        program, identity = super().build(text, stem, structure)
        assert isinstance(program, CudaProgram)
        program.module = _Watch(program.module, self._launches, self.device.time_ms)
        return program, identity
