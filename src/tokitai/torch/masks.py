"""What each query of attention sees, as how many keys: from lengths, a causal order, counts, or a mask of bool."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..families.attention.arguments import check_limit
from .assertions import refuse_capture
from .batching import as_more_rows
from .dispatch import custom_op


def limits_of(q: Tensor, k: Tensor, limit: Tensor | None, lengths: Tensor | None, causal: bool) -> Tensor | None:
    """How many keys each query sees, or None for all: (queries), or with as many dimensions as q has before its last.

    Raises ArgumentError for a shape that could be read in more than one way.
    """
    for name, x in (("q", q), ("k", k)):
        if x.ndim < 2:
            raise ArgumentError(f"attention: {name} of shape {tuple(x.shape)}; accepted: 2 dimensions or more")
    lead, found = tuple(q.shape[:-1]), []
    if limit is not None:
        check_counts("limit", limit)
        check_limit("attention: limit", tuple(limit.shape), lead)
        found.append(limit)
    if lengths is not None:
        check_counts("lengths", lengths)
        batch = lead[:-2] if len(lead) > 2 else lead[:-1]
        if tuple(lengths.shape) != batch:
            raise ArgumentError(
                f"attention: lengths of shape {tuple(lengths.shape)}; accepted beside q of {tuple(q.shape)}: {batch}"
            )
        found.append(lengths.reshape(*batch, *[1] * (len(lead) - len(batch))))
    if causal:
        counts = torch.arange(1, q.shape[-2] + 1, dtype=torch.int32, device=q.device)
        found.append(counts.clamp(max=k.shape[-2]))
    if not found:
        return None
    least = found[0]
    for other in found[1:]:
        least = torch.minimum(least, other)
    return least


def start_of(q: Tensor, k: Tensor, limit: Tensor | None, start: Tensor | None, window: int | None) -> Tensor | None:
    """The first key that each query sees, or None for the first of all. Raises ArgumentError."""
    if window is None:
        return start
    if window < 1:
        raise ArgumentError(f"attention: window={window}; accepted: 1 or more keys")
    last = torch.full((1,), k.shape[-2], device=q.device) if limit is None else limit
    first = (last - window).clamp(min=0)
    return first if start is None else torch.maximum(first, start)


def check_counts(name: str, x: Tensor) -> None:
    """Raises ArgumentError for what are no counts of keys."""
    if x.dtype not in (torch.int32, torch.int64):
        words = ", a mask" if x.dtype == torch.bool else ""
        raise ArgumentError(
            f"attention: {name} of {x.dtype}{words}; accepted: counts of keys in int32 or int64; a mask is taken by "
            "scaled_dot_product_attention"
        )


def limits_of_mask(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """How many keys a mask of (..., queries, keys) shows to each query, where those are the first ones.

    Raises ArgumentError for any other mask."""
    lead, keys = tuple(q.shape[:-1]), k.shape[-2]
    name = "scaled_dot_product_attention: attn_mask"
    if mask.dtype != torch.bool:
        raise ArgumentError(f"{name} of {mask.dtype}; accepted: torch.bool, True where a key is seen, or floats")
    if mask.ndim < 2 or mask.shape[-1] != keys or mask.ndim not in (2, q.ndim):
        raise ArgumentError(
            f"{name} of shape {tuple(mask.shape)}; accepted: ({lead[-1]}, {keys}) or {(*lead, keys)}, where any but "
            "the last may be 1"
        )
    made: Tensor = _first_keys(mask)
    return made


@custom_op("tokitai::first_keys")
def _first_keys(mask: Tensor) -> Tensor:
    if mask.is_cuda:
        refuse_capture("scaled_dot_product_attention", "attn_mask", "attention, which takes counts of keys")
    counts = mask.sum(-1)
    first = torch.arange(mask.shape[-1], device=mask.device) < counts[..., None]
    if not torch.equal(first, mask):
        where = (first != mask).nonzero()[0].tolist()
        raise ArgumentError(
            f"scaled_dot_product_attention: attn_mask{where[:-1]} does not show the first keys alone, as masks of "
            "padding and causal masks do; accepted: True for the first keys of each query, False behind them; any by "
            "attention(..., mask=attn_mask)"
        )
    return counts


_first_keys.register_fake(lambda mask: mask.new_empty(mask.shape[:-1], dtype=torch.int64))
_first_keys.register_vmap(as_more_rows((True,), _first_keys))


@custom_op("tokitai::seen_by_scores")
def _seen_by_scores(mask: Tensor) -> Tensor:
    if mask.is_cuda:
        refuse_capture("attention", "a mask", "functional.attention, which takes counts of keys")
    hidden = mask <= torch.finfo(mask.dtype).min
    neither = (mask != 0) & ~hidden
    if bool(neither.any()):
        where = neither.nonzero()[0].tolist()
        raise ArgumentError(
            f"attention: mask{where} is {mask[tuple(where)].item()!r}, added to a score; accepted: 0 for a key that is "
            f"seen, {torch.finfo(mask.dtype).min!r} or -inf for one that is not"
        )
    return ~hidden


_seen_by_scores.register_fake(lambda mask: mask.new_empty(mask.shape, dtype=torch.bool))
_seen_by_scores.register_vmap(as_more_rows((True,), _seen_by_scores))


def seen_by_scores(mask: Tensor) -> Tensor:
    """The mask of bool of one that is added to scores, 0 or the least number. Raises ArgumentError for any other."""
    made: Tensor = _seen_by_scores(mask.detach())
    return made
