"""What `torch.autocast` does to the arguments of a function: by one of three rules, as torch has them for its own.

torch's `register_autocast` fixes one format when an operator is registered; these rules take the one that is active.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from ..lang.gradient import Autocast
from .shapes import FORMATS

DEVICES = ("cpu", "cuda")


def chosen_by(rule: Autocast, tensors: Sequence[Tensor | None]) -> torch.dtype | None:
    """The format for tensors of one storage format, where autocast is on for their device; else None."""
    first = next((t for t in tensors if t is not None), None)
    where = "" if first is None else first.device.type
    if where not in DEVICES or not torch.is_autocast_enabled(where):
        return None
    if rule == "lower":
        return torch.get_autocast_dtype(where)
    if rule == "f32":
        return torch.float32
    found = [t.dtype for t in tensors if t is not None and t.dtype in FORMATS]
    return functools.reduce(torch.promote_types, found) if found else None


def to_format(x: Tensor | None, chosen: torch.dtype | None) -> Tensor | None:
    """The tensor in the format that was chosen, where it is one of floats; gradients pass through."""
    return x if x is None or chosen is None or x.dtype not in FORMATS else x.to(chosen)


def cast(rule: Autocast, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors of one storage format as autocast wants them; the same where it is off."""
    chosen = chosen_by(rule, tensors)
    return [to_format(t, chosen) for t in tensors]
