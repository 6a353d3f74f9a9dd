"""One NVIDIA GPU: compiles, loads and launches the source of kernels, and has memory for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from ...emit.counters import sums_of
from ...emit.cpp import KernelText
from ...lang import Graph
from ...lower.gpu import Step
from ...toolchain.build import Source
from ..backend import Array, Identity, Program, source_digest, workspace_of
from ..machine_code import MachineCode
from . import nvrtc, ptx
from .device import open_device
from .matrix_checks import (
    adds_in_order,
    multiplies_integers,
    takes_fused_steps,
    warpgroups_multiply_integers,
    warpgroups_take_fused_steps,
)

NO_SASS = "of SASS, which ptxas makes of PTX, there is no list of instructions"


class CudaTarget:
    """Kernels on one NVIDIA GPU. Raises DeviceMissingError where there is none."""

    name, warp = "cuda", 32

    def __init__(self, index: int = 0) -> None:
        self.device, self.index = open_device(index), index
        self.shared_bytes = self.device.shared_bytes
        self._arena: Any = None

    @cached_property
    def matrix_units(self) -> bool:
        """Whether the GPU has FP64 matrix units that add up in order: tried out on it, once."""
        return adds_in_order(self.device)

    @cached_property
    def fused_units(self) -> bool:
        """Whether the device's matrix units take the steps of ``fused16``: tried out on it, once."""
        return takes_fused_steps(self.device)

    @cached_property
    def integer_units(self) -> bool:
        """Whether the device's matrix units multiply 8-bit integers, and add exactly: tried out on it, once."""
        return multiplies_integers(self.device)

    @cached_property
    def integer_warpgroups(self) -> bool:
        """The same of Hopper's warpgroups."""
        return self.integer_units and warpgroups_multiply_integers(self.device)

    @cached_property
    def warpgroups(self) -> bool:
        """Whether the device has Hopper's warpgroups, and they take the steps of ``fused16``: tried out on it, once."""
        return self.fused_units and warpgroups_take_fused_steps(self.device)

    def entered(self) -> AbstractContextManager[None]:
        """Make the device's context the current one of this thread, and the caller's again afterwards."""
        return self.device.entered()

    def describe(self) -> dict[str, Any]:
        """The GPU, as certificates show it."""
        return self.device.describe()

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Compile a source by NVRTC, or take it from the build cache, and load it."""
        arch = f"{self.device.arch}a" if "warpgroup.h" in text.headers else self.device.arch
        made = nvrtc.build(Source(text.text, text.headers, stem), arch, structure)
        about = ("nvrtc", made.nvrtc.version, made.nvrtc.digest, made.arch, made.options)
        identity = Identity(structure, made.fingerprint, made.digest, source_digest(text), *about, sums_of(text))
        return CudaProgram(self.device.load(made)), identity

    def place(self, values: Array) -> tuple[int, object]:
        """Copy values to the GPU."""
        memory = self.device.allocate(values.nbytes)
        if values.nbytes:
            self.device.upload(np.ascontiguousarray(values), memory.address)
        return memory.address, memory

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Memory on the GPU."""
        memory = self.device.allocate(nbytes)
        return memory.address, memory

    @contextmanager
    def lent(self, memory: Sequence[Array]) -> Iterator[list[int]]:
        """Copy host memory to the device for one launch, wait for the device, copy back. Alignments within 256 bytes
        are kept."""
        at, end = [], 0
        for raw in memory:
            at.append(end + raw.ctypes.data % 256)
            end = -(-(at[-1] + raw.nbytes) // 256) * 256
        base = self.arena(end)
        for raw, offset in zip(memory, at, strict=True):
            self.device.upload(raw, base + offset)
        yield [base + offset for offset in at]
        self.device.synchronize()
        for raw, offset in zip(memory, at, strict=True):
            self.device.download(base + offset, raw)

    def again(self) -> tuple[str, str | None] | None:
        """The device by its number: another process has NVRTC of its own."""
        return f"{self.name}:{self.index}", None

    def arena(self, nbytes: int) -> int:
        """The address of room that the next call takes again: for buffers that are copied there and back."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self._arena = None
            self._arena = self.device.allocate(max(nbytes, 1 << 26))
        return int(self._arena.address)


class CudaProgram:
    """The kernels of one source on a GPU."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._at_a_time: dict[str, int] = {}
        self._code: MachineCode | None = None

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

    def machine_code(self, graph: Graph) -> list[MachineCode]:
        """What the PTX holds, read once: a program is of one definition. SASS is not read."""
        if self._code is None:
            artifact = self.module.artifact
            self._code = ptx.read(artifact.digest, artifact.read_ptx(), graph)
        return [self._code, MachineCode(self._code.binary, "", missing=NO_SASS)]

    def spills(self, name: str) -> int:
        """Bytes that are spilled, as ptxas reports them."""
        resources = self.module.artifact.resources[name]
        return int(resources.spill_stores + resources.spill_loads)

    def _fit(self, step: Step) -> int:
        """Blocks that the GPU runs at a time, by threads, registers, shared memory (each takes 1 KiB more)."""
        resources = self.module.artifact.resources[step.name]
        registers = -(-resources.registers // 8) * 8
        threads = -(-step.block // 32) * 32
        room = (self.module.device.shared_bytes + 1024) // (step.shared + resources.shared + 1024)
        each = max(1, min(32, 2048 // threads, 65536 // (registers * threads), room))
        self._at_a_time[step.name] = each * self.module.device.multiprocessors
        return self._at_a_time[step.name]
