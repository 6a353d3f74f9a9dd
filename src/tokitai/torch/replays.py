"""Functions whose calls are recorded, and repeated as launches alone where nothing but autograd would see more.

A call of `functional` costs the host several times what its launch does: arguments are checked, autocast and contexts
are asked, an operator is chosen and its arguments are bound. All of that follows from the layouts of the tensors, from
the other arguments and from a few states of torch. These are the key under which the second call of a kind is recorded
as a `Program`; a later one packs addresses and launches. Under autograd the program is the forward pass of one node,
and the gradients of that node are recorded and repeated in the same way. To make the key takes longer than to launch:
a `_Guard` compares a call with one of a kind that was seen, all tensors in one step of torch's own.

What is not plain takes the function itself: tensors of other classes, devices or storages, modes, transforms, graphs
that are traced, autocast, the context `accumulate`, a recomputation within a backward pass, gradients of gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import is_, or_
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad

from ..runtime.binding import MOST_CALLS
from ..runtime.launch_cache import ALIGNED, CURRENT, LAUNCHES
from ..runtime.recording import Place, Program, Recording, gather
from .accumulators import CHOICE, in_force
from .dispatch import PLAIN, CustomOp, is_intercepted

# What the cache holds for a kind of call until, or because, it has no program; of copied arguments there may be one.
SEEN, REFUSED, COPIED = "seen", "refused", "copied"
_numbers = {bool, int, float, str, type(None)}
_shapes = {tuple, list, torch.Size}
MOST_GUARDS = 8  # that a call is compared with; of more kinds the key decides
_address: Callable[[Tensor], int] = Tensor.data_ptr
_autocast, _function_modes = torch._C._is_any_autocast_enabled, torch._C._len_torch_function_stack
_sloping, _graph = torch.is_grad_enabled, torch._C._current_graph_task_id


def _describe(values: Sequence[Any], key: list[Any], addresses: list[int]) -> bool | None:
    """Add to ``key`` all that a call may depend on but the elements of tensors, whose addresses go to ``addresses``.

    Whether a tensor requires a gradient; None where a value is neither a plain tensor of host memory nor a number, a
    word or a shape.
    """
    sloped, low = False, 0
    try:
        for x in values:
            kind = type(x)
            if kind in PLAIN:
                address = x.data_ptr()
                if not address or x.is_neg() or x.get_device() >= 0:
                    return None
                addresses.append(address)
                low |= address
                requires = x.requires_grad
                sloped = sloped or requires
                key += x.dtype, x.shape, x.is_contiguous() or x.stride(), requires
            elif kind in _numbers:
                key += kind, x or repr(x)  # True is not 1, and -0.0 is not 0.0
            elif kind in _shapes:
                if {*map(type, x)} != {int}:
                    return None
                key += kind, tuple(x)
            else:
                return None
    except RuntimeError:  # a tensor without memory or strides
        return None
    if low & ALIGNED:
        key += [address & ALIGNED for address in addresses]
    return sloped


class _Guard:
    """Whether a call is of the kind of one that was seen: its tensors are what torch.compile guards a graph on, all
    else is the same objects. A call that it does not take may be of the kind all the same; the key decides."""

    def __init__(self, values: Sequence[Any], found: _Replayed) -> None:
        tensors = [i for i, x in enumerate(values) if type(x) in PLAIN]
        others = [i for i in range(len(values)) if i not in tensors]
        self.found, self.tensors, self.others = found, gather(tensors), gather(others)
        self.same = self.others(values)
        sizes, strides = ([list(f(values[i])) for i in tensors] for f in (Tensor.size, Tensor.stride))
        guards: Any = TensorGuards
        given = self.tensors(values)
        self.check = guards(*given, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check

    @classmethod
    def add(cls, near: tuple[object, ...], values: Sequence[Any], found: _Replayed) -> None:
        """Compare later calls with one of ``values``, whose program was found by its key."""
        known = LAUNCHES.guards.get(near, ())
        lists = any(isinstance(x, list) for x in values)  # which may change
        if not lists and len(known) < MOST_GUARDS and all(g.found is not found for g in known):
            _keep(LAUNCHES.guards, near, (*known, cls(values, found)))


def _near(near: tuple[object, ...], values: Sequence[Any]) -> tuple[_Replayed, list[int]] | None:
    """The program of a call and the addresses of its tensors, by the guards that are known under ``near``."""
    # Of the states that `_is_plain` looks at, modes of dispatch, transforms, traces and autocast change the keys by
    # which torch dispatches a tensor, which guards compare.
    watched = CURRENT.recorder is not None or _function_modes() or forward_ad._current_level >= 0
    if watched or type(CHOICE.accumulator) is str:
        return None
    for guard in LAUNCHES.guards.get(near, ()):
        tensors = guard.tensors(values)
        if guard.check(*tensors) and all(map(is_, guard.others(values), guard.same)):
            addresses = [*map(_address, tensors)]
            return None if reduce(or_, addresses, 0) & ALIGNED or not all(addresses) else (guard.found, addresses)
    return None


def _is_plain() -> bool:
    """Whether the states of torch are those in which calls are recorded."""
    return not (CURRENT.recorder is not None or is_intercepted() or _autocast() or in_force() is not None)


@contextlib.contextmanager
def _recorded(tensors: Sequence[Tensor]) -> Iterator[_Recording]:
    recording = CURRENT.recorder = _Recording(tensors)
    try:
        yield recording
    finally:
        CURRENT.recorder = None


class _Recording(Recording):
    """Beside the launches, the custom ops that autograd differentiates."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        self.ops: list[tuple[CustomOp, tuple[Any, ...], Mapping[str, Any], Any]] = []


