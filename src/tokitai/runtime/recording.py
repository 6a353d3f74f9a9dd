"""Launches that a function makes of its tensors, recorded in one call and repeated in others as one `Program`.

What a function does beside its launches (arguments are checked, kernels and layouts are chosen) gives the same for all
calls that its caller takes for one kind: the same layouts of tensors and the same other arguments. A program repeats
the launches alone. It is made only where each launch reads what the function was given or an earlier launch has made,
as it lies in memory, and where nothing else has written to these.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from operator import call, itemgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np

from ..arrays.libraries import array_at, format_of_torch
from ..arrays.results import NewArray
from ..backends.cpu import device as cpu
from ..formats import FORMATS
from .checks import UNSIGNED
from .host_launch import HostLaunch, Settled
from .launch_cache import CallSignature, Replay

SCRATCH = 1 << 16  # bytes of results that nobody asks for, which a thread keeps from call to call
WORKSPACE = 1 << 16  # and of workspace
_ALIGN = 64
_address = methodcaller("data_ptr")


class Place(NamedTuple):
    """Where a result of a function comes from: the tensors that it was given, or what launches made."""

    made: bool
    at: int
    shape: Any = None  # of what is made, where it is returned in another one


class _Indices(NamedTuple):
    """A tensor whose values are checked before a launch."""

    name: str
    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: str
    limit: int  # values from 0 to below it are accepted
    memory: Any  # its bytes as an array of ctypes; None where elements do not follow one another, or there are none

    def all_fit(self, address: int) -> bool:
        """Whether one pass shows that all values are accepted. As unsigned numbers, negative ones are the largest."""
        if self.memory is None:
            return False
        unsigned = UNSIGNED[FORMATS[self.format].dtype.itemsize]
        return bool(np.maximum.reduce(np.frombuffer(self.memory.from_address(address), unsigned)) < self.limit)

    def array(self, address: int) -> np.ndarray[Any, Any]:
        """It, where it lies in a call."""
        return array_at(address, self.shape, self.strides, self.format, True, None)


class Recording:
    """What is launched while a function runs on ``tensors``."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self.tensors = tensors
        self.slots = {x.data_ptr(): i for i, x in enumerate(tensors)}
        self.repeatable = len(self.slots) == len(tensors)  # else it is open which of two is read
        self.copied = False  # whether a launch has read a copy
        self.made: list[Any] = []
        self.replays: list[Any] = []  # functions: how each of these is made
        self.steps: list[tuple[Any, Any, tuple[int, ...], list[_Indices]]] = []
        self.versions = [_version(x) for x in tensors]

    def spoil(self) -> None:
        """Something happens that a program would not repeat."""
        self.repeatable = False

    def note(
        self, replay: Replay, signature: CallSignature, scalars: Any, addresses: Sequence[int], made: Sequence[Any]
    ) -> None:
        """A launch, of inputs at these addresses, and its new results."""
        inputs = [self.slots.get(a) for a in addresses[: len(replay.inputs)]]
        self.copied = self.copied or bool(replay.copies)
        plain = not (replay.copies or replay.columns or replay.disjoint or replay.versions)
        launch = replay.launch
        indices = self._indices(launch, signature) if isinstance(launch, HostLaunch) else None
        if not plain or indices is None or None in inputs:
            return self.spoil()
        first = len(self.tensors) + len(self.made)
        self.made += made
        self.versions += [_version(x) for x in made]
        empty_like: Any = replay.empty_like
        for _, pattern, new in replay.results:
            self.replays.append(NewArray(None, new) if new else functools.partial(empty_like, pattern))
        self.slots |= {x.data_ptr(): first + i for i, x in enumerate(made)}
        self.steps.append((launch, scalars, (*inputs, *range(first, first + len(made))), indices))  # type: ignore[arg-type]
        return None

    def _indices(self, launch: HostLaunch, signature: CallSignature) -> list[_Indices] | None:
        """The caller's tensors whose values have to be checked; None where one is not known here."""
        found = []
        for n, x in zip(signature.form.named, signature.tensors, strict=True):
            if launch.checks and n in launch.kernel.operator.contract.indices and x is not None:
                slot, fmt = self.slots.get(x.data_ptr()), format_of_torch(x.dtype)
                if slot is None or fmt is None:
                    return None
                nbytes = x.numel() * x.element_size() if x.is_contiguous() else 0
                memory = ctypes.c_char * nbytes if nbytes else None
                found.append(_Indices(str(n), slot, tuple(x.shape), x.stride(), fmt, launch.count_of(str(n)), memory))
        return found

    def place_of(self, x: Any) -> Place | None:
        """Where a result of the function comes from; None where a program cannot give it."""
        for made, known in ((False, self.tensors), (True, self.made)):
            for i, y in enumerate(known):
                if x is y:
                    return Place(made, i)
        for i, y in enumerate(self.made):
            if x.data_ptr() == y.data_ptr() and x.dtype == y.dtype and x.numel() == y.numel() and x.is_contiguous():
                return Place(True, i, x.shape)
        return None

    def program(self, needed: set[int]) -> Program | None:
        """The program of what was recorded, whose results are those of ``made`` that are ``needed``; None where there
        is none."""
        written = [_version(x) for x in (*self.tensors, *self.made)] != self.versions
        return Program(self, needed) if self.repeatable and not written else None


