"""The launch cache for tensors of torch on a GPU: the first call of a kind settles all but addresses and host scalars.

A `CallSignature` decides whether calls are of one kind: formats, shapes, strides, devices, alignment, options, and how
the call is written. What may differ between calls of one signature is checked each time: whether tensors have memory,
need a gradient or are negated, whether what is written is disjoint from all else, and the scalars.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..arrays.libraries import library_of, written
from ..formats import FORMATS
from ..lang import Operator
from .binding import MOST_CALLS, MOST_SCALARS, Form, bind, check_params, form_of
from .gpu_checks import Checks
from .gpu_device import Launcher, as_columns, launchers, torch_streams
from .gpu_kernel import GpuKernel, Ready
from .kernel import Scalars


# ------------------------------------------------------------------ what a call looks like
class CallSignature(NamedTuple):
    """A call with tensors of torch alone."""

    form: Form
    key: tuple[object, ...]
    scalars: tuple[object, ...]
    tensors: list[Any]
    addresses: list[int]


_signature = functools.partial(tuple.__new__, CallSignature)  # a third of the time of its own constructor
_of_torch: set[type] = set()


def signature_of(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> CallSignature | None:
    """None where a call has other arrays than torch's, or what only the full checks can judge."""
    form, results = form_of(operator, args, kwargs, out)
    if not form.fits:
        return None
    named = form.tensors
    tensors = [*args, *[kwargs[n] for n in named], *results] if named else [*args, *results] if results else list(args)
    key: list[Any] = [form]
    addresses: list[int] = []
    low = 0
    try:
        for x in tensors:
            kind = type(x)
            if kind not in _of_torch and not _is_of_torch(kind, x):
                if x is not None:
                    return None
                key.append(None)
                addresses.append(0)
                continue
            address = x.data_ptr()
            if not address or x.requires_grad or x.is_neg():
                return None
            addresses.append(address)
            low |= address
            key += kind, x.dtype, x.shape, x.is_contiguous() or x.stride(), x.get_device()
        if low & 15:
            key += [address & 15 for address in addresses]
        scalars = form.told(kwargs)
        if form.by_scalars:
            key.append(scalars)
        for n in form.others:
            key += type(kwargs[n]), kwargs[n]
    except (RuntimeError, TypeError, ValueError):  # a tensor without strides, or a scalar that is none
        return None
    return _signature((form, tuple(key), scalars, tensors, addresses))


def _is_of_torch(kind: type, x: Any) -> bool:
    if library_of(x) == "torch":
        _of_torch.add(kind)
    return kind in _of_torch


# ------------------------------------------------------------------ how it is repeated
class Frame:
    """The parameter of a call's kernels, and their launches that read it. One call at a time has a frame."""

    __slots__ = ("last", "launches", "parameter", "scalars", "scalars_size")

    def __init__(self, ready: Ready, scalars: bytes, room: int) -> None:
        packed = ready.head + bytes(room) + ready.middle + scalars + bytes(8)
        self.last, self.scalars_size = len(packed) - 8, len(scalars)
        self.parameter = (ctypes.c_char * len(packed)).from_buffer_copy(packed)
        self.scalars = ctypes.addressof(self.parameter) + self.last - self.scalars_size
        self.launches: tuple[Launcher, ...] = launchers(ready, self.parameter)

    def launch(self, scalars: bytes, workspace: int, stream: int) -> None:
        """Put all kernels into a stream, with these host scalars, as many as before, and this workspace."""
        ctypes.memmove(self.scalars, scalars, self.scalars_size)
        _word.pack_into(self.parameter, self.last, workspace)
        for launch in self.launches:
            launch(stream)


