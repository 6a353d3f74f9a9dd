"""Whole numbers that an operator takes as int32, given as int64."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ArgumentError
from .batching import as_more_rows
from .dispatch import custom_op

LOWEST, HIGHEST = -(2**31), 2**31 - 1


def narrow(operator: str, name: str, x: Tensor | None) -> Tensor | None:
    """The tensor as int32, where it is of int64. Raises ArgumentError for a mask, and in host memory for numbers out of
    range; on a GPU, where a check would wait, those become the range's ends, which as indices are out of range too."""
    if x is not None and x.dtype == torch.bool:
        raise ArgumentError(
            f"{operator}: {name} of torch.bool, a mask; accepted: whole numbers of int32 or int64, as how many columns "
            "each row sees; masks are taken by functional.scaled_dot_product_attention"
        )
    if x is None or x.dtype != torch.int64:
        return x
    made: Tensor = _narrow(x, f"{operator}: {name}")
    return made


@custom_op("tokitai::int32")
def _narrow(x: Tensor, name: str) -> Tensor:
    near = x.clamp(LOWEST, HIGHEST)
    if x.device.type == "cpu" and not torch.equal(near, x):
        raise ArgumentError(f"{name} holds {int(x[near != x][0])}; accepted: {LOWEST} to {HIGHEST}")
    return near.to(torch.int32)


_narrow.register_fake(lambda x, name: x.new_empty(x.shape, dtype=torch.int32))
_narrow.register_vmap(as_more_rows((True, False), _narrow))
