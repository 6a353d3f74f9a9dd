"""Calls with tables, values side by side and indices: one of each operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Given = dict[str, Any]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def numbers(most: int, *shape: int, seed: int = 2) -> Any:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


def _embedding(dtype: torch.dtype) -> Given:
    return dict(table=drawn(50, 24, dtype=dtype), ids=numbers(50, 7, 5))


def _embedding_backward(dtype: torch.dtype) -> Given:
    return dict(dy=drawn(90, 24, dtype=dtype), ids=numbers(4, 90), entries=11, padding_idx=2)


def _into_a_gradient(dtype: torch.dtype) -> Given:
    return dict(_embedding_backward(dtype), dtable=drawn(11, 24, dtype=dtype, seed=5))


def _router(dtype: torch.dtype) -> Given:
    return dict(logits=drawn(40, 16, dtype=dtype), k=4, renormalise=True)


def _router_backward(dtype: torch.dtype) -> Given:
    return dict(
        dweights=drawn(40, 2), logits=drawn(40, 16, dtype=dtype), experts=numbers(16, 40, 2).int(), k=2
    )  # fmt: skip


def _combine(dtype: torch.dtype) -> Given:
    place = numbers(60, 3, 10, 2)
    place[1, 3, 1] = -1
    return dict(y=drawn(60, 12, dtype=dtype), weights=drawn(3, 10, 2), place=place, k=2)


def _combine_backward(dtype: torch.dtype) -> Given:
    given = _combine(dtype)
    del given["weights"]
    return dict(given, dx=drawn(3, 10, 12, dtype=dtype))


CASES: dict[str, tuple[str, Callable[[torch.dtype], Given]]] = {
    "embedding": ("embedding", _embedding),
    "embedding_backward": ("embedding_backward", _embedding_backward),
    "into a gradient": ("embedding_backward", _into_a_gradient),
    "top_k": ("top_k", lambda dtype: dict(x=drawn(4, 10, 16, dtype=dtype), k=2)),
    "router": ("router", _router),
    "router_backward": ("router_backward", _router_backward),
    "expert_load": ("expert_load", lambda d: dict(logits=drawn(40, 8, dtype=d), experts=numbers(8, 40, 2).int(), k=2)),
    "dispatch": ("dispatch", lambda d: dict(x=drawn(9, 8, dtype=d), order=numbers(9, 30), weights=drawn(30))),
    "dispatch_backward": (
        "dispatch_backward", lambda d: dict(dy=drawn(30, 8, dtype=d), order=numbers(9, 30), entries=9),
    ),
    "combine": ("combine", _combine),
    "combine_backward": ("combine_backward", _combine_backward),
}  # fmt: skip
