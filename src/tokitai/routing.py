"""From the experts that tokens chose to places in the order of experts, and back: whole numbers alone, on the host.

    weights, experts = ops.router(logits, k=2)
    there = permutation(experts, count=8)
    y = ops.dispatch(x, there.order)                      # tokens, expert by expert: there.counts of each
    y = ops.grouped_linear(y, weights, there.offsets)      # the experts' work: tokitai.experts has all of it
    x = ops.combine(y, weights, there.place, k=2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ArgumentError

Array = np.ndarray[Any, Any]
DROPPED = -1


@dataclass(frozen=True)
class Permutation:
    """Where tokens go. Places are numbered through all experts, in the order of experts; those of one expert lie in
    the order of tokens."""

    order: Array  # (places,), i64: the token at each place
    choice: Array  # (places,), i64: which choice it is, token * k + slot; weights.reshape(-1)[choice] are its weights
    place: Array  # (tokens, k), i64: the place of each choice, -1 where it was dropped
    counts: Array  # (experts,), i64: places of each expert

    @property
    def offsets(self) -> Array:
        """(experts + 1,), i64: where the places of each expert begin, and where the last ones end."""
        return np.concatenate([[0], np.cumsum(self.counts)])


def permutation(
    experts: Array, count: int, *, capacity: int | None = None, weights: Array | None = None,
    padding: Array | None = None,
) -> Permutation:  # fmt: skip
    """The places of tokens whose choices are ``experts``, (tokens, k), of ``count`` experts.

    With ``capacity`` an expert takes so many choices at most: those of the largest ``weights``, (tokens, k), among
    equal ones the earlier; the others are dropped. Tokens that are ``padding``, (tokens,) of bool, go nowhere and take
    no room. Raises ArgumentError for an expert out of range, and for shapes that do not match.
    """
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
        counts=np.bincount(flat[choice], minlength=count),
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


__all__ = ["DROPPED", "Permutation", "permutation"]
