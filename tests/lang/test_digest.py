"""A graph's digest stands for the definition's meaning: it changes with that, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tokitai import ops
from tokitai.lang import (
    Cols,
    Matrix,
    Value,
    col_sum,
    columns,
    f16,
    fma,
    function,
    operator,
    outputs,
    round_to,
    row_sum,
    sqrt,
    storage,
    stored,
    where,
)

LIST_DIGESTS = """
from tokitai import ops
for name, op in ops.registry().items():
    for dtype in op.contract.formats:
        print(name, dtype, op.trace(dtype).digest)
"""


def test_equal_in_another_process_with_another_hash_seed() -> None:
    here = [f"{n} {d} {op.trace(d).digest}" for n, op in ops.registry().items() for d in op.contract.formats]
    assert here
    for seed in ("1", "20077"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", LIST_DIGESTS], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split("\n")[:-1] == here


def trace(body: Callable[..., Any], name: str = "probe", dtype: str = "f16") -> str:
    body.__name__ = name
    return operator(body).trace(dtype).digest


def reference(x: Matrix[storage], w: Cols[storage], *, eps: float) -> Any:
    d = x - row_sum(x) / columns(x)
    return outputs(y=d * w, s=sqrt(row_sum(d * d) + eps))


def test_independent_of_variable_names_lines_files_and_the_order_of_independent_work() -> None:
    source = """
from __future__ import annotations
from tokitai.lang import *
from typing import Any


def renamed(x: Matrix[storage], w: Cols[storage], *, eps: float) -> Any:
    unused = row_sum(x * x * x)
    n = columns(x)
    total = row_sum(x)
    centred = x - total / n
    squares = row_sum(centred * centred)
    weighted = centred * w
    return outputs(y=weighted, s=sqrt(squares + eps))
"""
    space: dict[str, Any] = {"__name__": "elsewhere"}
    exec(compile(source, "/elsewhere/renamed.py", "exec"), space)
    sys.modules["elsewhere"] = sys.modules[__name__]  # where annotations are looked up
    try:
        assert trace(space["renamed"]) == trace(reference)
    finally:
        del sys.modules["elsewhere"]


@function
def gate(a: Value) -> Value:
    return where(a > 0.0, a, 0.5 * a)


def gate_with_another_constant() -> Callable[..., Value]:
    def gate(a: Value) -> Value:
        return where(a > 0.0, a, 0.25 * a)

    return function(gate)


other_gate = gate_with_another_constant()


def build(change: str) -> Callable[..., Any]:
    """A definition, with one thing changed."""

    def plain(x: Matrix[storage], w: Cols[storage], *, eps: float) -> Any:
        difference = w - x if change == "operands of sub" else x - w
        difference = x + w if change == "operation" else difference
        difference = difference if change == "term" else difference + x * w
        shift = {"zero": -0.0, "constant": 1.5}.get(change, 0.0)
        y = fma(difference, w, x) if change != "rounding" else difference * w + x
        y = y + shift
        y = y * (eps + 1) if change != "host operation" else y * (eps - 1)
        y = round_to(y, f16) if change == "narrowing" else y
        y = (other_gate if change == "body of a function" else gate)(y)
        total = col_sum(y) if change == "direction" else row_sum(y)
        results: dict[str, Any] = dict(y=y, s=stored(total, f16) if change == "format of a result" else total)
        if change == "order of results":
            results = dict(s=results["s"], y=results["y"])
        if change == "name of a result":
            results["z"] = results.pop("s")
        if change == "in place":
            results["x"] = results.pop("y")
        return outputs(**results)

    return plain


CHANGES = [
    "operands of sub", "operation", "term", "zero", "constant", "rounding", "host operation", "narrowing",
    "body of a function", "direction", "format of a result", "order of results", "name of a result", "in place",
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changes_with_any_change_of_the_definition(change: str) -> None:
    assert trace(build(change)) != trace(build("nothing")) == trace(build("nothing"))


def test_all_changes_differ_from_each_other() -> None:
    assert len({trace(build(c)) for c in CHANGES}) == len(CHANGES)


def test_changes_with_formats_spaces_and_names() -> None:
    def doubled(x: Matrix[storage], w: Cols[storage], *, eps: float) -> Any:
        return x * w * eps

    def of_f16(x: Matrix[f16], w: Cols[storage], *, eps: float) -> Any:
        return x * w * eps

    def of_matrices(x: Matrix[storage], w: Matrix[storage], *, eps: float) -> Any:
        return x * w * eps

    def of_another_scalar(x: Matrix[storage], w: Cols[storage], *, lr: float) -> Any:
        return x * w * lr

    def of_another_tensor(x: Matrix[storage], v: Cols[storage], *, eps: float) -> Any:
        return x * v * eps

    digests = [trace(d) for d in (doubled, of_matrices, of_another_scalar, of_another_tensor)]
    digests += [trace(doubled, "other_name"), trace(doubled, dtype="bf16"), trace(doubled, dtype="f32")]
    digests += [trace(of_f16, dtype="bf16")]
    assert len(set(digests)) == len(digests)
    assert trace(of_f16, dtype="f16") == trace(doubled, dtype="f16"), "the same formats in the end"
