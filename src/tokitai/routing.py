"""From the experts that tokens chose to places in the order of experts, and back: whole numbers, found by sorting.

weights, experts = ops.router(logits, k=2)
there = permutation(experts, count=8)
y = ops.dispatch(x, there.order)                      # tokens, expert by expert: there.counts of each
y = ops.grouped_linear(y, weights, there.offsets)      # the experts' work: tokitai.experts has all of it
x = ops.combine(y, weights, there.place, k=2)
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .arrays.dlpack import as_numpy, like, on_gpu
from .arrays.libraries import library_of
from .errors import ArgumentError

Array = np.ndarray[Any, Any]
DROPPED = -1


@dataclass(frozen=True)
class Permutation:
    """Where tokens go. Places are numbered through all experts, in the order of experts; those of one expert lie in
    the order of tokens."""

    order: Any  # (places,), i64: the token at each place
    choice: Any  # (places,), i64: which choice it is, token * k + slot; weights.reshape(-1)[choice] are its weights
    place: Any  # (tokens, k), i64: the place of each choice, -1 where it was dropped
    offsets: Any  # (experts + 1,), i64: where the places of each expert begin, and where the last ones end

    @property
    def counts(self) -> Any:
        """(experts,), i64: places of each expert."""
        return self.offsets[1:] - self.offsets[:-1]


def permutation(
    experts: Any, count: int, *, capacity: int | None = None, capacity_factor: float | None = None, weights: Any = None,
    padding: Any = None, check: bool = True,
) -> Permutation:  # fmt: skip
    """The places of tokens whose choices are ``experts``, (tokens, k), of ``count`` experts.

    With ``capacity`` an expert takes so many choices at most: those of the largest ``weights``, (tokens, k), among
    equal ones the earlier; the others are dropped. A ``capacity_factor`` is the same relative to an even share, as
    `capacity_of` has it. Tokens that are ``padding``, (tokens,) of bool, go nowhere, take no room and do not count.
    Raises ArgumentError for an expert out of range, for both kinds of capacity, and for shapes that do not match.

    Arrays of NumPy, torch, CuPy and JAX are taken, and the result is of the same library, on the device of ``experts``.
    Torch sorts on a GPU, where nothing can be dropped; the look for an expert out of range then waits for the stream,
    and ``check=False`` leaves it out. Else the work is done on the host: what lies on a GPU is copied here, which waits
    for its stream, and the result is copied back.
    """
    if capacity is not None and capacity_factor is not None:
        raise ArgumentError(f"capacity={capacity!r} and capacity_factor={capacity_factor!r}; accepted: one of them")
    unlimited = capacity is None and capacity_factor is None and padding is None
    if unlimited and on_gpu(experts) and library_of(experts) == "torch":
        return _sorted_by_torch(experts, count, check)
    here = _on_host("experts", experts)
    weights, padding = (x if x is None else _on_host(n, x) for n, x in (("weights", weights), ("padding", padding)))
    if capacity_factor is not None:
        tokens = here.shape[0] if padding is None else int(np.count_nonzero(~padding.astype(bool)))
        capacity = capacity_of(capacity_factor, tokens, count, k=here.shape[-1])
    made = _permutation(here, count, capacity, weights, padding)
    if here is experts:
        return made
    return Permutation(*(_beside(experts, getattr(made, f.name)) for f in fields(Permutation)))


def capacity_of(factor: float, tokens: int, count: int, *, k: int) -> int:
    """How many choices an expert takes at most: ``factor`` times an even share, ceil(factor * (tokens * k) / count) in
    f64. Raises ArgumentError for a factor that is no finite number of at least 0."""
    number = isinstance(factor, (int, float, np.integer, np.floating)) and not isinstance(factor, bool)
    if not number or not 0 <= float(factor) < math.inf:
        raise ArgumentError(f"capacity_factor={factor!r}; accepted: a finite number of at least 0")
    return math.ceil(float(factor) * (tokens * k) / max(count, 1))


def _sorted_by_torch(experts: Any, count: int, check: bool) -> Permutation:
    """The places where nothing is dropped, by torch: without waiting for the device but for ``check``."""
    torch = sys.modules["torch"]
    if experts.ndim != 2 or experts.dtype not in (torch.int32, torch.int64):
        found = f"shape {tuple(experts.shape)} of {experts.dtype}"
        raise ArgumentError(f"experts: {found}; accepted: (tokens, k) of int32 or int64")
    tokens, k = experts.shape
    flat = experts.reshape(-1).to(torch.int64)
    if check and bool(((flat < 0) | (flat >= count)).any()):
        _permutation(_on_host("experts", experts), count, None, None, None)  # which raises
    ordered, choice = torch.sort(flat, stable=True)
    place = torch.empty_like(flat).scatter_(0, choice, _up_to(flat, len(flat)))
    offsets = torch.searchsorted(ordered, _up_to(flat, count + 1))
    return Permutation(choice // max(k, 1), choice, place.view(tokens, k), offsets)


def _up_to(example: Any, count: int) -> Any:
    """0, 1, ... count - 1 where a tensor of torch lies."""
    return sys.modules["torch"].arange(count, out=example.new_empty(count))


def _on_host(name: str, x: Any) -> Array:
    """A caller's array as one of NumPy: a copy of what lies on a GPU. Raises ArgumentError."""
    if isinstance(x, np.ndarray):
        return x
    library = library_of(x)
    if library == "torch":
        there = x.detach().as_subclass(sys.modules["torch"].Tensor)
        return as_numpy(name, (there.float() if there.is_floating_point() else there).cpu())
    if library == "cupy":
        return np.asarray(x.get())
    return as_numpy(name, x)


