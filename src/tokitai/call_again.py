"""A call on arrays of NumPy of a kind that was seen before.

The first call of a kind is checked in full by `call`, and what it found is kept as a *recipe*: the kernel, the sizes,
and what new results look like. A later call with arrays of the same formats, sizes, strides and flags only puts
addresses and scalars together. What may differ between such calls is looked at each time: where arrays lie, and the
integers in them that choose a column or an entry.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .binding import bind, check_params
from .device import cpu
from .formats import FORMATS
from .kernel import Array, Kernel, Scalars
from .lang import Operator

MOST_RECIPES = 4096
MOST_SCALARS = 256  # sets of host scalars that a recipe keeps
KEPT_ROOM = 1 << 20  # bytes of workspace that may be kept from call to call
ALONE = 1 << 16  # bytes that one thread works through before another has woken up


class Seen:
    """What a call looks like whose arrays are all NumPy's."""

    __slots__ = ("addresses", "key", "names", "params", "tensors")

    addresses: list[int]
    key: tuple[object, ...]
    names: list[object]  # of the tensors: of inputs, and places in ``out``
    params: tuple[object, ...]
    tensors: list[Array]

    @classmethod
    def of(cls, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> Seen | None:
        """None where there is anything else, and where only the full checks can judge."""
        declared, scalars, refused = _declared(operator)
        if refused or len(args) > len(declared):
            return None
        key: list[Any] = [operator]
        names: list[object] = []
        tensors: list[Any] = []
        params: list[object] = []
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
                params += name, type(x), x if x else str(x)  # 0.0 and -0.0 are equal, and differ
            else:
                key += name, type(x), x
        if out is not None:
            several = isinstance(out, (tuple, list))
            for i, x in enumerate(out if several else (out,)):
                if x is not None:
                    names.append(i)
                    tensors.append(x)
            key.append(len(out) if several else -1)
        for x in tensors:
            if type(x) is not np.ndarray:
                return None
            key += x.dtype, x.shape, x.strides, x.flags.num
        made = cls()
        made.params = tuple(params)
        key += names
        made.key = (*key, made.params) if operator.contract.switches else tuple(key)
        made.tensors, made.names = tensors, names
        made.addresses = [cpu.address_of(x) for x in tensors]
        return made


_declarations: dict[Operator, tuple[tuple[str, ...], frozenset[str], bool]] = {}


def _declared(operator: Operator) -> tuple[tuple[str, ...], frozenset[str], bool]:
    """Names of tensors and of scalars; and whether every call must be checked in full: lists, results whose size is a
    scalar, and what must hold no NaN."""
    found = _declarations.get(operator)
    if found is None:
        names, limits = tuple(t.name for t in operator.tensors), operator.contract
        scalars = frozenset(p.name for p in operator.params)
        refused = limits.max_rows == 1 or "entries" in scalars or bool(limits.no_nan or limits.places)
        found = _declarations[operator] = names, scalars, refused
    return found


@dataclass(slots=True)
class Result:
    """What a new result looks like, or which of the caller's arrays it is."""

    place: int  # among the caller's arrays, -1 for a new one
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(slots=True)
class Known:
    """Sizes and scalars as the kernel takes them, and scalars by name."""

    sizes: Any  # an array of ctypes
    table: Array
    address: int  # of the table
    params: Mapping[str, float]


@dataclass(slots=True)
class Recipe:
    """A call of one kind, all but addresses and scalars."""

    kernel: Kernel
    shape: tuple[int, int]
    entries: int
    inputs: tuple[int, ...]  # for each tensor of the kernel, its place among the caller's
    results: tuple[Result, ...]
    extents: tuple[int, ...]  # bytes from the first to behind the last element of each of the caller's arrays
    tensors: Any  # the ctypes array of their addresses
    strides: tuple[int, ...]  # the sizes of a launch, but for whole scalars
    alone: bool  # so small that more threads would only make it slower
    scalars: dict[object, Known] = field(default_factory=dict)
    rooms: dict[int, list[tuple[Array, int]]] = field(default_factory=dict)

    def apart(self, addresses: list[int]) -> bool:
        """Whether what is written lies apart from all else, as ranges of addresses; if not, the full checks decide."""
        for result in self.results:
            if (w := result.place) >= 0:
                begin, end = addresses[w], addresses[w] + self.extents[w]
                for i, address in enumerate(addresses):
                    if i != w and begin < address + self.extents[i] and address < end:
                        return False
        return True

    def prepared(self, seen: Seen, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Known:
        """The scalars of a call. Raises ArgumentError for one that cannot be."""
        found = self.scalars.get(seen.params)
        if found is None:
            operator = self.kernel.operator
            _, params, _ = bind(operator, args, kwargs)
            check_params(operator, params)
            made = self.kernel.scalar_table(*self.shape, params)
            sizes = (*self.strides, *made.whole)
            found = Known((ctypes.c_int64 * len(sizes))(*sizes), made.table, made.table.ctypes.data, params)
            if len(self.scalars) >= MOST_SCALARS:
                self.scalars.clear()
            self.scalars[seen.params] = found
        return found

    def run(self, seen: Seen, known: Known, wanted: int | None) -> Any:
        """Run it, in the ``wanted`` number of threads."""
        threads = wanted or (1 if self.alone else cpu.default_threads())
        addresses = seen.addresses
        ordered, made = [addresses[i] for i in self.inputs], []
        for result in self.results:
            if result.place >= 0:
                made.append(seen.tensors[result.place])
                ordered.append(addresses[result.place])
            else:
                array, address = cpu.placed_empty(result.shape, result.dtype)
                made.append(array)
                ordered.append(address)
        rooms = self.rooms.setdefault(threads, [])
        try:
            room = rooms.pop()
        except IndexError:  # all are in use by other threads
            room = cpu.placed_empty((self.kernel.workspace_bytes([self.shape], threads, 0),), np.dtype(np.uint8))
        self.kernel.launch_prepared(self.tensors(*ordered), known.sizes, known.address, room[1], threads)
        if room[0].size <= KEPT_ROOM:
            rooms.append(room)
        return made[0] if len(made) == 1 else tuple(made)


_recipes: dict[tuple[object, ...], Recipe] = {}


def recipe_for(seen: Seen) -> Recipe | None:
    """What is known of such a call; None where it has to be checked in full."""
    try:
        found = _recipes.get(seen.key)
        hash(seen.params)
    except TypeError:  # an option or a scalar that cannot be hashed, and so is none
        return None
    return found if found is not None and found.apart(seen.addresses) else None


def forget() -> None:
    """Let every call be checked in full again."""
    _recipes.clear()


def remember(
    seen: Seen, kernel: Kernel, shape: tuple[int, int], entries: int, flat: Mapping[str, Array],
    results: Mapping[str, Array], full: Mapping[str, tuple[int, ...]], supplied: Mapping[str, Any],
) -> None:  # fmt: skip
    """Keep what a call that was checked has found, unless it copied anything or had nothing to do. ``flat`` and
    ``results`` are the arrays as the kernel has them, ``full`` the shapes of results as the caller sees them."""
    at = {name: i for i, name in enumerate(seen.names)}
    fresh = [o.name for o in kernel.graph.outputs if not o.inplace]
    place = {n: at[n] for n in flat} | {n: at[fresh.index(n)] for n in supplied if n in fresh}
    where = {**flat, **{n: results[n] for n in supplied if n in fresh}}
    copied = any(cpu.address_of(array) != seen.addresses[place[n]] for n, array in where.items())
    odd = any(not x.flags.aligned or min(x.strides, default=0) < 0 for x in seen.tensors)
    if copied or odd or all(r.size == 0 for r in results.values()):
        return
    sizes = kernel.sizes_of([flat], [results], [shape], Scalars(np.empty(0, np.float32)))
    outputs = kernel.graph.outputs
    extents = tuple(
        x.itemsize + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)) if x.size else 0
        for x in seen.tensors
    )
    made = tuple(Result(place.get(o.name, -1), full[o.name], FORMATS[o.format].dtype) for o in outputs)
    if len(_recipes) >= MOST_RECIPES:
        _recipes.clear()
    inputs = tuple(at[t.name] for t in kernel.graph.inputs)
    array = ctypes.c_void_p * (len(inputs) + len(outputs))
    alone = sum(x.nbytes for x in (*flat.values(), *results.values())) <= ALONE
    _recipes[seen.key] = Recipe(kernel, shape, entries, inputs, made, extents, array, tuple(sizes), alone)
