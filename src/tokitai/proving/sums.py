"""The order of sums for every count: that the binary counters of the headers make the balanced tree.

A counter keeps, after n values, one pending sum for each bit that is set in n: at level t that of the values from
(n >> t + 1) << t + 1 on, 2^t of them. The loops that join pending sums are read from the headers and run for one
iteration on unknown numbers, with a sum as the interval of the values in it. The statements are the steps of an
induction over levels, which docs/explanation/proofs-for-all-sizes.md writes down.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import z3

from ..emit.counters import COUNTERS, Counter
from ..emit.files import read
from ..errors import ProofError
from .obligation import Obligation
from .parse import Node, Parser
from .terms import Answer, ask

BITS = 40  # of numbers here: enough for those below MOST, and their sums
MOST_LEVELS = 33
MOST = 1 << 33  # values at most: there are no more rows, chains or tiles


@dataclass(frozen=True)
class Span:
    """A sum of the values from ``first`` on, ``count`` of them."""

    first: Any
    count: Any


def present() -> dict[Counter, str]:
    """Every counter with its definitions, as the headers have them. Raises ProofError where one is not there."""
    found = {}
    for c in COUNTERS:
        target, name = c.header.split("/")
        source = c.source(read(target, [name])[name])
        if source is None:
            raise ProofError(f"{c.header}: no {c.name} that begins so: {c.definitions}; accepted: those definitions")
        found[c] = source
    return found


def loop_of(counter: Counter, source: str, begin: str) -> Node:
    """The loop of a counter that begins so in its source."""
    at = source.find(begin)
    if at < 0:
        raise ProofError(
            f"{counter.header}: no loop {begin!r} in {counter.name}; accepted: the loop as the proof names it"
        )
    return Parser(source[at:]).statement()


@dataclass
class Run:
    """One iteration on unknown numbers, over values numbered below ``n`` (those so far, where a value is new)."""

    n: Any
    counter: Counter
    values: dict[str, Any]
    must: list[Any] = field(default_factory=list)
    under: list[Any] = field(default_factory=list)

    def pending(self, level: Any) -> Span:
        """The pending sum of a level: there must be one."""
        self.require(z3.LShR(self.n, level) & 1 == 1)
        return Span((z3.LShR(self.n, level + 1)) << (level + 1), z3.BitVecVal(1, BITS) << level)

    def require(self, term: Any) -> None:
        self.must.append(z3.Implies(z3.And(*self.under), term) if self.under else term)

    def join(self, a: Span, b: Span) -> Span:
        """Neighbours, the left one a whole node at least as large: so both are one node of the next level."""
        self.require(z3.And(a.first + a.count == b.first, z3.ULE(b.count, a.count), a.first & (2 * a.count - 1) == 0))
        return Span(a.first, a.count + b.count)

    def value(self, n: Node) -> Any:
        match n.kind:
            case "number":
                return z3.BitVecVal(n.args[0], BITS)
            case "name":
                return z3.BitVecVal(1, BITS) if n.args[0] in ("LEVEL",) else self.values[n.args[0]]
            case "comma":
                return [self.value(a) for a in n.args][-1]
            case "binary":
                mark, a, b = n.args[0], self.value(n.args[1]), self.value(n.args[2])
                made = {"&": lambda: a & b, ">>": lambda: z3.LShR(a, b), "/": lambda: z3.UDiv(a, b), "+": lambda: a + b}
                return made[mark]()
            case "assign":
                mark, target, source = n.args
                value = self.value(source)
                if mark != "=":
                    before = self.value(target)
                    value = {">>=": lambda: z3.LShR(before, value), "/=": lambda: z3.UDiv(before, value),
                             "+=": lambda: before + value}[mark]()  # fmt: skip
                return self.assign(target.args[0], value)
            case "unary" if n.args[0] == "++":
                return self.assign(n.args[1].args[0], self.value(n.args[1]) + 1)
            case "after" if n.args[0] == "++":
                before = self.value(n.args[1])
                self.assign(n.args[1].args[0], before + 1)
                return before
            case "index":
                return self.pending(self.value(n.args[1]))
            case "call":
                name = n.args[0].args[0]
                if name in ("add", "add_sums", "Op::of"):
                    return self.join(self.value(n.args[1][0]), self.value(n.args[1][1]))
                if name in ("load", "vector_at"):
                    return self.value(n.args[1][0])
                if name in ("add_pending", "add_tile"):
                    made_ = self.join(self.pending(self.value(n.args[1][-1])), self.values[self.counter.sum])
                    return self.assign(self.counter.sum, made_)
        raise ProofError(f"{self.counter.header}: {n} in {self.counter.name}; accepted: what joins pending sums")

    def assign(self, name: str, value: Any) -> Any:
        self.values[name] = value
        return value

    def execute(self, n: Node) -> None:
        """A statement of a loop's body."""
        if n.kind == "block":
            for s in n.args:
                self.execute(s)
        elif n.kind == "declare":
            for _, name, _, value in n.args:
                self.assign(name, self.value(value))
        elif n.kind == "if":
            self.branch(self.value(n.args[0]) != 0, n.args[1])
        elif n.kind == "assign" and n.args[2].kind == "choose":  # what waits alone, or joined to what there is
            _, target, (condition, joined, alone) = *n.args[:2], n.args[2].args
            some = self.values[condition.args[0]]
            self.under.append(some)
            a = self.value(joined)
            self.under[-1] = z3.Not(some)
            b = self.value(alone)
            self.under.pop()
            self.assign(target.args[0], Span(z3.If(some, a.first, b.first), z3.If(some, a.count, b.count)))
        elif n.kind == "assign" and n.args[2].kind == "name" and n.args[2].args[0] == "true":
            self.values[n.args[1].args[0]] = z3.BoolVal(True)
        else:
            self.value(n)

    def branch(self, condition: Any, body: Node) -> None:
        before = dict(self.values)
        self.under.append(condition)
        self.execute(body)
        self.under.pop()
        for name, old in before.items():  # without what the body declares
            value = self.values[name]
            if isinstance(value, Span):
                made = Span(z3.If(condition, value.first, old.first), z3.If(condition, value.count, old.count))
                self.values[name] = made
            elif value is not old:
                self.values[name] = z3.If(condition, value, old)


