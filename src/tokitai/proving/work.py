"""The workspace of a product's kernel on a GPU, as `work.h` lays it out: partials of slices, then pending partials."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import z3

from ..emit.gpu_text import headers
from ..errors import ProofError
from ..families.matmul.tiling import Tiling
from ..lang import Sizes
from .parse import Node, Parser, preprocessed
from .symbolic import Whole, term_of, whole
from .values import Cell, Int, Scope
from .walk import Walk


@cache
def _expressions() -> dict[str, Node]:
    """The expressions of ``struct Work`` by name, from the header's text."""
    text = preprocessed(headers(of_products=True)["work.h"], {})
    found = {}
    for name in ("down", "across", "chains"):
        m = re.search(rf"\b{name}\((ceil_div\(\w+, \w+\))\)", text)
        if m is None:
            raise ProofError(f"work.h: no initializer of {name}; accepted: {name}(ceil_div(..., ...))")
        found[name] = Parser(m[1]).expression()
    for name, pattern in {
        "slices": r"\bslices = ([^;]*);", "slice_partials": r"slice_partials\(\) const \{ return ([^;]*); \}",
        "levels_of": r"for \(int64_t n = ([^;]*); n > 0; n >>= 1\) \+\+levels;",
        "pending_of_block": r"return (levels [^;]*);",
        "ceil_div": r"ceil_div\(int64_t a, int64_t b\) \{ return ([^;]*); \}",
    }.items():  # fmt: skip
        m = re.search(pattern, text)
        if m is None:
            raise ProofError(f"work.h: no {name}; accepted: one that matches {pattern}")
        found[name] = Parser(m[1]).expression()
    return found


def pending_and_slices(products: int, tiling: Tiling, sizes: Sizes, chains_per_slice: int, grid: Any) -> Any:
    """Elements that a launch of so many blocks uses, by the header's expressions. Inside `every_path`."""
    made = _expressions()
    walk = Walk({}, [], {}, {})
    walk.dry = 1
    scope = Scope(walk.globals)

    def ceil_div(walk: Walk, template: Any, values: Any) -> Any:
        scope = Scope(walk.globals)
        scope.names |= {"a": Cell(values[0]), "b": Cell(values[1])}
        return walk.value(made["ceil_div"], scope)

    def minimum(walk: Walk, template: Any, values: Any) -> Any:
        a, b = (walk.number(v) for v in values)
        if isinstance(a, int) and isinstance(b, int):
            return Int(min(a, b), "int64_t")
        a, b = (z3.IntVal(x) if isinstance(x, int) else x for x in (a, b))
        return Int(z3.If(a < b, a, b), "int64_t")

    walk.calls = {"ceil_div": ceil_div, "min": minimum}
    for name, size in zip(("rows", "cols", "k_size", "batch"), (*sizes, sizes.inner, sizes.batch), strict=True):
        scope.names[name] = Cell(Int(size.term if isinstance(size, Whole) else size, "int64_t"))
    scope.names |= {
        "PRODUCTS": Cell(Int(products)), "ROWS": Cell(Int(tiling.rows)), "COLS": Cell(Int(tiling.cols)),
        "CHAIN": Cell(Int(4096, "int64_t")), "chains_per_slice": Cell(Int(chains_per_slice, "int64_t")),
    }  # fmt: skip
    for name in ("down", "across", "chains", "slices"):
        scope.names[name] = Cell(walk.value(made[name], scope))
    last = walk.number(walk.value(made["levels_of"], scope))
    n = last if isinstance(last, int) else whole(z3.simplify(last))
    levels = 0 if n < 1 else n.bit_length()
    scope.names["levels"] = Cell(Int(term_of(levels), "int64_t"))
    each = walk.number(walk.value(made["pending_of_block"], scope))
    return walk.number(walk.value(made["slice_partials"], scope)) + grid * each


__all__ = ["pending_and_slices"]
