"""Kernels that run in worker processes: operators on the caller's arrays, and buffers in guard zones."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.backend import Array, Identity, Language, Program
from ..backends.cpu.device import check_runs_here
from ..backends.machine_code import MachineCode
from ..emit.cpp import KernelText
from ..errors import ArgumentError, DeviceError, UnavailableError
from ..lang import MATRICES, Graph, Operator, Sizes
from ..runtime.call import call_with
from ..runtime.compile import kernel_on
from ..runtime.gpu_kernel import Edit, GpuKernel, gpu_plan
from ..runtime.host_executor import kernel_here
from ..runtime.kernel import Kernel, KernelBase, Placed, Scalars
from ..toolchain.build import Isa
from .graphs import flattened
from .pool import Pool

LAUNCH = "tokitai.worker.entries:launch"
LAUNCH_GPU = "tokitai.worker.devices:launch"


def call(
    pool: Pool, operator: Operator, *args: Any, out: Any = None, threads: int | None = None, copy: bool = True,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Run `operator` in a worker process, and return what calling it returns, to the same bits.

    Tensors from `Pool.empty` are used where they are; others are copied there, and results back. Raises ArgumentError,
    and errors of the WorkerError family.
    """

    def kernel_for(*key: Any) -> Kernel:
        if key not in pool.kernels:
            pool.kernels[key] = isolate(kernel_here(*key), pool)
        return pool.kernels[key]  # type: ignore[no-any-return]

    return call_with(kernel_for, operator, args, kwargs, out, threads, copy)


def isolate(kernel: Kernel, pool: Pool) -> IsolatedKernel:
    """The kernel, to be run in the worker processes of a pool. It is not loaded here. Raises DeviceMissingError."""
    check_runs_here(kernel.artifact)
    return IsolatedKernel(**{f.name: getattr(kernel, f.name) for f in fields(Kernel)}, pool=pool)