def obligations(seconds: float, every: Mapping[Counter, str] | None = None) -> Iterator[Obligation]:
    """The steps of the induction for each counter, with its source."""
    for c, source in (present() if every is None else every).items():
        for what, statement, knows in (*pushed(c, source), *finished(c, source)):
            began = time.perf_counter()
            answer = at_each_level(statement, knows, seconds)
            spent = time.perf_counter() - began
            yield Obligation(f"{c.id}: {what}", answer.status, spent, {}, answer.reason)


def at_each_level(statement: Any, knows: Sequence[Any], seconds: float) -> Answer:
    """A statement for each level on its own, which is what makes its shifts constant."""
    answer = Answer("proved", 0.0, {})
    for level in range(MOST_LEVELS):
        at = (z3.BitVec("t", BITS), z3.BitVecVal(level, BITS))
        answer = ask(z3.substitute(statement, at), [z3.substitute(k, at) for k in knows], seconds)
        if answer.status != "proved":
            return replace(answer, reason=f"{answer.reason or 'wrong'} at level {level}")
    return answer


def pushed(c: Counter, source: str) -> Iterator[tuple[str, Any, list[Any]]]:
    """A value numbered n joins those before it."""
    n, t, j = z3.BitVecs("n t j", BITS)
    one = z3.BitVecVal(1, BITS)
    loop = loop_of(c, source, c.push)
    begin, condition, step, body = loop.args
    knows = [z3.ULT(t, MOST_LEVELS), z3.ULT(n, MOST), z3.ULT(j, MOST_LEVELS)]
    if begin.kind == "declare":
        ((_, name, _, value),) = begin.args
        start = Run(n, c, {"n": n, "i": n, "count": n}).value(value)
        yield f"the loop begins with the number of the value in {name}", start == n, knows
    sum_ = Span(z3.LShR(n, t) << t, one << t)
    run = Run(n, c, {c.number: z3.LShR(n, t), c.level: t, c.sum: sum_} | ({"level": one} if c.level != "level" else {}))
    ones = n & ((one << t) - 1) == (one << t) - 1  # the levels below have been joined
    go = run.value(condition) != 0
    run.execute(body)
    if step.kind != "block":
        run.value(step)
    grown = run.values[c.sum]
    after = z3.And(
        run.values[c.number] == z3.LShR(n, t + 1), run.values[c.level] == t + 1, grown.count == one << (t + 1),
        grown.first == z3.LShR(n, t + 1) << (t + 1),
    )  # fmt: skip
    yield "an iteration joins neighbours to the node of the next level", z3.And(*run.must, after), [*knows, ones, go]
    bit = z3.LShR(n + 1, j) & 1 == 1
    kept = z3.And(z3.UGT(j, t), z3.LShR(n, j) & 1 == 1)
    first = z3.LShR(n + 1, j + 1) << (j + 1)
    yield "what waits behind it is what n + 1 says", z3.And(
        bit == z3.Or(j == t, kept), z3.Implies(j == t, first == sum_.first),
        z3.Implies(kept, first == z3.LShR(n, j + 1) << (j + 1)),
    ), [*knows, ones, z3.Not(go)]  # fmt: skip


