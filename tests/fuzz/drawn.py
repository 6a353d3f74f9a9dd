"""Draw small definitions, of several families: which one a number gives follows from the seed and the number alone."""

from __future__ import annotations

import random

from programs import HEAD, Program
from writing import COLS, FLOATS, HOW, INTEGERS, ROWS, Variable, Writer

from tokitai.formats import STORAGE
from tokitai.lang import Sizes


def integer_input(w: Writer, name: str, kind: str, space: str, fmt: str) -> None:
    """Whole numbers; of rows they are indices of columns."""
    w.add_input(name, kind, fmt, space)
    if space == "r" and fmt != "u32":
        w.contract.setdefault("indices", []).append(f"'{name}': Index()")
        w.indices["columns"].append(name)
        if w.often(0.5):
            w.contract.setdefault("min_cols", ["1"])


def rows_family(w: Writer) -> None:
    """Sums, maxima and choices along rows, sums down columns, entries of tables."""
    if w.often(0.9):
        w.add_input("a", "Matrix", w.one(["storage", "storage", "f32", "f16", "bf16"]), "rc")
    for name, kind, space in (("b", "Matrix", "rc"), ("u", "Rows", "r"), ("g", "Cols", "c")):
        if w.often(0.4):
            fmt = w.one([*FLOATS, "storage"]) if w.often(0.97) else "f64"
            w.add_input(name, kind, fmt, space, w.often(0.2) and bool(w.inputs))
    if w.often(0.25):
        kind, space = w.rng.choice([("Matrix", "rc"), ("Rows", "r"), ("Rows", "r"), ("Cols", "c")])
        integer_input(w, "i", kind, space, w.one(INTEGERS if space == "r" or w.often(0.1) else ("i32", "u32")))
    if w.often(0.2):
        w.inputs += [f"table: Table[{w.one(FLOATS)}]", f"at: Rows[{w.one(['i32', 'i64'])}]"]
        w.contract.setdefault("indices", []).append("'at': Index(entries=True)")
        w.tables.append("table")
        w.indices["entries"].append("at")
        w.new("gather(table, at)", "rc")
    if w.often(0.08) and w.values:
        w.inputs.append(f"side_in: Slots[{w.one(['f32', 'storage'])}]")
        w.keywords.append("k: Literal[2, 1, 3] = 2")
        w.options["k"] = (2, 1, 3)
        w.lines.append("first = side_in[0] + side_in[-1]")
        w.values.append(Variable("first", "r", "f32"))
    if not w.inputs:
        w.add_input("a", "Matrix", "storage", "rc")
    w.params()
    w.steps(w.rng.randint(3, 13), [
        (w.arithmetic, 9), (w.unary, 4), (w.named_function, 1), (w.condition, 2), (w.logic, 1), (w.choose, 3),
        (w.integers, 2), (w.random_bits, 1), (w.across, 8), (w.option, 1),
    ])  # fmt: skip
    w.results("rc r c s", types=("f32", "f32", *INTEGERS) if w.often(0.2) else ("f32",))


def flat_family(w: Writer) -> None:
    """Elements, wherever they lie, and totals of all of them."""
    for name in ("a", "b", "c")[: w.rng.randint(1, 3)]:
        if w.often(0.12) and w.values:
            w.add_input(name, "Matrix", w.one(INTEGERS), "rc")
        else:
            w.add_input(name, "Matrix", w.one([*FLOATS, "storage"]), "rc", bool(w.inputs) and w.often(0.2))
    w.params()
    if w.often(0.3):
        w.contract["lists"] = ["True"]
    w.steps(w.rng.randint(2, 10), [
        (w.arithmetic, 8), (w.unary, 4), (w.named_function, 1), (w.condition, 2), (w.logic, 1), (w.choose, 3),
        (w.integers, 3), (w.random_bits, 2), (w.across, 4), (w.option, 1),
    ])  # fmt: skip
    w.results("rc s", types=("f32", "f32", *INTEGERS) if w.often(0.2) else ("f32",))


def whole_family(w: Writer) -> None:
    """Nothing but whole numbers."""
    kind = w.one(INTEGERS) if w.often(0.1) else w.one(["i32", "u32"])
    w.add_input("a", "Matrix", kind, "rc")
    if w.often(0.5):
        w.add_input("b", *w.rng.choice([("Matrix", kind, "rc"), ("Cols", kind, "c"), ("Rows", w.one(INTEGERS), "r")]))
    w.steps(w.rng.randint(2, 9), [(w.integers, 6), (w.condition, 2), (w.logic, 1), (w.choose, 2)])
    w.results("rc c r s", types=INTEGERS if w.often(0.7) else ("f32", *INTEGERS))