@dataclass(frozen=True, eq=False)
class IsolatedKernel(Kernel):
    """A kernel for the processor that runs in worker processes."""

    pool: Pool = field(kw_only=True)

    def __reduce__(self) -> tuple[Any, ...]:
        raise ArgumentError(f"{self}: belongs to a pool of this process; accepted: pickling the kernel itself")

    def launch_raw(
        self, addresses: Sequence[int], sizes: Sequence[int], shapes: Sequence[tuple[int, int]], table: Array,
        threads: int, workspace: Array | None = None,
    ) -> None:  # fmt: skip
        """Run on addresses of this process. Tensors in the pool's shared memory stay where they are, others are copied
        there and results back, elements alone: what lies between rows is not touched."""
        if any(space in MATRICES - {"rc"} for space, _ in self.tensor_sizes):
            raise UnavailableError(
                f"{self.graph.name} on addresses in another process: not offered for products and tables; "
                f"accepted: buffers in guard zones"
            )
        tensors = _Tensors(self.pool)
        sizes, at = list(sizes), []
        k = int(self.plan.flat)
        inputs, each = len(self.graph.inputs), len(self.tensor_sizes)
        slots = [n or 1 for n in [*(t.slots for t in self.graph.inputs), *(o.slots for o in self.graph.outputs)]]
        for i, (rows, cols) in enumerate(shapes):
            k += 2
            for j, (space, size) in enumerate(self.tensor_sizes):
                lengths = {"rc": (rows, cols), "r": (rows * slots[j],), "c": (cols,), "s": (1,)}[space]
                tensor = tensors.at(addresses[i * each + j], lengths, sizes[k] if space == "rc" else 0, size)
                if j < inputs:
                    tensor.read = True
                else:
                    tensor.written = True
                at.append(tensor)
                if space == "rc":
                    sizes[k] = tensor.stride
                    k += 1
        inputs_first = sorted(tensors.every, key=lambda t: not t.read)
        read = [t.given for t in inputs_first if t.read]
        place = {id(t): i + (not t.read) for i, t in enumerate(inputs_first)}  # the scalars stand between them
        self._run_there(
            [[place[id(t)], t.first] for t in at], sizes, read, [t.given for t in inputs_first if t.written], table,
            threads, self.workspace_bytes(shapes, threads), [t.given for t in inputs_first if not t.read],
        )  # fmt: skip
        tensors.copy_back()

    def launch_buffers(
        self, tensors: Sequence[Mapping[str, Placed]], results: Sequence[Mapping[str, Placed]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int, workspace: Placed | None = None,
    ) -> None:  # fmt: skip
        """Run on buffers that are copied there and back with their guard zones. Their alignment is kept."""
        ordered = self._in_order(tensors, results)
        if all(b.array.size == 0 for made in results for b in made.values()):
            return
        whole, at, place = _whole_buffers(ordered, workspace)
        given, there = ([{n: b.array for n, b in some.items()} for some in many] for many in (tensors, results))
        sizes = self.sizes_of(given, there, shapes, scalars)
        room = place or self.workspace_bytes(shapes, threads, self.entries_in(sizes))
        self._run_there(at, sizes, whole, whole, scalars.table, threads, room)

    def _run_there(
        self, at: list[list[int]], sizes: list[int], inputs: list[Array], outputs: list[Array], table: Array,
        threads: int, workspace: int | list[int], fresh: Sequence[Array] = (),
    ) -> None:  # fmt: skip
        """``at`` counts the inputs, the table, then ``fresh``: the outputs that are not read."""
        arguments = {
            "path": str(self.artifact.path), "digest": self.artifact.digest, "at": at, "sizes": sizes,
            "threads": threads, "table": len(inputs), "workspace": workspace,
        }  # fmt: skip
        both = [a for a in outputs if all(a is not f for f in fresh)]
        self.pool.run(LAUNCH, arguments, [*inputs, np.ascontiguousarray(table)], [*fresh, *both])


class _Lent:
    """Memory of this process as NumPy takes it."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> None:
        kind = f"|u{size}" if size == 1 else f"<u{size}"
        self.__array_interface__ = dict(data=(address, False), shape=shape, strides=strides, typestr=kind, version=3)


@dataclass(eq=False)
class _Tensor:
    """One tensor of a launch: the array that goes there, the first byte and the row stride (in elements) in it."""

    given: Array
    first: int
    stride: int
    view: Array | None = None  # the caller's, with gaps between rows, where `given` is a dense copy
    read: bool = False
    written: bool = False


class _Tensors:
    """The tensors of a launch, each address once."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.every: list[_Tensor] = []
        self._seen: dict[tuple[object, ...], _Tensor] = {}

    def at(self, address: int, lengths: tuple[int, ...], stride: int, size: int) -> _Tensor:
        """What lies at an address of this process."""
        key = (address, lengths, stride)
        if key not in self._seen:
            self._seen[key] = made = self._new(address, lengths, stride, size)
            self.every.append(made)
        return self._seen[key]

    def _new(self, address: int, lengths: tuple[int, ...], stride: int, size: int) -> _Tensor:
        cols = lengths[-1]
        if 0 in lengths:
            return _Tensor(np.empty(0, np.uint8), 0, cols)
        view = np.asarray(_Lent(address, lengths, (stride * size, size)[-len(lengths) :], size))
        if view.flags.c_contiguous:
            return _Tensor(view, 0, cols)
        low = address + min(0, (lengths[0] - 1) * stride * size)
        extent = (abs(stride) * (lengths[0] - 1) + cols) * size
        if self.pool.memory.find(low, extent) is not None:
            return _Tensor(np.asarray(_Lent(low, (extent,), (1,), 1)), address - low, stride)
        return _Tensor(np.ascontiguousarray(view), 0, cols, view)

    def copy_back(self) -> None:
        """Put results between the gaps of the caller's arrays."""
        for t in self.every:
            if t.written and t.view is not None:
                np.copyto(t.view, t.given)


def _whole_buffers(
    ordered: Sequence[Placed], workspace: Placed | None
) -> tuple[list[Array], list[list[int]], list[int] | None]:
    """The memory of every buffer once, where in it each tensor begins, and where the workspace does."""
    every = {id(b): b for b in (*ordered, *((workspace,) if workspace is not None else ()))}
    index = {key: i for i, key in enumerate(every)}
    at = [[index[id(b)], b.start()] for b in ordered]
    place = None if workspace is None else [index[id(workspace)], workspace.start()]
    return [b.raw for b in every.values()], at, place


# ------------------------------------------------------------------ devices that the worker process owns
def describe(pool: Pool, device: str, compiler: str | None = None) -> dict[str, Any]:
    """The device, as the worker process sees it. Raises what `Backend.describe` raises, and WorkerError."""
    found: dict[str, Any] = pool.run("tokitai.worker.devices:describe", {"device": device, "compiler": compiler})
    return found


def isolated_kernel(
    device: str, operator: Operator, graph: Graph, structure: bool, compiler: str | None, isa: Isa | None,
    edit: Edit | None, pool: Pool,
) -> KernelBase:  # fmt: skip
    """A kernel for a device that runs in a worker process. One for the processor is compiled here and not loaded;
    others are compiled there, and none of them is edited. Raises ArgumentError and what `kernel_on` raises."""
    if backend_of(device).language is Language.GPU and edit is None:
        return isolated_gpu(operator, graph, device, structure, compiler, pool)
    made = kernel_on(device, operator, graph, structure, compiler, isa, edit)
    if not isinstance(made, Kernel):
        raise ArgumentError(f"a kernel for {device} in a worker process; accepted: kernels that are compiled, unedited")
    return isolate(made, pool)


def isolated_gpu(
    operator: Operator, graph: Graph, device: str, structure: bool, compiler: str | None, pool: Pool
) -> IsolatedGpuKernel:
    """A kernel for a GPU or the simulated device that is built and run in a worker process."""
    return IsolatedGpuKernel(
        operator, graph, gpu_plan(graph, device), structure, _Elsewhere(device), None, pool=pool, compiler=compiler
    )


def _listed(shape: tuple[int, int]) -> list[int]:
    """Rows and columns, of a product also its inner size and those of a batch."""
    return [*shape, shape.inner, shape.batch] if isinstance(shape, Sizes) else [*shape]


class _Elsewhere:
    """A target that another process has."""

    warp, shared_bytes = 32, 0
    fused_units = warpgroups = integer_units = integer_warpgroups = False
    entered = nullcontext
    matrix_units = False  # that is for the other process to say

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self) -> DeviceError:
        return DeviceError(f"{self.name}: belongs to a worker process; accepted: launches on buffers")

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Program, Identity]:
        """Nothing is built here."""
        raise self._refuse()

    def place(self, values: Array) -> tuple[int, object]:
        """Nothing is placed here."""
        raise self._refuse()

    def workspace(self, nbytes: int) -> tuple[int, object]:
        """Nothing is allocated here."""
        raise self._refuse()

    def lent(self, memory: Sequence[Array]) -> AbstractContextManager[list[int]]:
        """Nothing is launched here."""
        raise self._refuse()

    def describe(self) -> dict[str, Any]:
        """The other process describes the device."""
        raise self._refuse()

    def again(self) -> tuple[str, str | None] | None:
        """A kernel there belongs to a pool of this process."""
        return None


