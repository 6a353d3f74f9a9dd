"""Whole numbers of C++: each result fits its type, and quotients of unknowns are unknowns of which facts are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import z3

from .known import Known
from .logic import Term, both, folded
from .shares import share_of
from .values import Division, Int, Opaque, Truth

BITS = {"int": 32, "int32_t": 32, "int64_t": 64, "uint32_t": 32, "uint64_t": 64, "size_t": 64, "uintptr_t": 64,
        "unsigned": 32, "RowIndex": 64}  # fmt: skip
UNSIGNED = {"uint32_t", "uint64_t", "size_t", "uintptr_t", "unsigned"}


class Arithmetic(Known):
    """What is computed of whole numbers at a place."""

    def __init__(self, knows: Sequence[Any]) -> None:
        super().__init__(knows)
        self.divisions: dict[tuple[int, ...], Division] = {}
        self.multiples: list[Any] = []  # sizes below which a quotient may be shown to be
        self.below: dict[int, Any] = {}  # quotients and rests, and what they are below
        self.naming = False  # whether variables that are choices and quotients become unknowns of their own

    def number(self, value: Any) -> Term:
        """The term of a value that must be a whole number."""
        if isinstance(value, Int):
            return value.term
        if isinstance(value, Truth):
            return int(value.term) if isinstance(value.term, bool) else z3.If(value.term, 1, 0)
        return self.fresh("data")

    def truth(self, value: Any) -> Any:
        """The condition that a value is not 0."""
        if isinstance(value, Truth):
            return value.term
        if isinstance(value, Int):
            return value.term != 0
        return self.unknown_truth()

    def arithmetic(self, mark: str, a: Int, b: Int) -> Any:
        """A C++ operation on whole numbers; the result must fit its type."""
        wide = "int64_t" if max(BITS.get(a.type, 64), BITS.get(b.type, 64)) == 64 else "int"
        both_unsigned = [t for t in (a.type, b.type) if t in UNSIGNED and BITS[t] == BITS[wide]]
        kind = both_unsigned[0] if both_unsigned else wide
        x, y = a.term, b.term
        fixed = isinstance(x, int) and isinstance(y, int)
        if mark in ("==", "!=", "<", ">", "<=", ">="):
            made = {"==": lambda: x == y, "!=": lambda: x != y, "<": lambda: x < y, ">": lambda: x > y,
                    "<=": lambda: x <= y, ">=": lambda: x >= y}[mark]()  # fmt: skip
            return Truth(folded(made))
        if mark in ("+", "-", "*"):
            made = x + y if mark == "+" else x - y if mark == "-" else x * y
            if not fixed:
                self.must(f"{kind} overflow", self.fits(made, kind))
            return Int(folded(made), kind)
        if mark in ("/", "%") and isinstance(y, int) and y == 1:
            return Int(x if mark == "/" else 0, kind)
        if mark in ("/", "%"):
            if isinstance(y, int) and y > 0 and (fixed or (not self.dry and self.follows(x >= 0))):
                made = (x // y if mark == "/" else x % y) if fixed else x / y if mark == "/" else x % y
                return Int(folded(made), kind)
            if fixed and y:
                q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
                return Int(q if mark == "/" else x - q * y, kind)
            if isinstance(y, int) and y > 0:
                q = z3.If(x >= 0, x / y, -((-x) / y))
                return Int(q if mark == "/" else x - q * y, kind)
            self.must("division by 0 or of a negative", both(y > 0, x >= 0))
            if mark == "/" and (share := share_of(x, y, self.below)) is not None:
                return Int(share, kind)
            made = self.divided(x, y)
            return Int(made.quotient if mark == "/" else made.rest, kind)
        if mark in ("<<", ">>") and isinstance(y, int):
            if mark == "<<":
                made = x * 2**y
                if not fixed:
                    self.must(f"{kind} overflow", self.fits(made, a.type))
                return Int(folded(made), a.type)
            return Int(x >> y if fixed else folded(x / 2**y), a.type)
        if fixed:
            made = {"&": x & y, "|": x | y, "^": x ^ y, "<<": 0, ">>": 0}[mark]
            return Int(made, kind)
        if mark == "&" and isinstance(y, int) and (y & (y + 1)) == 0:
            return Int(folded(x % (y + 1)), kind)
        made = self.fresh("bits")
        return Int(made, kind)

    def divided(self, x: Term, y: Term) -> Division:
        """A quotient by an unknown. Where x < n * y, it is below n."""
        x, y = (z3.IntVal(t) if isinstance(t, int) else t for t in (x, y))
        key: tuple[int, ...] = (x.get_id(), y.get_id(), *(w.get_id() for w in self.when if not isinstance(w, bool)))
        if self.dry or key not in self.divisions:
            made = Division(x, y, self.fresh("quotient"), self.fresh("rest"))
            q, r = made.quotient, made.rest
            if self.dry and self.naming:
                return made
            self.fact(z3.And(x == q * y + r, r >= 0, r < y, q >= 0, q <= x))
            if self.dry:
                return made
            self.below[r.get_id()] = y
            for n in [*self.multiples, *self.factors(x, y)]:
                if self.follows(x < n * y):
                    self.fact(q < n)
                    self.below[q.get_id()] = n
            self.divisions[key] = made
            self.alive.append((x, [y, *self.when]))
        return self.divisions[key]

    def factors(self, x: Any, y: Any) -> list[Any]:
        """What a loop's bound multiplies y by, where that bounds x."""
        bounds = [w.arg(1) for w in self.when if z3.is_app(w) and z3.is_lt(w) and w.arg(0).eq(x)]
        return [f for b in bounds if z3.is_mul(b) and b.num_args() == 2 and b.arg(0).eq(y) for f in [b.arg(1)]]

    def fits(self, term: Term, kind: str) -> Any:
        """Whether a number fits a type."""
        n = BITS.get(kind, 64)
        low, high = (0, 2**n - 1) if kind in UNSIGNED else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)
        return both(folded(term >= low), folded(term <= high))

    def converted(self, value: Any, kind: str) -> Any:
        """A value as it is kept in a variable of a type."""
        plain = kind.replace("const", "").rstrip("&")
        if plain in BITS:
            if isinstance(value, (Int, Truth)):
                term = self.number(value)
                if (
                    BITS[plain] < 64
                    and not isinstance(term, int)
                    and not (
                        isinstance(value, Int)
                        and BITS.get(value.type, 64) == BITS[plain]
                        and (value.type in UNSIGNED) == (plain in UNSIGNED)
                    )
                ):
                    self.must(
                        f"{plain} from {value.type if isinstance(value, Int) else 'bool'}", self.fits(term, plain)
                    )
                return Int(term, plain)
            return Int(self.fresh("data"), plain) if isinstance(value, Opaque) else value
        if plain == "bool" and isinstance(value, (Int, Opaque)):
            return Truth(self.truth(value))
        return value
