"""Where the workspace of a GPU's kernel ends, by the expressions of its emitted source and of the headers that it uses.

A kernel declares where the pending partials of a block begin; those of the next block begin where they end. So a launch
needs as many elements as lie ahead of the block that would follow the last one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import z3

from ..emit.cpp import KernelText
from ..errors import ProofError
from .logic import variables
from .parse import Function, Node, Parser, functions_of, preprocessed
from .symbolic import Whole, term_of, whole
from .values import Base, Cell, Int, Pointer, Scope
from .walk import Walk

DEFINED = {"__CUDACC__": 1, "TOKITAI_STRUCTURE": 0, "TOKITAI_HIP": 0}
FUNCTIONS = ("ceil_div", "pending_size", "teams_of")
CONSTANTS = (  # each after those that it is made of
    "CHAIN", "PRODUCTS", "ROWS", "COLS", "DIM", "PIECES", "ACROSS",
    "LANES", "XLANES", "MR", "NV", "NR", "BLOCK_M", "BLOCK_N", "DEPTH", "BLOCK_ROWS",
)  # fmt: skip
# Levels are the bits of n.
COUNTED = r"\) (?:const )?\{\s*int64_t levels = 0;\s*for \(int64_t n = ([^;]*); n > 0; n >>= 1\) \+\+levels;"


class Emitted:
    """A translation unit, and what is read in it."""

    def __init__(self, text: KernelText, defined: Mapping[str, int] = DEFINED) -> None:
        self.text = preprocessed(text.text, defined, text.headers)
        self.functions: dict[str, list[Function]] = functions_of(self.text, FUNCTIONS, FUNCTIONS, ("int64_t",))

    def found(self, pattern: str, what: str, text: str | None = None) -> Node:
        """The expression that a pattern finds. Raises ProofError where there is none."""
        m = re.search(pattern, self.text if text is None else text)
        if m is None:
            raise ProofError(f"no {what} in the emitted source; accepted: one that matches {pattern}")
        return Parser(m[1], FUNCTIONS).expression()

    def kernel(self, name: str) -> str:
        """The text of a kernel."""
        _, begin, rest = self.text.partition(f"KERNEL({name},")
        if not begin:
            raise ProofError(f"no KERNEL({name}, ...) in the emitted source; accepted: one")
        return rest.partition("\nKERNEL(")[0]


@cache
def _emitted(text: str, headers: tuple[tuple[str, str], ...]) -> Emitted:
    return Emitted(KernelText(text, dict(headers)))


def emitted(text: KernelText) -> Emitted:
    """The same for the same source."""
    return _emitted(text.text, tuple(text.headers.items()))


class Evaluation:
    """Expressions of a source, evaluated on unknown sizes. Inside `every_path`."""

    def __init__(self, source: Emitted, given: Mapping[str, Any], knows: Sequence[Any] = ()) -> None:
        self.source = source
        self.calls: dict[str, Any] = {"min": self.minimum, "levels_of": self.levels_of}
        self.walk = Walk(source.functions, knows, self.calls, {})
        self.walk.dry = int(not knows)
        self.scope = Scope(self.walk.globals)
        for name, value in given.items():
            self.let(name, value)

    def let(self, name: str, value: Any) -> None:
        """Give a name a number."""
        self.walk.globals.names[name] = Cell(Int(value.term if isinstance(value, Whole) else value, "int64_t"))

    def constants(self) -> None:
        """Numbers that the headers define, of those that the workspace is made of."""
        for name in CONSTANTS:
            pattern = rf"^constexpr (?:int|int64_t) (?:[^;]*, )?{name} = ([^,;]*)[,;]"
            m = re.search(pattern, self.source.text, re.MULTILINE)
            if m is not None:
                value = self.walk.value(Parser(m[1], FUNCTIONS).expression(), self.scope)
                if isinstance(value, Int) and isinstance(value.term, int):  # else nothing that is asked for here
                    self.let(name, value.term)

    def of(self, node: Node, names: Mapping[str, Any] = {}) -> Any:
        """The value of an expression in which these names have these values."""
        scope = Scope(self.walk.globals)
        scope.names |= {name: Cell(value) for name, value in names.items()}
        return self.walk.value(node, scope)

    def number(self, node: Node) -> Any:
        """The number that an expression is."""
        return self.walk.number(self.of(node))

    def known(self, node: Node, term: Any) -> None:
        """Raise ProofError where a number is made of one that was not found."""
        if any("data" in str(v) for v in variables(term)):
            raise ProofError(f"{node}: a number in it is not known; accepted: sizes, and {', '.join(CONSTANTS)}")

    def levels_of(self, walk: Walk, template: Any, values: Any) -> Any:
        """How many bits the number has from which the loop over levels begins."""
        node = self.source.found(r"levels_of\(int64_t terms" + COUNTED, "loop over levels of pending partials")
        return self.bits(self.walk.number(self.of(node, {"terms": values[0]} if values else {})))

    @staticmethod
    def bits(n: Any) -> Int:
        """How many bits a number has; none where it is below 1."""
        n = n if isinstance(n, int) else whole(z3.simplify(n))
        return Int(term_of(0 if n < 1 else n.bit_length()), "int64_t")

    def minimum(self, walk: Walk, template: Any, values: Any) -> Any:
        a, b = (walk.number(v) for v in values)
        if isinstance(a, int) and isinstance(b, int):
            return Int(min(a, b), "int64_t")
        a, b = (z3.IntVal(x) if isinstance(x, int) else x for x in (a, b))
        return Int(z3.If(a < b, a, b), "int64_t")


def _work(run: Evaluation, kernel: str) -> dict[str, Any]:
    """``Work`` as a kernel makes it: the numbers and functions of its launch."""
    source = run.source
    m = re.search(r"const Work work\((.*)\);", kernel)
    if m is None:
        return {}
    made: dict[str, Any] = {}
    members = ("rows", "cols", "k_size", "batch", "chains_per_slice")
    call = Parser(f"f({m[1].replace('call.', '')})", FUNCTIONS).expression()
    for name, node in zip(members, call.args[1], strict=True):
        made[name] = run.of(node)
    for name in ("down", "across", "chains"):
        node = source.found(rf"\b{name}\((ceil_div\(\w+, \w+\))\)", f"initializer of Work::{name}")
        made[name] = run.of(node, made)
    for name in ("slices", "units"):
        made[name] = run.of(source.found(rf"\b{name} = ([^;]*);", f"value of Work::{name}"), made)
    parts = source.found(r"slice_partials\(\) const \{ return ([^;]*); \}", "Work::slice_partials")
    first = source.found(r"pending_of_block\(" + COUNTED, "loop over levels in Work::pending_of_block")
    each = source.found(r"return (levels [^;]*);", "result of Work::pending_of_block")

    def pending(walk: Walk) -> Any:
        return run.of(each, made | {"levels": run.bits(walk.number(run.of(first, made)))})

    return {**made, ".slice_partials": lambda walk: run.of(parts, made), ".pending_of_block": pending}


def end_of_workspace(text: KernelText, kernel: str, grid: Any, given: Mapping[str, Any]) -> Any:
    """Elements ahead of the first one behind the workspace of a launch of so many blocks; ``given`` are the sizes of
    the call by their names in the source."""
    run = Evaluation(emitted(text), given)
    run.constants()
    run.calls["block_index"] = lambda walk, template, values: Int(term_of(grid), "int64_t")
    body = run.source.kernel(kernel)
    start = {name: Pointer(Base("workspace", "workspace"), 0) for name in ("slices", "values")}
    begin = run.source.found(r"E\* const pending = ([^;]*);", "pending partials", body)
    where = run.of(begin, {**start, "work": _work(run, body)})
    if not isinstance(where, Pointer):
        raise ProofError(f"{begin}: no place in the workspace; accepted: a pointer from its first element on")
    run.known(begin, where.at)
    return where.at


__all__ = ["Emitted", "Evaluation", "emitted", "end_of_workspace"]
