"""Run an element-wise operator on lists of tensors of a GPU: an optimizer's step, in one prepared call.

What a list's kernels read beside the tensors (the table of their sizes and addresses) is written to the device once,
and again only where an address has changed: gradients that are new from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays.adapter import Arrays
from ..arrays.device_array import as_device, empty_like
from ..arrays.gpu import DeviceArrays, handle_of, stream_of, within
from ..arrays.libraries import library_of
from ..errors import ArgumentError
from ..lang import Operator
from .gpu_device import GpuDevice, gpu_device, kernel_on
from .gpu_kernel import GpuKernel, Ready, Table
from .gpu_launch import Frame, torch_workspace
from .kernel import KernelBase
from .launch_cache import LAUNCHES
from .lists import Array, CheckedLists, Prepared, prepare, signature_of_lists
from .problem import storage_format

_recorded: list[object] = []  # what a captured graph reads whenever it is replayed: it stays
_spare: dict[tuple[GpuDevice, int], list[Array]] = {}  # pinned memory for a table of so many bytes of a next capture


@dataclass(frozen=True, eq=False)
class CapturedLaunch:
    """A launch that a stream has recorded for a graph, whose host scalars may be others at each replay."""

    kernel: GpuKernel
    counted: tuple[int, int]
    ready: Ready
    parameter: bytes  # of each of its kernels
    first: int  # where the scalars begin in it

    def with_scalars(self, params: Mapping[str, float]) -> bytes:
        """The parameter with other host scalars."""
        scalars = self.kernel.scalar_bytes(self.kernel.scalar_table(*self.counted, params))
        return self.parameter[: self.first] + scalars + self.parameter[self.first + len(scalars) :]


_captured: list[list[CapturedLaunch]] = []
_expected: list[object] = []  # captures that will follow


@contextmanager
def capture_expected() -> Iterator[None]:
    """Lists that run meanwhile may be captured afterwards in other memory: each finds pinned memory for its table."""
    _expected.append(None)
    try:
        yield
    finally:
        _expected.pop()


@contextmanager
def captured_launches() -> Iterator[list[CapturedLaunch]]:
    """The launches of lists that streams record meanwhile."""
    made: list[CapturedLaunch] = []
    _captured.append(made)
    try:
        yield made
    finally:
        _captured.remove(made)


@dataclass(eq=False, slots=True)
class _Placed:
    """A table that lies on the device, written in the order of a stream, and what launches need that read it."""

    stream: int
    addresses: Array
    table: Table
    ready: Ready
    workspace: Callable[[], Any] | None  # gives new workspace of torch's, where there is any
    frames: list[Frame] = field(default_factory=list)  # free ones


class PreparedOnGpu(Prepared):
    """Lists of tensors of one GPU that have been checked. Called with scalars alone it looks at no tensor again: they
    must lie where they lay, and must not be freed meanwhile."""

    where: GpuDevice
    kernel: GpuKernel

    def __init__(
        self, operator: Operator, kernel: KernelBase, lists: Mapping[str, Sequence[Any]], arrays: Arrays,
        copy: bool = True,
    ) -> None:  # fmt: skip
        assert isinstance(arrays, DeviceArrays)
        self.arrays: DeviceArrays = arrays
        self.device, self.where = arrays.device, gpu_device(arrays.device)
        self.placed: _Placed | None = None
        super().__init__(operator, kernel, lists, arrays, copy)
        self.table_addresses = np.array(self.addresses, np.int64)
        self.of_torch = library_of(self.arrays.example) == "torch"

    def lie_at(self, addresses: Array) -> None:
        """Those of single results are filled in by a call."""
        self.table_addresses = addresses

    def __call__(self, params: Mapping[str, float], stream: Any = None) -> Any:
        """Put one launch into the current stream of the tensors' library, or into `stream`. Returns what `Prepared`
        returns."""
        now = stream_of(self.arrays.example)
        chosen = now if stream is None else handle_of(stream)
        with within(self.arrays.example, chosen, now, self.device):
            self._launch(params, chosen)
            return self.returned()

    def _launch(self, params: Mapping[str, float], stream: int) -> None:
        scalars = self.kernel.scalar_bytes(self.kernel.scalar_table(*self.counted, params))
        capturing = self.where.capturing(stream)
        placed = self._placed(self._own_values(), stream, capturing)
        ready = placed.ready
        try:
            frame = placed.frames.pop()
        except IndexError:  # the first call, or others run it now
            frame = Frame(ready, scalars, 0)
        if not ready.workspace:
            frame.launch(scalars, 0, stream)
        elif placed.workspace is not None:
            workspace = placed.workspace()
            frame.launch(scalars, workspace.data_ptr(), stream)
        elif library_of(self.arrays.example) == "cupy":
            workspace = empty_like(self.arrays.example, (ready.workspace,), "bool", stream)
            frame.launch(scalars, as_device("workspace", workspace).address, stream)
        else:
            with self.where.workspace(ready.workspace, stream) as place:
                frame.launch(scalars, place, stream)
        if capturing:
            parameter = bytes(frame.parameter)
            first = frame.last - frame.scalars_size
            for some in _captured:
                some.append(CapturedLaunch(self.kernel, self.counted, ready, parameter, first))
        placed.frames.append(frame)

    def _own_values(self) -> Array:
        """The addresses, those of single results as they are now."""
        for k, o in self.single:
            address = as_device(o.name, self.made[o.name][0].value).address
            if self.table_addresses.size and self.table_addresses[k] != address:
                self.table_addresses = self.table_addresses.copy()
                self.table_addresses[k :: len(self.names)] = address
        return self.table_addresses

    def _placed(self, addresses: Array, stream: int, capturing: bool) -> _Placed:
        """The table on the device, written in the order of the stream."""
        placed = self.placed
        known = placed is not None and placed.stream == stream
        if placed is None or not known or not _same(placed.addresses, addresses):

            def place(values: Array) -> tuple[int, object]:
                if values.nbytes == 0:
                    return 0, values
                memory = empty_like(self.arrays.example, (values.nbytes,), "bool", stream)
                address = as_device("table", memory).address
                self.where.write(address, self._for_graph(values) if capturing else self._now(values), stream)
                return address, memory

            where = addresses.tolist()
            table = self.kernel.moved(placed.table, where, place) if placed is not None and known else None
            if table is None:
                table = self.kernel.table(where, self.sizes, self.shapes, place)
            need = self.kernel.workspace_bytes(table.shapes, 1)
            ready = Ready(self.kernel.program_for(table), table.steps, table.packed, b"", need)
            workspace = torch_workspace(self.arrays.example, need) if self.of_torch and need else None
            placed = self.placed = _Placed(stream, addresses, table, ready, workspace)
            if self.layout is not None:
                self.layout.bare.placed = placed
        if capturing and not any(placed.table is kept for kept in _recorded):
            _recorded.append(placed.table)
        return placed

    def _now(self, values: Array) -> Array:
        """Values to be copied before a call returns."""
        if _expected:
            spare = _spare.setdefault((self.where, values.nbytes), [])
            spare.append(self.where.pinned(values.nbytes))
        return np.ascontiguousarray(values)

    def _for_graph(self, values: Array) -> Array:
        """Values in pinned memory, which a graph copies at each replay."""
        spare = _spare.get((self.where, values.nbytes))
        if not spare:
            raise ArgumentError(
                f"{self.operator.name}: a stream that is being captured; accepted: lists that were run in this "
                f"stream before the capture, in the same memory, or under tokitai.torch.graphed"
            )
        memory = spare.pop()
        _recorded.append(memory)
        memory[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return memory


def _same(a: Array, b: Array) -> bool:
    return a is b or bool(np.array_equal(a, b))


def prepare_on_gpu(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool = True
) -> PreparedOnGpu:
    """Lists of tensors of a GPU, checked and ready to be launched again and again. Raises ArgumentError.

    Lists of torch's tensors in whose place results are written, or of which one number is made, are not checked in full
    again where lists of the same
    formats, shapes and strides were before: their addresses are.
    """
    signature = signature_of_lists(operator, given, options)
    found: CheckedLists[PreparedOnGpu] | None = None if signature is None else LAUNCHES.find(*signature)
    if signature is not None and found is not None:
        return found.with_tensors(given, signature[1])
    name, example = next((n, v[0]) for n, v in given.items() if isinstance(v, (list, tuple)) and v)
    arrays = DeviceArrays(name, example)

    def build(firsts: Mapping[str, Array]) -> GpuKernel:
        dtype = storage_format(operator, firsts)
        return kernel_on(gpu_device(arrays.device), operator, dtype, frozenset(firsts), tuple(sorted(options.items())))

    made = prepare(operator, given, build, arrays, copy, PreparedOnGpu)
    assert isinstance(made, PreparedOnGpu)
    if signature is not None and made.movable:
        LAUNCHES.keep(signature[0], CheckedLists(made, given))
    return made