def scatter_family(w: Writer) -> None:
    """Sums of rows over the entries of a table."""
    w.add_input("a", "Matrix", w.one(FLOATS), "rc")
    if w.often(0.4):
        w.add_input("u", "Rows", w.one(FLOATS), "r")
    if w.often(0.3):
        w.add_input("g", "Cols", w.one(FLOATS), "c")
    w.inputs.append(f"at: Rows[{w.one(['i32', 'i64'])}]")
    w.contract["indices"] = ["'at': Index(entries=True)"]
    w.keywords.append("entries: int")
    w.params()
    steps = [(w.arithmetic, 8), (w.unary, 4), (w.condition, 1), (w.choose, 2), (w.integers, 1)]
    w.steps(w.rng.randint(1, 5), [*steps, (w.across, 1)] if w.often(0.15) else steps)
    x = w.some("f32", "rc")
    assert x is not None
    w.values = [v for v in w.values if v.space in ("c", "s") and v.type == "f32"]
    w.lines.append(f"total = scatter_sum({x.name}, at, entries)")
    if w.often(0.3):
        fmt = w.one(FLOATS)
        w.inputs.append(f"old: Table[{fmt}]")
        w.lines.append("total = total + old")
        if w.often(0.5):
            w.lines.append("return outputs(old=total)")
            return
    if w.often(0.5):
        w.lines.append(f"total = total {w.one('+*-')} {w.operand('c s')[0]}")
    if w.often(0.2):
        w.lines.append("total = sqrt(abs(total))")
    shown = "total" if w.often(0.7) else f"stored(total, {w.one(FLOATS)})"
    more = ", other=total * 2" if w.often(0.2) else ""
    w.lines.append(f"return outputs(y={shown}{more})")


def product_family(w: Writer) -> None:
    """Matrix products and what is made of them element by element."""
    layout, accumulator = w.one(["NN", "NT", "TN"]), w.one(["f32", "f32", "f64"])
    grouped = w.often(0.35)
    left = w.one(FLOATS)
    right = w.one(FLOATS)
    w.inputs += [f"x: Operand[{left}]", f"w: Operand[{right}]"]
    if grouped:
        share = w.one(["rows", "inner"])
        layout = "TN" if share == "inner" else w.one(["NN", "NT"]) if w.often(0.9) else "TN"
        w.new(f"grouped_matmul(x, w, at, {layout!r}, {accumulator!r}, share={share!r})", "rc")
    else:
        w.new(f"matmul(x, w, {layout!r}, {accumulator!r})", "rc")
        if w.often(0.25):
            w.inputs.append(f"w2: Operand[{right if w.often(0.8) else w.one(FLOATS)}]")
            w.new(f"matmul(x, w2, {layout if w.often(0.7) else w.one(['NN', 'NT'])!r}, {accumulator!r})", "rc")
        if w.often(0.3):
            w.contract["batched"] = ["True"]
    for name, kind, space in (("b", "Matrix", "rc"), ("u", "Rows", "r"), ("g", "Cols", "c")):
        if w.often(0.25):
            w.add_input(name, kind, w.one(FLOATS), space, w.often(0.3))
    if grouped:
        w.inputs.append("at: Groups[i64]" if w.often(0.8) else "at: Groups[i32]")
    w.params()
    steps = [(w.arithmetic, 8), (w.unary, 4), (w.named_function, 1), (w.choose, 2), (w.integers, 1), (w.option, 1)]
    w.steps(w.rng.randint(0, 5), [*steps, (w.across, 2)] if w.often(0.15) else steps)
    w.results("rc" if w.often(0.9) else "rc r c", 2)


