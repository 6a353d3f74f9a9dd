"""What `torch.autocast` does to the arguments of a function: by one of three rules, as torch has them for its own.

torch's `register_autocast` fixes one format when an operator is registered; these rules take the one that is active.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .shapes import FORMATS

Rule = Literal["lower", "f32", "widest"]
"""``lower``: the format of autocast, for products. ``f32``: for sums over rows, exponentials and losses. ``widest``:
the widest format among the arguments, for what has several; one argument stays as it is."""
DEVICES = ("cpu", "cuda")


def cast(rule: Rule, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors of one storage format, where autocast is on for their device; else the same. Gradients pass through."""
    given = [t for t in tensors if t is not None and t.dtype in FORMATS]
    where = given[0].device.type if given else ""
    if where not in DEVICES or not torch.is_autocast_enabled(where):
        return list(tensors)
    if rule == "lower":
        chosen = torch.get_autocast_dtype(where)
    elif rule == "f32":
        chosen = torch.float32
    else:
        chosen = given[0].dtype
        for t in given:
            chosen = torch.promote_types(chosen, t.dtype)
    return [t if t is None or t.dtype not in FORMATS else t.to(chosen) for t in tensors]
