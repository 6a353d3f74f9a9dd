"""Run an element-wise operator on lists of tensors: one launch for all of them.

``prepare`` checks a list once and keeps what a launch needs, for lists that stay where they are from step to step, as
an optimizer's do; the returned object is called with the scalars alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy as copy_of
from typing import Any, Generic, Self, TypeVar

import numpy as np

from ..arrays.adapter import Arrays, Made
from ..arrays.libraries import library_of, written
from ..errors import ArgumentError
from ..formats import FORMATS
from ..lang import Graph, Operator, Output
from .kernel import KernelBase
from .results import refuse_read_only

Array = np.ndarray[Any, Any]


class Prepared:
    """Lists of tensors that have been checked, and the kernel for them. They must not be resized or freed meanwhile."""

    layout: CheckedLists[Any] | None = None  # what is known of all lists like these

    def __init__(
        self, operator: Operator, kernel: KernelBase, lists: Mapping[str, Sequence[Any]], arrays: Arrays,
        copy: bool = True,
    ) -> None:  # fmt: skip
        self.arrays = arrays
        self.operator, self.kernel, self.lists = operator, kernel, lists
        count = len(next(iter(lists.values())))
        given = {name: [arrays.view(name, v) for v in values] for name, values in lists.items()}
        first, examples = next(iter(given.items()))
        for name, values in given.items():
            for i, (a, example) in enumerate(zip(values, examples, strict=True)):
                if a.shape != example.shape:
                    found = f"{name}[{i}]: shape {a.shape}"
                    raise ArgumentError(f"{found}; accepted beside {first}[{i}]: {example.shape}")
        views = {
            n: [self.flat(f"{n}[{i}]", a, lists[n][i], copy) for i, a in enumerate(values)]
            for n, values in given.items()
        }
        sizes = [a.size for a in examples]
        self.shapes = [(1, n) for n in sizes]
        self.counted = counted(operator, kernel.graph, [a.shape for a in examples])
        self.made: dict[str, list[Made]] = {}
        addresses = {name: [_address(a) for a in flat] for name, flat in views.items()}
        out: list[list[int]] = []
        for o in kernel.graph.outputs:
            if o.inplace:
                for i, a in enumerate(views[o.name]):
                    refuse_read_only(f"{o.name}[{i}]", lists[o.name][i], given[o.name][i])
                    if a.size and not np.may_share_memory(a, given[o.name][i]):
                        found = f"{o.name}[{i}]: strides {given[o.name][i].strides} of shape {given[o.name][i].shape}"
                        raise ArgumentError(f"{found}; accepted for a result: contiguous, aligned arrays")
                out.append(addresses[o.name])
            elif o.space == "s":
                self.made[o.name] = [self.new(o, ())]
                out.append([_address(self.made[o.name][0].array)] * count)
            else:
                self.made[o.name] = [self.new(o, a.shape) for a in examples]
                out.append([_address(m.array) for m in self.made[o.name]])
        _check_disjoint(views, [o.name for o in kernel.graph.outputs if o.inplace])
        columns = [addresses[t.name] for t in kernel.graph.inputs] + out
        self.addresses = [address for row in zip(*columns, strict=True) for address in row]
        matrices = sum(t.space == "rc" for t in kernel.graph.inputs) + sum(
            o.space == "rc" for o in kernel.graph.outputs
        )
        self.sizes = [count] + [v for n in sizes for v in (1, n, *([n] * matrices))]
        self._alive = views  # copies and views that the addresses point into
        self.names = [t.name for t in kernel.graph.inputs] + [o.name for o in kernel.graph.outputs]
        outputs = enumerate(kernel.graph.outputs, len(kernel.graph.inputs))
        self.single = [(k, o) for k, o in outputs if o.space == "s" and not o.inplace]
        self.movable = not arrays.copies and set(self.made) == {o.name for _, o in self.single}  # as CheckedLists

    def for_tensors(self, lists: Mapping[str, Sequence[Any]], addresses: Array, example: Any) -> Self:
        """The same for other tensors of the same formats and sizes; this object stays as it is."""
        other = copy_of(self)
        other.lists, other._alive, other.arrays = lists, {}, self.arrays.beside_example(example)
        if example is not None:
            other.made = {o.name: [other.new(o, ())] for _, o in self.single}
        other.lie_at(addresses)
        return other

    def lie_at(self, addresses: Array) -> None:
        """Take the addresses of the kernel's tensors, those of a list's first tensors first."""
        for k, o in self.single:
            addresses[k :: len(self.names)] = _address(self.made[o.name][0].array)
        self.addresses = addresses.tolist()

    def flat(self, name: str, array: Array, x: Any, copy: bool) -> Array:
        """Contiguous, aligned and flattened: a view where that is possible, else a copy or ArgumentError."""
        plain = bool(array.flags.c_contiguous and array.flags.aligned)
        if not copy and not plain:
            found = f"{name}: strides {array.strides} of shape {array.shape} need a copy"
            raise ArgumentError(f"{found}; accepted with copy=False: contiguous, aligned arrays")
        return (array if plain else self.arrays.copied(name, x, array)).reshape(-1)

    def new(self, o: Output, shape: tuple[int, ...]) -> Made:
        """A result for a tensor."""
        return self.arrays.empty(o.name, shape, FORMATS[o.format].dtype)

    def __call__(self, params: Mapping[str, float], threads: int) -> Any:
        """Run with these host scalars. Returns the lists that were replaced, and the lists and values that are new; new
        lists lie in memory that the next call writes again."""
        scalars = self.kernel.scalar_table(*self.counted, params)
        if self.shapes:
            self.kernel.launch_raw(self.addresses, [*self.sizes, *scalars.whole], self.shapes, scalars.table, threads)
        elif any(o.space == "s" for o in self.kernel.graph.outputs):
            raise ArgumentError(
                f"{self.operator.name}: an empty list; accepted: at least one tensor, which may be empty"
            )
        return self.returned()

    def returned(self) -> Any:
        """What a call returns once it has been launched."""
        returned: list[Any] = []
        for o in self.kernel.graph.outputs:
            if o.inplace:
                returned.append(self.lists[o.name])
            elif o.space == "s":
                returned.append(self._separate(o))
            else:
                returned.append([self.arrays.returned(made) for made in self.made[o.name]])
        written(x for o in self.kernel.graph.outputs if o.inplace for x in self.lists[o.name])
        return returned[0] if len(returned) == 1 else tuple(returned)

    def _separate(self, o: Output) -> Any:
        """A value that the next call does not write again."""
        (made,) = self.made[o.name]
        copy = self.arrays.separate(made)
        if copy is not None:
            return copy
        self.made[o.name] = [self.new(o, ())]
        return self.arrays.returned(made)


def counted(operator: Operator, graph: Graph, shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Rows and columns as a definition counts them in a list, whose tensors share the call's host scalars: those of a
    call on each, with one row where the operator takes no more. Raises ArgumentError where a definition counts them
    and tensors differ."""
    asked = [k for k, op in enumerate(("rows", "columns")) if any(n.op == op for n in graph.nodes)]
    if not asked:
        return 1, 1
    flat = operator.contract.lists
    sizes = [(1, math.prod(s)) if flat else (math.prod(s[:-1]), s[-1] if s else 1) for s in shapes]
    for size in sizes:
        if any(size[k] != sizes[0][k] for k in asked):
            words = " and ".join(("rows", "columns")[k] for k in asked)
            raise ArgumentError(
                f"{operator.name}: counts {words}, and the tensors of the list have {sizes[0][0]} x {sizes[0][1]} and "
                f"{size[0]} x {size[1]}; accepted: lists of tensors of one size"
            )
    return sizes[0] if sizes else (1, 1)