def attention_family(w: Writer) -> None:
    """Products whose rows are weighed into sums of operands."""
    w.inputs += [f"q: Operand[{w.one(FLOATS)}]", f"k: Operand[{w.one(FLOATS)}]"]
    scores = w.new("matmul(q, k, 'NT')", "rc")
    if w.often(0.3):
        w.inputs += [f"v: Operand[{w.one(FLOATS)}]", f"z: Operand[{w.one(FLOATS)}]"]
        other = w.new("matmul(z, v, 'NT')", "rc")
        w.new(f"{scores.name} * {other.name}", "rc")
    else:
        w.inputs.append(f"v: Operand[{w.one(FLOATS)}]")
    if w.often(0.5):
        w.add_input("u", "Rows", w.one(["f32", "storage"]), "r")
    if w.often(0.5):
        w.inputs.append("limit: Rows[i32]")
        w.contract["indices"] = ["'limit': Index(upto=True)"]
        w.contract["draw"] = ["'limit': 'lengths'"]
        w.limit = "limit"
    w.params()
    if w.often(0.3):
        w.contract["batched"] = ["True"]

    def reduce() -> None:
        x = w.some("f32", "rc")
        assert x is not None
        shown = x.name
        if w.limit is not None and w.often(0.95):
            hidden = w.one(["0", "-float('inf')", "-0.0", "1"])
            shown = f"where(column_index() < limit, {x.name}, {hidden})"
        w.new(f"{w.one(['row_sum', 'row_max'])}({shown})", "r")

    w.steps(w.rng.randint(1, 6), [
        (w.arithmetic, 7), (w.unary, 3), (w.named_function, 2), (w.condition, 1), (w.choose, 2), (reduce, 5),
    ])  # fmt: skip
    terms = []
    for i in range(w.rng.randint(1, 2)):
        x = w.some("f32", "rc")
        assert x is not None
        over = w.one(["columns", "columns", "rows"]) if i else "columns"
        to = "v" if over == "columns" and (i == 0 or w.often(0.5)) else "k" if over == "columns" else "q"
        limit = "limit" if w.limit else "None"
        w.lines.append(f"s{i} = weighted_sum({x.name}, {to}, {limit}, over={over!r})")
        if w.often(0.4):
            r = w.some("f32", "r s" if over == "columns" else "s")
            w.lines.append(f"s{i} = s{i} {w.one('*+/')} {r.name if r else 2}")
        terms.append(f"y{i}=s{i}")
    rest = w.some("f32", "r" if w.often(0.7) else "rc r c s")
    if rest is not None and w.often(0.4):
        terms.append(f"rest={rest.name}")
    w.lines.append(f"return outputs({', '.join(terms)})")


def wild_family(w: Writer) -> None:
    """Anything beside anything: much of it has to be refused."""
    w.rng.choice([rows_family, rows_family, flat_family, product_family])(w)
    w.lines.pop()
    if w.often(0.3):
        w.inputs.append(f"table: Table[{w.one(FLOATS)}]") if not w.tables else None
        w.lines.append(w.one(["t = table * 2", "t = table + columns(table)", "t = abs(table)"]))
        w.values.append(Variable("t", "t", "f32"))
    w.steps(4, [(w.across, 4), (w.arithmetic, 2), (w.integers, 2), (w.condition, 1)])
    x = w.some("f32", "r")
    if x is not None and w.often(0.3):
        w.new(f"slots({x.name}, {x.name})", "r")
        w.arithmetic()
    if w.often(0.1):
        w.inputs.append("wide: Matrix[f64]")
        w.new("convert(wide, f32)", "rc")
    w.results("rc r c s t", types=("f32", "bool", *INTEGERS))


FAMILIES = {
    rows_family: 46, flat_family: 17, whole_family: 5, scatter_family: 8, product_family: 9, attention_family: 6,
    wild_family: 9,
}  # fmt: skip


def program(seed: int, number: int) -> Program:
    """The definition of this number."""
    rng = random.Random(f"{seed}/{number}")
    family = rng.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    name = family.__name__.removesuffix("_family")
    w = Writer(rng, number, name)
    family(w)
    source = HEAD.format(number=number, seed=seed) + w.text()
    return Program(
        seed, number, name, source, rng.choice([f.name for f in STORAGE]),
        frozenset(n for n in w.optional if rng.random() < 0.5),
        {n: rng.choice(values) for n, values in w.options.items()},
        shapes(rng, source), tuple(rng.choices(HOW, k=3)),
    )  # fmt: skip


def shapes(rng: random.Random, source: str) -> tuple[tuple[int, int], ...]:
    """Three shapes: the last two have as many columns, so that one schedule of a GPU serves both."""
    if "Operand[" in source:
        sides = [0, 1, 2, 5, 9, 17, 33]
        found = []
        for _ in range(3):
            rows, cols, inner = (rng.choice(sides) for _ in range(3))
            ragged = "k" if "share='inner'" in source else "r" if "grouped_matmul" in source else ""
            batch = rng.choice([1, 2, 5]) if ragged else rng.choice([1, 2]) if "batched=True" in source else 1
            found.append(Sizes(rows, cols, inner, batch, ragged))
        return tuple(found)
    cols = rng.choice(COLS)
    most, least = (1 if "lists=True" in source else 100), (1 if "min_cols=1" in source else 0)
    sizes = [(rng.choice(ROWS), rng.choice(COLS)), (rng.choice(ROWS), cols), (rng.choice(ROWS), cols)]
    return tuple((min(r, most), max(c, least)) for r, c in sizes)
