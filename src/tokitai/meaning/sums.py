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
    """Down the rows: a chain inside aligned blocks of 32 rows, then the tree over the blocks.

    The chains of all whole blocks go on side by side, and that of the last rows after them."""
    whole = len(x) // COL_SUM_BLOCK * COL_SUM_BLOCK
    chains = [_chain(x[:whole].reshape(whole // COL_SUM_BLOCK, COL_SUM_BLOCK, *x.shape[1:]), add)] if whole else []
    chains += [_chain(x[None, whole:], add)] if whole < len(x) else []
    return tree(np.concatenate(chains) if chains else x, add, axis=0)


def _chain(blocks: Array, add: Callable[[Array, Array], Array]) -> Array:
    """Down the rows of each block, of blocks x rows x cols."""
    total = blocks[:, 0]
    for i in range(1, blocks.shape[1]):
        total = add(total, blocks[:, i])
    return total


def scattered_sum(x: Array, index: Array, nothing: Array, add: Callable[[Array, Array], Array]) -> Array:
    """For each entry the sum of the rows whose index it is, by the rule of `column_sum` over those rows in order;
    ``nothing``, of entries x cols, where there is none."""
    total = nothing.copy()
    for entry in np.unique(index[:, 0]):
        total[entry] = column_sum(x[index[:, 0] == entry], add)[0]
    return total
