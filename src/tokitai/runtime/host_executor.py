"""Calls on arrays in host memory."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.adapter import Array
from ..arrays.dlpack import as_numpy
from ..arrays.host import HostArrays
from ..arrays.results import NewArray, new_array
from ..backends.cpu import device as cpu
from ..formats import FORMATS
from ..lang import Operator, Sizes
from .checks import check_indices, check_no_nan
from .executor import Executor
from .host_launch import ALONE, ALONE_PRODUCTS, HostLaunch
from .kernel import Kernel, Scalars, host_kernel
from .launch_cache import LAUNCHES, CallSignature, replay_of
from .lists import CheckedLists, Prepared, prepare, signature_of_lists
from .problem import Problem, storage_format

KernelFor = Callable[[Operator, str, frozenset[str], tuple[tuple[str, object], ...]], Kernel]
"""The kernel for an operator, a storage format, the tensors that are given, and options."""
_NO_SCALARS = Scalars(np.empty(0, np.float32))


@functools.cache
def kernel_here(
    operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]
) -> Kernel:
    """The kernel for this processor, compiled once in a process."""
    return host_kernel(operator, dtype, present, dict(options))


class HostExecutor(Executor[Kernel]):
    """Kernels for the CPU, those of ``kernel_for``, in so many ``threads`` or by default in as many as there are."""

    def __init__(self, example: Any, threads: int | None, kernel_for: KernelFor = kernel_here) -> None:
        self.arrays = HostArrays(example)
        self.threads = threads
        self.kernel_for = kernel_for

    def kernel(
        self, operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]
    ) -> Kernel:
        """That of ``kernel_for``."""
        return self.kernel_for(operator, dtype, present, options)

    def begin(self, operator: Operator, given: Mapping[str, Any]) -> None:
        """Host memory is always ready."""

    def prepare_lists(
        self, operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool
    ) -> Callable[[Mapping[str, float]], Any]:
        """Raises ArgumentError."""
        prepared = prepare_lists(operator, given, options, copy, self.kernel_for)
        return functools.partial(prepared, threads=self.threads or cpu.default_threads())

    def check_values(
        self, problem: Problem, views: Mapping[str, Array], tensors: Mapping[str, Array],
        params: Mapping[str, float],
    ) -> None:  # fmt: skip
        """In the caller's arrays, where they lie."""
        check_no_nan(problem.operator, views, problem.sizes)
        check_indices(problem.operator, views, params, problem.sizes, problem.entries)

    def launch(
        self, kernel: Kernel, problem: Problem, tensors: Mapping[str, Array], results: Mapping[str, Array],
        params: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Has run when it returns."""
        scalars = kernel.scalar_table(problem.rows, problem.cols, params)
        kernel.launch(tensors, results, problem.sizes, scalars, self.threads or cpu.default_threads())

    def record(
        self, signature: CallSignature, kernel: Kernel, problem: Problem, tensors: Mapping[str, Array],
        results: Mapping[str, Array], supplied: Mapping[str, Any], copies: Mapping[str, tuple[int, ...] | None],
    ) -> None:  # fmt: skip
        """Calls whose values must hold no NaN, give column indices or sum into tables of a size that is a scalar are
        checked in full each time, as are those on arrays whose strides are negative or whose elements are not
        aligned."""
        operator, graph = problem.operator, kernel.graph
        limits = operator.contract
        if (
            limits.no_nan
            or limits.places
            or graph.offsets is not None
            or "entries" in (p.name for p in operator.params)
        ):
            return
        given = [as_numpy("", x) for x in signature.tensors if x is not None]
        if any(not x.flags.aligned or min(x.strides, default=0) < 0 for x in given):
            return
        new: dict[str, NewArray] = {}
        for o in graph.outputs:
            made = new_array(self.arrays.example, problem.results[o.name], FORMATS[o.format].dtype)
            assert made is not None, "signatures are of NumPy and torch"
            new[o.name] = made
        sizes = kernel.sizes_of([tensors], [results], [problem.sizes], _NO_SCALARS)
        pack = struct.Struct(f"{len(graph.inputs) + len(graph.outputs)}P").pack
        nbytes = sum(x.nbytes for x in (*tensors.values(), *results.values()))
        shape = Sizes.of(problem.sizes)
        products = math.prod((*shape, shape.inner, shape.batch)) if isinstance(problem.sizes, Sizes) else 0
        alone = nbytes <= ALONE and products <= ALONE_PRODUCTS
        launch = HostLaunch(kernel, problem, tuple(sizes), pack, alone, bool(limits.indices), kernel.loaded)
        LAUNCHES.keep(signature.key, replay_of(signature, graph, supplied, launch, new, {}, copies))


def prepare_lists(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool = True,
    kernel_for: KernelFor = kernel_here,
) -> Prepared:  # fmt: skip
    """Lists of tensors, checked and ready to be launched again and again. Those of torch's tensors are not checked in
    full again where lists of the same formats and shapes were before: their addresses are. Raises ArgumentError."""
    signature = signature_of_lists(operator, given, options) if kernel_for is kernel_here else None
    found: CheckedLists[Prepared] | None = None if signature is None else LAUNCHES.find(*signature)
    if signature is not None and found is not None:
        return found.with_tensors(given, signature[1])

    def build(firsts: Mapping[str, Array]) -> Kernel:
        dtype = storage_format(operator, firsts)
        return kernel_for(operator, dtype, frozenset(firsts), tuple(sorted(options.items())))

    example = next((v[0] for v in given.values() if isinstance(v, (list, tuple)) and v), None)
    made = prepare(operator, given, build, HostArrays(example), copy)
    if signature is not None and made.movable:
        LAUNCHES.keep(signature[0], CheckedLists(made, given))
    return made
