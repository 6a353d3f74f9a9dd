"""Gradients of losses that an option sums, or averages, over rows: from that of the one number, that of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..lang import Operator
from .batching import REDUCTION
from .custom_ops import torch_op

Spread = Callable[[Tensor, Mapping[str, Any]], Tensor]
"""From the gradient of a reduced result and all arguments by name, the gradient of each row."""


def spread_of(operator: Operator) -> Spread | None:
    """How the gradient of a reduced result reaches the rows, where the operator has the option ``reduction``.

    A mean is over the rows of the first matrix; over those that are kept, where an index may be a scalar that stands
    for none; by their weights, where a column of them is given.
    """
    if not any(o.name == REDUCTION for o in operator.options):
        return None
    named = {t.name: t for t in operator.tensors}
    of_rows = next(n for n, t in named.items() if t.space == "rc")
    indices = operator.contract.indices.items()
    chosen = next(((n, i.besides) for n, i in indices if n in named and i.besides is not None), None)
    weights = next((n for n, t in named.items() if t.space == "c"), None)

    def spread(gradient: Tensor, given: Mapping[str, Any]) -> Tensor:
        rows: torch.Size = given[of_rows].shape[:-1]
        if given[REDUCTION] == "mean":
            index, none = (0, 1) if chosen is None else (given[chosen[0]], given[chosen[1]])
            weight = given.get(weights) if weights is not None else None
            if weight is not None and isinstance(index, Tensor):  # the sum of the operator, to the last bit
                kept = index != none
                of_each = torch.where(kept, weight[torch.where(kept, index, 0)], 0).reshape(-1, 1)
                total = torch_op(ops.linear_backward_bias, several=True)((of_each,), {})[0].reshape(())
                gradient = gradient * (1 / torch.where(total == 0, 1, total))
            else:
                count = (index != none).sum() if isinstance(index, Tensor) else rows.numel()
                if isinstance(count, int):
                    total = gradient.new_full((), max(count, 1))  # no copy to a GPU, which would wait
                else:
                    total = torch.as_tensor(count, device=gradient.device).clamp(min=1).to(gradient.dtype)
                gradient = gradient * (1 / total)
        return gradient.expand(rows)

    return spread
