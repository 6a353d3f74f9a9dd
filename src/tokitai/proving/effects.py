"""Which variables a statement may change, by its text: what changes none outside needs no walk to find that out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .parse import Node

LEAVING = ("return", "break")


def parts(n: Any, closures: bool = True) -> Iterator[Node]:
    """A node and all in it, with ``closures`` or without."""
    if isinstance(n, Node):
        if n.kind == "closure" and not closures:
            return
        yield n
    for a in n.args if isinstance(n, Node) else n if isinstance(n, tuple) else ():
        yield from parts(a, closures)


def assigned(n: Node) -> set[str]:
    """Names that are given a value in a statement and not declared there."""
    found, own = set(), set()
    for part in parts(n):
        if part.kind == "declare":
            own |= {variable for _, variable, _, _ in part.args}
        elif part.kind == "closure":
            own |= {variable for _, variable in part.args[0]}
        elif part.kind in ("assign", "after") or (part.kind == "unary" and part.args[0] in ("++", "--")):
            found |= _named(part.args[1])
    return found - own


def _named(target: Node) -> set[str]:
    """The variables that are assigned to; elements of memory are none."""
    if target.kind == "name":
        return {target.args[0]}
    return set().union(*(_named(a) for a in target.args[1:])) if target.kind == "choose" else set()


def quiet(n: Node, called: Callable[[str], Node | bool | None]) -> bool:
    """Whether a statement changes no variable outside and does not leave. ``called`` gives the closure that a
    name calls, True for a function that may change its arguments, None for any other."""
    seen: set[str] = set()
    todo: list[Node] = [n]
    while todo:
        one = todo.pop()
        if assigned(one) or (one is n and any(p.kind in LEAVING for p in parts(n, closures=False))):
            return False
        for p in parts(one):
            if p.kind == "call" and p.args[0].kind == "name" and p.args[0].args[0] not in seen:
                seen.add(p.args[0].args[0])
                body = called(p.args[0].args[0])
                if body is True:
                    return False
                todo += [body] if isinstance(body, Node) else []
    return True


__all__ = ["assigned", "quiet"]
