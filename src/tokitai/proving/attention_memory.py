"""Room in the workspace of attention on CPUs: the pieces that a kernel takes for each thread, beside what its plan
asks for.

A piece is a product of sizes, of which some are rounded up. It is no larger than with a - 1 added to what is rounded up
to a multiple of a, as no size is negative. Where the plan asks for no less than that, for any sizes, there is room.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from ..families import emit_cpu
from ..families.attention.plan import AttentionPlan
from ..lang import Operator, Sizes
from .buffers import never_below_zero
from .choice import SIDE
from .cpu import defines, sized_sides
from .obligation import Obligation
from .parse import Parser
from .symbolic import every_path, term_of, whole
from .terms import Answer, Sum, ask
from .values import Int
from .walk import Walk
from .work import Emitted, Evaluation

ROOM = "the workspace has room for the pieces of each thread's memory"
ROUNDED = r"round_up\(int64_t count, int64_t of\) \{ return ceil_div\(count, of\) \* of; \}"
PIECE = r"const int64_t \w+ = memory\.take\((.*)\);"
OF_EACH = "take(int64_t count) {\n    const int64_t begin = size;\n    size += round_up(count, 16);"
OF_THREAD = "E* const mine = static_cast<E*>(workspace) + thread_number() * memory.size;"
LEVELS = r"const int64_t chains = ([^;]*);\s*int64_t levels = 0;\s*for \(int64_t n = ([^;]*); n; n /= 2\) \+\+levels;"


@dataclass(frozen=True)
class AttentionMemory:
    """What is to be shown of the memory of a plan's threads."""

    operator: Operator
    plan: AttentionPlan
    lanes: int
    seconds: float
    text: KernelText | None = None

    def obligations(self, name: str) -> Iterator[Obligation]:
        """That there is room, for all sizes."""
        began = time.perf_counter()
        rows, cols, knows = sized_sides(self.operator)
        inner = z3.Int("inner")
        knows += [inner >= 0, inner <= SIDE]
        text = emit_cpu(self.plan) if self.text is None else self.text
        source = Emitted(text, {**defines(self.lanes), "LANES": self.lanes})
        given = {"rows": rows, "cols": cols, "k_size": inner}
        given |= {name: int(n) for name, n in re.findall(r"#define (ACCUMULATORS_F64) (\d+)", text.text)}
        sizes = Sizes(whole(rows), whole(cols), whole(inner), 1)

        threads = z3.Int("threads")

        def run() -> tuple[Any, Any, Any]:
            need, of_all = (term_of(self.plan.workspace_bytes([sizes], 4, n, 0)) for n in (1, whole(threads)))
            if any(Sum(of_all - threads * need).parts.values()):
                raise ProofError(f"{of_all} bytes for all threads; accepted: as many for each")
            exact, most = (taken(Evaluation(source, given, knows), m) for m in (False, True))
            return need, exact, most

        worst = Answer("proved", 0.0, {})
        paths = every_path(run, knows)
        for path, (need, exact, most) in paths:
            answer = self.enough(need - 4 * exact, need - 4 * most, [*knows, *path])
            if answer.status != "proved" and worst.status != "refuted":
                worst = answer
        sides = {n: v for n, v in worst.at.items() if n in ("rows", "cols", "inner")}
        yield Obligation(
            f"{name}: {ROOM}", worst.status, time.perf_counter() - began, sides, worst.reason, len(paths)
        )  # fmt: skip

    def enough(self, gap: Any, least: Any, knows: Sequence[Any]) -> Answer:
        """Whether a number of bytes is not negative, which is at least another one."""
        answer = never_below_zero(Sum(least).term(), knows, self.seconds)
        if answer.status != "refuted":
            return answer
        sides = [z3.Int(n) for n in ("rows", "cols", "inner")]
        for free in sides:  # the others are some number
            for few in (1, 64, 2**20):
                fixed = [v == few for v in sides if not v.eq(free)]
                found = ask(gap >= 0, [*knows, *fixed], self.seconds)
                if found.status == "refuted":
                    return replace(found, reason="less than the kernel takes")
        return Answer("undecided", 0.0, {}, "less than the kernel may take")


def taken(run: Evaluation, most: bool) -> Any:
    """Elements that a kernel takes for a thread; ``most`` of them. Inside `every_path`."""
    text = run.source.text
    loop = re.search(LEVELS, text)
    pieces = re.findall(PIECE, text)
    known = {
        "mine": OF_THREAD in text,
        "round_up": re.search(ROUNDED, text),
        "take": OF_EACH in text,
        "levels_of": loop,
    }
    if loop is None or not all(known.values()):
        missing = ", ".join(name for name, found in known.items() if not found)
        raise ProofError(f"{missing} is not found in the emitted source; accepted: that of attention.h")
    run.constants()
    nr, nv = (run.walk.globals.names[n].value.term for n in ("NR", "NV"))
    interleave = re.search(r"constexpr \w+ INTERLEAVE = (\d+);", text)
    if interleave is None or not pieces:
        raise ProofError("no INTERLEAVE or no pieces in the emitted source; accepted: those of attention.h")
    run.let("WIDTH", int(interleave[1]) // nv * nr)
    run.let("TILE_SIZE", run.walk.globals.names["MR"].value.term * nr)
    run.calls["round_up"] = partial(rounded_up, most)
    run.calls["levels_of"] = partial(levels, run, loop[1], loop[2])
    sizes = [run.walk.number(run.of(Parser(piece).expression())) for piece in pieces]
    return sum(run.walk.number(rounded_up(most, run.walk, [], [Int(s), Int(16)])) for s in sizes)


def rounded_up(most: bool, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Int:
    """A number rounded up to a multiple of another one, or ``most`` that it can be."""
    n, of = (walk.number(v) for v in values)
    return Int(n + of - 1 if most else (n + of - 1) / of * of, "int64_t")


def levels(run: Evaluation, chains: str, bits: str, walk: Walk, template: Sequence[Any], values: Sequence[Any]) -> Int:
    """How many bits the number of chains has, where there are several."""
    count = run.of(Parser(chains).expression(), {"terms": values[0]})
    several = whole(z3.simplify(z3.If(count.term > 1, z3.IntVal(1), z3.IntVal(0)))) > 0
    return run.bits(count.term if several else 0)


__all__ = ["ROOM", "AttentionMemory"]
