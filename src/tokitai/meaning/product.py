"""Matrix products: their operands as mathematics has them, and the chains along k, for numbers and hashes alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..lang import MATMUL_BLOCK, Node
from .interpret import Array
from .sums import tree

TOGETHER = 1 << 16  # products made at a time: NumPy takes as long for few as for some


def operands(node: Node, a: Array, b: Array) -> tuple[Array, Array]:
    """The operands as rows x inner and inner x cols, whichever way they are stored."""
    return stored(node, 0, a), stored(node, 1, b)


def stored(node: Node, side: int, x: Array) -> Array:
    """From how an operand is stored to rows x inner or inner x cols, or back: the transpose, where it is stored so."""
    return x.T if str(node.data[0])[side] == "T" else x


def formats(node: Node) -> tuple[str, str]:
    """The formats in which the operands are stored."""
    left, right = (str(a.data[1]) for a in node.args[:2])
    return left, right


def blocks(node: Node, a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """The operands of each aligned block of 4096 along k, as rows x inner and inner x cols."""
    left, right = operands(node, a, b)
    for start in range(0, left.shape[1], MATMUL_BLOCK):
        yield left[:, start : start + MATMUL_BLOCK], right[start : start + MATMUL_BLOCK]


def over_blocks(
    node: Node, a: Array, b: Array, chain: Callable[[Array, Array], Array], add: Callable[[Array, Array], Array],
    nothing: Any,
) -> Array:  # fmt: skip
    """The tree over the chains of each block; ``nothing`` for a sum over nothing."""
    each = [chain(left, right) for left, right in blocks(node, a, b)]
    left, right = operands(node, a, b)
    size = (len(left), right.shape[1])
    return np.asarray(tree(np.stack(each), add, axis=0)[0]) if each else np.full(size, nothing)


def products(left: Array, right: Array, product: Callable[[Array, Array], Array]) -> Iterator[Array]:
    """What each step along k adds, as ``product`` makes it of rows x 1 and 1 x cols: of many steps at a time."""
    together = max(TOGETHER // max(len(left) * right.shape[1], 1), 1)
    for k in range(0, len(right), together):
        made = product(left.T[k : k + together, :, None], right[k : k + together, None, :])
        yield from np.moveaxis(made, -3, 0)


def chains(
    node: Node, a: Array, b: Array, product: Callable[[Array, Array], Array], begin: Callable[[Array, Array], Array],
    go_on: Callable[[Array, Array], Array],
) -> Array:  # fmt: skip
    """The chain along k of each block of 4096, as (blocks, rows, cols). ``begin`` is the first step of a chain, of rows
    x 1 and 1 x cols: a fused multiply-add to -0.0, which is the product, rounded; ``go_on`` every other, of a
    ``product`` and what there is."""
    left, right = operands(node, a, b)
    blocks = []
    for start in range(0, left.shape[1], MATMUL_BLOCK):
        some, others = left[:, start : start + MATMUL_BLOCK], right[start : start + MATMUL_BLOCK]
        total = begin(some[:, :1], others[:1])
        for step in products(some[:, 1:], others[1:], product):
            total = go_on(step, total)
        blocks.append(total)
    return np.stack(blocks) if blocks else np.zeros((0, left.shape[0], right.shape[1]), left.dtype)


def turned(node: Node, args: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Of a weighted sum: the weights with those of one result in a row, where they are met, and the operand."""
    weights, x = args[:2]
    met = np.arange(weights.shape[1])[None, :] < args[2] if len(args) > 2 else np.ones(weights.shape, bool)
    return (weights, met, x) if node.data[0] == "columns" else (weights.T, met.T, x)


def weighted(
    node: Node, args: Sequence[Array], product: Callable[[Array, Array], Array], go_on: Callable[[Array, Array], Array],
    add: Callable[[Array, Array], Array], neutral: Any, nothing: Any,
) -> Array:  # fmt: skip
    """A weighted sum: of each block of 4096 the chain of what is met, begun with ``neutral``; the tree over the blocks;
    ``nothing`` where nothing is met."""
    weights, met, x = turned(node, args)
    size = (len(weights), x.shape[1])
    blocks = []
    for start in range(0, len(x), MATMUL_BLOCK):
        total = np.full(size, neutral, x.dtype)
        steps = products(weights[:, start : start + MATMUL_BLOCK], x[start : start + MATMUL_BLOCK], product)
        for k, step in enumerate(steps, start):
            total = np.where(met[:, k : k + 1], go_on(step, total), total)
        blocks.append(total)
    made = tree(np.stack(blocks), add, axis=0)[0] if blocks else np.full(size, nothing, x.dtype)
    return np.where(met.any(axis=1, keepdims=True), made, np.asarray(nothing, x.dtype))


def weighted_blocks(
    parts: tuple[Array, Array, Array], chain: Callable[[Array, Array, Array], Array],
    add: Callable[[Array, Array], Array], nothing: Any,
) -> Array:  # fmt: skip
    """A weighted sum, of weights, where they are met, and the operand: the tree over the chains of each block;
    ``nothing`` where nothing is met."""
    weights, met, x = parts
    starts = range(0, len(x), MATMUL_BLOCK)
    blocks = [slice(s, s + MATMUL_BLOCK) for s in starts]
    each = [chain(weights[:, b], met[:, b], x[b]) for b in blocks]
    none = np.full((len(weights), x.shape[1]), nothing, x.dtype)
    made = tree(np.stack(each), add, axis=0)[0] if each else none
    return np.where(met.any(axis=1, keepdims=True), made, none)
