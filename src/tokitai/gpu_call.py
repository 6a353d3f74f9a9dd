"""Run an operator on arrays of a GPU, where they lie: tensors of torch and CuPy, arrays of JAX, whatever speaks DLPack
or ``__cuda_array_interface__``.

The first call of its kind is checked in full, by the checks of `call`. For torch its *recipe* is kept: kernels, sizes,
and what new results look like; a later call with tensors of the same formats, sizes, strides and alignment only puts
addresses and scalars together.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .binding import bind, check_params
from .call import (
    check_indices,
    common_shape,
    flatten,
    full_shape,
    place_results,
    storage_format,
)
from .call_product import check_apart, flat, sizes_of
from .device.device_array import as_device, empty_like, handed_out, library_of
from .errors import ArgumentError
from .formats import FORMATS
from .gpu_card import (
    Card,
    Launcher,
    card,
    copied,
    handle_of,
    kernel_on,
    launcher,
    phantom,
    stream_of,
    within,
)
from .gpu_kernel import GpuKernel, Ready
from .kernel import Array, Scalars
from .lang import Operator, Output, Sizes
from .lower import ProductPlan

MOST_RECIPES = 4096
MOST_SCALARS = 256  # sets of host scalars that a recipe keeps


def call_gpu(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any = None, copy: bool = True,
    stream: Any = None, check: bool = True,
) -> Any:  # fmt: skip
    """Run `operator`, in the caller's current stream or in ``cuda_stream``; nothing is waited for.

    New results lie on the same device, in the library of the first tensor. Integer inputs that choose a column, such
    as targets, are read back and checked before anything runs, which waits for the stream; ``check=False`` leaves
    that out, and then one that is out of range makes the kernel access memory that it may not.
    Raises ArgumentError for what cannot be, and DeviceError where the device fails.
    """
    quick = stream is None and not (check and operator.contract.indices)
    seen = _Seen.of(operator, args, kwargs, out) if quick else None
    if seen is not None:
        try:
            recipe = _recipes.get(seen.key)
        except TypeError:  # an option that cannot be hashed, and so is none
            recipe = seen = None
        if seen is not None and recipe is not None and recipe.apart(seen.addresses):
            return recipe.run(seen, args, kwargs)
    return _checked(operator, args, kwargs, out, copy, stream, check, seen)


class _Seen:
    """What a call with tensors of torch alone looks like."""

    __slots__ = ("addresses", "key", "names", "params", "tensors")

    addresses: list[int]
    key: tuple[object, ...]
    names: list[object]  # of the tensors: of inputs, and places in ``out``
    params: tuple[object, ...]
    tensors: list[Any]

    @classmethod
    def of(cls, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> _Seen | None:
        """None where it has other arrays than torch's, or what only the full checks can judge."""
        made, addresses = cls(), []
        key: list[Any] = [operator]
        tensors: list[Any] = []
        names: list[object] = []
        params: list[object] = []
        declared, scalars = _declared(operator)
        for name, x in zip(declared, args, strict=False):
            if x is not None:
                names.append(name)
                tensors.append(x)
        for name, x in kwargs.items():
            if name in declared:
                if x is not None:
                    names.append(name)
                    tensors.append(x)
            elif name in scalars:
                params += name, type(x), x
            else:
                key += name, type(x), x
        if len(args) > len(declared):
            return None
        if out is not None:
            for i, x in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
                if x is not None:
                    names.append(i)
                    tensors.append(x)
            key.append(len(out) if isinstance(out, (tuple, list)) else -1)
        try:
            for x in tensors:
                kind = type(x)
                if kind not in _of_torch and not _is_of_torch(x):
                    return None
                address = x.data_ptr()
                addresses.append(address)
                key += kind, x.dtype, x.shape, x.stride(), x.get_device(), x.requires_grad, x.is_neg(), address & 15
            key += names
            made.params = tuple(params)
            made.key = (*key, made.params) if operator.contract.switches else tuple(key)
            hash(made.params)
        except (RuntimeError, TypeError):  # a tensor without strides, or a scalar that is none
            return None
        made.tensors, made.addresses, made.names = tensors, addresses, names
        return made


_of_torch: set[type] = set()


def _is_of_torch(x: Any) -> bool:
    if library_of(x) == "torch":
        _of_torch.add(type(x))
    return type(x) in _of_torch


_declarations: dict[Operator, tuple[tuple[str, ...], frozenset[str]]] = {}


def _declared(operator: Operator) -> tuple[tuple[str, ...], frozenset[str]]:
    found = _declarations.get(operator)
    if found is None:
        found = tuple(t.name for t in operator.tensors), frozenset(p.name for p in operator.params)
        _declarations[operator] = found
    return found


