"""The small cases that are run under compute-sanitizer: every operator with kernels for a GPU, every variant."""

from __future__ import annotations

import pytest

from tokitai.families.scatter.plan import ScatterPlan
from tokitai.families.scatter.schedule import passes_of, scatter_steps
from tokitai.ops import registry
from tokitai.runtime.gpu_kernel import gpu_plan
from tokitai.verification.verdict import variants
from tools.gpu_small import SHAPES, cases_of, main


@pytest.mark.parametrize("name", registry())
def test_every_variant_has_a_case(name: str) -> None:
    op = registry()[name]
    for v in variants(op):
        graph = op.trace("f16", v.present, dict(v.options))
        plan = gpu_plan(graph, "cuda")
        some = list(cases_of(op, graph, SHAPES, isinstance(plan, ScatterPlan)))
        assert some
        assert len({c.id for c in some}) == len(some)


def test_a_sum_over_entries_takes_all_its_kernels() -> None:
    """A segment longer than a chain, and sorts by one, two and three digits."""
    op = registry()["embedding_backward"]
    graph = op.trace("f16")
    plan = gpu_plan(graph, "cuda")
    assert isinstance(plan, ScatterPlan)
    took, digits = set(), set()
    for c in cases_of(op, graph, SHAPES, True):
        entries = int(c.params["entries"])
        took |= {step.name.rstrip("0123456789_") for step in scatter_steps(plan, *c.shape, entries)}
        digits.add(passes_of(entries))
        if c.name.endswith("entries"):
            assert (c.tensors["ids"] == 1).sum() > plan.block
    assert took == {"count", "place", "find", "work", "trees"} and digits == {1, 2, 3}


def test_they_are_run_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "sim", "--quick", "top_k"]) == 0
    assert capsys.readouterr().out == "3 cases, 0 wrong\n"
    assert main(["--device", "sim", "no_such_operator"]) == 1, "nothing was run"
