"""Run an operator on the caller's own arrays, wherever they lie and whichever library they are of.

Tensors of rows x cols may have any number of leading dimensions, which flatten into rows. A view with a row stride is
read as it is; any other view is copied once, or refused with ``copy=False``. Results are new arrays, or ``out``.

A call binds arguments to names (`bind`), views the arrays (`Arrays`), states the problem (`problem_of`), checks values
and launches. Where the launch cache knows a call of the same signature, all but the launch is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..arrays.adapter import Array, Made
from ..arrays.dlpack import on_gpu
from ..arrays.libraries import written
from ..backends.cpu import device as cpu
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import Operator, Output
from .binding import bind, check_flag, check_params
from .executor import Executor
from .gpu_executor import GpuExecutor
from .host_executor import HostExecutor, KernelFor, kernel_here
from .launch_cache import CURRENT, LAUNCHES, CallSignature, Replay, signature_of
from .layout import readable
from .problem import convert_integers, problem_of, storage_format
from .results import place_results


def call(
    operator: Operator, *args: Any, out: Any = None, threads: int | None = None, copy: bool = True,
    cuda_stream: Any = None, check: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run `operator`. Positional arguments are its tensors in order; scalars and options go by name.

    Returns one array, or a tuple in the definition's order; results that replace inputs are written there and returned.
    ``out`` is an array (or a tuple, with None where a new one is wanted) for the results. ``threads`` is for arrays in
    host memory. On arrays of a GPU, the call goes into the current stream of the first tensor's library or into
    ``cuda_stream``, asynchronously, but: integer inputs that choose a column or an entry of a table, such as
    targets and ids, are read back and checked before anything runs, and inputs in which a NaN is an error are searched
    for one; both wait for the stream. ``check=False`` leaves that out: then an index that is out of range makes the
    kernel access memory that it may not, and what is chosen of a row with NaN is undefined.
    Raises ArgumentError for a missing, superfluous or ill-formed argument, and DeviceError where a device fails.
    """
    signature = signature_of(operator, args, kwargs, out) if cuda_stream is None else None
    if signature is not None:
        replay: Replay | None = LAUNCHES.find(signature[1], signature[4])
        if (
            replay is not None
            and (copy is True or not replay.copies)
            and (threads is None if replay.on_device else check)
        ):
            if threads is not None:
                cpu.check_threads(threads)
            return replay.run(signature, args, kwargs, threads, check)
    return call_checked(operator, args, kwargs, out, threads, copy, cuda_stream, check, signature)


def call_with(
    kernel_for: KernelFor, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any,
    threads: int | None, copy: bool,
) -> Any:  # fmt: skip
    """`call` on arrays in host memory, with kernels that run elsewhere."""
    return call_checked(operator, args, kwargs, out, threads, copy, None, True, None, kernel_for)


def call_checked(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, threads: int | None, copy: bool,
    cuda_stream: Any, check: bool, signature: CallSignature | None, kernel_for: KernelFor = kernel_here,
) -> Any:  # fmt: skip
    """`call`, checked in full. What it finds out is cached under ``signature``."""
    if CURRENT.recorder is not None:
        CURRENT.recorder.spoil()
    on_device = next((t for t in map(on_gpu, (*args, *kwargs.values())) if t is not None), False)
    if on_device and threads is not None:
        raise ArgumentError(f"threads={threads!r} beside arrays of a GPU; accepted: leave it out")
    if not on_device and (cuda_stream is not None or check is not True):
        found = f"cuda_stream={cuda_stream!r}" if cuda_stream is not None else f"check={check!r}"
        raise ArgumentError(f"{operator.name}: {found} beside arrays in host memory; accepted: leave it out")
    given, params, options = bind(operator, args, kwargs)
    check_params(operator, params)
    check_flag(operator, "copy", copy)
    check_flag(operator, "check", check)
    threads = cpu.check_threads(threads)
    beside, first = next(iter(given.items()), ("", None))
    listed = isinstance(first, (list, tuple))
    example = first
    if listed:  # its lists need not have one length: that is for the preparation to say
        beside, example = next(((n, v[0]) for n, v in given.items() if isinstance(v, (list, tuple)) and v), ("", None))
    executor: Executor[Any]
    if on_device:
        executor = GpuExecutor(beside, example, cuda_stream, check)
    else:
        executor = HostExecutor(example, threads, kernel_for)
    if listed or operator.contract.lists:
        if out is not None:
            said = "out beside lists" if listed else "out"
            raise ArgumentError(f"{operator.name}: {said}; accepted: results in place or new ones")
        lists = given if listed else {n: [x] for n, x in given.items()}
        made = executor.prepare_lists(operator, lists, options, copy)(params)
        return made if listed else _of_single_tensors(made)
    return _run(executor, operator, given, params, options, out, copy, check, signature)


def _of_single_tensors(made: Any) -> Any:
    """The results of lists of one tensor each, without the lists."""
    several = made if isinstance(made, tuple) else (made,)
    single = tuple(m[0] if isinstance(m, list) else m for m in several)
    return single if isinstance(made, tuple) else single[0]


def _run(
    executor: Executor[Any], operator: Operator, given: Mapping[str, Any], params: Mapping[str, float],
    options: Mapping[str, object], out: Any, copy: bool, check: bool, signature: CallSignature | None,
) -> Any:  # fmt: skip
    arrays = executor.arrays
    if operator.contract.places:
        arrays.check_columns(operator.name)
    views: dict[str, Array] = {n: arrays.view(n, x) for n, x in given.items()}
    with arrays.current():
        given, views = convert_integers(operator, arrays, given, views, copy, check)
    dtype = storage_format(operator, views)
    kernel = executor.kernel(operator, dtype, frozenset(views), tuple(sorted(options.items())))
    problem = problem_of(kernel, views, params, readable=arrays.readable)
    executor.begin(operator, given)
    with arrays.current():
        copies: dict[str, tuple[int, ...] | None] = {}  # of the arguments that are copied, the shape

        def copied(name: str, array: Array, shape: tuple[int, ...] | None = None) -> Array:
            copies[name] = shape
            return arrays.copied(name, given[name], array, shape)

        tensors = {
            t.name: problem.as_read(t, views[t.name], copy, partial(copied, t.name)) for t in kernel.graph.inputs
        }
        tensors = readable(
            kernel.graph, tensors, problem.rows, lambda t, size: arrays.stand_in(t.name, size, tensors[t.name].dtype)
        )
        executor.check_values(problem, views, tensors, params)
        made: dict[str, Made] = {}

        def make(o: Output, want: tuple[int, ...]) -> Array:
            made[o.name] = arrays.empty(o.name, problem.results[o.name], FORMATS[o.format].dtype)
            return made[o.name].array.reshape(want)

        results, supplied = place_results(kernel, given, views, problem, out, arrays.view, make)
        executor.launch(kernel, problem, tensors, results, params)
        repeated = len(arrays.copies) == len(copies)  # nothing was made in place of arguments but these copies
        if signature is not None and repeated and any(r.size for r in results.values()):
            executor.record(signature, kernel, problem, tensors, results, supplied, copies)
        returned = []
        for o in kernel.graph.outputs:
            supplied_array = given[o.name] if o.inplace else supplied.get(o.name)
            if o.name in operator.contract.places:  # kernels give columns as f32
                returned.append(arrays.as_columns(made[o.name], supplied_array))
            else:
                returned.append(arrays.returned(made[o.name]) if supplied_array is None else supplied_array)
        written([*supplied.values(), *(given[o.name] for o in kernel.graph.outputs if o.inplace)])
    return returned[0] if len(returned) == 1 else tuple(returned)
