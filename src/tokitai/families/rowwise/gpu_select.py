"""Results that another expression gives at one column of each row: a gradient at the target's column, say.

Elsewhere only the common expression is computed, by all threads; the thread that holds the one column computes that
once more, and stores it after the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...lang import Node, topological
from .plan import REDUCTIONS, Pass


@dataclass(frozen=True)
class OneColumn:
    """``choice`` is ``where(column_index() == index, that column's, the others')``; ``compute`` is what others need."""

    choice: Node
    index: Node
    compute: tuple[Node, ...]


def one_column(p: Pass, inplace: bool) -> OneColumn | None:
    """The choice of a pass that does nothing but store; None where there is none, or more, or it is not worth it."""
    if p.sums or p.maxima or p.firsts or p.col_sums or p.keep or inplace:
        return None
    found = [(n, index) for n in p.compute if (index := _index_of(n)) is not None]
    if len(found) != 1:
        return None
    choice, index = found[0]
    if any(choice is not n and choice.args[0] in n.args for n in p.compute):
        return None
    needed: set[Node] = set()
    stack = [o.node for o in p.stores]
    while stack:
        n = stack.pop()
        if n in needed:
            continue
        needed.add(n)
        stack += [choice.args[2]] if n is choice else [] if n.op in REDUCTIONS else n.args
    needed.discard(choice)
    return OneColumn(choice, index, tuple(n for n in p.compute if n in needed))


def _index_of(n: Node) -> Node | None:
    if n.op != "where" or n.args[0].op != "eq":
        return None
    for one, other in (n.args[0].args, n.args[0].args[::-1]):
        if one.op == "column_index" and other.space in ("r", "s") and other.type == "i32" and other.exact:
            return other
    return None


def inputs_at(node: Node) -> list[Node]:
    """The matrices that an element of a result is made of."""
    return [n for n in topological([node]) if n.op == "input" and n.space == "rc"]
