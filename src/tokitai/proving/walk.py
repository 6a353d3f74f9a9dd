"""A symbolic walk through an emitted kernel: every access that it makes, for all sizes at once.

Integers are terms of Z3 over the sizes of a call; what a kernel computes with (floats, hashes) is opaque. A loop is
walked once, for an iteration that stands for all: a variable that grows by the same amount each time is its first value
plus that many times the iteration, and whatever else changes is unknown but for bounds that are shown to be kept.
Functions of the headers are walked where they are called, from the text that is compiled.
"""

from __future__ import annotations

from typing import Any

from .arithmetic import BITS
from .logic import both, either, folded, no
from .loops import Loops
from .parse import Node
from .values import (
    OPAQUE,
    Base,
    Cell,
    Int,
    Pointer,
    Scope,
)


class Walk(Loops):
    """The walk through one kernel."""

    def execute(self, n: Node, scope: Scope) -> Any:
        """Walk a statement. Returns under which condition the next one is reached."""
        if n.line:
            self.line = n.line
        made = getattr(self, f"execute_{n.kind}", None)
        if made is not None:
            return made(n, scope)
        self.value(n, scope)
        return True

    def execute_in(self, n: Node, scope: Scope) -> None:
        """Walk the statements of a block whose variables stay known."""
        for s in n.args:
            self.execute(s, scope)

    def execute_block(self, n: Node, scope: Scope) -> Any:
        inner, live = Scope(scope), True
        mark = len(self.when)
        for s in n.args:
            here = self.execute(s, inner)
            if here is False:
                live = False
                break
            if here is not True:
                self.when.append(here)
                live = both(live, here)
        del self.when[mark:]
        return live

    def execute_declare(self, n: Node, scope: Scope) -> Any:
        for kind, variable, sides, value in n.args:
            if sides:
                dims = tuple(self.number(self.value(s, scope)) if s is not None else 0 for s in sides)
                base = Base(f"{variable}@{next(self.names)}" if self.dry else variable, "local", False, False, dims)
                if value is not None and value.kind == "braces":
                    for a in value.args:
                        self.value(a, scope)
                scope.names[variable] = Cell(Pointer(base, 0, dims), kind)
                continue
            made = OPAQUE if value is None else self.value(value, scope)
            if value is not None and value.kind == "braces" and value.args and kind in BITS:
                made = self.value(value.args[0], scope)
            if value is None and kind in BITS:
                made = Int(self.fresh(variable), kind)
            made = self.converted(made, kind)
            if isinstance(made, Pointer) and kind.endswith("*") and not (self.loops or self.in_closure or self.dry):
                made = self.piece(variable, made, kind.replace("const", "").rstrip("*") in BITS)
            scope.names[variable] = Cell(made, kind)
        return True

    def execute_if(self, n: Node, scope: Scope) -> Any:
        condition = folded(self.truth(self.value(n.args[0], scope)))
        if isinstance(condition, bool):
            return self.execute(n.args[1 if condition else 2], Scope(scope))
        found = []
        for branch, c in ((n.args[1], condition), (n.args[2], no(condition))):
            self.log.append([])
            live = self.under(c, lambda branch=branch: self.execute(branch, Scope(scope)))  # type: ignore[misc]
            log = self.log.pop()
            changed = {id(cell): (cell, cell.value) for cell, _ in log}
            for cell, before in reversed(log):
                cell.value = before
            found.append((live, changed))
        (live_a, a), (live_b, b) = found
        for key in {**a, **b}:
            cell = (a.get(key) or b[key])[0]
            x = a[key][1] if key in a else cell.value
            y = b[key][1] if key in b else cell.value
            self.assign(cell, y if live_a is False else x if live_b is False else self.merged(condition, x, y))
        return folded(either(both(condition, live_a), both(no(condition), live_b)))

    def execute_return(self, n: Node, scope: Scope) -> Any:
        value = OPAQUE if n.args[0] is None else self.value(n.args[0], scope)
        frame = self.frames[-1]
        frame.returned.append((both(*self.when[frame.mark :]), value))
        if len(self.loops) > frame.depth:
            frame.broken = True
        return False

    def execute_break(self, n: Node, scope: Scope) -> Any:
        self.frames[-1].broken = True
        return False

    def execute_continue(self, n: Node, scope: Scope) -> Any:
        return False

    def execute_omp(self, n: Node, scope: Scope) -> Any:
        pragma, statement = n.args
        if " parallel" in pragma:  # one thread alone runs what is ahead of it and behind it
            before, self.alone = self.alone, 0
            self.phase[-1] += 1
            self.execute(statement, scope)
            self.phase[-1] += 1
            self.alone = before
            return True
        if " single" in pragma:
            self.alone = next(self.names) + 1
            self.execute(statement, scope)
            self.alone = 0
        else:
            self.execute_for(statement, scope, shared=True)
        if "nowait" not in pragma:
            self.phase[-1] += 1
        return True

    def execute_each(self, n: Node, scope: Scope) -> Any:
        return True  # over elements of a value that no index is made of
