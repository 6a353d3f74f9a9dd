"""What must hold of every access of a kernel that was walked, as statements for the solver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import prod
from typing import Any

import z3

from .logic import both, variables
from .monomials import of_factors
from .obligation import Obligation
from .terms import Answer, Sum, alike, ask
from .values import Access, Loop
from .walk import Walk

PER_ROW = 2**60  # elements of memory that a tensor or a workspace can have


@dataclass(frozen=True)
class Extent:
    """How large memory is: ``rows`` of ``cols`` elements, ``stride`` apart; without a stride ``cols`` elements."""

    cols: Any
    rows: Any = 1
    stride: Any = None


@dataclass
class Kernel:
    """A walked kernel, how large its tensors are, and what a call guarantees."""

    walk: Walk
    extents: Mapping[str, Extent]
    outputs: Sequence[str]
    sizes: Sequence[Any]  # unknowns that are reported where a statement is wrong
    products: Sequence[tuple[Any, Any]] = field(default_factory=list)  # (count, unknown): their product is below 2**60
    seconds: float = 5.0
    workspace: Any = 0  # bytes that the plan asks for
    threads: Any = 1
    # Iterations in which an access may reach a row, where none of its digits says so.
    reached: Callable[[Access, Any], list[tuple[Any, Any]]] = lambda access, row: []

    def ask(self, must: Any, knows: Sequence[Any]) -> Answer:
        """The solver's answer, with what is known of the contents of memory."""
        lemmas = self.walk.lemmas([must, *knows])
        answer = ask(must, [*knows, *lemmas], self.seconds)
        return replace(answer, assumes=True) if lemmas else answer

    def given(self, *accesses: Access) -> list[Any]:
        """What is known where these accesses are made."""
        terms = [t for a in accesses for t in (a.at, a.count, *a.when) if not isinstance(t, (int, bool))]
        return [*self.walk.knows, *(w for a in accesses for w in a.when), *self.walk.relevant(terms)]

    def facts(self, terms: Sequence[Any], when: Sequence[Any]) -> list[Any]:
        """What is known of the unknowns of these terms under conditions."""
        return self.walk.relevant(terms)

    def place(self, a: Access) -> tuple[Any, Any] | None:
        """The row and the column of an access, or None where it is not that of an element of a row."""
        extent = self.extents[a.base.name]
        if extent.stride is None:
            return 0, a.at
        row, col = Sum(a.at).along(extent.stride)
        return None if row is None else (row, col)

    # ------------------------------------------------------------------ statements
    def obligations(self, name: str) -> Iterator[Obligation]:
        """All of them, by memory."""
        for what, answers in self.statements():
            yield self.joined(f"{name}: {what}", answers)

    def statements(self) -> Iterator[tuple[str, Iterator[Answer]]]:
        """What is stated, and the answers of the solver, which is asked as they are taken."""
        bases = {a.base.name: a.base for a in self.walk.accesses}
        for base in bases.values():
            mine = [a for a in self.walk.accesses if a.base == base]
            if base.kind == "local":
                yield f"{base.name} is accessed inside", (self.in_local(a) for a in mine)
            elif base.name in self.extents:
                yield f"{base.name} is accessed inside", (self.inside(a) for a in mine)
                if base.shared and any(a.write for a in mine):
                    yield f"{base.name} has no conflicting accesses", self.apart(mine)
        numbered = [b.name for b in bases.values() if b.kind == "numbers"]
        for out in self.outputs:
            mine = [a for a in self.walk.accesses if a.base.name == out and a.write]
            for word in numbered:
                yield f"{out} is made of {word} of its own elements", self.own(word, mine)
            yield f"no element of {out} is written twice", self.once(mine)
            yield f"every element of {out} is written", self.covered(out, mine)
        yield "index arithmetic fits its types", self.fitting()
        if self.walk.pieces:
            yield "the workspace has room for its parts", self.room()

    def joined(self, name: str, answers: Iterator[Answer]) -> Obligation:
        """One obligation of several statements: the first that is refuted says where."""
        began, at, reason, status, several = time.perf_counter(), {}, "", "proved", 0
        assumes = False
        for answer in answers:
            several += 1
            assumes |= answer.assumes
            if answer.status == "refuted":
                status, at, reason = "refuted", dict(answer.at), answer.reason
                break
            if answer.status == "undecided":
                status, reason = "undecided", answer.reason
        sizes = {str(s): at[str(s)] for s in self.sizes if str(s) in at}
        return Obligation(name, status, time.perf_counter() - began, sizes, reason, several, assumes)

    def told(self, answer: Answer, a: Access | None, line: str = "") -> Answer:
        """With the line of the source; wrong only where nothing was unknown."""
        line = a.line if a is not None else line
        if answer.status == "proved":
            return answer
        if answer.status == "undecided":
            return replace(answer, reason=f"{answer.reason}: {line}")
        unknown = ("before", "bits", *(() if answer.assumes else ("data",)))
        loose = [n for n in answer.at if n.startswith(unknown)]
        if loose:
            return replace(answer, status="undecided", reason=f"depends on what the walk does not know: {line}")
        return replace(answer, reason=line)

    def room(self) -> Iterator[Answer]:
        """Parts follow each other, and the last ends where the workspace does that the plan asks for."""
        for p in self.walk.pieces:
            if p.each is not None:
                gap = alike(self.workspace - (p.start + p.base.unit * self.threads * p.each), self.walk.knows)
                yield self.told(self.ask(gap >= 0, self.walk.knows), None, f"{p.base.name} of each thread")
            elif p.size is not None:
                must = Sum(p.size).term()
                yield self.told(self.ask(must >= 0, self.walk.knows), None, p.base.name)
            elif not any(q.each is not None for q in self.walk.pieces):
                gap = alike(self.workspace - p.start, self.walk.knows)
                yield self.told(self.ask(gap >= 0, self.walk.knows), None, p.base.name)

    def in_local(self, a: Access) -> Answer:
        """Of an array of a thread's own."""
        size: Any = 1
        for d in a.base.dims:
            size = size * d
        return self.told(self.ask(both(a.at >= 0, a.at + a.count <= size), self.given(a)), a)

    def inside(self, a: Access) -> Answer:
        """Of a tensor or a part of a workspace."""
        extent, place = self.extents[a.base.name], self.place(a)
        if place is None:
            return Answer("undecided", 0.0, {}, f"no index of a row and a column: {a.line}")
        row, col = place
        if extent.stride is None:
            return self.told(self.if_chosen(self.below(a, extent.cols), a), a)
        must = both(row >= 0, row < extent.rows, col >= 0, col + a.count <= extent.cols)
        if not isinstance(a.count, int):
            must = z3.Or(a.count == 0, must)
        return self.told(self.if_chosen(must, a), a)

    def if_chosen(self, must: Any, a: Access) -> Answer:
        """The answer; where that depends on an index in a tensor, for one in range."""
        answer = self.ask(must, self.given(a))
        chosen = self.chosen([a.at]) if answer.status != "proved" and not isinstance(a.at, int) else []
        return replace(self.ask(must, [*self.given(a), *chosen]), assumes=True) if chosen else answer

    def below(self, a: Access, size: Any) -> Any:
        """That an access lies below a size; where both are made of rows of so many columns, by its row and column."""
        cols = z3.Int("cols")
        n, m = Sum(size).along(cols)
        row, col = Sum(a.at).along(cols)
        plain = both(a.at >= 0, a.at + a.count <= size)
        if n is None or row is None or isinstance(n, int):
            return plain
        return both(
            row >= 0, col >= 0,
            z3.Or(both(row <= n - 1, col + a.count <= cols + m), both(row <= n, col + a.count <= m)),
        )  # fmt: skip

    def split(self, a: Access) -> tuple[Any, Any]:
        """A row and a column such that elements of different rows are different elements."""
        extent = self.extents[a.base.name]
        if extent.stride is not None:
            found = self.place(a)
            assert found is not None
            return found
        cols = z3.Int("cols")
        n, _ = Sum(extent.cols).along(cols)
        row, col = Sum(a.at).along(cols)
        return (0, a.at) if row is None or isinstance(n, int) else (row, col)

    def of_own(self) -> list[Any]:
        """What is known of the numbers that threads differ in."""
        own = {o.get_id() for o in self.walk.own}
        return [k for k in self.walk.knows if any(v.get_id() in own for v in variables(k))]

    def differ(self) -> Any:
        """That a thread and the other one are not the same."""
        return z3.Or(*(o != z3.Int(f"{o}'") for o in self.walk.own))

    def again(self, a: Access) -> Access:
        """The same access by another thread, in another iteration: with unknowns of its own."""
        own = {o.get_id() for o in self.walk.own}
        fixed = {v.get_id() for k in self.walk.knows for v in variables(k)} - own
        terms = [t for t in (a.at, a.count, *a.when) if not isinstance(t, (int, bool))]
        terms += self.walk.relevant(terms)
        renamed = {v: z3.Const(f"{v}'", v.sort()) for t in terms for v in variables(t) if v.get_id() not in fixed}
        renamed |= {l.iteration: z3.Int(f"{l.iteration}'") for l in a.loops}
        renamed |= {o: z3.Int(f"{o}'") for o in self.walk.own}

        def of(t: Any) -> Any:
            return t if isinstance(t, (int, bool)) else z3.substitute(t, *renamed.items())

        when = tuple(of(t) for t in (*a.when, *self.walk.relevant(terms)))
        when += tuple(map(of, self.of_own()))
        loops = tuple(Loop(l.number, renamed[l.iteration], l.shared) for l in a.loops)
        return replace(a, at=of(a.at), count=of(a.count), when=when, loops=loops)

    def meet(self, a: Access, b: Access) -> Any:
        """That two accesses have an element in common."""
        (ra, ca), (rb, cb) = self.split(a), self.split(b)
        same = True if isinstance(ra, int) and isinstance(rb, int) and ra == rb else ra == rb
        return both(same, a.count > 0, b.count > 0, ca < cb + b.count, cb < ca + a.count)

    def apart(self, accesses: Sequence[Access]) -> Iterator[Answer]:
        """No two accesses of different threads between the same barriers meet, one of which writes."""
        for (a, _), (b_, b) in combinations_with_replacement([(a, self.again(a)) for a in once_each(accesses)], 2):
            if not (a.write or b_.write) or a.phase != b_.phase:
                continue
            others = self.others(a, b)
            if others is False:
                continue
            yield self.told(self.ask(z3.Not(both(others, self.meet(a, b))), [*self.given(a), *b.when]), a)

    def others(self, a: Access, b: Access) -> Any:
        """That different threads make these accesses; False where that cannot be."""
        for x, y in zip(a.loops, b.loops, strict=False):
            if x.number == y.number and x.shared:
                return x.iteration != y.iteration
        if a.alone and a.alone == b.alone:
            return False
        shared = [l for l in (*a.loops, *b.loops) if l.shared]
        return True if shared or a.alone or b.alone else self.differ()

    def once(self, accesses: Sequence[Access]) -> Iterator[Answer]:
        """No two iterations, of whichever threads, write the same element."""
        for (a, _), (b_, b) in combinations_with_replacement([(a, self.again(a)) for a in accesses], 2):
            if a is b_:
                pairs = [x.iteration != y.iteration for x, y in zip(a.loops, b.loops, strict=True)]
                if not any(l.shared for l in a.loops) and not a.alone:
                    pairs.append(self.differ())
                if not pairs:
                    continue
                other: Any = z3.Or(*pairs)
            else:
                other = True
            yield self.told(self.ask(z3.Not(both(other, self.meet(a, b))), [*self.given(a), *b.when]), a)

    def own(self, word: str, stores: Sequence[Access]) -> Iterator[Answer]:
        """What is stored is made of the numbers of just these elements, counted row after row: taken under the same
        conditions, in the same iteration."""
        taken = [a for a in self.walk.accesses if a.base.name == word]
        for s in stores:
            beside = [a for a in taken if _same(a.when, s.when) and a.loops == s.loops]
            place = self.place(s)
            if place is None or not beside:
                yield Answer("undecided", 0.0, {}, f"no number of an element beside: {s.line}")
                continue
            known = self.walk.relevant([t for t in place if not isinstance(t, (int, bool))])
            for a in beside:
                row, col = Sum(a.at).along(z3.Int("cols"))
                must = False if row is None else both(row == place[0], col == place[1], a.count == s.count)
                yield self.told(self.ask(must, [*self.given(a, s), *known]), a)

    def covered(self, out: str, accesses: Sequence[Access]) -> Iterator[Answer]:
        """Every element is written in the iteration that its row and column say."""
        extent = self.extents[out]
        row, col = z3.Int("element_row"), z3.Int("element_col")
        knows = [*self.walk.knows, row >= 0, row < extent.rows, col >= 0, col < extent.cols]
        missed = []
        for a in accesses:
            place = self.place(a)
            if place is None:
                yield Answer("undecided", 0.0, {}, f"no index of a row and a column: {a.line}")
                return
            chosen = self.witness(a, place, (row, col))
            facts = self.walk.relevant([t for t in (*place, *a.when) if not isinstance(t, (int, bool))])
            # What holds of every iteration is known; that a quotient is the one chosen here is to be shown.
            shown = [f for f in facts if any(v.eq(d) for v in variables(f) for d in self.quotients(a))]
            knows_of = [f for f in facts if not any(f.eq(x) for x in shown)]

            def of(t: Any, chosen: Sequence[Any] = chosen) -> Any:
                return t if isinstance(t, (int, bool)) else z3.substitute(t, *chosen)

            hit = both(
                *map(of, a.when), *map(of, self.of_own()), *map(of, shown), of(place[0] == row), of(place[1] <= col),
                of(col < place[1] + a.count),
            )  # fmt: skip
            knows += [of(f) for f in knows_of]
            missed.append(z3.Not(hit) if not isinstance(hit, bool) else z3.BoolVal(not hit))
        line = accesses[0].line if accesses else "no store"
        yield self.told(self.ask(z3.Not(z3.And(*missed)) if missed else False, knows), None, line)

    def quotients(self, a: Access) -> list[Any]:
        """The quotients, and what they leave, of numbers that grow by one with an iteration of this access."""
        mine = [
            d
            for d in self.walk.divisions.values()
            if any(abs(Sum(d.of).factor(l.iteration) or 0) == 1 for l in a.loops)
        ]
        return [v for d in mine for v in (d.quotient, d.rest)]

    def witness(self, a: Access, place: tuple[Any, Any], wanted: tuple[Any, Any]) -> list[tuple[Any, Any]]:
        """The iterations in which an access may reach an element, as digits of its row and column. The digits of an
        iteration that is divided are its quotient and what that leaves."""
        sums = Sum(place[0]), Sum(place[1])
        left = [*self.walk.own, *(l.iteration for l in a.loops), *self.quotients(a)]
        chosen: list[tuple[Any, Any]] = self.reached(a, wanted[0])
        todo = []
        for v in left:
            for s, w in zip(sums, wanted, strict=True):
                n = s.factor(v)
                if n:
                    todo.append((abs(n), v, s, w, n))
                    break
        for _, v, s, w, n in sorted(todo, key=lambda x: -x[0]):
            rest: Any = 0
            for m, k in s.parts.items():
                atoms = [s.atoms[i] for i in m]
                own = {u.get_id() for x in atoms for u in variables(x)}
                if own & ({u.get_id() for u in left} - {u.get_id() for u, _ in chosen}) or own & {
                    u.get_id() for x in atoms for u, _ in chosen if x.eq(u)
                }:
                    continue
                product: Any = k
                for x in atoms:
                    product = product * x
                rest = rest + product
            for u, value in reversed(chosen):
                f = s.factor(u)
                if f:
                    rest = rest + f * value
                rest = rest if isinstance(rest, int) else z3.substitute(rest, (u, value))
            chosen.append((v, (w - rest) / n))
        done = {v.get_id() for v, _ in chosen}
        for d in self.walk.divisions.values():
            for l in a.loops:
                s, n = Sum(d.of), Sum(d.of).factor(l.iteration)
                if n in (1, -1) and {d.quotient.get_id(), d.rest.get_id()} <= done and l.iteration.get_id() not in done:
                    others = z3.substitute(s.term(), (l.iteration, z3.IntVal(0)))
                    whole = d.quotient * d.by + d.rest - others
                    chosen.append((l.iteration, z3.substitute(n * whole, *chosen)))
                    done.add(l.iteration.get_id())
        return chosen

    def fitting(self) -> Iterator[Answer]:
        """Every whole number fits its type where it is computed."""
        seen = set()
        for r in self.walk.ranged:
            key = (r.must.get_id(), *(w.get_id() for w in r.when if not isinstance(w, bool)))
            if key in seen:
                continue
            seen.add(key)
            terms = [t for t in (r.must, *r.when) if not isinstance(t, (int, bool))]
            knows = [*self.walk.knows, *(w for w in r.when if not isinstance(w, bool)), *self.facts(terms, r.when)]
            must, *plain = self.without_products([r.must, *knows])
            answer = self.ask(must, plain)
            if answer.status == "refuted" and (chosen := self.chosen(terms)):
                must, *plain = self.without_products([r.must, *knows, *chosen])
                answer = replace(self.ask(must, plain), assumes=True)
            yield self.told(answer, None, f"{r.what}: {r.line}")

    def chosen(self, terms: Sequence[Any]) -> list[Any]:
        """That numbers read from tensors which choose a row, an entry or a column are in range, as calls check."""
        found: dict[int, Any] = {}
        stack = list(terms)
        while stack:
            t = stack.pop()
            if isinstance(t, (int, bool)):
                continue
            stack += t.children()
            if z3.is_const(t) and z3.is_int(t) and t.decl().name().startswith("data!"):
                found.setdefault(t.get_id(), z3.And(t >= 0, t < z3.Int("cols")))
            if z3.is_mul(t):
                for most, unknown in self.products:
                    if any(c.eq(unknown) for c in t.children()):
                        for c in t.children():
                            if z3.is_const(c) and str(c).startswith("data!"):
                                found[c.get_id()] = z3.And(c >= 0, c <= most)
        return list(found.values())

    def without_products(self, terms: Sequence[Any]) -> list[Any]:
        """The same with an unknown for each product of unknowns, of which is known that a factor within a count of what
        memory holds makes no more than that."""
        bounds = []
        chosen = [(t, z3.Int(f"product!{i}")) for i, t in enumerate(products_in(*terms))]

        def plain(t: Any) -> Any:
            return t if isinstance(t, (int, bool)) else z3.substitute(t, *chosen) if chosen else t

        for t, name in chosen:
            factors = [c for c in t.children() if not z3.is_int_value(c)]
            number = prod(c.as_long() for c in t.children() if z3.is_int_value(c))
            bounds += [plain(fact) for fact in of_factors(factors, number, name)]
            for most, unknown in self.products:
                factor, rest = Sum(t).along(unknown)
                if any(c.eq(unknown) for c in t.children()):
                    factor = prod(c for c in t.children() if not c.eq(unknown))
                if factor is not None and isinstance(rest, int) and not isinstance(factor, int):
                    fit = z3.And(factor >= 0, factor <= most)
                    bounds.append(z3.Implies(plain(fit), z3.And(name >= 0, name <= PER_ROW)))
        return [*map(plain, terms), *bounds]


def products_in(*terms: Any) -> list[Any]:
    """The products of unknowns in these terms."""
    found: dict[int, Any] = {}
    stack, done = list(terms), set()
    while stack:
        t = stack.pop()
        if isinstance(t, (int, bool)) or t.get_id() in done:
            continue
        done.add(t.get_id())
        if z3.is_mul(t) and sum(not z3.is_int_value(c) for c in t.children()) > 1:
            found[t.get_id()] = t
        stack += t.children()
    return list(found.values())


def once_each(accesses: Iterable[Access]) -> list[Access]:
    """Those that differ in more than their line."""
    found: dict[Any, Access] = {}
    for a in accesses:
        ids = tuple(t if isinstance(t, (int, bool)) else t.get_id() for t in (a.at, a.count, *a.when))
        found.setdefault((a.base.name, ids, a.write, a.phase, a.alone), a)
    return list(found.values())


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether these are the same conditions."""
    return len(a) == len(b) and all(x is y or (hasattr(x, "eq") and x.eq(y)) for x, y in zip(a, b, strict=True))
