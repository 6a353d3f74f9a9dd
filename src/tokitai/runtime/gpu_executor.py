"""Calls on arrays of a GPU: tensors of torch and CuPy, arrays of JAX, whatever speaks DLPack or
``__cuda_array_interface__``. Calls are asynchronous but where values are checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.adapter import Array
from ..arrays.device_array import as_device, empty_like
from ..arrays.gpu import DeviceArrays, as_columns, torch_streams
from ..arrays.libraries import library_of
from ..arrays.results import NewArray, torch_pattern
from ..families.gpu_family import packed
from ..formats import FORMATS
from ..lang import Operator
from .executor import Executor
from .gpu_checks import Checks, refuse_capture
from .gpu_device import GpuDevice, gpu_device, kernel_on
from .gpu_kernel import GpuKernel, Ready
from .gpu_launch import gpu_launch_of
from .gpu_lists import prepare_on_gpu
from .kernel import Scalars
from .launch_cache import LAUNCHES, CallSignature, replay_of
from .problem import Problem

_NO_SCALARS = Scalars(np.empty(0, np.float32))


class GpuExecutor(Executor[GpuKernel]):
    """Kernels on the GPU of the first tensor, in the current stream of its library or in ``stream``. Where ``check``,
    values are checked, which waits for the stream."""

    def __init__(self, beside: str, example: Any, stream: Any, check: bool) -> None:
        self.arrays: DeviceArrays = DeviceArrays(beside, example, stream)
        self.asked, self.check = stream, check
        self.device: GpuDevice = gpu_device(self.arrays.device)
        self.checks: Checks | None = None
        self.ready: Ready | None = None
        self.scalars_size = 0

    def kernel(
        self, operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]
    ) -> GpuKernel:
        """Sources are compiled when a shape first needs them."""
        return kernel_on(self.device, operator, dtype, present, options)

    def begin(self, operator: Operator, given: Mapping[str, Any]) -> None:
        """Waits for other libraries' streams. Raises ArgumentError in a stream that is being captured."""
        refuse_capture(self.device, operator, self.arrays.stream)
        self.arrays.after_others(given, self.device.wait)

    def prepare_lists(
        self, operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool
    ) -> Callable[[Mapping[str, float]], Any]:
        """Raises ArgumentError."""
        return functools.partial(prepare_on_gpu(operator, given, options, copy), stream=self.asked)

    def check_values(
        self, problem: Problem, views: Mapping[str, Array], tensors: Mapping[str, Array],
        params: Mapping[str, float],
    ) -> None:  # fmt: skip
        """In the tensors as kernels read them: indices and offsets are read back, NaN is found by a kernel."""
        self.checks = Checks(self.device, problem.operator, tensors, problem.sizes, problem.entries)
        if self.check and self.checks:
            self.checks({n: a.ctypes.data for n, a in tensors.items()}, params, self.arrays.stream)

    def launch(
        self, kernel: GpuKernel, problem: Problem, tensors: Mapping[str, Array], results: Mapping[str, Array],
        params: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Nothing is launched where there is nothing to write."""
        ordered = [tensors[t.name] for t in kernel.graph.inputs] + [results[o.name] for o in kernel.graph.outputs]
        if all(a.size == 0 for a in results.values()):
            return
        addresses = [a.ctypes.data if a.size else 0 for a in ordered]
        sizes = kernel.sizes_of([tensors], [results], [problem.sizes], _NO_SCALARS)
        self.ready = kernel.ready(addresses, sizes, problem.sizes, problem.entries)
        scalars = kernel.scalar_bytes(kernel.scalar_table(problem.rows, problem.cols, params))
        self.scalars_size = len(scalars)
        packed_addresses = packed(*addresses)
        parameter = self.ready.head + packed_addresses + self.ready.middle + scalars
        self._with_workspace(self.ready, parameter)

    def record(
        self, signature: CallSignature, kernel: GpuKernel, problem: Problem, tensors: Mapping[str, Array],
        results: Mapping[str, Array], supplied: Mapping[str, Any], copies: Mapping[str, tuple[int, ...] | None],
    ) -> None:  # fmt: skip
        """Of torch tensors alone, as signatures of a GPU are."""
        example, operator = self.arrays.example, problem.operator
        if self.ready is None or self.checks is None:
            return
        new = {
            o.name: NewArray(torch_pattern(example, problem.results[o.name], FORMATS[o.format].dtype), None)
            for o in kernel.graph.outputs
        }
        columns = {name: _columns_at for name in operator.contract.places}
        launch = gpu_launch_of(
            kernel, problem, self.ready, self.arrays.device, self.checks, example, self.scalars_size, torch_streams()
        )
        LAUNCHES.keep(signature.key, replay_of(signature, kernel.graph, supplied, launch, new, columns, copies))

    def _with_workspace(self, ready: Ready, parameter: bytes) -> None:
        """Launch all kernels of a call. Its workspace is its own: of torch's or CuPy's pool, else of the driver's."""
        example, stream = self.arrays.example, self.arrays.stream
        if not ready.workspace:
            launch_all(ready, parameter, 0, stream)
        elif library_of(example) in ("torch", "cupy"):
            workspace = empty_like(example, (ready.workspace,), "bool", stream)
            launch_all(ready, parameter, as_device("workspace", workspace).address, stream)
        else:
            with self.device.workspace(ready.workspace, stream) as address:
                launch_all(ready, parameter, address, stream)


def launch_all(ready: Ready, parameter: bytes, workspace: int, stream: int) -> None:
    """Put the kernels of a call into a stream."""
    for step in ready.steps:
        ready.program.launch(step, parameter + packed(workspace), 0, stream)


def _columns_at(place: int) -> Callable[[Any, list[Any]], Any]:
    """What makes i32 columns of a result, in the caller's tensor at a place where there is one."""
    return lambda made, tensors: as_columns(made, made, None if place < 0 else tensors[place])