def _placed(recording: Recording, result: Any) -> tuple[Place | None, ...] | None:
    """Where each result comes from; None where a program cannot give one."""
    found = []
    for x in result if isinstance(result, tuple) else (result,):
        place = recording.place_of(x) if isinstance(x, Tensor) else None
        if x is not None and place is None:
            return None
        found.append(place)
    return tuple(found)


def _keep(known: dict[tuple[object, ...], Any], key: tuple[object, ...], value: Any) -> None:
    if len(known) >= MOST_CALLS:
        known.clear()
    known[key] = value


class _Replayed:
    """A program and what is returned of it."""

    def __init__(self, program: Program, places: Sequence[Place | None], several: bool) -> None:
        self.run, self.several = program.run, several
        self.places = [p if p is None or not p.made else p._replace(at=program.place[p.at]) for p in places]
        as_made = all(p is None or (p.made and p.shape is None) for p in self.places)
        self.pick = gather([-1 if p is None else p.at for p in self.places]) if as_made else None

    def __call__(self, addresses: list[int], values: Sequence[Any]) -> Any:
        """What a call gives of the tensors at ``addresses``, those of ``values``."""
        made: list[Any] = self.run(addresses)
        if self.pick is not None:
            found = self.pick((*made, None))
        else:
            tensors = _tensors(values)
            found = tuple(
                None if p is None else tensors[p.at] if not p.made else
                made[p.at] if p.shape is None else made[p.at].view(p.shape)
                for p in self.places
            )  # fmt: skip
        return found if self.several else found[0]


class ReplayedFunction:
    """A function whose calls are repeated as launches. Its results depend on elements of tensors through operators
    alone."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function gives."""
        if _graph() != -1:  # in a backward pass: a forward pass that is computed again
            return self.function(*args, **kwargs)
        values = (*args, *kwargs.values()) if kwargs else args
        near = (self, _sloping(), len(args), *kwargs)
        known = _near(near, values)
        if known is not None:
            return known[0](known[1], values)
        if not _is_plain():
            return self.function(*args, **kwargs)
        key: list[Any] = [self, len(args), *kwargs]
        addresses: list[int] = []
        sloped = _describe(values, key, addresses)
        if sloped is None:
            return self.function(*args, **kwargs)
        sloped = sloped and _sloping()
        key.append(sloped)
        kind = tuple(key)
        found = LAUNCHES.programs.get(kind)
        if isinstance(found, _Replayed):
            _Guard.add(near, values, found)
            return found(addresses, values)
        if found is None:
            _keep(LAUNCHES.programs, kind, SEEN)
        elif found is SEEN:
            return self._record(kind, values, args, kwargs, sloped)
        elif found is COPIED:
            return self(tuple(_dense(args)), dict(zip(kwargs, _dense(kwargs.values()), strict=True)))
        return self.function(*args, **kwargs)

    def _record(
        self, kind: tuple[object, ...], values: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any],
        sloped: bool,
    ) -> Any:  # fmt: skip
        tensors = _tensors(values)
        with _recorded(tensors) as recording:
            made = self.function(*args, **kwargs)
        if len(recording.slots) < len(tensors):  # tensors at one address: another call of the kind may be recorded
            return made
        places = _placed(recording, made)
        several = isinstance(made, tuple)
        found: Any = None
        if places is not None and sloped:
            found = _Node.of(recording, places, several, values)
        elif places is not None:
            program = recording.program({p.at for p in places if p is not None and p.made})
            found = None if program is None else _Replayed(program, places, several)
        _keep(LAUNCHES.programs, kind, _refusal(recording) if found is None else found)
        return made


