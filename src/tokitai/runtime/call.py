"""Run an operator on the caller's own arrays.

Tensors of rows x cols may have any number of leading dimensions, which flatten into rows. A view with a row stride is
read as it is; any other view is copied once, or refused with ``copy=False``. Results are new arrays, or ``out``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.dlpack import as_numpy, like, on_gpu
from ..arrays.libraries import written
from ..arrays.results import maker
from ..backends.cpu import device as cpu
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import Operator, Output, Sizes
from .binding import bind, check_flag, check_params
from .checks import check_indices, check_no_nan
from .gpu_call import call_gpu
from .kernel import Kernel, compile
from .launch_cache import CallSignature, find, record, signature_of
from .layout import place_results, readable
from .lists import Prepared, prepare
from .problem import Problem, as_declared, problem_of, storage_format

Array = np.ndarray[Any, Any]


@functools.cache
def _kernel(operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]) -> Kernel:
    return compile(operator, "cpu", dtype, present, dict(options))


def call(
    operator: Operator, *args: Any, out: Any = None, threads: int | None = None, copy: bool = True,
    cuda_stream: Any = None, check: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run `operator`. Positional arguments are its tensors in order; scalars and options go by name.

    Returns one array, or a tuple in the definition's order; results that replace inputs are written there and returned.
    ``out`` is an array (or a tuple, with None where a new one is wanted) for the results. ``threads`` is for arrays in
    host memory, ``cuda_stream`` and ``check`` for those of a GPU (`runtime.gpu_call.call_gpu`).
    Raises ArgumentError for a missing, superfluous or ill-formed argument.
    """
    first = args[0] if args else None
    if type(first) is not np.ndarray:
        there = getattr(first, "is_cuda", None)  # torch's, and spares a call
        if there is not True and there is not False:
            there = next((t for t in map(on_gpu, (*args, *kwargs.values())) if t is not None), False)
        if there:
            if threads is not None:
                raise ArgumentError(f"threads={threads!r} beside arrays of a GPU; accepted: leave it out")
            return call_gpu(operator, args, kwargs, out, copy, cuda_stream, check)
    signature = signature_of(operator, args, kwargs, out) if cuda_stream is None and check else None
    if signature is not None and (replay := find(signature)) is not None:
        threads = cpu.check_threads(threads)
        scalars = replay.scalars_of(signature, args, kwargs)
        if operator.contract.indices:
            named = {
                str(n): as_numpy(str(n), x)
                for n, x in zip(signature.form.named, signature.tensors, strict=True)
                if n in operator.contract.indices and x is not None
            }
            check_indices(operator, named, scalars.params, replay.shape, replay.entries)
        return replay.run(signature, scalars, threads)
    if cuda_stream is not None or not check:
        found = f"cuda_stream={cuda_stream!r}" if cuda_stream is not None else f"check={check!r}"
        raise ArgumentError(f"{operator.name}: {found} beside arrays in host memory; accepted: leave it out")
    return call_with(_kernel, operator, args, kwargs, out, threads, copy, signature)


KernelFor = Callable[[Operator, str, frozenset[str], tuple[tuple[str, object], ...]], Kernel]
"""The kernel for an operator, a storage format, the tensors that are given, and options."""