@dataclass(eq=False)
class IsolatedGpuKernel(GpuKernel):
    """The kernels of an operator for a device that a worker process owns. A process that is replaced opens the device
    and builds them again (from the build cache)."""

    pool: Pool = field(kw_only=True)
    compiler: str | None = None
    _identities: list[Identity] = field(default_factory=list)
    _codes: dict[tuple[str, str], MachineCode] = field(default_factory=dict)  # a new process begins without

    def identities(self) -> list[Identity]:
        """The binaries that were used so far."""
        return self._identities

    def machine_code(self) -> list[MachineCode]:
        """What the other process has read of them."""
        return list(self._codes.values())

    def launch_buffers(
        self, tensors: Sequence[Mapping[str, Placed]], results: Sequence[Mapping[str, Placed]],
        shapes: Sequence[tuple[int, int]], scalars: Scalars, threads: int, workspace: Placed | None = None,
    ) -> None:  # fmt: skip
        """Run on buffers that are copied there and back with their guard zones. Their alignment is kept."""
        ordered = self._in_order(tensors, results)
        whole, at, place = _whole_buffers(ordered, workspace)
        packed = pickle.dumps(flattened(self.graph))
        graph = np.frombuffer(packed, np.uint8)
        arguments = {
            "device": self.target.name, "compiler": self.compiler, "structure": self.structure,
            "buffers": len(whole), "graph": hashlib.sha256(packed).hexdigest(), "at": at, "workspace": place,
            "room": 0 if workspace is None else workspace.array.size,
            "strides": [list(b.array.strides) for b in ordered],
            "extents": [list(b.array.shape) for b in ordered], "shapes": [_listed(s) for s in shapes],
            "whole": list(scalars.whole), "threads": threads,
        }  # fmt: skip
        table = np.ascontiguousarray(scalars.table)
        found, codes = self.pool.run(LAUNCH_GPU, arguments, [*whole, table, graph], whole)
        self._codes |= {(code["binary"], code["listing"]): MachineCode(**code) for code in codes}
        known = {i.fingerprint for i in self._identities}
        for values in found:
            identity = Identity(**{**values, "flags": tuple(values["flags"])})
            if identity.fingerprint not in known:
                self._identities.append(identity)