def prepare(
    operator: Operator,
    given: Mapping[str, Any],
    build: Callable[[Mapping[str, Array]], KernelBase],
    arrays: Arrays,
    copy: bool = True,
    prepared: type[Prepared] = Prepared,
) -> Prepared:
    """Check lists of tensors. ``build`` gives the kernel for the formats of the first tensors.

    Raises ArgumentError for lists of different lengths, mixed formats, shapes that do not agree, an operator that works
    on rows, and with ``copy=False`` for tensors that are not contiguous.
    """
    lengths = {}
    for name, values in given.items():
        if not isinstance(values, (list, tuple)):
            raise ArgumentError(f"{name}: {type(values).__name__} beside lists; accepted: a list of tensors")
        lengths[name] = len(values)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{n} has {k}" for n, k in lengths.items())
        raise ArgumentError(f"{operator.name}: {found}; accepted: lists of one length")
    firsts = {n: arrays.view(n, v[0]) if v else np.empty(0, _default(operator, n)) for n, v in given.items()}
    kernel = build(firsts)
    if not kernel.plan.flat:
        raise ArgumentError(f"{operator.name}: works on rows; accepted: one tensor, lists for element-wise operators")
    for name, values in given.items():
        for i, value in enumerate(values):
            dtype = arrays.view(name, value).dtype
            if dtype != firsts[name].dtype:
                raise ArgumentError(f"{name}[{i}]: format {dtype}; accepted beside {name}[0]: {firsts[name].dtype}")
    return prepared(operator, kernel, given, arrays, copy)