def call_with(
    kernel_for: KernelFor, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any,
    threads: int | None, copy: bool, signature: CallSignature | None = None,
) -> Any:  # fmt: skip
    """`call` with kernels that run elsewhere; what it finds out is cached under ``signature``."""
    given, params, options = bind(operator, args, kwargs)
    check_params(operator, params)
    check_flag(operator, "copy", copy)
    threads = cpu.check_threads(threads)
    if operator.contract.lists and not isinstance(next(iter(given.values())), (list, tuple)):
        if out is not None:
            raise ArgumentError(f"{operator.name}: out; accepted: results in place or new ones")
        single_lists = {n: [x] for n, x in given.items()}
        prepared = prepare_lists(operator, single_lists, options, copy, kernel_for)
        made = prepared(params, threads or cpu.default_threads())
        several = made if isinstance(made, tuple) else (made,)
        single = tuple(m[0] if isinstance(m, list) else m for m in several)
        return single if isinstance(made, tuple) else single[0]
    if given and isinstance(next(iter(given.values())), (list, tuple)):
        if out is not None:
            raise ArgumentError(f"{operator.name}: out beside lists; accepted: results in place or new ones")
        return prepare_lists(operator, given, options, copy, kernel_for)(params, threads or cpu.default_threads())
    arrays = {name: as_numpy(name, value) for name, value in given.items()}
    arrays = as_declared(operator, arrays, copy)
    dtype = storage_format(operator, arrays)
    kernel = kernel_for(operator, dtype, frozenset(arrays), tuple(sorted(options.items())))
    problem = problem_of(kernel, arrays, params, readable=True)
    check_no_nan(operator, arrays, problem.sizes)
    check_indices(operator, arrays, params, problem.sizes, problem.entries)
    tensors = {t.name: problem.as_read(t, arrays[t.name], copy, _copied) for t in kernel.graph.inputs}
    tensors = readable(kernel.graph, tensors, problem.rows, lambda t, size: np.zeros(size, tensors[t.name].dtype))
    made, results, supplied = launch(kernel, given, arrays, tensors, problem, params, out, threads)
    if signature is not None and not isinstance(problem.sizes, Sizes):
        record(signature, kernel, problem, tensors, results, supplied)
    return made


def _copied(array: Array, shape: tuple[int, ...] | None = None) -> Array:
    return np.ascontiguousarray(array if shape is None else np.broadcast_to(array, shape))


def launch(
    kernel: Kernel, given: Mapping[str, Any], arrays: Mapping[str, Array], tensors: Mapping[str, Array],
    problem: Problem, params: Mapping[str, float], out: Any, threads: int | None,
) -> tuple[Any, dict[str, Array], dict[str, Any]]:  # fmt: skip
    """Run a kernel on ``tensors``, as it reads them. Returns what the caller gets; and for `record` the results as the
    kernel has them, and those that the caller supplied."""
    operator, example, full = kernel.operator, next(iter(given.values())), problem.results
    made: dict[str, Any] = {}  # new results of the caller's library

    def make(o: Output, want: tuple[int, ...]) -> Array:
        new = None if o.name in operator.contract.places else maker(example, full[o.name], FORMATS[o.format].dtype)
        if new is None:
            return cpu.aligned_empty(want, FORMATS[o.format].dtype)
        made[o.name], _ = new()
        return as_numpy(o.name, made[o.name]).reshape(want)

    results, supplied = place_results(kernel, given, arrays, problem.sizes, problem.entries, full, out, make=make)
    scalars = kernel.scalar_table(problem.rows, problem.cols, params)
    kernel.launch(tensors, results, problem.sizes, scalars, threads or cpu.default_threads())
    returned = []
    for o in kernel.graph.outputs:
        theirs = given[o.name] if o.inplace else supplied.get(o.name, made.get(o.name))
        if o.name in operator.contract.places:  # kernels give columns as f32 whole numbers
            theirs = _as_columns(results[o.name].reshape(full[o.name]), example, theirs)
        returned.append(like(results[o.name].reshape(full[o.name]), example) if theirs is None else theirs)
    written([*supplied.values(), *(given[o.name] for o in kernel.graph.outputs if o.inplace)])
    return returned[0] if len(returned) == 1 else tuple(returned), results, supplied


def _as_columns(values: Array, example: Any, into: Any) -> Any:
    """Columns as i32: new, or where the caller wants them."""
    columns = FORMATS["i32"].dtype
    new = maker(example, values.shape, columns) if into is None else None
    if new is not None:
        into, _ = new()
    if into is None:
        return like(values.astype(columns), example)
    as_numpy("out", into)[...] = values
    return into


def prepare_lists(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool = True,
    kernel_for: KernelFor | None = None,
) -> Prepared:  # fmt: skip
    """Lists of tensors, checked and ready to be launched again and again. Raises ArgumentError."""

    def build(firsts: Mapping[str, Array]) -> Kernel:
        dtype = storage_format(operator, firsts)
        return (kernel_for or _kernel)(operator, dtype, frozenset(firsts), tuple(sorted(options.items())))

    return prepare(operator, given, build, copy)
