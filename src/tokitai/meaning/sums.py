"""The one summation rule: a chain inside aligned blocks, then the balanced tree over the blocks. Slow and obvious.

The addition is handed in: that of numbers, or of hashes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..lang import COL_SUM_BLOCK
from .interpret import Array


def tree(x: Array, add: Callable[[Array, Array], Array], axis: int = -1) -> Array:
    """The balanced tree along an axis: neighbours first, level by level; a lone last node passes through.

    The axis is kept with length 1. An empty sum is +0 (all bits zero).
    """
    x = np.moveaxis(x, axis, -1)
    if x.shape[-1] == 0:
        x = np.zeros((*x.shape[:-1], 1), x.dtype)
    while x.shape[-1] > 1:
        paired = x.shape[-1] // 2 * 2
        x = np.concatenate([add(x[..., 0:paired:2], x[..., 1:paired:2]), x[..., paired:]], axis=-1)
    return np.moveaxis(x, -1, axis)


def column_sum(x: Array, add: Callable[[Array, Array], Array]) -> Array:
    """Down the rows: a chain inside aligned blocks of 32 rows, then the tree over the blocks."""
    blocks = []
    for start in range(0, len(x), COL_SUM_BLOCK):
        total = x[start]
        for row in x[start + 1 : start + COL_SUM_BLOCK]:
            total = add(total, row)
        blocks.append(total)
    return tree(np.stack(blocks) if blocks else x, add, axis=0)


def scattered_sum(x: Array, index: Array, nothing: Array, add: Callable[[Array, Array], Array]) -> Array:
    """For each entry the sum of the rows whose index it is, by the rule of `column_sum` over those rows in order;
    ``nothing``, of entries x cols, where there is none."""
    total = nothing.copy()
    for entry in np.unique(index[:, 0]):
        total[entry] = column_sum(x[index[:, 0] == entry], add)[0]
    return total
