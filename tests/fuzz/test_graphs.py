"""Small definitions, as a reader might write them, drawn over all of the language: each is refused with a line of its
own, or verified on the CPU and the simulated device, as numbers and as hashes. Never refuted, never a crash.

    TOKITAI_FUZZ_SEED=7 TOKITAI_FUZZ_GRAPHS=10000 pytest tests/fuzz

draws others. What fails is printed as a program that can be run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trying
from drawn import FAMILIES, program
from trying import Tried, counts, load, try_programs

from tokitai.emit.cpp import KernelText
from tokitai.errors import DefinitionError
from tokitai.families import emit_cpu, make_plan
from tokitai.lang import PRIMITIVES
from tokitai.toolchain.build import isas_here

SEED = int(os.environ.get("TOKITAI_FUZZ_SEED", "2026"))
GRAPHS = int(os.environ.get("TOKITAI_FUZZ_GRAPHS", "2000"))
TOGETHER = 250


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, GRAPHS, TOGETHER))
def test_every_graph_is_refused_by_its_line_or_verified(
    start: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    isas = isas_here()  # each instruction set in turn
    isa = isas[start // TOGETHER % len(isas)]
    tried = try_programs(SEED, range(start, min(start + TOGETHER, GRAPHS)), tmp_path, isa, TOGETHER)
    record_property("fuzzed", {"seed": SEED, "counts": json.dumps(counts(tried))})
    failed = [t for t in tried if t.failure]
    shown = "\n\n".join(f"{t.failure}\n{'-' * 40}\n{t.program}" for t in failed[:5])
    assert not failed, f"{len(failed)} of {len(tried)} graphs ({isa}, TOKITAI_FUZZ_SEED={SEED}):\n{shown}"
    verified = sum(t.outcome == "verified" for t in tried)
    assert verified > len(tried) * 0.7, counts(tried)


@pytest.mark.slow
def test_every_primitive_and_family_is_among_what_is_verified(tmp_path: Path) -> None:
    """Those that have a plan: the test above fails where one of them is not verified."""
    seen: set[str] = set()
    families: set[str] = set()
    formats: set[str] = set()
    for number in range(GRAPHS):
        p = program(SEED, number)
        t = Tried(p, tmp_path / f"{p.name}.py")
        try:
            graph = load(t).trace(p.dtype, p.present, p.options)
            make_plan(graph)
        except DefinitionError:
            continue
        seen |= {n.op for n in graph.nodes}
        families.add(p.family)
        formats |= {str(i.format) for i in graph.inputs} | {o.format for o in graph.outputs}
    assert seen == set(PRIMITIVES)
    assert families == {f.__name__.removesuffix("_family") for f in FAMILIES}
    assert formats == {"f16", "bf16", "f32", "i32", "i64", "u32"}


def first_verified(tmp_path: Path, seed: int, has: str) -> int:
    """The number of a graph whose kernel for the CPU contains these words."""
    for number in range(200):
        p = program(seed, number)
        t = Tried(p, tmp_path / f"probe_{p.name}.py")
        trying.trace(t)
        if t.plan is not None and has in emit_cpu(t.plan).text:
            return number
    raise AssertionError(has)


@pytest.mark.parametrize(
    ("was", "becomes"), [("= sub(", "= add("), ("row_sums<", "row_sums<1, false>(0 * cols, partial, nothing); //")]
)
def test_a_wrong_kernel_is_seen(
    was: str, becomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """One that computes something else, and one that does not compile."""
    number = first_verified(tmp_path, 11, was)

    def altered(plan: Any) -> KernelText:
        text = emit_cpu(plan)
        return KernelText(text.text.replace(was, becomes), text.headers)

    (good,) = try_programs(11, range(number, number + 1), tmp_path / "good", "scalar")
    assert good.outcome == "verified", good.failure
    monkeypatch.setattr(trying, "emit_cpu", altered)
    (bad,) = try_programs(11, range(number, number + 1), tmp_path / "bad", "scalar")
    assert bad.outcome == "failed" and (" got 0x" in bad.failure or "does not compile" in bad.failure)


def test_a_refusal_of_another_line_is_seen(tmp_path: Path) -> None:
    t = Tried(program(1, 0), tmp_path / "own.py")
    line = next(i for i, text in enumerate(t.program.source.splitlines(), 1) if text.startswith("@operator"))
    for place in ("", f"{t.file}:1: ", f"other.py:{line}: "):
        message = f"{place}a thing; accepted: another"
        trying.refusal(t, DefinitionError(message))
        assert t.outcome == "failed"
        t.failure = ""
    trying.refusal(t, DefinitionError(f"{t.file}:{line + 1}: a thing; accepted beside it: another"))
    assert t.outcome == "refused: another"