def finished(c: Counter, source: str) -> Iterator[tuple[str, Any, list[Any]]]:
    """After the last value pending sums join from the lowest level on, until all are one."""
    n, t = z3.BitVecs("n t", BITS)
    one = z3.BitVecVal(1, BITS)
    _, condition, step, body = loop_of(c, source, c.last).args
    stored = bool(c.any or c.count)  # the last value waits as well; elsewhere the sum begins as what it has grown to
    knows = [z3.ULT(t, MOST_LEVELS), z3.ULT(n, MOST)]
    total = n if stored else n + 1
    some = total & ((one << t) - 1) != 0 if c.any else z3.BoolVal(True)
    sum_ = Span(z3.LShR(n, t) << t, total - (z3.LShR(n, t) << t))
    number = {c.count: n} if c.count else {c.number: z3.LShR(n, t)}
    run = Run(n, c, {"level": one} | number | {c.level: t, c.sum: sum_} | ({c.any: some} if c.any else {}))
    if not stored:
        knows.append(z3.ULE(sum_.count, one << t))
    if c.count:  # which begins with the lowest pending sum
        lowest, first = run.pending(t), z3.LShR(n, t + 1) << (t + 1)
        begins = z3.And(*run.must, lowest.first == first, lowest.first + lowest.count == n)
        run.must.clear()
        at_lowest = [z3.LShR(n, t) & 1 == 1, n & ((one << t) - 1) == 0]
        yield "the lowest pending sum is that of the last values", begins, [*knows, *at_lowest]
    go = run.value(condition) != 0
    run.execute(body)
    run.value(step)
    grown = run.values[c.sum]
    any_after = z3.Or(some, z3.LShR(n, t) & 1 == 1)
    after = z3.And(
        z3.BoolVal(True) if c.count else run.values[c.number] == z3.LShR(n, t + 1), run.values[c.level] == t + 1,
        z3.Implies(any_after, z3.And(
            grown.first == z3.LShR(n, t + 1) << (t + 1), grown.first + grown.count == total,
            z3.ULE(grown.count, one << (t + 1)),
        )),
    )  # fmt: skip
    yield "after the last value an iteration joins neighbours", z3.And(*run.must, after), [*knows, go]
    whole = z3.And(sum_.first == 0, sum_.count == total)
    yield "in the end the sum is that of all values", whole, [*knows, z3.Not(go)]


__all__ = ["obligations", "present"]
