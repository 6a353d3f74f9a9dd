"""Calls on tensors of torch that are repeated: all but addresses and host scalars is settled by the first of its kind.

A `Look` is what decides whether a call is of a kind: formats, shapes, strides, devices, alignment, options, and how the
call is written. What could differ between calls that look alike is judged each time: whether tensors have memory, need
a gradient or are negated, whether what is written lies apart, and the scalars.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .call import bind, check_params, full_shape
from .device.device_array import library_of
from .formats import FORMATS
from .gpu_card import Launcher, launchers, torch_streams
from .gpu_checks import Checks
from .gpu_kernel import GpuKernel, Ready
from .lang import Operator

MOST_RECIPES = 4096
MOST_SCALARS = 256  # sets of host scalars that a recipe keeps


# ------------------------------------------------------------------ what a call looks like
class Form:
    """How a call is written: by the names of its arguments, and how many there are in ``out``."""

    def __init__(self, operator: Operator, count: int, names: Sequence[str], results: int) -> None:
        self.operator = operator
        declared = [t.name for t in operator.tensors]
        scalars = {p.name for p in operator.params}
        self.tensors = tuple(n for n in names if n in declared)
        self.scalars = tuple(n for n in names if n in scalars)
        self.others = tuple(n for n in names if n not in declared and n not in scalars)
        self.named: list[object] = [*declared[:count], *self.tensors, *range(results)]  # or places in ``out``
        self.fits = count <= len(declared) and not set(declared[:count]) & set(names)
        # Options, or the sizes of a launch, follow from the scalars.
        self.by_scalars = bool(operator.contract.switches) or "entries" in scalars


class Look:
    """A call with tensors of torch alone."""

    __slots__ = ("addresses", "form", "key", "scalars", "tensors")

    def __init__(
        self, form: Form, key: tuple[object, ...], scalars: tuple[object, ...], tensors: list[Any], addresses: list[int]
    ) -> None:
        self.form, self.key, self.scalars, self.tensors, self.addresses = form, key, scalars, tensors, addresses


_forms: dict[tuple[object, ...], Form] = {}
_of_torch: set[type] = set()


def look_at(operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Look | None:
    """None where a call has other arrays than torch's, or what only the full checks can judge."""
    if out is None:
        results: Sequence[Any] = ()
        how = (operator, len(args), -1, *kwargs)
    else:
        several = type(out) is tuple or type(out) is list
        results = out if several else (out,)
        how = (operator, len(args), len(results) if several else -2, *kwargs)
    form = _forms.get(how)
    if form is None:
        form = _forms[how] = Form(operator, len(args), tuple(kwargs), len(results))
    if not form.fits:
        return None
    tensors = [*args, *[kwargs[n] for n in form.tensors], *results]
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
        scalars: tuple[object, ...] = ()
        if form.scalars:
            scalars = tuple([_told(kwargs[n]) for n in form.scalars])
            if form.by_scalars:
                key.append(scalars)
        for n in form.others:
            key += type(kwargs[n]), kwargs[n]
        hash(scalars)
    except (RuntimeError, TypeError, ValueError):  # a tensor without strides, or a scalar that is none
        return None
    return Look(form, tuple(key), scalars, tensors, addresses)


def _told(value: Any) -> object:
    """A scalar, told apart from those that only compare equal: True from 1, -0.0 from 0.0."""
    return type(value), value or repr(value)


def _is_of_torch(kind: type, x: Any) -> bool:
    if library_of(x) == "torch":
        _of_torch.add(kind)
    return kind in _of_torch


# ------------------------------------------------------------------ how it is repeated
class Frame:
    """The parameter of a call's kernels, and their launches that read it. One call at a time has a frame."""

    __slots__ = ("launches", "parameter")

    def __init__(self, ready: Ready, scalars: bytes, count: int) -> None:
        packed = ready.head + bytes(8 * count) + ready.middle + scalars + bytes(8)
        self.parameter = (ctypes.c_char * len(packed)).from_buffer_copy(packed)
        self.launches: tuple[Launcher, ...] = launchers(ready, self.parameter)


