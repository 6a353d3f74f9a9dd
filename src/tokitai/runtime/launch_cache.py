"""The launch cache: the first call of a kind settles all but addresses and host scalars, and later calls replay it.

A `CallSignature` decides whether calls are of one kind: formats, shapes, strides, devices, alignment, options, and how
the call is written. A `Replay` is what the first call, which is checked in full, has found: the kernel, its sizes, and
the layout of new results and of copies. What may differ between calls of one signature is checked each time: whether
tensors have memory, need a gradient or are negated, whether what is written is disjoint from all else, the scalars, and
indices.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..arrays.libraries import holds_its_elements, written
from ..arrays.results import NewArray, contiguous_copy
from ..backends.cpu import device as cpu
from ..lang import Graph, Operator
from .binding import MOST_CALLS, MOST_SCALARS, Form, bind, check_params, form_of
from .kernel import KernelBase

ALIGNED = 15  # kernels choose their accesses by addresses' remainders by 16


# ------------------------------------------------------------------ signatures
class CallSignature(NamedTuple):
    """A call whose arrays are all NumPy's or torch's. Optional tensors that are None count as arrays at address 0."""

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
    """None where a call has arrays of other libraries, lists, or what only the full checks can judge."""
    form, results = form_of(operator, args, kwargs, out)
    if not form.cacheable:
        return None
    named = form.tensors
    tensors = [*args, *[kwargs[n] for n in named], *results] if named else [*args, *results] if results else list(args)
    key: list[Any] = [form]
    addresses: list[int] = []
    low = 0
    try:
        for x in tensors:
            kind = type(x)
            if kind is np.ndarray:
                addresses.append(cpu.address_of(x))
                key += x.dtype, x.shape, x.strides, x.flags.num
            elif kind in _of_torch or _is_of_torch(kind, x):
                address = x.data_ptr()
                if not address or x.requires_grad or x.is_neg():
                    return None
                addresses.append(address)
                low |= address
                key += kind, x.dtype, x.shape, x.is_contiguous() or x.stride(), x.get_device()
            elif x is None:
                addresses.append(0)
                key.append(None)
            else:
                return None
        if low & ALIGNED:
            key += [address & ALIGNED for address in addresses]
        scalars = form.scalar_key(kwargs)
        if form.by_scalars:
            key.append(scalars)
        for n in form.others:
            hash(kwargs[n])
            key += type(kwargs[n]), kwargs[n]
    except (RuntimeError, TypeError, ValueError):  # a tensor without memory or strides, or an option that is none
        return None
    return _signature((form, tuple(key), scalars, tensors, addresses))


def _is_of_torch(kind: type, x: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and holds_its_elements(x):
        _of_torch.add(kind)
    return kind in _of_torch


# ------------------------------------------------------------------ replays
class Launch(Protocol):
    """The kernels of a call, with all settled but addresses and host scalars."""

    on_device: bool
    checks: bool  # whether values have to be checked before each launch

    @property
    def kernel(self) -> KernelBase:
        """What is launched."""

    def scalars_of(self, params: Mapping[str, float]) -> Any:
        """The host scalars that follow from those of a call, as the launch takes them."""

    def check(self, signature: CallSignature, addresses: list[int], scalars: Any) -> None:
        """Check the values of arrays that choose elements; inputs lie at ``addresses``. Raises ArgumentError."""

    def __call__(self, scalars: Any, addresses: Any, threads: int | None) -> None:
        """Launch on tensors, inputs first, that lie at these addresses."""


@dataclass(slots=True)
class Replay:
    """A call of one signature, all but addresses and host scalars."""

    launch: Launch
    inputs: tuple[int, ...]  # for each tensor of the kernel, its place among the caller's
    results: tuple[tuple[int, Any, Callable[[], tuple[Any, int]] | None], ...]  # the same, or how a new one is made
    columns: tuple[Callable[[Any, list[Any]], Any] | None, ...]  # what makes column indices of results; mostly none
    disjoint: tuple[tuple[int, int, int, int, int], ...]  # two that may not overlap, their bytes, their distance here
    versions: tuple[int, ...]  # places of torch tensors that are written
    empty_like: Callable[[Any], Any] | None  # torch's, where a result is made by it
    on_device: bool
    copies: tuple[tuple[int, tuple[int, ...] | None], ...]  # inputs that are copied first, and to which shape
    scalars: dict[object, Any] = field(default_factory=dict)  # of the launch, by those of a call

    def is_disjoint(self, addresses: list[int]) -> bool:
        """Whether what is written is disjoint from all else: as ranges of addresses, or as the same views were at the
        same distance, which a full check has found disjoint. If not, a full check decides."""
        for a, of_a, b, of_b, distance in self.disjoint:
            apart = addresses[a] - addresses[b]
            if -of_a < apart < of_b and apart != distance:
                return False
        return True

    def new_scalars(self, signature: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute the host scalars of a call and cache them. Raises ArgumentError for one that is not accepted."""
        operator = self.launch.kernel.operator
        _, params, _ = bind(operator, args, kwargs)
        check_params(operator, params)
        found = self.launch.scalars_of(params)
        if len(self.scalars) >= MOST_SCALARS:
            self.scalars.clear()
        self.scalars[signature.scalars] = found
        return found

    def run(
        self, signature: CallSignature, args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: int | None,
        check: bool,
    ) -> Any:  # fmt: skip
        """Run a call; on a device, put it into the current stream."""
        launch = self.launch
        scalars = self.scalars.get(signature[2])
        if scalars is None:
            scalars = self.new_scalars(signature, args, kwargs)
        _, _, _, tensors, addresses = signature
        ordered = [addresses[i] for i in self.inputs]
        copies = []  # alive until the launch
        for k, shape in self.copies:
            x, ordered[k] = contiguous_copy(tensors[self.inputs[k]], shape)
            copies.append(x)
        if launch.checks and check:
            launch.check(signature, ordered, scalars)
        made: list[Any] = []
        for place, pattern, new in self.results:
            if pattern is not None:
                x = self.empty_like(pattern)  # type: ignore[misc]
                made.append(x)
                ordered.append(x.data_ptr())
            elif new is not None:
                x, address = new()
                made.append(x)
                ordered.append(address)
            else:
                made.append(tensors[place])
                ordered.append(addresses[place])
        launch(scalars, ordered, threads)
        recorder = CURRENT.recorder
        if recorder is not None:
            recorder.note(self, signature, scalars, ordered, made)
        if self.versions:
            written([tensors[i] for i in self.versions])
        if self.columns:
            made = [
                x if convert is None else convert(x, tensors) for x, convert in zip(made, self.columns, strict=True)
            ]
        return made[0] if len(made) == 1 else tuple(made)


