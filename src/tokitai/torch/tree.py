"""The balanced tree over blocks, whose leaves arrive in order, or whose subtrees arrive from several ranks.

Level by level a node is the sum of two neighbours; a last node without a right neighbour passes through. A run of
neighbouring leaves has a fixed list of largest subtrees, its roots: they are what waits while gradients accumulate, as
the digits of a binary counter do, and what a rank sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""A level, where that of the leaves is 0, and an index on it."""


def width(leaves: int, level: int) -> int:
    """How many nodes a level has."""
    return -(-leaves >> level)


def roots(leaves: int, first: int, last: int) -> list[Node]:
    """The largest subtrees of the leaves from ``first`` up to, but not including, ``last``, from left to right."""
    left: list[Node] = []
    right: list[Node] = []
    level = 0
    while first < last:
        count = width(leaves, level)
        if count == 1:
            left.append((level, 0))
            break
        if first % 2:
            left.append((level, first))
            first += 1
        if last % 2 and last < count and first < last:
            last -= 1
            right.append((level, last))
        first, last, level = first // 2, (last + 1) // 2, level + 1
    return left + right[::-1]


class Partial(Generic[T]):
    """Sums over a run of neighbouring leaves that begins at ``first``: its roots so far, from left to right.

    ``add(a, b)`` is the rounded addition; it may write the sum into a, which is not used again.
    """

    def __init__(self, leaves: int, first: int, add: Callable[[T, T], T]) -> None:
        self.leaves, self.next, self.add = leaves, first, add
        self.waiting: list[tuple[Node, T]] = []

    def push(self, value: T) -> None:
        """The next leaf."""
        self.join((0, self.next), value)

    def join(self, node: Node, value: T) -> None:
        """The next subtree: its leaves lie right of all that came before."""
        level, index = node
        self.next = min((index + 1) << level, self.leaves)
        while (count := width(self.leaves, level)) > 1:
            if index % 2 and self.waiting and self.waiting[-1][0] == (level, index - 1):
                value = self.add(self.waiting.pop()[1], value)
            elif index % 2 or index < count - 1:
                break
            level, index = level + 1, index // 2
        self.waiting.append(((level, index), value))

    def nodes(self) -> list[Node]:
        """Which subtrees wait."""
        return [node for node, _ in self.waiting]

    def values(self) -> list[T]:
        """Their sums."""
        return [value for _, value in self.waiting]

    def whole(self) -> T:
        """The sum over all leaves, of which each has arrived."""
        ((_, index),), (value,) = self.nodes(), self.values()
        assert index == 0 and self.next == self.leaves
        return value


def total(values: Iterable[T], add: Callable[[T, T], T]) -> T:
    """The sum of all leaves at once, of which there is at least one."""
    every = list(values)
    partial = Partial(len(every), 0, add)
    for value in every:
        partial.push(value)
    return partial.whole()
