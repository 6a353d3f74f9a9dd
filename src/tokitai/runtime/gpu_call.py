"""Run an operator on arrays of a GPU, where they lie: tensors of torch and CuPy, arrays of JAX, whatever speaks DLPack
or ``__cuda_array_interface__``.

The first call of its kind is checked in full, as by `call`. For torch its *replay* is cached: kernels, sizes,
and the layout of new results. A later call with tensors of the same formats, sizes, strides and alignment only puts
addresses and scalars together (`gpu_launch_cache`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays.device_array import as_device, empty_like, handed_out, name_of
from ..arrays.libraries import library_of, written
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import Operator, Output, TensorSpec
from .binding import bind, check_flag, check_params
from .gpu_checks import Checks, refuse_capture
from .gpu_device import (
    GpuDevice,
    as_columns,
    as_whole,
    check_columns,
    copied,
    gpu_device,
    handle_of,
    kernel_on,
    phantom,
    stream_of,
    within,
)
from .gpu_kernel import Ready
from .gpu_launch_cache import CallSignature, LaunchCache, replay_of, signature_of
from .gpu_lists import prepare_on_gpu
from .kernel import Array, Scalars
from .layout import place_results, readable
from .problem import is_other_whole, problem_of, storage_format

_launches = LaunchCache()
_NO_SCALARS = Scalars(np.empty(0, np.float32))


def call_gpu(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any = None, copy: bool = True,
    stream: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    """Run `operator`, in the caller's current stream or in ``cuda_stream``; nothing is waited for.

    New results lie on the same device, in the library of the first tensor. Integer inputs that choose a column or an
    entry of a table, such as targets and ids, are read back and checked before anything runs, and inputs in which a
    NaN is an error are looked through; both wait for the stream. ``check=False`` leaves that out: then an index that
    is out of range makes the kernel access memory that it may not, and what is chosen of a row with NaN is undefined.
    Raises ArgumentError for what cannot be, and DeviceError where the device fails.
    """
    signature = signature_of(operator, args, kwargs, out) if stream is None else None
    if signature is not None:
        try:
            replay = _launches.find(signature)
        except TypeError:  # an option that cannot be hashed, and so is none
            replay = signature = None
        if replay is not None and signature is not None:
            if check and replay.checks:
                replay.check(signature, args, kwargs)
            return replay.run(signature, args, kwargs)
    return _checked(operator, args, kwargs, out, copy, stream, check, signature)


def _checked(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, copy: bool, stream: Any,
    check: bool, signature: CallSignature | None,
) -> Any:  # fmt: skip
    given, params, options = bind(operator, args, kwargs)
    check_params(operator, params)
    check_flag(operator, "copy", copy)
    check_flag(operator, "check", check)
    first = next(iter(given.values()))
    lists = isinstance(first, (list, tuple))
    if operator.contract.lists or lists:
        if out is not None:
            said = "out beside lists" if lists else "out"
            raise ArgumentError(f"{operator.name}: {said}; accepted: results in place or new ones")
        several = given if lists else {n: [x] for n, x in given.items()}
        all_made = prepare_on_gpu(operator, several, options, copy)(params, stream)
        if lists:
            return all_made
        in_order = all_made if isinstance(all_made, tuple) else (all_made,)
        single = [m[0] if isinstance(m, list) else m for m in in_order]
        return tuple(single) if isinstance(all_made, tuple) else single[0]
    example = first
    now = stream_of(example)
    chosen = now if stream is None else handle_of(stream)
    beside = next(iter(given))
    index = as_device(beside, example, chosen).device
    where, views = gpu_device(index), []

    def located(name: str, x: Any) -> Array:
        views.append(as_device(name, x, chosen))
        if views[-1].device != index:
            found = f"{name}: lies on {name_of(views[-1].device)}"
            raise ArgumentError(f"{found}; accepted beside {beside}: {name_of(index)}")
        return phantom(views[-1])

    check_columns(operator, example)
    arrays = {n: located(n, x) for n, x in given.items()}
    alive: list[Any] = []  # copies
    with within(example, chosen, now, index):
        for t in operator.tensors:
            if copy and t.name in given and is_other_whole(operator, t, arrays[t.name]):
                alive.append(as_whole(t.name, given[t.name], str(t.format), check))
                given[t.name] = alive[-1]
                arrays[t.name] = located(t.name, alive[-1])
    dtype = storage_format(operator, arrays)
    kernel = kernel_on(where, operator, dtype, frozenset(arrays), tuple(sorted(options.items())))
    problem = problem_of(kernel, arrays, params, readable=False)
    shape, entries, full = problem.sizes, problem.entries, problem.results
    refuse_capture(where, operator, chosen)
    _wait_for_others(where, given, example, chosen)
    with within(example, chosen, now, index):
        tensors = {}
        for t in kernel.graph.inputs:

            def copied_again(_: Array, wanted: tuple[int, ...] | None = None, name: str = t.name) -> Array:
                alive.append(copied(name, given[name], wanted))
                return phantom(as_device(name, alive[-1], chosen))

            tensors[t.name] = problem.as_read(t, arrays[t.name], copy, copied_again)

        def entry(t: TensorSpec, size: tuple[int, int]) -> Array:
            alive.append(empty_like(example, size, FORMATS[str(t.format) if t.format != "storage" else dtype], chosen))
            return phantom(as_device(t.name, alive[-1], chosen))

        tensors = readable(kernel.graph, tensors, shape[0], entry)
        checks = Checks(where, operator, tensors, shape, entries)
        if check and checks:
            checks({n: a.ctypes.data for n, a in tensors.items()}, params, chosen)
        made: dict[str, Any] = {}

        def make(o: Output, want: tuple[int, ...]) -> Array:
            made[o.name] = empty_like(example, full[o.name], o.format, chosen)
            return phantom(as_device(o.name, made[o.name], chosen)).reshape(want)

        results, theirs = place_results(kernel, given, arrays, shape, entries, full, out, located, make)
        ordered = [tensors[t.name] for t in kernel.graph.inputs] + [results[o.name] for o in kernel.graph.outputs]
        addresses = [a.ctypes.data if a.size else 0 for a in ordered]
        nothing = all(results[o.name].size == 0 for o in kernel.graph.outputs)
        if not nothing:
            sizes = kernel.sizes_of([tensors], [results], [shape], _NO_SCALARS)
            ready = kernel.ready(addresses, sizes, shape, entries)
            scalars = kernel.scalar_table(*shape, params)
            where_they_lie = struct.pack(f"<{len(addresses)}q", *addresses)
            call = ready.head + where_they_lie + ready.middle + kernel.scalar_bytes(scalars)
            _with_workspace(where, example, ready, call, chosen)
            if signature is not None and not alive:
                about = kernel, shape, full, ready, index, signature, theirs, example, checks, scalars
                _launches.keep(signature, replay_of(*about))
        returned = []
        for o in kernel.graph.outputs:
            caller = given[o.name] if o.inplace else theirs.get(o.name)
            if o.name in operator.contract.places:
                returned.append(as_columns(made[o.name], example, caller))
            else:
                returned.append(handed_out(made[o.name], example) if caller is None else caller)
        written([*theirs.values(), *(given[o.name] for o in kernel.graph.outputs if o.inplace)])
    return returned[0] if len(returned) == 1 else tuple(returned)


def _with_workspace(where: GpuDevice, example: Any, ready: Ready, call: bytes, stream: int) -> None:
    """Launch all kernels of a call. Its workspace is its own: of torch's or CuPy's pool, else of the driver's."""
    if not ready.workspace:
        _launch_all(ready, call, 0, stream)
    elif library_of(example) in ("torch", "cupy"):
        room = empty_like(example, (ready.workspace,), "bool", stream)
        _launch_all(ready, call, as_device("workspace", room).address, stream)
    else:
        with where.room(ready.workspace, stream) as address:
            _launch_all(ready, call, address, stream)


def _launch_all(ready: Ready, call: bytes, workspace: int, stream: int) -> None:
    for step in ready.steps:
        ready.program.launch(step, call + struct.pack("<q", workspace), 0, stream)


def _wait_for_others(where: GpuDevice, given: Mapping[str, Any], example: Any, stream: int) -> None:
    """Arrays of a second library may still be written by work in its own current stream."""
    for x in given.values():
        if library_of(x) != library_of(example) and library_of(x) in ("torch", "cupy") and stream_of(x) != stream:
            where.wait(stream_of(x))


__all__ = ["call_gpu"]