def _beside(example: Any, values: Array) -> Any:
    """Values in the library of an array, on its device."""
    if library_of(example) not in ("torch", "cupy"):
        return like(values, example)
    module = sys.modules[library_of(example)]
    if library_of(example) == "torch":
        return example.new_empty(values.shape, dtype=module.int64).copy_(module.from_numpy(values))
    with example.device:
        return module.asarray(values)


def _permutation(
    experts: Array, count: int, capacity: int | None, weights: Array | None, padding: Array | None
) -> Permutation:
    tokens, k = _shape(experts)
    flat = experts.reshape(-1).astype(np.int64)
    bad = (flat < 0) | (flat >= count)
    kept = np.ones(flat.shape, bool)
    if padding is not None:
        if padding.shape != (tokens,) or padding.dtype != np.bool_:
            raise ArgumentError(f"padding: shape {padding.shape} of {padding.dtype}; accepted: {(tokens,)} of bool")
        kept = np.repeat(~padding, k)
    bad &= kept
    if bad.any():
        at = int(bad.argmax())
        raise ArgumentError(
            f"experts[{at // k},{at % k}]={flat[at]} ({int(bad.sum())} such choices); accepted: 0 to {count - 1}"
        )
    if capacity is not None:
        kept &= _within(flat, kept, count, capacity, weights, experts.shape)
    choice = np.flatnonzero(kept)
    choice = choice[np.argsort(flat[choice], kind="stable")]
    place = np.full(flat.shape, DROPPED, np.int64)
    place[choice] = np.arange(choice.size)
    return Permutation(
        order=choice // max(k, 1),
        choice=choice,
        place=place.reshape(tokens, k),
        offsets=np.searchsorted(flat[choice], np.arange(count + 1)),
    )


def _shape(experts: Array) -> tuple[int, int]:
    if experts.ndim != 2 or experts.dtype.kind not in "iu":
        raise ArgumentError(f"experts: shape {experts.shape} of {experts.dtype}; accepted: (tokens, k) of integers")
    return int(experts.shape[0]), int(experts.shape[1])


def _within(
    flat: Array, kept: Array, count: int, capacity: int, weights: Array | None, shape: tuple[int, ...]
) -> Array:
    """Which choices find room: of each expert the first `capacity` by falling weight."""
    if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)) or capacity < 0:
        raise ArgumentError(f"capacity={capacity!r}; accepted: a whole number of at least 0")
    if weights is None or weights.shape != shape:
        found = "none" if weights is None else f"shape {weights.shape}"
        raise ArgumentError(f"weights: {found}; accepted beside a capacity: {shape}")
    if np.isnan(weights).any():
        raise ArgumentError("weights hold NaN; accepted: numbers that can be ordered")
    room = np.zeros(flat.shape, bool)
    for expert in range(count):
        mine = np.flatnonzero((flat == expert) & kept)
        first = np.argsort(-weights.reshape(-1)[mine].astype(np.float64), kind="stable")
        room[mine[first[:capacity]]] = True
    return room


__all__ = ["DROPPED", "Permutation", "capacity_of", "permutation"]
