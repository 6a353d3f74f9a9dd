"""The order in which a third-party sum or product adds, found by calling it.

All terms are 1, but for one that is M and one that is -M, with M so large that M + 1 = M. What is added to either
before both meet is lost, so the result counts the terms outside the smallest part of the summation tree that holds
both. From these counts for all pairs the tree follows (Xie, Gao and Xue, "FPRev: Revealing the Order of Floating-Point
Summation", 2024). A part whose terms are all added in one step has more than two branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError

Array = np.ndarray[Any, Any]
Tree = Any  # an index, or a tuple of trees that are added
MASK = 2.0**60  # absorbs any number of ones in f32 and f64 sums that are tried
MOST = 512  # terms: as many calls as there are pairs, at worst


@dataclass(frozen=True)
class Order:
    """A summation tree over the indices of terms, and what it is in words."""

    tree: Tree
    said: str


def reveal(total: Callable[[Array], Any], count: int) -> Order:
    """The order in which ``total`` adds a vector of ``count`` numbers of f32.

    Raises ArgumentError where what it returns fits no tree, as of a sum that depends on its values."""
    if not 1 <= count <= MOST:
        raise ArgumentError(f"count={count}; accepted: 1 to {MOST}")
    known: dict[tuple[int, int], int] = {}

    def within(i: int, j: int) -> int:
        if (i, j) not in known:
            terms = np.ones(count, np.float32)
            terms[i], terms[j] = MASK, -MASK
            left = float(total(terms))
            if left != int(left) or not 0 <= left <= count - 2:
                raise ArgumentError(f"terms {i} and {j} masked: the sum is {left}; accepted: 0 to {count - 2}, whole")
            known[i, j] = known[j, i] = count - int(left)
        return known[i, j]

    tree = _grown(range(count), within)
    return Order(tree, describe(tree))


def reveal_product(product: Callable[[Array, Array], Any], inner: int, rows: Sequence[int] = (1, 8, 64)) -> str:
    """How a matrix product adds along its K dimension, in words, for left operands of so many rows: the same for all,
    or that it varies."""
    found: dict[str, list[int]] = {}
    for count in rows:

        def total(terms: Array, count: int = count) -> float:
            left = np.ones((count, inner), np.float32) * terms
            return float(np.asarray(product(left, np.ones((inner, count), np.float32)))[-1, -1])

        found.setdefault(reveal(total, inner).said, []).append(count)
    if len(found) == 1:
        return next(iter(found))
    return "varies with M: " + "; ".join(f"{said} (M = {', '.join(map(str, m))})" for said, m in found.items())


def _grown(leaves: Sequence[int], within: Callable[[int, int], int]) -> Tree:
    """The tree over some terms: from the first one outward, what it meets next, and so on."""
    first, *rest = leaves
    node: Tree = first
    for size in sorted({within(first, j) for j in rest}):
        left = [j for j in rest if within(first, j) == size]
        met = []
        while left:
            mine = [left[0], *(j for j in left[1:] if within(left[0], j) < size)]
            met.append(_grown(mine, within))
            left = [j for j in left if j not in mine]
        node = (node, *met)
    return node


def _leaves(tree: Tree) -> list[int]:
    return [i for part in tree for i in _leaves(part)] if isinstance(tree, tuple) else [tree]


def _chain(tree: Tree) -> int | None:
    """How many terms each step of a chain adds to what there is; None of what is no chain."""
    steps: set[int] = set()
    while isinstance(tree, tuple):
        longer = [p for p in tree if isinstance(p, tuple)]
        if len(longer) > 1:
            return None
        steps.add(len(tree) - 1 if longer else 0)
        tree = longer[0] if longer else 0
    steps.discard(0)
    return max(steps, default=1) if len(steps) <= 1 else None


def _pairs(tree: Tree) -> bool:
    """Whether a tree is balanced: neighbours first."""
    if not isinstance(tree, tuple):
        return True
    sizes = [len(_leaves(p)) for p in tree]
    return len(tree) == 2 and sizes[0] == sizes[1] and all(map(_pairs, tree))


def describe(tree: Tree) -> str:
    """A summation tree in words: "a chain", "a chain of 16-term steps", "pairwise", "split in 4", ..."""
    if not isinstance(tree, tuple):
        return "one term"
    if all(not isinstance(p, tuple) for p in tree) and len(tree) > 2:
        return f"one step of {len(tree)} terms"
    step = _chain(tree)
    if step is not None and len(tree) > 1 and not (len(_leaves(tree)) == 4 and _pairs(tree)):
        return "a chain" if step == 1 else f"a chain of {step}-term steps"
    if _pairs(tree):
        return "pairwise"
    parts = _parts(tree)
    kinds = {describe(p) for p in parts}
    near = all(_leaves(p) == list(range(min(_leaves(p)), max(_leaves(p)) + 1)) for p in map(_sorted, parts))
    where = "in neighbouring blocks" if near else "interleaved"
    return f"not a chain: split in {len(parts)}, {where}, each {' or '.join(sorted(kinds))}"


def _sorted(tree: Tree) -> Tree:
    return tuple(sorted(_leaves(tree)))


def _parts(tree: Tree) -> list[Tree]:
    """The largest parts of a tree that are chains or single terms."""
    if not isinstance(tree, tuple) or _chain(tree) is not None:
        return [tree]
    return [p for branch in tree for p in _parts(branch)]