P = TypeVar("P", bound=Prepared)


class CheckedLists(Generic[P]):
    """Lists of torch's tensors that were checked, without the tensors: those of the same formats and shapes need not be
    checked in full. Results are written in place of inputs, or are single numbers."""

    disjoint = True

    def __init__(self, made: P, given: Mapping[str, Sequence[Any]]) -> None:
        self.bare = made.for_tensors({}, np.empty(0, np.int64), None)
        self.items = np.array([[values[0].element_size()] for values in given.values()], np.int64)
        self.counts = np.array([n for _, n in made.shapes], np.int64)
        at = {name: i for i, name in enumerate(given)}
        self.order = [at.get(name, 0) for name in made.names]  # that of a single result follows
        made.layout = self.bare.layout = self

    def is_disjoint(self, addresses: Array) -> bool:
        """Whether no two tensors share memory, as far as a quick look tells, and all are aligned."""
        begin, size = addresses.ravel(), (self.items * self.counts).ravel()
        order = np.argsort(begin, kind="stable")
        order = order[size[order] > 0]
        begin, end = begin[order], begin[order] + size[order]
        shared = (begin[1:] < np.maximum.accumulate(end)[:-1]).any() or not begin.all()
        return not shared and not (addresses % self.items).any()

    def with_tensors(self, given: Mapping[str, Sequence[Any]], addresses: Array) -> P:
        """The same for other tensors, at these addresses."""
        return self.bare.for_tensors(given, addresses[self.order].T.ravel(), next(iter(given.values()))[0])


def _libraries(values: Sequence[Any]) -> set[str]:
    return {library_of(x) for x in {type(x): x for x in values}.values()}


def signature_of_lists(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object]
) -> tuple[tuple[object, ...], Array] | None:
    """The layout of lists of torch tensors as a key, and their addresses. None where there are other arrays."""
    key: list[object] = [operator, *sorted(options.items())]
    addresses, shapes = [], None
    for name, values in given.items():
        if not isinstance(values, (list, tuple)) or any(library != "torch" for library in _libraries(values)):
            return None
        try:
            each = [
                (x.data_ptr(), x.shape, x.dtype, x.get_device(), x.requires_grad or x.is_neg(), x.is_contiguous())
                for x in values
            ]
        except RuntimeError:  # a tensor without memory
            return None
        if not each:
            return None
        where, these, formats, devices, odd, contiguous = zip(*each, strict=True)
        if any(odd) or not all(contiguous) or shapes not in (None, these):
            return None
        if formats.count(formats[0]) + devices.count(devices[0]) != 2 * len(each):
            return None
        shapes = these
        addresses.append(where)
        key += name, formats[0], devices[0]
    return (*key, shapes), np.array(addresses, np.int64)


def _default(operator: Operator, name: str) -> Any:
    spec = next(t for t in operator.tensors if t.name == name)
    return FORMATS[operator.contract.formats[0] if spec.format == "storage" else str(spec.format)].dtype


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _check_disjoint(arrays: Mapping[str, Sequence[Array]], written: Sequence[str]) -> None:
    """What is written must not overlap anything else: checked by sorting the ranges. Raises ArgumentError."""
    ranges = sorted(
        (_address(a), _address(a) + a.nbytes, name in written, f"{name}[{i}]")
        for name, made in arrays.items()
        for i, a in enumerate(made)
        if a.nbytes
    )
    furthest = {True: (0, ""), False: (0, "")}  # the end of the ranges so far that are written, and that are only read
    for begin, end, writes, one in ranges:
        for against in (True, False) if writes else (True,):
            reached, other = furthest[against]
            if begin < reached:
                raise ArgumentError(f"{one}: overlaps {other}; accepted: memory of its own for what is written")
        furthest[writes] = max(furthest[writes], (end, one))
