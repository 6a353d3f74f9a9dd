"""Calls of every operator whose tensors lie in memory in any way, and what must hold of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from layouts import Array, Placed, bits, place

from tokitai.arrays.libraries import library_of
from tokitai.errors import ArgumentError
from tokitai.lang import MATRICES, Graph, Operator, Sizes
from tokitai.ops import registry
from tokitai.verification.cases import drawn_scalars, seeded

F32 = ("layer_norm", "router_backward", "top_k", "combine", "matmul", "attention", "embedding_backward")
HOST = ("numpy", "torch")


@dataclass(frozen=True)
class Variant:
    """An operator with its options, and the sizes that it is called with."""

    operator: Operator
    graph: Graph
    shape: tuple[int, int]

    def __str__(self) -> str:
        return "-".join([self.operator.name, self.graph.dtype, *(f"{v}" for v in self.graph.options.values())])


def variants() -> list[Variant]:
    found = []
    for op in registry().values():
        chosen: list[dict[str, Any]] = [{}]
        for o in op.options:
            if o.name == "layout":
                chosen = [{"layout": v} for v in o.accepted]
            if o.name == "k" and op.name in ("top_k", "router_backward"):
                chosen = [{"k": 1}, {"k": 2}]
        for dtype in ("f16", "f32") if op.name in F32 else (op.contract.formats[0],):
            for options in chosen:
                graph = op.trace(dtype, options=options)
                shape: tuple[int, int] = (6, 5)
                if graph.ragged:
                    shape = Sizes(6, 5, 7, 3, graph.ragged)
                elif any(t.space in ("rk", "kr") for t in graph.inputs):
                    attention = op.name.startswith("attention")
                    shape = Sizes(6, 5, 8 if attention else 7, 2 if attention or op.contract.batched else 1)
                found.append(Variant(op, graph, shape))
    return found


def led(rng: np.random.Generator, v: Variant, tensors: dict[str, Array]) -> dict[str, Array]:
    """Rows in several dimensions, or heads of queries that share keys, where a call takes them."""
    spaces = {t.name: t.space for t in v.graph.inputs}
    if isinstance(v.shape, Sizes) and v.shape.several:
        if not v.operator.name.startswith("attention") or rng.random() < 0.5:
            return tensors
        return {n: a.reshape(4, 3, *a.shape[2:]) if spaces[n] in ("rk", "r") else a for n, a in tensors.items()}
    lead = [(6,), (2, 3), (3, 2), (1, 6), (6, 1)][rng.integers(5)]
    return {n: a.reshape(*lead, *a.shape[1:]) if spaces[n][0] == "r" else a for n, a in tensors.items()}


class Drawn:
    """One call: its tensors in memory of all kinds, and what the call on contiguous copies gives."""

    def __init__(self, rng: np.random.Generator, v: Variant, libraries: tuple[str, ...] = HOST) -> None:
        self.v, self.rng, self.libraries = v, rng, libraries
        case = seeded(v.operator, v.graph, "normal", v.shape, int(rng.integers(4)))
        scalars = drawn_scalars(v.operator, v.graph, v.shape)
        self.words: dict[str, Any] = {p.name: scalars[p.name] for p in v.operator.params}
        self.words |= {n: x for n, x in v.graph.options.items() if n not in v.operator.contract.switches}
        self.library = str(rng.choice(libraries))
        self.copy = bool(rng.random() < 0.8)
        self.written = {o.name for o in v.graph.outputs if o.inplace}
        tensors = led(rng, v, dict(case.tensors))
        self.given = {
            n: self._written(a) if n in self.written else place(rng, a, self._library(), 0.15 * (n != "offsets"))
            for n, a in tensors.items()
        }
        plain = {n: np.ascontiguousarray(p.view).copy() for n, p in self.given.items()}
        made = v.operator(**plain, **self.words, threads=1)
        self.want = made if isinstance(made, tuple) else (made,)
        self.fresh = [(o, w) for o, w in zip(v.graph.outputs, self.want, strict=True) if not o.inplace]
        self.out: list[Placed | None] = []
        if rng.random() < 0.6 and self.fresh and v.operator.contract.max_rows > 1:
            for _, w in self.fresh:
                wanted = rng.random() < 0.7
                self.out.append(self._written(np.zeros_like(w)) if wanted else None)

    def _written(self, values: Array) -> Placed:
        """Where results go: of most layouts a call refuses to write them there, those of lists must be contiguous."""
        odds = (0.85, 0.1, 0.05) if self.v.operator.contract.lists else (0.4, 0.45, 0.15)
        return place(self.rng, values, self._library(), 0.02, odds)

    def _library(self) -> str:
        """Mostly one library in a call, on a GPU always."""
        mixed = self.libraries == HOST and self.rng.random() < 0.1
        return str(self.rng.choice(HOST)) if mixed else self.library

    def places(self) -> dict[str, Placed]:
        """All memory of the call, by what refusals call it."""
        named = {f"out ({o.name})": p for (o, _), p in zip(self.fresh, self.out, strict=False) if p is not None}
        return self.given | named

    def may_be_refused(self, name: str) -> bool:
        """Whether a refusal of this tensor may be right: kernels take rows with a stride of matrices alone, and what
        is written must have memory of its own."""
        p, bare = self.places()[name], name.removeprefix("out (").removesuffix(")")
        space = next(x.space for x in (*self.v.graph.inputs, *self.v.graph.outputs) if x.name == bare)
        is_written = name in self.written or name.startswith("out")
        if not is_written and self.copy:
            return False
        repeats = any(s == 0 and n > 1 for s, n in zip(p.view.strides, p.view.shape, strict=True))
        in_list = self.v.operator.contract.lists
        rows = space in MATRICES and not in_list
        return not (p.kind == "dense" or (p.kind == "rows" and rows and not (is_written and repeats)))

    def run(self) -> str:
        """Makes the call. Returns whether it was refused; raises AssertionError where anything is wrong."""
        before = {n: p.array._version for n, p in self.places().items() if isinstance(p.array, torch.Tensor)}
        arguments = {n: p.array for n, p in self.given.items()}
        if self.out:
            self.words["out"] = tuple(None if p is None else p.array for p in self.out)
        if self.libraries == HOST:
            self.words["threads"] = 1
        try:
            made = self.v.operator(**arguments, **self.words, copy=self.copy)
        except ArgumentError as error:
            name = str(error).split(":")[0].replace("[0]", "")
            assert "accepted" in str(error) and name in self.places(), error
            assert self.may_be_refused(name), error
            assert all(p.untouched() for p in self.places().values()), "memory written by a refused call"
            return "refused"
        got = made if isinstance(made, tuple) else (made,)
        first = next(iter(p.array for p in self.given.values()))
        for o, g, w in zip(self.v.graph.outputs, got, self.want, strict=True):
            assert bits(g) == bits(w), f"{o.name} differs"
            mine = self.given[o.name].array if o.inplace else self.places().get(f"out ({o.name})")
            mine = mine.array if isinstance(mine, Placed) else mine
            assert g is mine if mine is not None else library_of(g) == library_of(first)
        for n, p in self.places().items():
            is_written = n in self.written or n.startswith("out")
            assert p.guards_untouched() if is_written else p.untouched(), f"{n}: memory that is not its own was written"
            if n in before:
                assert (p.array._version > before[n]) == is_written, f"{n}: torch was not told the truth"
        if not self.written and self.rng.random() < 0.3:  # as one of its kind that was checked before
            again = self.v.operator(**arguments, **self.words, copy=self.copy)
            for g, w in zip(again if isinstance(again, tuple) else (again,), self.want, strict=True):
                assert bits(g) == bits(w), "a repeated call differs"
        return "equal"

    def describe(self) -> str:
        """Where all tensors lie."""
        where = {n: (p.kind, p.view.shape, p.view.strides) for n, p in self.places().items()}
        return f"{self.v} of {self.library}, copy={self.copy}: {where}"


def drawn_calls(seed: int, calls: int, of: list[Variant], libraries: tuple[str, ...] = HOST) -> str:
    """Draws calls of these operators in turn, and says how many were equal and refused. Raises AssertionError for the
    first that is wrong."""
    rng = np.random.default_rng(seed)
    counted: Counter[tuple[str, str]] = Counter()
    tensors = 0
    for number in range(calls):
        v = of[number % len(of)]
        drawn = Drawn(rng, v, libraries)
        tensors += len(drawn.places())
        try:
            counted[drawn.run(), str(v)] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, call {number}: {error}; {drawn.describe()}") from error
    for v in of:
        equal, refused = counted["equal", str(v)], counted["refused", str(v)]
        assert equal > refused / 2 > 0 or calls < 100 * len(of), f"{v}: {equal} equal, {refused} refused"
    equal = sum(n for (how, _), n in counted.items() if how == "equal")
    return (
        f"{calls} calls of {len(of)} operators and options, {tensors} tensors in drawn layouts, seed {seed}: "
        f"{equal} equal to calls on contiguous copies, {calls - equal} refused by name"
    )