@dataclass(slots=True)
class Recipe:
    """A call of one kind, all but addresses and host scalars."""

    operator: Operator
    kernel: GpuKernel
    shape: tuple[int, int]
    ready: Ready
    device: int
    inputs: tuple[int, ...]  # for each tensor of the kernel, its place among the caller's
    results: tuple[tuple[int, tuple[int, ...], Any], ...]  # the same, or -1 with shape and dtype of a new one
    extents: tuple[int, ...]  # bytes from the first to behind the last element of each of the caller's tensors
    written: tuple[int, ...]
    example: int
    byte: Any  # torch's dtype of workspace
    pack: Any
    launches: tuple[Launcher, ...]
    scalars: dict[object, bytes] = field(default_factory=dict)

    def apart(self, addresses: list[int]) -> bool:
        """Whether what is written lies apart from all else, as ranges of addresses; if not, the full checks decide."""
        for w in self.written:
            begin, end = addresses[w], addresses[w] + self.extents[w]
            for i, address in enumerate(addresses):
                if i != w and begin < address + self.extents[i] and address < end:
                    return False
        return True

    def run(self, seen: _Seen, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Put one call into the current stream."""
        packed = self.scalars.get(seen.params)
        if packed is None:
            _, params, _ = bind(self.operator, args, kwargs)
            check_params(self.operator, params)
            packed = self.kernel.scalar_bytes(self.kernel.scalar_table(*self.shape, params))
            if len(self.scalars) >= MOST_SCALARS:
                self.scalars.clear()
            self.scalars[seen.params] = packed
        addresses, tensors = seen.addresses, seen.tensors
        new_empty = tensors[self.example].new_empty
        ordered, made = [addresses[i] for i in self.inputs], []
        for place, shape, dtype in self.results:
            x = tensors[place] if place >= 0 else new_empty(shape, dtype=dtype)
            made.append(x)
            ordered.append(x.data_ptr())
        ready = self.ready
        room = new_empty((ready.workspace,), dtype=self.byte) if ready.workspace else None
        workspace = _NOWHERE if room is None else _word(room.data_ptr())
        call = ready.head + self.pack(*ordered) + ready.middle + packed + workspace
        stream = stream_of(tensors[self.example])
        for launch in self.launches:
            launch(call, stream)
        return made[0] if len(made) == 1 else tuple(made)


_word = struct.Struct("<q").pack
_NOWHERE = _word(0)
_NO_TABLE = np.empty(0, np.float32)
_recipes: dict[tuple[object, ...], Recipe] = {}


def _checked(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, copy: bool, stream: Any,
    check: bool, seen: _Seen | None,
) -> Any:  # fmt: skip
    given, params, options = bind(operator, args, kwargs)
    check_params(operator, params)
    if any(t.space == "t" or t.slots for t in operator.tensors) or "entries" in params or operator.contract.places:
        raise ArgumentError(
            f"{operator.name} on arrays of a GPU: tables and values side by side are not offered there; "
            f"accepted: arrays in host memory"
        )
    first = next(iter(given.values()))
    lists = isinstance(first, (list, tuple))
    if operator.contract.max_rows == 1 or lists:
        from .gpu_lists import prepare_on_gpu

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
    where, views = card(index), []

    def located(name: str, x: Any) -> Array:
        views.append(as_device(name, x, chosen))
        if views[-1].device != index:
            raise ArgumentError(f"{name}: lies on cuda:{views[-1].device}; accepted beside {beside}: cuda:{index}")
        return phantom(views[-1])

    arrays = {n: located(n, x) for n, x in given.items()}
    dtype = storage_format(operator, arrays)
    kernel = kernel_on(where, operator, dtype, frozenset(arrays), tuple(sorted(options.items())))
    product = isinstance(kernel.plan, ProductPlan)
    lead, shape = _sizes(operator, kernel, arrays) if product else common_shape(operator, arrays, options)
    if where.capturing(chosen):
        raise ArgumentError(
            f"{operator.name}: a stream that is being captured; accepted: a call on tensors of torch that ran once "
            f"with the same formats, shapes and strides before the capture, that needs no copy, and with check=False "
            f"where there are targets to be checked"
        )
    _wait_for_others(where, given, example, chosen)
    alive: list[Any] = []  # copies
    with within(example, chosen, now, index):
        tensors = {}
        for t in kernel.graph.inputs:

            def again(_: Array, name: str = t.name) -> Array:
                alive.append(copied(name, given[name]))
                return phantom(as_device(name, alive[-1], chosen))

            as_read = flat if isinstance(shape, Sizes) else flatten
            tensors[t.name] = as_read(t, arrays[t.name], shape, copy, again)  # type: ignore[arg-type]
        if check:
            _check_indices(where, operator, tensors, params, shape, chosen)
        made: dict[str, Any] = {}

        def make(o: Output, want: tuple[int, ...]) -> Array:
            made[o.name] = empty_like(example, full_shape(o, lead, shape), o.format, chosen)
            return phantom(as_device(o.name, made[o.name], chosen)).reshape(want)

        results, theirs = place_results(kernel, arrays, lead, shape, 0, out, located, make)
        for name, view in results.items():
            check_apart(f"out ({name})" if name in theirs else name, view)
        ordered = [tensors[t.name] for t in kernel.graph.inputs] + [results[o.name] for o in kernel.graph.outputs]
        addresses = [a.ctypes.data if a.size else 0 for a in ordered]
        nothing = all(results[o.name].size == 0 for o in kernel.graph.outputs)
        if not nothing:
            sizes = kernel.sizes_of([tensors], [results], [shape], Scalars(_NO_TABLE))
            ready = kernel.ready(addresses, sizes, shape)
            scalars = kernel.scalar_bytes(kernel.scalar_table(*shape, params))
            call = ready.head + struct.pack(f"<{len(addresses)}q", *addresses) + ready.middle + scalars
            with_workspace(where, example, ready, call, chosen)
    if seen is not None and not alive and not nothing:
        recipe = _recipe(operator, kernel, shape, lead, ready, index, seen, theirs, given)
        if len(_recipes) >= MOST_RECIPES:
            _recipes.clear()
        _recipes[seen.key] = recipe
    returned = []
    for o in kernel.graph.outputs:
        caller = given[o.name] if o.inplace else theirs.get(o.name)
        returned.append(handed_out(made[o.name], example) if caller is None else caller)
    return returned[0] if len(returned) == 1 else tuple(returned)


def _sizes(operator: Operator, kernel: GpuKernel, arrays: Mapping[str, Array]) -> tuple[tuple[int, ...], Sizes]:
    """What is ahead of a product's columns, and its sizes."""
    found = sizes_of(operator, kernel.graph, arrays)
    return found.result[:-1], found.sizes


def with_workspace(where: Card, example: Any, ready: Ready, call: bytes, stream: int) -> None:
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
        ready.program.launch(step, call + _word(workspace), 0, stream)


def _recipe(
    operator: Operator, kernel: GpuKernel, shape: tuple[int, int], lead: tuple[int, ...], ready: Ready, index: int,
    seen: _Seen, theirs: Mapping[str, Any], given: Mapping[str, Any],
) -> Recipe:  # fmt: skip
    torch = sys.modules["torch"]
    graph, at = kernel.graph, {name: i for i, name in enumerate(seen.names)}
    fresh = [o.name for o in graph.outputs if not o.inplace]
    results, written = [], []
    for o in graph.outputs:
        place = at[o.name] if o.inplace else at[fresh.index(o.name)] if o.name in theirs else -1
        dtype = getattr(torch, FORMATS[o.format].dtype.name)
        results.append((place, full_shape(o, lead, shape), dtype))
        written += [place] * (place >= 0)
    extents = tuple(
        x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))) if x.numel() else 0
        for x in seen.tensors
    )
    example = at[next(iter(given))]
    inputs = tuple(at[t.name] for t in graph.inputs)
    pack = struct.Struct(f"<{len(inputs) + len(results)}q").pack
    launches = tuple(launcher(ready.program, step) for step in ready.steps)
    return Recipe(
        operator, kernel, shape, ready, index, inputs, tuple(results), extents, tuple(written), example, torch.uint8,
        pack, launches,
    )  # fmt: skip


def _check_indices(
    where: Card, operator: Operator, tensors: Mapping[str, Array], params: Mapping[str, float],
    shape: tuple[int, int], stream: int,
) -> None:  # fmt: skip
    for name in operator.contract.indices:
        if name in tensors and tensors[name].size:
            values = np.empty(tensors[name].shape, tensors[name].dtype)
            where.read(tensors[name].ctypes.data, values, stream)
            check_indices(operator, {name: values}, params, shape)


def _wait_for_others(where: Card, given: Mapping[str, Any], example: Any, stream: int) -> None:
    """Arrays of a second library may still be written by work in its own current stream."""
    for x in given.values():
        if library_of(x) != library_of(example) and library_of(x) in ("torch", "cupy") and stream_of(x) != stream:
            where.wait(stream_of(x))


__all__ = ["Recipe", "call_gpu"]