def _refusal(recording: Recording) -> str:
    """Why there is no program."""
    strided = any(not x.is_contiguous() for x in recording.tensors)
    return COPIED if recording.copied and strided else REFUSED


def _dense(values: Iterable[Any]) -> list[Any]:
    """Values whose tensors are contiguous: launches on copies that torch makes can be repeated."""
    return [x.contiguous() if type(x) in PLAIN else x for x in values]


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [x for x in values if type(x) in PLAIN]


# ------------------------------------------------------------------ gradients
class _Kept:
    """What a custom op keeps for its gradients, in the place of an autograd function's context."""

    def __init__(self) -> None:
        self.saved: tuple[Tensor, ...] = ()
        self.constant: tuple[Tensor, ...] = ()
        self.zeros = True

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.zeros = value


class _Node(_Replayed):
    """A call that is one custom op on tensors of the caller, with a gradient: an autograd function of its own."""

    apply: Callable[..., Any]  # of that function
    op: CustomOp
    given: list[int]  # which of the op's arguments are tensors
    arguments: Callable[[Sequence[Any]], Sequence[Any]]  # these, of the caller's
    most: int  # arguments of the op
    results: int  # of the op
    returned: list[int]  # which of them the call returns
    saved: Callable[[Sequence[Any]], Sequence[Any]]  # of what is made and given
    constant: list[int]  # places among what is returned, without a gradient
    zeros: bool  # whether gradients of results that are not used are zeros
    kept: dict[str, Any]

    @classmethod
    def of(
        cls, recording: _Recording, places: tuple[Place | None, ...], several: bool, values: Sequence[Any]
    ) -> _Node | None:
        """None where a call is more than that."""
        if len(recording.ops) != 1 or any(p is None or not p.made or p.shape is not None for p in places):
            return None
        op, args, words, made = recording.ops[0]
        results = made if isinstance(made, tuple) else (made,)
        given = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
        arguments = [next((k for k, v in enumerate(values) if v is args[i]), -1) for i in given]
        if -1 in arguments:
            return None
        kept = _Kept()
        assert op.keep is not None
        more = {} if op.defaults is None else dict(keyword_only_inputs={**op.defaults, **words})
        op.keep(kept, args, made, **more)
        saved = [recording.place_of(x) for x in kept.saved]
        mine = {k: v for k, v in vars(kept).items() if k not in ("saved", "constant", "zeros")}
        returned = [next((i for i, x in enumerate(results) if x is recording.made[p.at]), -1) for p in places if p]
        whole = len(returned) == len(results) or not kept.zeros
        if any(p is None or p.shape is not None for p in saved) or -1 in returned or not whole:
            return None
        if any(isinstance(v, Tensor) for v in mine.values()):
            return None
        program = recording.program({p.at for p in (*places, *saved) if p is not None and p.made})
        if program is None:
            return None
        node = cls(program, places, several)
        node.op, node.given, node.arguments = op, given, gather(arguments)
        node.most, node.results, node.returned = len(args), len(results), returned
        of_op = {id(args[i]): k for k, i in reversed(list(enumerate(given)))}
        node.saved = gather([
            program.place[p.at] if p.made else len(program.place) + of_op[id(x)]
            for p, x in zip(saved, kept.saved, strict=True) if p is not None
        ])  # fmt: skip
        without = {id(x) for x in kept.constant}
        node.constant = [k for k, i in enumerate(returned) if id(results[i]) in without]
        node.zeros, node.kept = kept.zeros, mine
        rules = dict(forward=staticmethod(node.forward), backward=staticmethod(node.backward))
        function: Any = type("Replayed", (torch.autograd.Function,), rules)
        node.apply = super(torch.autograd.Function, function).apply  # type: ignore[misc]  # past a look for transforms
        return node

    def __call__(self, addresses: list[int], values: Sequence[Any]) -> Any:
        return self.apply(addresses, *self.arguments(values))

    def forward(self, ctx: Any, addresses: list[int], *given: Any) -> Any:
        """What autograd calls, of the op's tensors."""
        every = (*self.run(addresses), *given)
        ctx.save_for_backward(*self.saved(every))
        if not self.zeros:
            ctx.set_materialize_grads(False)
        assert self.pick is not None
        found = self.pick(every)
        if self.constant:
            ctx.mark_non_differentiable(*[found[i] for i in self.constant])
        return found if self.several else found[0]

    def backward(self, ctx: Any, *slopes: Any) -> Any:
        """What autograd calls in a backward pass."""
        return self.gradients(ctx.saved_tensors, ctx.needs_input_grad, slopes)

    def differentiate(self, saved: Sequence[Tensor], needed: tuple[bool, ...], slopes: Sequence[Any]) -> Any:
        """The gradients, by the op's own rule; of the arguments of `forward`, as ``needed`` is."""
        every: list[Any] = [None] * self.results
        for i, slope in zip(self.returned, slopes, strict=True):
            every[i] = slope
        wanted = [False] * self.most
        for i, wants in zip(self.given, needed[1:], strict=True):
            wanted[i] = wants
        context = SimpleNamespace(**self.kept, saved_tensors=saved, needs_input_grad=tuple(wanted))
        assert self.op.differentiate is not None
        made = self.op.differentiate(context, *every)
        made = made if isinstance(made, tuple) else (made,)
        return (None, *[made[i] if i < len(made) else None for i in self.given])

    def gradients(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], slopes: tuple[Any, ...]) -> Any:
        """The same, by launches alone where such a call was recorded."""
        if torch.compiler.is_compiling() or _sloping():
            return self.differentiate(saved, needed, slopes)
        values = (*slopes, *saved)
        near = (self, needed)
        known = _near(near, values)
        if known is not None:
            return known[0](known[1], values)
        if not _is_plain():
            return self.differentiate(saved, needed, slopes)
        key: list[Any] = [self, needed]
        addresses: list[int] = []
        if _describe(values, key, addresses) is None:
            return self.differentiate(saved, needed, slopes)
        kind = tuple(key)
        found = LAUNCHES.programs.get(kind)
        if isinstance(found, _Replayed):
            _Guard.add(near, values, found)
            return found(addresses, values)
        if found is None:
            _keep(LAUNCHES.programs, kind, SEEN)
        elif found is SEEN:
            return self._record(kind, values, saved, needed, slopes)
        elif found is COPIED:
            return self.gradients(tuple(_dense(saved)), needed, tuple(_dense(slopes)))
        return self.differentiate(saved, needed, slopes)

    def _record(
        self, kind: tuple[object, ...], values: tuple[Any, ...], saved: tuple[Tensor, ...], needed: tuple[bool, ...],
        slopes: tuple[Any, ...],
    ) -> Any:  # fmt: skip
        tensors = _tensors(values)
        with _recorded(tensors) as recording:
            made = self.differentiate(saved, needed, slopes)
        if len(recording.slots) < len(tensors):
            return made
        places = _placed(recording, made)
        program = None
        if places is not None:
            program = recording.program({p.at for p in places if p is not None and p.made})
        found: Any = _refusal(recording)
        if program is not None and places is not None:
            found = _Replayed(program, places, several=True)
        _keep(LAUNCHES.programs, kind, found)
        return made
