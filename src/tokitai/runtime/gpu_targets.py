"""Where the texts of GPU kernels are built and run: an NVIDIA card, or fibers on the CPU that stand in for one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..backends.cpu.device import aligned_empty
from ..emit.cpp import KernelText
from ..errors import ArgumentError
from ..lang import Operator
from ..lower.gpu import Step
from ..toolchain.build import Source
from .gpu_kernel import GpuKernel, Program, gpu_plan, source_digest
from .kernel import Array, Identity, Placed, Scalars, variant_of


class CudaTarget:
    """Kernels on one NVIDIA card. Raises DeviceMissingError where there is none."""

    name, warp = "cuda", 32

    def __init__(self, index: int = 0) -> None:
        from ..backends.cuda.device import open_device

        self.device, self.index = open_device(index), index
        self.shared_bytes = self.device.shared_bytes
        self._arena: Any = None

    @cached_property
    def matrix_units(self) -> bool:
        """Whether the card has FP64 matrix units that add up in order: tried out on it, once."""
        from ..backends.cuda.matrix_checks import adds_in_order

        return adds_in_order(self.device)

    @cached_property
    def fused_units(self) -> bool:
        """Whether the device's matrix units take the steps of ``fused16``: tried out on it, once."""
        from ..backends.cuda.matrix_checks import takes_fused_steps

        return takes_fused_steps(self.device)

    @cached_property
    def warpgroups(self) -> bool:
        """Whether the device has Hopper's warpgroups, and they take the steps of ``fused16``: tried out on it, once."""
        from ..backends.cuda.matrix_checks import warpgroups_take_fused_steps

        return self.fused_units and warpgroups_take_fused_steps(self.device)

    def entered(self) -> AbstractContextManager[None]:
        """Make the device's context the current one of this thread, and the caller's again afterwards."""
        return self.device.entered()

    def describe(self) -> dict[str, Any]:
        """The card, as certificates show it."""
        return self.device.describe()

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a text by NVRTC, or take it from the build cache, and load it."""
        from ..backends.cuda import nvrtc

        arch = f"{self.device.arch}a" if "warpgroup.h" in text.headers else self.device.arch
        made = nvrtc.build(Source(text.text, text.headers, stem), arch, structure)
        about = ("nvrtc", made.nvrtc.version, made.nvrtc.digest, made.arch, made.options)
        identity = Identity(structure, made.fingerprint, made.digest, source_digest(text), *about)
        return CudaProgram(self.device.load(made)), identity

    def place(self, values: Array) -> tuple[int, object]:
        """Copy values to the card."""
        memory = self.device.allocate(values.nbytes)
        if values.nbytes:
            self.device.upload(np.ascontiguousarray(values), memory.address)
        return memory.address, memory

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Memory on the card."""
        memory = self.device.allocate(nbytes)
        return memory.address, memory

    def arena(self, nbytes: int) -> int:
        """The address of room that the next call takes again: for buffers that are copied there and back."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self._arena = None
            self._arena = self.device.allocate(max(nbytes, 1 << 26))
        return int(self._arena.address)


class CudaProgram:
    """The kernels of one text on a card."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._at_a_time: dict[str, int] = {}

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        """Put one kernel into a stream; one whose blocks take several units in turn with as many as fit at a time."""
        grid = step.grid
        if step.in_turn:
            grid = min(grid, self._at_a_time.get(step.name) or self._fit(step))
        if step.cleared:
            self.module.device.clear(workspace_of(call), step.cleared, stream)
        self.module.launch(step.name, grid, step.block, call, stream, shared=step.shared)

    def bound(self, step: Step, call: Any) -> Callable[[int], None]:
        """The same launch with all settled but the stream; ``call`` is an array of `ctypes` with the parameter."""
        grid = min(step.grid, self._fit(step)) if step.in_turn else step.grid
        bound: Callable[[int], None] = self.module.bound(step.name, grid, step.block, call, step.shared)
        if not step.cleared:
            return bound
        clear, size = self.module.device.clear, step.cleared

        def both(stream: int) -> None:
            clear(workspace_of(call), size, stream)
            bound(stream)

        return both

    def spills(self, name: str) -> int:
        """Bytes that are spilled, as ptxas reports them."""
        resources = self.module.artifact.resources[name]
        return int(resources.spill_stores + resources.spill_loads)

    def _fit(self, step: Step) -> int:
        """Blocks that the card runs at a time, by threads, registers, shared memory (each takes 1 KiB more)."""
        resources = self.module.artifact.resources[step.name]
        registers = -(-resources.registers // 8) * 8
        threads = -(-step.block // 32) * 32
        room = (self.module.device.shared_bytes + 1024) // (step.shared + resources.shared + 1024)
        each = max(1, min(32, 2048 // threads, 65536 // (registers * threads), room))
        self._at_a_time[step.name] = each * self.module.device.multiprocessors
        return self._at_a_time[step.name]


def workspace_of(call: Any) -> int:
    """The address that ends a kernel's parameter."""
    return int.from_bytes(call[-8:], "little")


class CudaKernel(GpuKernel):
    """Kernels whose host buffers are copied to a card for each launch: how they are verified."""

    def launch_buffers(
        self, tensors: Sequence[Mapping[str, Placed]], results: Sequence[Mapping[str, Placed]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int, workspace: Placed | None = None,
    ) -> None:  # fmt: skip
        """Copy every buffer with its guard zones, run, copy back. Alignments within 256 bytes are kept."""
        target = self.target
        assert isinstance(target, CudaTarget)
        ordered = self._in_order(tensors, results)
        every = {id(b): b for b in (*ordered, *((workspace,) if workspace is not None else ()))}
        offsets, end = {}, 0
        for key, b in every.items():
            offsets[key] = end + b.raw.ctypes.data % 256
            end = -(-(offsets[key] + b.raw.nbytes) // 256) * 256
        base = target.arena(end)
        at = {key: base + offset for key, offset in offsets.items()}
        for key, b in every.items():
            target.device.upload(b.raw, at[key])
        given, made = ([{n: b.array for n, b in some.items()} for some in many] for many in (tensors, results))
        addresses = [at[id(b)] + b.start() for b in ordered]
        place = None if workspace is None else at[id(workspace)] + workspace.start()
        self._launch_at(addresses, given, made, shapes, scalars, threads, place=place)
        target.device.synchronize()
        for key, b in every.items():
            target.device.download(at[key], b.raw)


class SimTarget:
    """Kernels on the simulated device."""

    name = "sim"
    shared_bytes = 227 << 10  # as a block may have on sm_90
    fused_units = warpgroups = False
    entered = nullcontext  # there is none to enter

    def __init__(
        self, compiler: str | None = None, warp: int = 32, hip: bool = False, matrix_units: bool = False
    ) -> None:
        from ..toolchain.compilers import find_compiler

        self.warp, self.hip, self.compiler, self.matrix_units = warp, hip, find_compiler(compiler), matrix_units

    def describe(self) -> dict[str, Any]:
        """The processor that stands in."""
        from ..backends.cpu import device as cpu

        return {**cpu.describe(), "simulated": True, "warp": self.warp}

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a text as C++, or take it from the build cache, and load it."""
        from ..backends.sim import device as sim

        source = Source(text.text, text.headers, stem)
        made = sim.build_sim(source, self.compiler, structure, self.warp, self.hip)
        isa = f"sim{', HIP' * self.hip}, warps of {self.warp}"
        about = (made.compiler.kind, made.compiler.version, made.compiler.digest, isa)
        identity = Identity(structure, made.fingerprint, made.digest, source_digest(text), *about, made.flags)
        return SimProgram(sim.load(made)), identity

    def place(self, values: Array) -> tuple[int, object]:
        """The values where they are."""
        return values.ctypes.data, values

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Memory of this process."""
        room = aligned_empty(nbytes, np.uint8)
        return room.ctypes.data, room


class SimProgram:
    """The kernels of one text as C++."""

    def __init__(self, loaded: Any) -> None:
        self.loaded = loaded

    def spills(self, name: str) -> int:
        """Fibers have no registers of their own."""
        return 0

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        """Run one kernel with one of the orders of threads: 0 is forward. Blocks that take units in turn are two."""
        if step.cleared:
            ctypes.memset(workspace_of(call), 0, step.cleared)
        self.loaded.launch(step.name, min(step.grid, 2) if step.in_turn else step.grid, step.block, call, order)


@lru_cache(maxsize=8)
def target_named(device: str, compiler: str | None = None) -> CudaTarget | SimTarget:
    """The target "cuda" (the first card), "cuda:N" (a card by its number) or "sim". Raises UnavailableError where it
    cannot be used here."""
    return SimTarget(compiler) if device == "sim" else CudaTarget(int(device.partition(":")[2] or 0))


def pickled(kernel: GpuKernel) -> tuple[Any, ...]:
    """How a kernel is pickled: what a device has loaded stays there, and another process builds it for its own. Raises
    ArgumentError for a kernel that cannot be built again."""
    target = kernel.target
    if kernel.edit is None and isinstance(target, SimTarget) and not target.hip and target.warp == 32:
        where: tuple[str, str | None] = target.name, str(target.compiler.path)
    elif kernel.edit is None and isinstance(target, CudaTarget):
        where = f"{target.name}:{target.index}", None
    else:
        text = f"{kernel.graph.name} for {target.name}: its kernels stay in their process"
        raise ArgumentError(f"{text}; accepted: kernels for cuda and sim of which no source was edited")
    return _again, (kernel.operator, *variant_of(kernel.graph), *where, kernel.structure)


def _again(
    operator: Operator, dtype: str, present: Iterable[str], options: Mapping[str, object], device: str,
    compiler: str | None, structure: bool,
) -> GpuKernel:  # fmt: skip
    """The kernel that another process has pickled, for the device of the same name here. Raises DeviceMissingError."""
    graph = operator.trace(dtype, present, options)
    target = target_named(device, compiler)
    return gpu_kernel_class(device)(operator, graph, gpu_plan(graph, target.name), structure, target)


def gpu_kernel_class(device: str) -> type[GpuKernel]:
    """The class of kernels that verification uses for a device."""
    return GpuKernel if device == "sim" else CudaKernel
