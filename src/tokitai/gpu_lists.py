"""Run an element-wise operator on lists of tensors of a GPU: an optimizer's step, in one prepared call.

What a list's kernels read beside the tensors (the table of their sizes and addresses) is written to the device once,
and again only where an address has changed: gradients that are new from step to step.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .call import storage_format
from .call_list import Array, Prepared, apart, prepare
from .device.device_array import as_device, empty_like, handed_out, library_of
from .errors import ArgumentError
from .gpu_card import Card, card, copied, handle_of, kernel_on, phantom, stream_of, within
from .gpu_kernel import GpuKernel, Table
from .kernel import KernelBase
from .lang import Operator, Output

MOST_LISTS = 16  # that are kept
_recorded: list[Table] = []  # tables that a captured graph reads whenever it is replayed: they stay


class PreparedOnGpu(Prepared):
    """Lists of tensors of one GPU that have been checked. Called with scalars alone it looks at no tensor again: they
    must lie where they lay, and must not be freed meanwhile."""

    where: Card
    kernel: GpuKernel

    def __init__(
        self, operator: Operator, kernel: KernelBase, lists: Mapping[str, Sequence[Any]], copy: bool = True
    ) -> None:
        self.example = next(iter(lists.values()))[0]
        view = as_device(next(iter(lists)), self.example)
        self.device, self.where = view.device, card(view.device)
        self.made: dict[str, list[Any]] = {}
        self.copies: list[Any] = []
        self.table: tuple[int, bytes, Table] | None = None
        super().__init__(operator, kernel, lists, copy)
        self.names = [t.name for t in self.kernel.graph.inputs] + [o.name for o in self.kernel.graph.outputs]

    def seen(self, name: str, x: Any) -> Array:
        """Where a tensor lies, as NumPy would see it."""
        view = as_device(name, x, stream_of(self.example))
        if view.device != self.device:
            raise ArgumentError(f"{name}: lies on cuda:{view.device}; accepted beside it: cuda:{self.device}")
        return phantom(view)

    def copied(self, name: str, array: Array, x: Any) -> Array:
        """In the caller's library."""
        self.copies.append(copied(name, x))
        return self.seen(name, self.copies[-1])

    def new(self, o: Output, shape: tuple[int, ...], lists: Mapping[str, Sequence[Any]]) -> Array:
        """In the library of the first tensor."""
        some = self.made.setdefault(o.name, [])
        some.append(empty_like(self.example, shape, o.format, stream_of(self.example)))
        return self.seen(o.name, some[-1]).reshape(-1)

    def __call__(self, params: Mapping[str, float], stream: Any = None) -> Any:
        """Put one launch into the current stream of the tensors' library, or into `stream`. Returns what `Prepared`
        returns."""
        now = stream_of(self.example)
        chosen = now if stream is None else handle_of(stream)
        with within(self.example, chosen, now, self.device):
            self._launch(params, chosen)
        returned: list[Any] = []
        for o in self.kernel.graph.outputs:
            if o.inplace:
                returned.append(self.lists[o.name])
            elif o.space == "s":
                returned.append(handed_out(self._kept(o, chosen), self.example))
            else:
                returned.append([handed_out(x, self.example) for x in self.made[o.name]])
        return returned[0] if len(returned) == 1 else tuple(returned)

    def _kept(self, o: Output, stream: int) -> Any:
        """A value that the next call does not write again: the call has written it into memory of its own."""
        value = self.made[o.name].pop()
        self.new(o, (), self.lists)
        return value

    def _launch(self, params: Mapping[str, float], stream: int) -> None:
        kernel = self.kernel
        addresses = self._own_values()
        table = self._table(addresses, stream)
        call = table.packed + kernel.scalar_bytes(kernel.scalar_table(1, 1, params))
        program = kernel.program_for(table)
        need = kernel.workspace_bytes(table.shapes, 1)
        if library_of(self.example) in ("torch", "cupy"):
            room = empty_like(self.example, (need,), "bool", stream)
            place = as_device("workspace", room).address if need else 0
            for step in table.steps:
                program.launch(step, call + struct.pack("<q", place), 0, stream)
        else:
            with self.where.room(max(need, 8), stream) as place:
                for step in table.steps:
                    program.launch(step, call + struct.pack("<q", place), 0, stream)

    def _own_values(self) -> list[int]:
        """The addresses, those of single results as they are now."""
        addresses, names = list(self.addresses), len(self.names)
        for k, o in enumerate(self.kernel.graph.outputs, len(self.kernel.graph.inputs)):
            if o.space == "s" and not o.inplace:
                address = as_device(o.name, self.made[o.name][0]).address
                addresses[k::names] = [address] * len(addresses[k::names])
        return addresses

    def _table(self, addresses: list[int], stream: int) -> Table:
        """The table on the device, written in the order of the stream."""
        capturing = self.where.capturing(stream)
        key = np.array(addresses, np.int64).tobytes()
        if self.table is None or self.table[:2] != (stream, key):
            if capturing:
                raise ArgumentError(
                    f"{self.operator.name}: a stream that is being captured; accepted: lists that were run in this "
                    f"stream before the capture, in the same memory"
                )

            def place(values: Array) -> tuple[int, object]:
                if values.nbytes == 0:
                    return 0, values
                memory = empty_like(self.example, (values.nbytes,), "bool", stream)
                address = as_device("table", memory).address
                self.where.write(address, np.ascontiguousarray(values), stream)
                return address, memory

            self.table = stream, key, self.kernel.table(addresses, self.sizes, self.shapes, place)
        if capturing and self.table[2] not in _recorded:
            _recorded.append(self.table[2])
        return self.table[2]


def prepare_on_gpu(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool = True
) -> PreparedOnGpu:
    """Lists of tensors of a GPU, checked and ready to be launched again and again. Raises ArgumentError.

    Lists of torch's tensors that have been prepared before, with the same formats, shapes and addresses, are not
    checked again.
    """
    example = next(iter(given.values()))[0]
    index = as_device(next(iter(given)), example).device

    def seen(name: str, x: Any) -> Array:
        return phantom(as_device(name, x, stream_of(example)))

    def build(firsts: Mapping[str, Array]) -> GpuKernel:
        dtype = storage_format(operator, firsts)
        return kernel_on(card(index), operator, dtype, frozenset(firsts), tuple(sorted(options.items())))

    made = prepare(operator, given, build, copy, seen, PreparedOnGpu)
    assert isinstance(made, PreparedOnGpu)
    return made


__all__ = ["MOST_LISTS", "PreparedOnGpu", "apart", "prepare_on_gpu"]
