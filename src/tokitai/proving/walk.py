"""A symbolic walk through an emitted kernel: every access that it makes, for all sizes at once.

Integers are terms of Z3 over the sizes of a call; what a kernel computes with (floats, hashes) is opaque.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .arithmetic import BITS
from .expressions import composed
from .logic import both, either, folded, no
from .loops import Loops
from .parse import Node
from .values import OPAQUE, Base, Cell, Int, Pointer, Scope


class Walk(Loops):
    """The walk through one kernel, statement after statement."""

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
        for i, s in enumerate(n.args):
            here = self.execute(s, inner)
            if s.kind == "declare" and (several := self.several(s, inner)):
                cell, count = several
                for k in range(count):  # the rest, for each number that the variable may be
                    self.under(cell.value.term == k, partial(self.rest, Node("block", n.args[i + 1 :]), inner, cell, k))
                break
            if here is False:
                live = False
                break
            if here is not True:
                self.when.append(here)
                live = both(live, here)
        del self.when[mark:]
        return live

    def several(self, n: Node, scope: Scope) -> tuple[Cell, int] | None:
        """A variable that is declared here whose few numbers are walked one by one."""
        found = [(scope.names[name], self.cases[name]) for _, name, _, _ in n.args if name in self.cases]
        return next(((c, k) for c, k in found if isinstance(c.value, Int) and not isinstance(c.value.term, int)), None)

    def rest(self, n: Node, scope: Scope, cell: Cell, k: int) -> None:
        """What follows, for one number of a variable."""
        before, cell.value = cell.value, Int(k, cell.value.type)
        self.execute(n, scope)
        cell.value = before

    def execute_declare(self, n: Node, scope: Scope) -> Any:
        for kind, variable, sides, value in n.args:
            struct = self.calls.get(kind.partition("<")[0])
            given = value.args if value is not None and value.kind == "braces" else ()
            if sides and given and (struct or kind == "bool"):
                scope.names[variable] = Cell(
                    {
                        i: self.structure(struct, a, scope) if struct else self.value(a, scope)
                        for i, a in enumerate(given)
                    }
                )
                continue
            if struct and (given or value is None) and not sides:
                made = self.structure(struct, value, scope) if given else struct(self, [], [])
                scope.names[variable] = Cell(made)
                continue
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
            if self.naming and not self.dry and isinstance(made, Int) and composed(made.term):
                made = Int(self.named(variable, made.term), made.type)
            if isinstance(made, Pointer) and kind.endswith("*") and not (self.loops or self.in_closure or self.dry):
                made = self.piece(variable, made, kind.replace("const", "").rstrip("*") in BITS)
            scope.names[variable] = Cell(made, kind)
        return True

    def structure(self, make: Callable[..., Any], n: Node, scope: Scope) -> Any:
        """A structure of what stands in braces, or what an expression gives."""
        return make(self, [], [self.value(a, scope) for a in n.args]) if n.kind == "braces" else self.value(n, scope)

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
        (made,) = n.args
        if made is not None and made.kind == "braces":  # of a structure's members
            value: Any = [self.value(a, scope) for a in made.args]
        else:
            value = OPAQUE if made is None else self.value(made, scope)
        frame = self.frames[-1]
        frame.returns(both(*self.when[frame.mark :]), value)
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
        if pragma == "in_threads":  # one thread alone runs what is ahead of it and behind it
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


__all__ = ["Walk"]
