"""Matrix products: their operands as mathematics has them, and the chains along k, for numbers and hashes alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..lang import MATMUL_BLOCK, Node
from .interpret import Array


def operands(node: Node, a: Array, b: Array) -> tuple[Array, Array]:
    """The operands as rows x inner and inner x cols, whichever way they are stored."""
    return stored(node, 0, a), stored(node, 1, b)


def stored(node: Node, side: int, x: Array) -> Array:
    """From how an operand is stored to rows x inner or inner x cols, or back: the transpose, where it is stored so."""
    return x.T if str(node.data[0])[side] == "T" else x


def chains(
    node: Node, a: Array, b: Array, begin: Callable[[Array, Array], Array],
    go_on: Callable[[Array, Array, Array], Array],
) -> Array:  # fmt: skip
    """The chain along k of each block of 4096, as (blocks, rows, cols). ``begin`` is the first step of a chain, a fused
    multiply-add to -0.0, which is the product, rounded; ``go_on`` every other."""
    left, right = operands(node, a, b)
    blocks = []
    for start in range(0, left.shape[1], MATMUL_BLOCK):
        total = begin(left[:, start : start + 1], right[start : start + 1])
        for k in range(start + 1, min(start + MATMUL_BLOCK, left.shape[1])):
            total = go_on(left[:, k : k + 1], right[k : k + 1], total)
        blocks.append(total)
    return np.stack(blocks) if blocks else np.zeros((0, left.shape[0], right.shape[1]), left.dtype)