def _version(x: Any) -> int:
    return -1 if x.is_inference() else int(x._version)


class _Step(NamedTuple):
    """A launch of a program."""

    settled: Settled | None
    pick: Callable[[Sequence[Any]], Sequence[Any]]  # its addresses, of all
    indices: list[_Indices]
    launch: HostLaunch
    scalars: Any


class Program:
    """Launches that are repeated with other addresses."""

    def __init__(self, recording: Recording, needed: set[int]) -> None:
        self._new: list[Callable[[], Any]] = []  # of each result that is asked for
        scratch = 0
        offsets: list[int] = []  # of the others
        order, rest = [], []
        for i, (x, new) in enumerate(zip(recording.made, recording.replays, strict=True)):
            size = -(-x.numel() * x.element_size() // _ALIGN) * _ALIGN
            if i in needed or scratch + size > SCRATCH:
                order.append(i)
                self._new.append(new)
            else:
                rest.append(i)
                offsets.append(scratch)
                scratch += size
        self._offsets = tuple(offsets)
        count = len(recording.tensors)
        self.place = {i: at for at, i in enumerate(order)}  # of what was recorded, among what `run` returns
        slot = {**{i: i for i in range(count)}, **{count + i: count + at for at, i in enumerate((*order, *rest))}}
        self._steps = []
        for launch, scalars, slots, indices in recording.steps:
            settled = launch.settled(scalars)
            moved = [i._replace(slot=slot[i.slot]) for i in indices]
            fits = settled is not None and settled.workspace <= WORKSPACE
            pick = gather([slot[s] for s in slots])
            self._steps.append(_Step(settled if fits else None, pick, moved, launch, scalars))

    def run(self, addresses: list[int]) -> list[Any]:
        """Launch on tensors at ``addresses``, which are added to, and return what is asked for. Raises ArgumentError
        for an index out of range."""
        made = [*map(call, self._new)]
        addresses += map(_address, made)
        scratch = _scratch.memory
        if self._offsets:
            addresses += [scratch.start + offset for offset in self._offsets]
        for settled, pick, indices, launch, scalars in self._steps:
            for i in indices:
                if not i.all_fit(addresses[i.slot]):
                    launch.check_arrays({i.name: i.array(addresses[i.slot])}, scalars)
            if settled is None:
                launch(scalars, pick(addresses), None)
                continue
            function, pack, sizes, table, _ = settled
            status = function(pack(*pick(addresses)), sizes, table, scratch.workspace, 1)
            if status:
                launch.kernel.succeeded(status)
        return made


def gather(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What lies at these places of a tuple, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1 or None) if places else slice(0))


class _Memory:
    """For results that nobody asks for, and the workspace of one launch."""

    def __init__(self) -> None:
        self._kept, self.start = cpu.placed_empty((SCRATCH + WORKSPACE,), np.dtype(np.uint8), _ALIGN)
        self.workspace = ctypes.c_void_p(self.start + SCRATCH)


class _Scratch(threading.local):
    """Memory that each thread keeps from call to call: it runs one launch at a time."""

    def __init__(self) -> None:
        self.memory = _Memory()


_scratch = _Scratch()
