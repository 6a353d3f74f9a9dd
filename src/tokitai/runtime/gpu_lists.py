"""Run an element-wise operator on lists of tensors of a GPU: an optimizer's step, in one prepared call.

What a list's kernels read beside the tensors (the table of their sizes and addresses) is written to the device once,
and again only where an address has changed: gradients that are new from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy as copy_of
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
from .lists import Array, Prepared, prepare
from .problem import storage_format

MOST_LISTS = 16  # that are kept
_recorded: list[Table] = []  # tables that a captured graph reads whenever it is replayed: they stay


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
        self.layout: _CheckedLists | None = None
        super().__init__(operator, kernel, lists, arrays, copy)
        self.table_addresses = np.array(self.addresses, np.int64)
        outputs = self.kernel.graph.outputs
        self.names = [t.name for t in self.kernel.graph.inputs] + [o.name for o in outputs]
        first = len(self.kernel.graph.inputs)
        self.single = [(k, o.name) for k, o in enumerate(outputs, first) if o.space == "s" and not o.inplace]
        self.of_torch = library_of(self.arrays.example) == "torch"

    def for_tensors(self, lists: Mapping[str, Sequence[Any]], addresses: Any, example: Any) -> PreparedOnGpu:
        """The same for other tensors of the same formats and sizes; this object stays as it is."""
        other = copy_of(self)
        other.lists, other.table_addresses, other._alive = lists, addresses, {}
        other.arrays = self.arrays.beside_example(example)
        return other

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
        placed = self._placed(self._own_values(), stream)
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
        placed.frames.append(frame)

    def _own_values(self) -> Array:
        """The addresses, those of single results as they are now."""
        for k, name in self.single:
            address = as_device(name, self.made[name][0].value).address
            if self.table_addresses.size and self.table_addresses[k] != address:
                self.table_addresses = self.table_addresses.copy()
                self.table_addresses[k :: len(self.names)] = address
        return self.table_addresses

    def _placed(self, addresses: Array, stream: int) -> _Placed:
        """The table on the device, written in the order of the stream."""
        capturing = self.where.capturing(stream)
        placed = self.placed
        known = placed is not None and placed.stream == stream
        if placed is None or not known or not _same(placed.addresses, addresses):
            if capturing:
                raise ArgumentError(
                    f"{self.operator.name}: a stream that is being captured; accepted: lists that were run in this "
                    f"stream before the capture, in the same memory"
                )

            def place(values: Array) -> tuple[int, object]:
                if values.nbytes == 0:
                    return 0, values
                memory = empty_like(self.arrays.example, (values.nbytes,), "bool", stream)
                address = as_device("table", memory).address
                self.where.write(address, np.ascontiguousarray(values), stream)
                return address, memory

            table = self.kernel.table(addresses.tolist(), self.sizes, self.shapes, place)
            need = self.kernel.workspace_bytes(table.shapes, 1)
            ready = Ready(self.kernel.program_for(table), table.steps, table.packed, b"", need)
            workspace = torch_workspace(self.arrays.example, need) if self.of_torch and need else None
            placed = self.placed = _Placed(stream, addresses, table, ready, workspace)
            if self.layout is not None:
                self.layout.bare.placed = placed
        if capturing and placed.table not in _recorded:
            _recorded.append(placed.table)
        return placed


def _same(a: Array, b: Array) -> bool:
    return a is b or bool(np.array_equal(a, b))


def prepare_on_gpu(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool = True
) -> PreparedOnGpu:
    """Lists of tensors of a GPU, checked and ready to be launched again and again. Raises ArgumentError.

    Lists of torch's tensors in whose place results are written are not checked in full again where lists of the same
    formats, shapes and strides were before: their addresses are.
    """
    signature = _ListSignature.of(operator, given, options)
    found = None if signature is None else _layouts.get(signature.key)
    if signature is not None and found is not None and signature.is_disjoint(found.items, found.counts):
        return found.with_tensors(given, signature)
    name, example = next((n, v[0]) for n, v in given.items() if isinstance(v, (list, tuple)) and v)
    arrays = DeviceArrays(name, example)

    def build(firsts: Mapping[str, Array]) -> GpuKernel:
        dtype = storage_format(operator, firsts)
        return kernel_on(gpu_device(arrays.device), operator, dtype, frozenset(firsts), tuple(sorted(options.items())))

    made = prepare(operator, given, build, arrays, copy, PreparedOnGpu)
    assert isinstance(made, PreparedOnGpu)
    if signature is not None and not arrays.copies and not made.made:
        if len(_layouts) >= MOST_LISTS:
            _layouts.clear()
        _layouts[signature.key] = _CheckedLists(made, given)
    return made


def _libraries(values: Sequence[Any]) -> set[str]:
    return {library_of(x) for x in {type(x): x for x in values}.values()}


class _ListSignature:
    """The layout of lists of torch tensors, and their addresses."""

    def __init__(self, key: object, addresses: Array) -> None:
        self.key, self.addresses = key, addresses

    @classmethod
    def of(cls, operator: Operator, given: Mapping[str, Any], options: Mapping[str, object]) -> _ListSignature | None:
        """None where it has other arrays than torch's."""
        key: list[object] = [operator, *sorted(options.items())]
        addresses, shapes = [], None
        for name, values in given.items():
            if not isinstance(values, (list, tuple)) or any(library != "torch" for library in _libraries(values)):
                return None
            try:
                each = [
                    (x.data_ptr(), x.shape, x.dtype, x.get_device(), x.requires_grad or x.is_neg(), x.is_contiguous())
                    for x in values
                ]
            except RuntimeError:  # a tensor without memory
                return None
            if not each:
                return None
            where, these, formats, devices, odd, contiguous = zip(*each, strict=True)
            if any(odd) or not all(contiguous) or shapes not in (None, these):
                return None
            if formats.count(formats[0]) + devices.count(devices[0]) != 2 * len(each):
                return None
            shapes = these
            addresses.append(where)
            key += name, formats[0], devices[0]
        return cls((*key, shapes), np.array(addresses, np.int64))

    def is_disjoint(self, items: Array, counts: Array) -> bool:
        """Whether no two tensors of the lists share memory, as far as a quick look tells, and all are aligned."""
        begin, size = self.addresses.ravel(), (items * counts).ravel()
        order = np.argsort(begin, kind="stable")
        order = order[size[order] > 0]
        begin, end = begin[order], begin[order] + size[order]
        shared = (begin[1:] < np.maximum.accumulate(end)[:-1]).any() or not begin.all()
        return not shared and not (self.addresses % items).any()


class _CheckedLists:
    """Lists that were checked, without the tensors."""

    def __init__(self, made: PreparedOnGpu, given: Mapping[str, Sequence[Any]]) -> None:
        self.bare = made.for_tensors({}, np.empty(0, np.int64), None)
        self.items = np.array([[values[0].element_size()] for values in given.values()], np.int64)
        self.counts = np.array([n for _, n in made.shapes], np.int64)
        at = {name: i for i, name in enumerate(given)}
        self.order = [at[name] for name in made.names]
        made.layout = self

    def with_tensors(self, given: Mapping[str, Sequence[Any]], signature: _ListSignature) -> PreparedOnGpu:
        """The same for other tensors."""
        made = self.bare.for_tensors(given, signature.addresses[self.order].T.ravel(), next(iter(given.values()))[0])
        made.layout = self
        return made


_layouts: dict[object, _CheckedLists] = {}
