"""A call on arrays of NumPy, or tensors of torch in host memory, whose signature is cached.

The first call of a kind is checked in full by `call`, and what it found is cached as a *replay*: the kernel, the sizes,
and what new results look like. A later call with arrays of the same formats, sizes, strides and flags only puts
addresses and scalars together. What may differ between such calls is looked at each time: where arrays lie, and the
integers in them that choose a column or an entry.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..arrays.dlpack import as_numpy
from ..arrays.libraries import holds_its_elements, written
from ..arrays.results import New, maker
from ..backends.cpu import device as cpu
from ..formats import FORMATS
from ..lang import Operator
from .binding import MOST_CALLS, MOST_SCALARS, Form, bind, check_params, form_of
from .kernel import Array, Kernel, Scalars
from .problem import Problem

KEPT_ROOM = 1 << 20  # bytes of workspace that a thread keeps from call to call
ALONE = 1 << 16  # bytes that one thread works through before another has woken up


class CallSignature(NamedTuple):
    """A call whose arrays are all NumPy's or torch's. Optional tensors that are None count as arrays at address 0."""

    form: Form
    key: tuple[object, ...]
    scalars: tuple[object, ...]
    tensors: list[Any]
    addresses: list[int]


def signature_of(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> CallSignature | None:
    """None where there is anything else, and where only the full checks can judge: of lists, of results whose size is a
    scalar, of what must hold no NaN."""
    limits = operator.contract
    if limits.lists or limits.no_nan or limits.places:
        return None
    form, results = form_of(operator, args, kwargs, out)
    if not form.fits or form.sized:
        return None
    tensors = [*args, *(kwargs[n] for n in form.tensors), *results]
    key: list[Any] = [form]
    addresses = []
    low = 0
    try:
        for x in tensors:
            kind = type(x)
            if kind is np.ndarray:
                addresses.append(cpu.address_of(x))
                key += x.dtype, x.shape, x.strides, x.flags.num
            elif x is None:
                addresses.append(0)
                key.append(None)
            elif kind in _of_torch or _is_of_torch(x):
                address = x.data_ptr()
                if not address or not x.is_cpu or x.requires_grad or x.is_neg():
                    return None
                addresses.append(address)
                low |= address
                key += kind, x.dtype, x.shape, x.is_contiguous() or x.stride()
            else:
                return None
    except RuntimeError:  # a tensor without memory or strides
        return None
    if low & 7:  # of elements that may not be aligned
        key += [address & 7 for address in addresses]
    for n in form.others:
        key += type(kwargs[n]), kwargs[n]
    try:
        scalars = form.told(kwargs)
        if form.by_scalars:
            key.append(scalars)
        made = CallSignature(form, tuple(key), scalars, tensors, addresses)
        hash(made.key)
    except (TypeError, ValueError):  # an option or a scalar that cannot be hashed or is an array, and so is none
        return None
    return made


_of_torch: set[type] = set()


def _is_of_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and holds_its_elements(x):
        _of_torch.add(type(x))
    return type(x) in _of_torch


@dataclass(slots=True)
class LaunchScalars:
    """Sizes and scalars as the kernel takes them, and scalars by name."""

    sizes: Any  # an array of ctypes
    table: Array
    address: int  # of the table
    params: Mapping[str, float]


@dataclass(slots=True)
class Replay:
    """A call of one kind, all but addresses and scalars."""

    kernel: Kernel
    shape: tuple[int, int]
    entries: int
    inputs: tuple[int, ...]  # for each tensor of the kernel, its place among the caller's
    new: tuple[New | None, ...]  # for each result what makes it, or None for one of the caller's,
    written: tuple[int, ...]  # and its place among these, or -1
    tells: tuple[int, ...]  # results of the caller's that are tensors of torch
    extents: tuple[int, ...]  # bytes from the first to behind the last element of each of the caller's arrays
    tensors: Any  # the ctypes array of their addresses
    strides: tuple[int, ...]  # the sizes of a launch, but for whole scalars
    alone: bool  # so small that more threads would only make it slower
    scalars: dict[object, LaunchScalars] = field(default_factory=dict)

    def apart(self, addresses: list[int]) -> bool:
        """Whether what is written lies apart from all else, as ranges of addresses; if not, the full checks decide."""
        for w in self.written:
            if w >= 0:
                begin, end = addresses[w], addresses[w] + self.extents[w]
                for i, address in enumerate(addresses):
                    if i != w and begin < address + self.extents[i] and address < end:
                        return False
        return True

    def scalars_of(self, signature: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LaunchScalars:
        """The scalars of a call. Raises ArgumentError for one that cannot be."""
        found = self.scalars.get(signature.scalars)
        if found is None:
            operator = self.kernel.operator
            _, params, _ = bind(operator, args, kwargs)
            check_params(operator, params)
            made = self.kernel.scalar_table(*self.shape, params)
            sizes = (*self.strides, *made.whole)
            found = LaunchScalars((ctypes.c_int64 * len(sizes))(*sizes), made.table, made.table.ctypes.data, params)
            if len(self.scalars) >= MOST_SCALARS:
                self.scalars.clear()
            self.scalars[signature.scalars] = found
        return found

    def run(self, signature: CallSignature, scalars: LaunchScalars, wanted: int | None) -> Any:
        """Run it, in the ``wanted`` number of threads."""
        threads = wanted or (1 if self.alone else cpu.default_threads())
        addresses = signature.addresses
        ordered, made = [addresses[i] for i in self.inputs], []
        for new, place in zip(self.new, self.written, strict=True):
            if new is None:
                made.append(signature.tensors[place])
                ordered.append(addresses[place])
            else:
                array, address = new()
                made.append(array)
                ordered.append(address)
        room = _room(self.kernel.workspace_bytes([self.shape], threads, 0))
        self.kernel.launch_prepared(self.tensors(*ordered), scalars.sizes, scalars.address, room[1], threads)
        if self.tells:
            written(made[i] for i in self.tells)
        return made[0] if len(made) == 1 else tuple(made)


class _Rooms(threading.local):
    """Workspace that a thread keeps from call to call: it runs one at a time."""

    kept = cpu.placed_empty((0,), np.dtype(np.uint8))


_rooms = _Rooms()


def _room(size: int) -> tuple[Array, int]:
    """Workspace of so many bytes at least, and where it begins."""
    room = _rooms.kept
    if room[0].size < size:
        room = cpu.placed_empty((size,), np.dtype(np.uint8))
        if size <= KEPT_ROOM:
            _rooms.kept = room
    return room


_replays: dict[tuple[object, ...], Replay] = {}


def find(signature: CallSignature) -> Replay | None:
    """What is known of such a call; None where it has to be checked in full."""
    found = _replays.get(signature.key)
    return found if found is not None and found.apart(signature.addresses) else None


def forget() -> None:
    """Let every call be checked in full again."""
    _replays.clear()


def record(
    signature: CallSignature, kernel: Kernel, problem: Problem, flat: Mapping[str, Array],
    results: Mapping[str, Array], supplied: Mapping[str, Any],
) -> None:  # fmt: skip
    """Keep what a call that was checked has found, unless it copied anything or had nothing to do. ``flat`` and
    ``results`` are the arrays as the kernel has them."""
    shape, entries, full = problem.sizes, problem.entries, problem.results
    at = {name: i for i, name in enumerate(signature.form.named)}
    fresh = [o.name for o in kernel.graph.outputs if not o.inplace]
    place = {n: at[n] for n in flat} | {n: at[fresh.index(n)] for n in supplied if n in fresh}
    where = {**flat, **{n: results[n] for n in supplied if n in fresh}}
    copied = any(cpu.address_of(array) != signature.addresses[place[n]] for n, array in where.items())
    views = [None if x is None else as_numpy("", x) for x in signature.tensors]
    odd = any(x is not None and (not x.flags.aligned or min(x.strides, default=0) < 0) for x in views)
    if copied or odd or all(r.size == 0 for r in results.values()):
        return
    sizes = kernel.sizes_of([flat], [results], [shape], Scalars(np.empty(0, np.float32)))
    inputs = tuple(at[t.name] for t in kernel.graph.inputs)
    example = signature.tensors[inputs[0]]
    places = tuple(place.get(o.name, -1) for o in kernel.graph.outputs)
    new = tuple(
        maker(example, full[o.name], FORMATS[o.format].dtype) if w < 0 else None
        for o, w in zip(kernel.graph.outputs, places, strict=True)
    )
    tells = tuple(i for i, w in enumerate(places) if w >= 0 and type(signature.tensors[w]) is not np.ndarray)
    extents = tuple(0 if x is None else _extent(x) for x in views)
    if len(_replays) >= MOST_CALLS:
        _replays.clear()
    array = ctypes.c_void_p * (len(inputs) + len(places))
    alone = sum(x.nbytes for x in (*flat.values(), *results.values())) <= ALONE
    _replays[signature.key] = Replay(
        kernel, shape, entries, inputs, new, places, tells, extents, array, tuple(sizes), alone
    )  # fmt: skip


def _extent(x: Array) -> int:
    """Bytes from the first to behind the last element, of strides that are not negative."""
    return x.itemsize + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) if x.size else 0
