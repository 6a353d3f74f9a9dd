"""Room in the workspace of the CPU's matrix products, by the constructor of ``Buffers`` in ``products.h``.

The buffers of a team follow each other, those of threads lie behind them: so a call needs as many elements as lie ahead
of the buffers that would be those of one thread more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from ..families import Plan, emit_cpu
from ..lang import Operator, Sizes
from .choice import SIDE
from .cpu import MOST_THREADS, defines, sized_sides
from .logic import variables
from .obligation import Obligation
from .parse import Parser
from .symbolic import every_path, term_of, whole
from .terms import Answer, Sum, alike, ask
from .values import Base, Cell, Int, Pointer, Scope
from .walk import Walk
from .work import Emitted, Evaluation

COUNTED = r"for \(int64_t n = ([^;]*); n; n /= 2\) \+\+levels;"  # levels are the bits of n
MEMBERS = ("level", "levels", "of_team", "of_thread", "lefts")
ROOM = "the workspace has room for sums and packed operands"


@dataclass(frozen=True)
class Buffers:
    """What is to be shown of a plan's buffers."""

    operator: Operator
    plan: Plan
    lanes: int
    seconds: float
    text: KernelText | None = None

    def obligations(self, name: str) -> Iterator[Obligation]:
        """That there is room, for all sizes and numbers of threads."""
        began = time.perf_counter()
        rows, cols, knows = sized_sides(self.operator)
        inner, batch, threads = (z3.Int(n) for n in ("inner", "batch", "threads"))
        knows += [inner >= 0, inner <= SIDE, batch >= 0, batch <= SIDE, threads >= 1, threads <= MOST_THREADS]
        text = emit_cpu(self.plan) if self.text is None else self.text
        source = Emitted(text, {**defines(self.lanes), "LANES": self.lanes})
        sizes = Sizes(whole(rows), whole(cols), whole(inner), whole(batch), self.plan.graph.ragged)
        given = {"rows": rows, "cols": cols, "k_size": inner, "batch": batch, "threads": threads}
        given |= {name: int(n) for name, n in re.findall(r"#define (ACCUMULATORS_F64) (\d+)", text.text)}

        def run() -> tuple[int, Any]:
            need = self.plan.workspace_bytes([sizes], 4, whole(threads), 0)
            return need, end_of_buffers(Evaluation(source, given, knows))

        worst = Answer("proved", 0.0, {})
        paths = every_path(run, knows)
        for taken, (need, end) in paths:
            answer = never_below_zero(alike(term_of(need) - 4 * end, [*knows, *taken]), [*knows, *taken], self.seconds)
            if answer.status != "proved" and worst.status != "refuted":
                worst = answer
        sides = {n: v for n, v in worst.at.items() if n in ("rows", "cols", "inner", "batch", "threads")}
        yield Obligation(
            f"{name}: {ROOM}", worst.status, time.perf_counter() - began, sides, worst.reason, len(paths)
        )  # fmt: skip


def end_of_buffers(run: Evaluation) -> Any:
    """Elements ahead of the buffers of one thread more. Inside `every_path`."""
    text, calls = run.source.text, run.calls
    head = re.search(r"\n  Buffers\((.*?)\)\s*: space\(static_cast<E\*>\(workspace\)\) \{(.*?)\n  \}", text, re.DOTALL)
    call = re.search(r"const Buffers buffers\((.*)\);", text)
    if head is None or call is None:
        raise ProofError("no constructor of Buffers in the emitted source, or no call; accepted: that of products.h")
    for name, least in (("min", min), ("max", max)):
        calls[name] = partial(_of_two, least)
    run.constants()
    scope = Scope(run.walk.globals)
    scope.names |= {"workspace": Cell(Pointer(Base("workspace", "workspace"), 0)), "space": Cell(None)}
    scope.names |= {name: Cell(Int(0, "int64_t")) for name in MEMBERS}
    scope.names["space"] = scope.names["workspace"]
    arguments = Parser(f"f({call[1]})").expression().args[1]
    names = re.findall(r"(\w+)(?:,|$)", head[1])
    for name, node in zip(names, arguments, strict=True):
        scope.names[name] = Cell(run.walk.value(node, scope))
    loop = re.search(COUNTED, head[2])
    if loop is None:
        raise ProofError(f"no loop over levels in Buffers; accepted: one that matches {COUNTED}")
    before, after = head[2][: loop.start()], head[2][loop.end() :]
    run.walk.execute_in(Parser(f"{{{before}}}").block(), scope)
    scope.names["levels"].value = run.bits(run.walk.number(run.walk.value(Parser(loop[1]).expression(), scope)))
    run.walk.execute_in(Parser(f"{{{after}}}").block(), scope)
    calls["thread_number"] = lambda walk, template, values: walk.globals.names["threads"].value
    left = run.source.found(r"E\* left\(\) const \{ return ([^;]*); \}", "Buffers::left")
    where = run.walk.value(left, scope)
    if not isinstance(where, Pointer):
        raise ProofError(f"{left}: no place in the workspace; accepted: a pointer from its first element on")
    run.known(left, where.at)
    return where.at


def _of_two(which: Callable[..., Any], walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Int:
    """The smaller number of two, or the larger one, as Python has it: a path for either."""
    a, b = (n if isinstance(n, int) else whole(n) for n in map(walk.number, values))
    return Int(term_of(which(a, b)), "int64_t")


def never_below_zero(gap: Any, knows: Sequence[Any], seconds: float) -> Answer:
    """Whether a polynomial is 0 at least. Sizes are written as what their quotients leave: where all factors are then
    sums of numbers that are not negative, it is; else the solver is asked."""
    began, made = time.perf_counter(), gap
    facts = list(knows)
    for q in [a for a in Sum(gap).atoms.values() if not z3.is_const(a) and z3.is_app_of(a, z3.Z3_OP_IDIV)]:
        (size,) = variables(q) if len(variables(q)) == 1 else (None,)
        if size is None or Sum(q.arg(0)).factor(size) != 1:
            continue
        n, other = q.arg(1), z3.substitute(q.arg(0), (size, z3.IntVal(0)))
        quotient, rest = z3.Int(f"{size}_quotient"), z3.Int(f"{size}_rest")
        facts += [quotient == q, quotient >= 0, rest >= 0, rest < n, size == n * quotient + rest - other]
        made = z3.substitute(z3.substitute(made, (q, quotient)), (size, n * quotient + rest - other))
    sum_ = Sum(made)
    atoms = all(ask(a >= 0, facts, 2.0).status == "proved" for a in sum_.atoms.values())
    if atoms and all(n >= 0 for n in sum_.parts.values()):
        return Answer("proved", time.perf_counter() - began, {})
    answer = ask(gap >= 0, knows, seconds)
    return Answer(answer.status, answer.seconds, answer.at, answer.reason or "less than Buffers takes")


__all__ = ["ROOM", "Buffers", "end_of_buffers", "never_below_zero"]