@dataclass(slots=True)
class Recipe:
    """A call of one kind, all but addresses and host scalars."""

    kernel: GpuKernel
    shape: tuple[int, int]
    ready: Ready
    device: int
    checks: Checks
    inputs: tuple[int, ...]  # for each tensor of the kernel, its place among the caller's
    results: tuple[tuple[int, Any, Any], ...]  # the same, or -1; a new one's pattern; and the dtype it is turned to
    meetings: tuple[tuple[int, int, int, int], ...]  # two of the caller's tensors that must lie apart, and their bytes
    room: Any  # the pattern of workspace, or None
    turns: bool  # whether there is a dtype among the results
    words: struct.Struct  # the addresses of the kernel's tensors
    empty_like: Callable[[Any], Any]
    stream: Callable[[int], int]  # the current one of a device
    frames: dict[object, list[Frame]] = field(default_factory=dict)  # free ones, by host scalars

    def apart(self, addresses: list[int]) -> bool:
        """Whether what is written lies apart from all else, as ranges of addresses; if not, the full checks decide."""
        for a, of_a, b, of_b in self.meetings:
            if addresses[a] < addresses[b] + of_b and addresses[b] < addresses[a] + of_a:
                return False
        return True

    def run(self, look: Look, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Put one call into the current stream."""
        free = self.frames.get(look.scalars)
        if free is None:
            if len(self.frames) >= MOST_SCALARS:
                self.frames.clear()
            free = self.frames[look.scalars] = [self._frame(args, kwargs)]
        try:
            frame = free.pop()
        except IndexError:  # others run the same call now
            frame = self._frame(args, kwargs)
        addresses, empty_like = look.addresses, self.empty_like
        words = [addresses[i] for i in self.inputs]
        made = []
        for place, pattern, _ in self.results:
            x = look.tensors[place] if pattern is None else empty_like(pattern)
            made.append(x)
            words.append(x.data_ptr())
        self.words.pack_into(frame.parameter, len(self.ready.head), *words)
        if self.room is not None:
            room = empty_like(self.room)
            _word.pack_into(frame.parameter, len(frame.parameter) - 8, room.data_ptr())
        stream = self.stream(self.device)
        for launch in frame.launches:
            launch(stream)
        free.append(frame)
        if self.turns:
            made = [self._turned(x, look, *rest) for x, rest in zip(made, self.results, strict=True)]
        return made[0] if len(made) == 1 else tuple(made)

    @staticmethod
    def _turned(x: Any, look: Look, place: int, pattern: Any, dtype: Any) -> Any:
        if dtype is None:
            return x
        return x.to(dtype) if place < 0 else look.tensors[place].copy_(x)

    def check(self, look: Look, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Look at what a call's indices and numbers are now, which waits for the stream. Raises ArgumentError."""
        params = self._params(args, kwargs)
        addresses = {t.name: look.addresses[i] for t, i in zip(self.kernel.graph.inputs, self.inputs, strict=True)}
        self.checks(addresses, params, self.stream(self.device))

    def _params(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
        _, params, _ = bind(self.kernel.operator, args, kwargs)
        check_params(self.kernel.operator, params)
        return params

    def _frame(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Frame:
        params = self._params(args, kwargs)
        scalars = self.kernel.scalar_bytes(self.kernel.scalar_table(*self.shape, params))
        return Frame(self.ready, scalars, len(self.inputs) + len(self.results))


_word = struct.Struct("<q")


def recipe_of(
    kernel: GpuKernel, shape: tuple[int, int], lead: tuple[int, ...], entries: int, ready: Ready, device: int,
    look: Look, theirs: Mapping[str, Any], example: Any, checks: Checks,
) -> Recipe:  # fmt: skip
    """The recipe of a call that was checked and needs no copies. ``theirs`` are the results that the caller gave."""
    torch = sys.modules["torch"]
    graph, at = kernel.graph, {name: i for i, name in enumerate(look.form.named)}
    fresh = [o.name for o in graph.outputs if not o.inplace]
    results, written = [], []
    for o in graph.outputs:
        place = at[o.name] if o.inplace else at[fresh.index(o.name)] if o.name in theirs else -1
        dtype = torch.int32 if o.name in kernel.operator.contract.places else None
        pattern = None
        if place < 0 or dtype is not None:
            stored_as = getattr(torch, FORMATS[o.format].dtype.name)
            pattern = _pattern(example, full_shape(o, lead, shape, entries), stored_as)
        results.append((place, pattern, dtype))
        written += [place] * (place >= 0)
    bytes_of = [0 if x is None else _extent(x) for x in look.tensors]
    meetings = [
        (w, bytes_of[w], i, bytes_of[i]) for w in written for i in range(len(bytes_of))
        if bytes_of[i] and i != w and not (i in written and i < w)
    ]  # fmt: skip
    room = _pattern(example, (ready.workspace,), torch.uint8) if ready.workspace else None
    inputs = tuple(at[t.name] for t in graph.inputs)
    return Recipe(
        kernel, shape, ready, device, checks, inputs, tuple(results), tuple(meetings), room,
        any(dtype is not None for _, _, dtype in results), struct.Struct(f"<{len(inputs) + len(results)}q"),
        torch.empty_like, torch_streams(),
    )  # fmt: skip


def _extent(x: Any) -> int:
    """Bytes from the first to behind the last element."""
    return int(x.element_size() * (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))))


def _pattern(example: Any, shape: Sequence[int], dtype: Any) -> Any:
    """A tensor for `empty_like`, which takes half the time of `new_empty`; it holds no memory."""
    made = example.new_empty(tuple(shape), dtype=dtype)
    made.untyped_storage().resize_(0)
    return made


class Recipes:
    """The recipes that are known."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Recipe] = {}

    def find(self, look: Look) -> Recipe | None:
        """The recipe of a call, if it was seen and what it writes lies apart. Raises TypeError for an option that
        cannot be hashed."""
        found = self._known.get(look.key)
        return found if found is not None and found.apart(look.addresses) else None

    def keep(self, look: Look, recipe: Recipe) -> None:
        """For later calls."""
        if len(self._known) >= MOST_RECIPES:
            self._known.clear()
        self._known[look.key] = recipe


__all__ = ["Look", "Recipe", "Recipes", "look_at", "recipe_of"]