class Recorder(Protocol):
    """Notes the launches of a thread."""

    def note(
        self, replay: Replay, signature: CallSignature, scalars: Any, addresses: list[int], made: list[Any]
    ) -> None:
        """A replay was launched, of inputs and results at these addresses."""

    def spoil(self) -> None:
        """A call was checked in full, or has a scalar in a tensor: replays do not tell all."""


class _Current(threading.local):
    recorder: Recorder | None = None


CURRENT = _Current()


def replay_of(
    signature: CallSignature, graph: Graph, supplied: Mapping[str, Any], launch: Launch,
    new: Mapping[str, NewArray], columns: Mapping[str, Callable[[int], Callable[[Any, list[Any]], Any]]],
    copies: Mapping[str, tuple[int, ...] | None],
) -> Replay:  # fmt: skip
    """The replay of a call that was checked. ``supplied`` are the results that the caller gave, ``new`` how each of the
    others is made, ``columns`` for results that are column indices what makes them, given the place of the caller's
    own, or -1; ``copies`` are the inputs that were copied, and the shapes to which they were broadcast."""
    at = {name: i for i, name in enumerate(signature.form.named)}
    fresh = [o.name for o in graph.outputs if not o.inplace]
    places = [at[o.name] if o.inplace else at[fresh.index(o.name)] if o.name in supplied else -1 for o in graph.outputs]
    taken = [w for w in places if w >= 0]
    bytes_of = [_bytes_spanned(x) for x in signature.tensors]
    disjoint = [
        (w, bytes_of[w], i, bytes_of[i], signature.addresses[w] - signature.addresses[i])
        for w in taken for i in range(len(bytes_of))
        if bytes_of[i] and i != w and not (i in taken and i < w)
    ]  # fmt: skip
    results = []
    for o, place in zip(graph.outputs, places, strict=True):
        made = new[o.name] if place < 0 or o.name in columns else NewArray(None, None)
        results.append((place, made.pattern, made.make))
    convert = tuple(
        columns[o.name](place) if o.name in columns else None for o, place in zip(graph.outputs, places, strict=True)
    )
    torch = sys.modules.get("torch")
    return Replay(
        launch, tuple(at[t.name] for t in graph.inputs), tuple(results), convert if any(convert) else (),
        tuple(disjoint), tuple(w for w in taken if type(signature.tensors[w]) is not np.ndarray),
        None if torch is None else torch.empty_like, launch.on_device,
        tuple((k, copies[t.name]) for k, t in enumerate(graph.inputs) if t.name in copies),
    )  # fmt: skip


def _bytes_spanned(x: Any) -> int:
    """From the first to behind the last element, of strides that are not negative; 0 where there is none."""
    if x is None:
        return 0
    numpys = type(x) is np.ndarray
    item = x.itemsize if numpys else x.element_size()
    strides = x.strides if numpys else [s * item for s in x.stride()]
    return 0 if 0 in x.shape else int(item + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)))


class Cached(Protocol):
    """What the cache holds: a `Replay`, or lists of tensors that were checked."""

    disjoint: Any  # empty where nothing is written

    def is_disjoint(self, addresses: Any) -> bool:
        """Whether tensors at these addresses may be written without a full check."""


class LaunchCache:
    """What full checks have found, by the keys of signatures."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Cached] = {}
        self.programs: dict[tuple[object, ...], Any] = {}  # of functions that make several of these calls
        self.guards: dict[tuple[object, ...], Any] = {}  # by which such functions know a call again

    def find(self, key: tuple[object, ...], addresses: Any) -> Any:
        """What was kept under the key; None where a call has to be checked in full."""
        found = self._found.get(key)
        return found if found is None or not found.disjoint or found.is_disjoint(addresses) else None

    def keep(self, key: tuple[object, ...], found: Cached) -> None:
        """For later calls."""
        if len(self._found) >= MOST_CALLS:
            self._found.clear()
        self._found[key] = found

    def clear(self) -> None:
        """Let every call be checked in full again."""
        self._found.clear()
        self.programs.clear()
        self.guards.clear()


LAUNCHES = LaunchCache()
