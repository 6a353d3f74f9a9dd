"""Write small definitions, step by step: values, operations of them, and what is returned."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

NUMBERS = ("0", "1", "2", "-0.0", "0.5", "-3", "1e-5", "7.25", "-1e-30", "float('inf')", "1 / 3", "16777217")
SMALL = (0, 1, 2, 3, 7)
FLOATS = ("f16", "bf16", "f32", "storage")
NAMED = (
    "cos", "erf", "erfc", "exp", "exp2", "exp_down", "exp_short", "expm1", "gelu", "gelu_tanh", "log", "log1p",
    "normal_cdf", "sigmoid", "silu", "sin", "softplus", "tanh", "gelu_slope", "gelu_tanh_slope", "silu_slope",
)  # fmt: skip
INTEGERS = ("i32", "i64", "u32")
ROWS, COLS = (0, 1, 2, 3, 5, 17, 33, 70), (0, 1, 2, 5, 8, 17, 33, 64, 130)
HOW = ("normal", "normal", "special", "zeros", "wide", "equal", "nans", "tiny", "exponents", "tiled")


@dataclass
class Variable:
    """A value of a program."""

    name: str
    space: str
    type: str  # f32, i32, i64, u32, bool, host
    exact: bool = False  # of a condition: made of integers alone
    tame: bool = True  # of integers: small, so that sums and products do not overflow
    depth: int = 0  # steps that lead to it


@dataclass
class Writer:
    """Writes one definition, step by step."""

    rng: random.Random
    number: int
    family: str
    inputs: list[str] = field(default_factory=list)
    keywords: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[Variable] = field(default_factory=list)
    named: dict[str, Variable] = field(default_factory=dict)  # inputs that a result can replace
    optional: list[str] = field(default_factory=list)
    options: dict[str, tuple[object, ...]] = field(default_factory=dict)
    contract: dict[str, list[str]] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    indices: dict[str, list[str]] = field(default_factory=lambda: {"columns": [], "entries": []})
    limit: str | None = None
    calls: int = 0

    # ------------------------------------------------------------------ parts
    def one(self, of: Sequence[str]) -> str:
        return self.rng.choice(of)

    def often(self, chance: float) -> bool:
        return self.rng.random() < chance

    def new(self, text: str, space: str, type: str = "f32", exact: bool = False, tame: bool = True) -> Variable:
        """A line that gives a value its name."""
        words = set(re.findall(r"\w+", text))
        depth = 1 + max((v.depth for v in self.values if v.name in words), default=0)
        made = Variable(f"v{len(self.lines)}", space, type, exact, tame, depth)
        self.lines.append(f"{made.name} = {text}")
        self.values.append(made)
        return made

    def some(self, type: str = "f32", spaces: str = "rc r c s", tame: bool | None = None) -> Variable | None:
        """A value of this type, of the last ones more often."""
        fit = [v for v in self.values if v.type == type and v.space in spaces.split() and (v.tame or not tame)]
        if not fit:
            return None
        return fit[-1 - min(int(self.rng.expovariate(0.45)), len(fit) - 1)] if self.often(0.7) else self.rng.choice(fit)

    def operand(self, spaces: str = "rc r c s") -> tuple[str, str]:
        """A floating-point operand, as it is written, and its space: a value, a number or a scalar of the host."""
        if self.often(0.2):
            return self.one(NUMBERS), "s"
        if self.often(0.12):
            return self.host(), "s"
        found = self.some("f32", spaces)
        return (found.name, found.space) if found else (self.one(NUMBERS), "s")

    def host(self) -> str:
        """A scalar of the host."""
        given = [v.name for v in self.values if v.type == "host"]
        anything = next((v.name for v in self.values if v.type == "f32"), None)
        parts = [*given, *([f"columns({anything})", f"rows({anything})"] if anything else [])] or ["1"]
        a, b = self.one(parts), self.one([*parts, "2", "0.25"])
        return self.one(
            [
                a,
                f"({a} + {b})",
                f"({a} * {b} - 1)",
                f"(1 / {a})" if a != "1" else a,
                f"(-{a})",
                *([f"sqrt({a})", f"{a} ** 2"] if a != "1" else []),
            ]
        )

    def add_input(self, name: str, kind: str, fmt: str, space: str, optional: bool = False) -> None:
        """An argument; an optional one is mixed into a value where it is given."""
        type = fmt if fmt in INTEGERS else "f64" if fmt == "f64" else "f32"
        self.inputs.append(f"{name}: {kind}[{fmt}]{' | None' * optional}")
        if optional:
            self.optional.append(name)
            base = self.some("f32")
            if base is None:
                return
            spaces = {base.space, space} - {"s"}
            joined = "rc" if spaces in ({"r", "c"}, {"rc", "r"}, {"rc", "c"}, {"rc"}) else (spaces or {"s"}).pop()
            if joined != base.space:
                self.lines.append(f"{name} = 1 if {name} is None else {name}")
                self.new(f"{base.name} * {name} + columns({base.name})", "rc")
            else:
                self.new(f"{base.name} if {name} is None else {base.name} {self.one(['+', '*', '-'])} {name}", joined)
        else:
            made = Variable(name, space, type)
            self.values.append(made)
            self.named[name] = made

    # ------------------------------------------------------------------ steps
    def arithmetic(self) -> None:
        b, t = self.operand()
        found = self.some("f32")
        if found is None:
            return
        first, space = found.name, found.space
        if self.often(0.3):
            c, u = self.operand()
            self.new(f"fma({first}, {b}, {c})", join(space, t, u))
            return
        how = self.one(["+", "-", "*", "/", "maximum", "minimum", "+", "*", "bend"])
        left, right = (first, b) if self.often(0.5) else (b, first)
        text = f"{left} {how} {right}" if how in "+-*/" else f"{how}({left}, {right})"
        self.new(text, join(space, t))

    def unary(self) -> None:
        found = self.some("f32")
        if found is None:
            return
        x = found.name
        text = self.one([
            f"-{x}", f"abs({x})", f"sqrt({x})", f"sqrt(abs({x}) + 1e-5)", f"round_even({x})", f"1 / {x}",
            f"power_of_two(where(abs({x}) <= 100, round_even({x}), 3))",
            f"exponent(where((abs({x}) >= 1e-30) & (abs({x}) <= 1e30), {x}, 1))",
            f"significand(where((abs({x}) >= 1e-30) & (abs({x}) <= 1e30), {x}, 1.5))",
            f"round_to({x}, {self.one(FLOATS)})", f"convert({x}, f32)",
        ])  # fmt: skip
        self.new(text, found.space)

    def named_function(self) -> None:
        found = self.some("f32")
        if found is None or self.calls >= 2:
            return
        self.calls += 1
        name = self.one(NAMED)
        self.new(f"{name}(-abs({found.name}))" if name == "exp_down" else f"{name}({found.name})", found.space)

    def condition(self) -> None:
        if self.often(0.6):
            found = self.some("f32")
            if found is None:
                return
            b, t = self.operand()
            self.new(f"{found.name} {self.one(['<', '<=', '>', '>=', '==', '!='])} {b}", join(found.space, t), "bool")
            return
        a = self.some(self.one(INTEGERS))
        if a is None:
            return
        b = self.some(a.type)
        text, t = (b.name, b.space) if b is not None and self.often(0.5) else (str(self.one_of(SMALL)), "s")
        self.new(f"{a.name} {self.one(['<', '<=', '>', '==', '!='])} {text}", join(a.space, t), "bool", exact=True)

    def one_of(self, of: Sequence[int]) -> int:
        return self.rng.choice(of)

    def logic(self) -> None:
        a, b = self.some("bool"), self.some("bool")
        if a is None or b is None or (a.exact is not b.exact and self.often(0.95)):
            return
        if self.often(0.3):
            self.new(f"~{a.name}", a.space, "bool", a.exact)
        else:
            self.new(f"{a.name} {self.one('&|')} {b.name}", join(a.space, b.space), "bool", a.exact and b.exact)

    def choose(self) -> None:
        c = self.some("bool")
        if c is None:
            self.condition()
            return
        if c.exact and self.often(0.35):
            kind = self.one(INTEGERS)
            a, b = self.some(kind), self.some(kind)
            if a is not None and b is not None:
                space = join(c.space, a.space, b.space)
                self.new(f"where({c.name}, {a.name}, {b.name})", space, kind, tame=a.tame and b.tame)
                return
        (a_, s), (b_, t) = self.operand(), self.operand()
        self.new(f"where({c.name}, {a_}, {b_})", join(c.space, s, t))

    def integers(self) -> None:
        kind = self.one(INTEGERS)
        a = self.some(kind, tame=None if kind == "u32" else True)
        if a is None:
            leaf = ["column_index()", "row_index()", "element_word(0)", "element_word(1)"]
            spaces = {"column_index()": ("c", "i32"), "row_index()": ("r", "i64")}
            text = self.one(leaf[: 4 if self.family in ("rows", "wild", "product") else 2])
            if self.family == "flat":
                text = self.one([*leaf[2:], "tensor_index()"])
            space, kind = spaces.get(text, ("s" if text == "tensor_index()" else "rc", "u32"))
            self.new(text, space, kind, tame=text != "element_word(0)")
            return
        if self.often(0.35):
            to = self.one(["f32", "f32", "f32", *INTEGERS])
            self.new(f"convert({a.name}, {to})", a.space, to, tame=a.tame)
            return
        if kind == "u32":
            b = self.some("u32")
            assert b is not None
            text = self.one([
                f"bit_xor({a.name}, {b.name})", f"bit_and({a.name}, 0xFFFF)", f"multiply_high({a.name}, 0xD2511F53)",
                f"shift_right({a.name}, {self.rng.randrange(32)})", f"{a.name} * {b.name}", f"{a.name} - {b.name}",
                f"words({a.name}, {b.name}, {self.rng.randrange(9)})",
            ])  # fmt: skip
            self.new(text, join(a.space, b.space) if b.name in text else a.space, "u32", tame=False)
            return
        b = self.some(kind, tame=True)
        other, t = (b.name, b.space) if b is not None and self.often(0.5) else (str(self.one_of(SMALL)), "s")
        if self.often(0.3):
            self.new(f"{a.name} * {self.one_of(SMALL)}", a.space, kind, tame=False)
        else:
            self.new(f"{a.name} {self.one('+-')} {other}", join(a.space, t), kind, tame=False)

    def random_bits(self) -> None:
        bits, x = self.some("u32"), self.some("f32")
        if bits is None or x is None:
            self.integers()
        else:
            to = self.one(["f16", "bf16", "storage"])
            self.new(f"round_stochastic({x.name}, {bits.name}, {to})", join(x.space, bits.space))

    def across(self) -> None:
        if self.family == "flat" or (self.family == "wild" and self.often(0.3)):
            x = self.some("f32", "rc")
            if x is not None:
                self.new(f"{self.one(['total_sum', 'total_sum', 'total_max'])}({x.name})", "s")
            return
        how = self.one(["row_sum", "row_sum", "row_max", "col_sum", "take_column", "row_first", "gather"])
        if how == "col_sum":
            x = self.some("f32", "rc r")
            if x is not None:
                self.new(f"col_sum({x.name})", "c" if x.space == "rc" else "s")
        elif how == "row_first":
            c = self.some("bool", "rc")
            if c is not None and (not c.exact or self.often(0.05)):
                self.new(f"row_first({c.name})", "r")
        elif how == "gather":
            if self.tables and self.indices["entries"]:
                self.new(f"gather({self.one(self.tables)}, {self.one(self.indices['entries'])})", "rc")
        elif how == "take_column":
            x = self.some("f32", "rc")
            if x is not None and self.indices["columns"]:
                index = self.one(self.indices["columns"])
                index = self.one([index, index, f"where({index} < 1, {index} + 0, {index})"])
                self.new(f"take_column({x.name}, {index})", "r")
        else:
            x = self.some("f32", "rc")
            if x is not None:
                self.new(f"{how}({x.name})", "r")

    def option(self) -> None:
        """A choice that gives another graph."""
        a = self.some("f32")
        if a is None or len(self.options) >= 2:
            return
        name = f"mode{len(self.options)}"
        if self.often(0.5):
            self.options[name] = (False, True)
            self.keywords.append(f"{name}: bool = False")
            self.new(f"{a.name} * 2 if {name} else {a.name} + 1", a.space)
        else:
            self.options[name] = ("plain", "squared", "small")
            self.keywords.append(f"{name}: Literal['plain', 'squared', 'small'] = 'plain'")
            self.new(f"{{'plain': {a.name}, 'squared': {a.name} * {a.name}, 'small': {a.name} / 8}}[{name}]", a.space)

    def steps(self, count: int, of: Sequence[tuple[Callable[[], None], int]]) -> None:
        """So many steps, each by its weight."""
        kinds, weights = zip(*of, strict=True)
        for _ in range(count):
            self.rng.choices(kinds, weights)[0]()

    # ------------------------------------------------------------------ the whole
    def results(self, spaces: str, most: int = 3, types: Sequence[str] = ("f32",)) -> None:
        """Return some values, the last ones most of all."""
        fit = [v for v in self.values if v.type in types and v.space in spaces.split()]
        if not fit:
            fit = [v for v in self.values if v.type in ("f32", *INTEGERS)]
        deep = sorted(fit, key=lambda v: -v.depth)[: 2 + most]
        some = [*self.rng.sample(deep, min(most, len(deep))), self.rng.choice(fit)]
        chosen = list({v.name: v for v in some}.values())
        terms = []
        for i, v in enumerate(chosen[: self.rng.randint(1, most)]):
            name, text = f"y{i}", v.name
            same = [n for n, x in self.named.items() if x.space == v.space and x.type == v.type and n not in terms]
            if same and self.often(0.12):
                name = self.one(same)
                if any(t.startswith(f"{name}=") for t in terms):
                    name = f"y{i}"
            elif v.type == "f32" and self.often(0.25):
                text = f"stored({v.name}, {self.one(FLOATS)})"
            terms.append(f"{name}={text}")
        if self.often(0.08) and "r" in spaces.split():
            rows = [v.name for v in fit if v.space == "r" and v.type == "f32"]
            if rows:
                terms.append(f"side=slots({', '.join(self.rng.choices(rows, k=self.rng.randint(1, 3)))})")
        self.lines.append(f"return outputs({', '.join(terms)})")

    def text(self) -> str:
        """The operator's source."""
        contract = "".join(f"{name}={how}, " for name, how in self.shown_contract())
        keywords = f", *, {', '.join(self.keywords)}" if self.keywords else ""
        body = "\n".join(f"    {line}" for line in self.lines)
        return (
            f"\n@operator(contract=Contract({contract.removesuffix(', ')}))\n"
            f"def graph_{self.number}({', '.join(self.inputs)}{keywords}):\n{body}\n"
        )

    def shown_contract(self) -> list[tuple[str, str]]:
        """The contract's arguments."""
        return [
            (name, terms[0] if name in ("lists", "min_cols", "batched") else f"{{{', '.join(terms)}}}")
            for name, terms in self.contract.items()
        ]

    def params(self) -> None:
        """Scalars of the host."""
        if self.often(0.35):
            self.keywords.append("p: float")
            self.contract.setdefault("defaults", []).append(f"'p': {self.one(['0.75', '-2', '0', '1e-6'])}")
            self.values.append(Variable("p", "s", "host"))
        if self.often(0.2):
            self.keywords.append("n: int = 3")
            self.values.append(Variable("n", "s", "host"))
            if self.often(0.5):
                to = self.one(INTEGERS)
                self.new(f"convert(n, {to})", "s", to)


def join(*spaces: str) -> str:
    """The space of a value made of values of these."""
    has = {letter for s in spaces for letter in s} - {"s"}
    return "rc" if has == {"r", "c"} else (has or {"s"}).pop()