@dataclass(slots=True)
class Replay:
    """A call of one kind, all but addresses and host scalars."""

    kernel: GpuKernel
    shape: tuple[int, int]
    ready: Ready
    device: int
    checks: Checks
    inputs: tuple[int, ...]  # for each tensor of the kernel, its place among the caller's
    results: tuple[tuple[int, Any], ...]  # the same, or the pattern of a new one
    turned: tuple[Callable[[Any, list[Any]], Any] | None, ...]  # what makes of each result the caller's; mostly none
    meetings: tuple[tuple[int, int, int, int], ...]  # two of the caller's tensors that must lie apart, and their bytes
    written: tuple[int, ...]  # places of those of the caller's tensors into which results go
    room: Any  # the pattern of workspace, or None
    words: struct.Struct  # the addresses of the kernel's tensors,
    first: int  # where in the parameter they begin, and
    last: int  # where the address of the workspace does
    empty_like: Callable[[Any], Any]
    stream: Callable[[int], int]  # the current one of a device
    frames: dict[object, list[Frame]] = field(default_factory=dict)  # free ones, by host scalars

    def apart(self, addresses: list[int]) -> bool:
        """Whether what is written lies apart from all else, as ranges of addresses; if not, the full checks decide."""
        for a, of_a, b, of_b in self.meetings:
            if addresses[a] < addresses[b] + of_b and addresses[b] < addresses[a] + of_a:
                return False
        return True

    def run(self, signature: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Put one call into the current stream."""
        _, _, scalars, tensors, addresses = signature
        free = self.frames.get(scalars)
        if free is None:
            if len(self.frames) >= MOST_SCALARS:
                self.frames.clear()
            free = self.frames[scalars] = [self._frame(args, kwargs)]
        try:
            frame = free.pop()
        except IndexError:  # others run the same call now
            frame = self._frame(args, kwargs)
        words = [addresses[i] for i in self.inputs]
        empty_like, parameter, made = self.empty_like, frame.parameter, []
        for place, pattern in self.results:
            if pattern is None:
                made.append(tensors[place])
                words.append(addresses[place])
            else:
                x = empty_like(pattern)
                made.append(x)
                words.append(x.data_ptr())
        self.words.pack_into(parameter, self.first, *words)
        if self.ready.maps is not None:
            ctypes.memmove(parameter, self.ready.maps.at(words), self.first)
        if self.room is not None:
            room = empty_like(self.room)
            _word.pack_into(parameter, self.last, room.data_ptr())
        stream = self.stream(self.device)
        for launch in frame.launches:
            launch(stream)
        free.append(frame)
        if self.written:
            written(tensors[i] for i in self.written)
        if self.turned:
            made = [x if turn is None else turn(x, tensors) for x, turn in zip(made, self.turned, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    def check(self, signature: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the values of a call's indices and numbers, which waits for the stream. Raises ArgumentError."""
        params = self._params(args, kwargs)
        addresses = {t.name: signature.addresses[i] for t, i in zip(self.kernel.graph.inputs, self.inputs, strict=True)}
        self.checks(addresses, params, self.stream(self.device))

    def _params(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
        _, params, _ = bind(self.kernel.operator, args, kwargs)
        check_params(self.kernel.operator, params)
        return params

    def _frame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
        params = self._params(args, kwargs)
        scalars = self.kernel.scalar_bytes(self.kernel.scalar_table(*self.shape, params))
        return Frame(self.ready, scalars, self.words.size)


_word = struct.Struct("<q")


def replay_of(
    kernel: GpuKernel, shape: tuple[int, int], full: Mapping[str, tuple[int, ...]], ready: Ready, device: int,
    signature: CallSignature, theirs: Mapping[str, Any], example: Any, checks: Checks, scalars: Scalars,
) -> Replay:  # fmt: skip
    """The replay of a call that was checked and needs no copies. ``full`` are the results' shapes, ``theirs``
    those that the caller gave."""
    torch = sys.modules["torch"]
    graph, at = kernel.graph, {name: i for i, name in enumerate(signature.form.named)}
    fresh = [o.name for o in graph.outputs if not o.inplace]
    results: list[tuple[int, Any]] = []
    turned, places = [], []
    for o in graph.outputs:
        place = at[o.name] if o.inplace else at[fresh.index(o.name)] if o.name in theirs else -1
        places += [place] * (place >= 0)
        column = o.name in kernel.operator.contract.places
        turned.append(functools.partial(_columns, place) if column else None)
        new = place < 0 or column  # the kernel's columns go elsewhere first
        stored_as = getattr(torch, FORMATS[o.format].dtype.name)
        pattern = _pattern(example, full[o.name], stored_as) if new else None
        results.append((place, pattern))
    bytes_of = [0 if x is None else _extent(x) for x in signature.tensors]
    meetings = [
        (w, bytes_of[w], i, bytes_of[i]) for w in places for i in range(len(bytes_of))
        if bytes_of[i] and i != w and not (i in places and i < w)
    ]  # fmt: skip
    room = _pattern(example, (ready.workspace,), torch.uint8) if ready.workspace else None
    inputs = tuple(at[t.name] for t in graph.inputs)
    words = struct.Struct(f"<{len(inputs) + len(results)}q")
    first = len(ready.head)
    last = first + words.size + len(ready.middle) + len(kernel.scalar_bytes(scalars))
    return Replay(
        kernel, shape, ready, device, checks, inputs, tuple(results), tuple(turned) if any(turned) else (),
        tuple(meetings), tuple(places), room, words, first, last, torch.empty_like, torch_streams(),
    )  # fmt: skip


def _columns(place: int, made: Any, tensors: list[Any]) -> Any:
    return as_columns(made, made, None if place < 0 else tensors[place])


def _extent(x: Any) -> int:
    """Bytes from the first to behind the last element."""
    return int(x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))))


def _pattern(example: Any, shape: Sequence[int], dtype: Any) -> Any:
    """A tensor for `empty_like`, which takes half the time of `new_empty`; it holds no memory."""
    made = example.new_empty(tuple(shape), dtype=dtype)
    made.untyped_storage().resize_(0)
    return made


def torch_room(example: Any, nbytes: int) -> Callable[[], Any]:
    """What gives so many bytes of new workspace on the device of `example`."""
    torch = sys.modules["torch"]
    return functools.partial(torch.empty_like, _pattern(example, (nbytes,), torch.uint8))


class LaunchCache:
    """The replays that are known."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Replay] = {}

    def find(self, signature: CallSignature) -> Replay | None:
        """The replay of a call, if it was seen and what it writes lies apart. Raises TypeError for an option that
        cannot be hashed."""
        found = self._known.get(signature[1])
        return found if found is None or not found.meetings or found.apart(signature[4]) else None

    def keep(self, signature: CallSignature, replay: Replay) -> None:
        """For later calls."""
        if len(self._known) >= MOST_CALLS:
            self._known.clear()
        self._known[signature.key] = replay


__all__ = ["CallSignature", "LaunchCache", "Replay", "replay_of", "signature_of"]
