"""Checks of values that lie on a GPU: indices within their range, groups that partition a side, no NaN where that is an
error.

Indices are read back and judged by the code that judges them on the host. For NaN a kernel gives the largest element of
each row, which is NaN where the row holds one, and those are read back. Both wait for the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..backends.backend import Array
from ..errors import ArgumentError
from ..families.gpu_family import packed
from ..families.grouped.arguments import check_offsets, shared_by
from ..formats import format_of
from ..lang import GROUPS, Contract, Matrix, Operator, Outputs, Sizes, operator, outputs, row_max, storage
from .checks import check_indices, check_nan_rows
from .gpu_device import GpuDevice, kernel_on


@operator(contract=Contract(min_cols=1))
def largest(x: Matrix[storage]) -> Outputs:
    """The largest element of each row; NaN where there is one."""
    return outputs(largest=row_max(x))


class _Rows(NamedTuple):
    """How the rows of a matrix lie."""

    shape: tuple[int, int]
    stride: int  # elements from row to row
    format: str

    @classmethod
    def of(cls, matrix: Array) -> _Rows:
        rows, cols = matrix.shape
        return cls((int(rows), int(cols)), matrix.strides[0] // matrix.itemsize, format_of(matrix.dtype).name)


class Checks:
    """What is checked in the tensors of a call, as kernels take them, before it runs."""

    def __init__(
        self, where: GpuDevice, operator: Operator, tensors: Mapping[str, Array], shape: tuple[int, int], entries: int
    ) -> None:
        self.where, self.operator, self.shape, self.entries = where, operator, shape, entries
        seen = {n: a for n, a in tensors.items() if a.size}
        self.indices = {n: (seen[n].shape, seen[n].dtype) for n in operator.contract.indices if n in seen}
        ends = [t.name for t in operator.tensors if t.space in GROUPS]
        self.groups = {n: (tensors[n].shape, tensors[n].dtype) for n in ends}
        # No array is kept: it would hold the first call's tensor, and the graph that autograd has of it.
        self.numbers = {n: _Rows.of(seen[n]) for n in operator.contract.no_nan if n in seen}

    def __bool__(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self.indices or self.groups or self.numbers)

    def __call__(self, addresses: Mapping[str, int], params: Mapping[str, float], stream: int) -> None:
        """Look at the tensors that lie there now. Raises ArgumentError."""
        refuse_capture(self.where, self.operator, stream)
        for name, like in self.indices.items():
            values = self._read(addresses[name], *like, stream)
            check_indices(self.operator, {name: values}, params, self.shape, self.entries)
        for name, like in self.groups.items():
            check_offsets(name, self._read(addresses[name], *like, stream), shared_by(Sizes.of(self.shape)))
        for name, rows in self.numbers.items():
            check_nan_rows(name, np.isnan(self._largest(addresses[name], rows, stream)))

    def _read(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int) -> Array:
        values: Array = np.empty(shape, dtype)
        self.where.read(address, values, stream)
        return values

    def _largest(self, address: int, rows: _Rows, stream: int) -> Array:
        """The largest element of each row of a matrix."""
        kernel, shape = kernel_on(self.where, largest, rows.format, frozenset({"x"}), ()), rows.shape
        values = np.empty(shape[0], np.float32)
        scalars = kernel.scalar_bytes(kernel.scalar_table(*shape, {}))
        room = -(-values.nbytes // 16) * 16
        with self.where.workspace(room + kernel.workspace_bytes([shape], 1), stream) as place:
            ready = kernel.ready([address, place], [*shape, rows.stride], shape)
            pointers, workspace = packed(address, place), packed(place + room)
            call = ready.head + pointers + ready.middle + scalars + workspace
            for step in ready.steps:
                ready.program.launch(step, call, 0, stream)
            self.where.read(place, values, stream)
        return values


def refuse_capture(where: GpuDevice, operator: Operator, stream: int) -> None:
    """Nothing that waits, allocates from the driver or builds a kernel can be recorded. Raises ArgumentError."""
    if where.capturing(stream):
        raise ArgumentError(
            f"{operator.name}: a stream that is being captured; accepted: a call on tensors of torch that ran once "
            f"with the same formats, shapes and strides before the capture, that needs no copy, and with check=False "
            f"where there are values to be checked"
        )


__all__ = ["Checks", "refuse_capture"]
